"""Facts of slots and evidence of pod ends, from the pod journal.

A slot has ended when its container has and its log is stored completely.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

import msgspec

from rankfall.evidence import builders
from rankfall.evidence.cluster.reasons import NEVER_BEGAN, NOT_FOUND, end_evidence, waiting_evidence
from rankfall.evidence.readers.prefixes import parse_prefix
from rankfall.evidence.readers.scan import scan
from rankfall.model import Evidence, Record, SlotFacts, decoding
from rankfall.model.timestamps import Bound
from rankfall.rundir.cluster.clock_bounds import of_pod
from rankfall.rundir.cluster.journal import JournalReader, journal_path
from rankfall.rundir.cluster.log_routes import RECORD_MARK
from rankfall.rundir.cluster.marks import OWNER_NAME, Identity, Stop, StopMark, abandoned, identity_of
from rankfall.rundir.cluster.pod_facts import STOP_SIGNALS, ContainerFact, PodFact, stamp_ns
from rankfall.rundir.streams.content import open_content
from rankfall.verdict.signatures.catalogue import Catalogue

_NS: Final = 1_000_000_000


class PodView:
    """Reads the pod journal incrementally."""

    def __init__(self, run: Path, *, attempt: int) -> None:
        self._journal = JournalReader(journal_path(run, attempt))
        self._run = run
        self._attempt = attempt
        self._where = str(self._journal.path.relative_to(run))
        self._mark = StopMark(run, attempt)
        self._stop: Stop | None = None
        self._given_up: frozenset[int] = frozenset()
        self._by_slot: dict[int, PodFact] = {}
        # By UID: the last snapshot before the deletion request, with the real waiting reasons.
        self._before: dict[str, PodFact] = {}
        self._reported: set[str] = set()
        # First sight of a pod's end, by this machine's clock.
        self._end_seen: dict[str, int] = {}
        # By slot: index of the observed pod in order of creation; default newest.
        self._looked_at: dict[int, int] = {}
        self._moved = False
        # By slot: input of the last merge that changed nothing.
        self._merged: dict[int, tuple[SlotFacts, PodFact, Stop | None, bool, float]] = {}
        # By UID: slot and start number.
        self._numbers: dict[str, tuple[int, int]] = {}

    def select_start(self, slot: int, number: int) -> None:
        """Observes this pod of the slot from now on, counted from 0 in order of creation."""
        if self._looked_at.get(slot) != number:
            self._looked_at[slot] = number
            self._moved = True

    def number_of(self, slot: int, uid: str | None) -> int | None:
        """Number of this pod among the slot's pods; None if the journal does not contain it."""
        place = self._numbers.get(uid or "")
        return place[1] if place is not None and place[0] == slot else None

    @property
    def stop(self) -> Stop | None:
        """Mark of Rankfall's stop as of the last poll; None without one."""
        return self._stop

    @property
    def problems(self) -> list[str]:
        """Messages about unusable lines."""
        return self._journal.problems

    def poll(self) -> tuple[bool, list[Evidence]]:
        """True if the journal has new data, and evidence of ends, each piece once and as first seen."""
        found: list[Evidence] = []
        self._stop = self._mark.read()
        self._given_up = abandoned(self._run, self._attempt) if self._stop is not None else frozenset()
        facts = self._journal.poll()
        for fact in facts:
            if fact.deleting is None and not fact.gone:
                self._before[fact.uid] = fact
            if fact.over:
                self._end_seen.setdefault(fact.uid, fact.seen_ns)
        moved, self._moved = self._moved, False
        if facts or moved:
            self._arrange()
        for fact in self._journal.pods.values() if moved else facts:
            if not self._counts(fact):
                continue
            for piece in end_evidence(fact, attempt=self._attempt):
                if piece.id not in self._reported:
                    self._reported.add(piece.id)
                    found.append(piece)
        return bool(facts) or moved, found

    def counting(self) -> list[PodFact]:
        """All pods of the slots, except those of starts that are not observed."""
        return [fact for fact in self._journal.pods.values() if self._counts(fact)]

    def before(self) -> dict[str, PodFact]:
        """Last snapshot of each pod before its deletion was requested, by UID."""
        return self._before

    def _counts(self, fact: PodFact) -> bool:
        number = self._looked_at.get(fact.slot) if fact.slot is not None else None
        return number is None or self._numbers.get(fact.uid) == (fact.slot, number)

    def _arrange(self) -> None:
        """Sets the pod of each slot, and the order of pods where starts are distinguished."""
        self._by_slot = self._journal.by_slot()
        if not self._looked_at:
            return
        own: dict[int, list[PodFact]] = {slot: [] for slot in self._looked_at}
        for fact in sorted(self._journal.pods.values(), key=lambda fact: fact.created or ""):
            if fact.slot in own:
                self._numbers[fact.uid] = (fact.slot, len(own[fact.slot]))
                own[fact.slot].append(fact)
        for slot, number in self._looked_at.items():
            if number < len(own[slot]):
                self._by_slot[slot] = own[slot][number]
            else:
                self._by_slot.pop(slot, None)

    def waiting(self) -> list[Evidence]:
        """Reasons against starts of slots; for a deleted pod, its earlier ones."""
        snapshots = (self._before.get(fact.uid, fact) for fact in self._by_slot.values())
        return [piece for fact in snapshots for piece in waiting_evidence(fact, attempt=self._attempt)]

    def pods(self) -> dict[int, PodFact]:
        """Pod of each slot: the newest one, or the observed one."""
        return self._by_slot

    def clock_bounds(self, *, server: Bound) -> Iterator[tuple[int, Bound]]:
        """Yields each slot's clock offset by its pod's timestamps; ``server`` is the API server's."""
        for slot, fact in self._by_slot.items():
            yield slot, of_pod(fact, server=server)

    def merged(self, held: SlotFacts, *, late_ns: int = 0) -> SlotFacts:
        """Slot's facts with its pod's; the wrapper's recorded end has precedence.

        ``late_ns``: nanoseconds by which an event may be later than its timestamp.
        """
        fact = self._by_slot.get(held.slot)
        if fact is None:
            return held
        given_up = held.slot in self._given_up
        before = self._merged.get(held.slot)
        if (
            before is not None
            and before[0] is held
            and before[1] is fact
            and before[2:] == (self._stop, given_up, late_ns)
        ):
            return held
        found = self._with_pod(held, fact, given_up=given_up, late_ns=late_ns)
        if found == held:
            self._merged[held.slot] = (held, fact, self._stop, given_up, late_ns)
        return found

    def _with_pod(self, held: SlotFacts, fact: PodFact, *, given_up: bool, late_ns: int) -> SlotFacts:
        started = held.started_at or (stamp_ns(fact.main.started) if fact.main else None)
        ready = fact.condition("Ready")
        held = msgspec.structs.replace(
            held,
            node=fact.node or held.node,
            pod=fact.name,
            started_at=started,
            platform_ready=not fact.gone and ready is not None and ready.status == "True",
        )
        if held.state == "ended":
            return self._ours(held, late_ns=late_ns)
        if fact.log != "open" and fact.over:
            end = fact.main
            if end is None or end.state != "terminated" or end.reason == NOT_FOUND:
                # Deleted or refused without a reported end.
                return msgspec.structs.replace(held, state="lost", where=self._where)
            return self._ended(held, fact, end, late_ns=late_ns)
        if fact.overdue or given_up:
            return msgspec.structs.replace(held, state="lost", where=self._where)
        begun = fact.main is not None and fact.main.state in {"running", "terminated"}
        return msgspec.structs.replace(held, state="running") if begun and held.state == "expected" else held

    def _ours(self, held: SlotFacts, *, late_ns: int) -> SlotFacts:
        """Attributes an end that the wrapper recorded to Rankfall if it followed Rankfall's stop.

        The wrapper cannot know who caused the kubelet's signal.
        """
        stop = self._stop
        foreign = held.killed_by == "foreign" and held.signal in STOP_SIGNALS
        # A signaled command may end with an exit code, as torchrun does.
        answered = held.signalled and held.killed_by is None
        if stop is None or held.slot in stop.after or not (foreign or answered) or held.ended_at is None:
            return held
        # With a list of ends before the stop, any other end is later.
        late_ns += round((held.ended_uncertainty or 0) * _NS) if stop.after else 0
        after = held.ended_at + late_ns >= stop.at_ns
        return msgspec.structs.replace(held, killed_by="wrapper") if after else held

    def _ended(self, held: SlotFacts, fact: PodFact, end: ContainerFact, *, late_ns: int) -> SlotFacts:
        """Container's end, if the wrapper recorded none."""
        signal = end.ended_by
        at = stamp_ns(end.finished)
        ours = signal in STOP_SIGNALS and self._after_stop(fact, at, late_ns=late_ns)
        return msgspec.structs.replace(
            held,
            state="ended",
            exit_code=None if signal is not None else end.exit_code,
            signal=signal,
            killed_by=None if signal is None else "wrapper" if ours else "foreign",
            ended_at=at,
            # Whole seconds, truncated.
            ended_uncertainty=1.0,
            where=self._where,
        )

    def _after_stop(self, fact: PodFact, at: int | None, *, late_ns: int) -> bool:
        """True if this end was first seen after Rankfall's stop, and its timestamp agrees."""
        stop = self._stop
        if stop is None or fact.slot in stop.after or self._end_seen.get(fact.uid, fact.seen_ns) < stop.at_ns:
            return False
        return at is None or at + _NS + late_ns >= stop.at_ns


# Bytes at the end of a stream that may repeat a message of at most 4 KiB.
_TAIL: Final = 64 << 10


class LastWords:
    """Text in the status of ended containers, where their log was not read to its end."""

    def __init__(self, run: Path, *, attempt: int, catalogue: Catalogue) -> None:
        self._logs = run / "logs" / f"attempt-{attempt}"
        self._attempt = attempt
        self._catalogue = catalogue
        self._decoder = decoding.decoder(Record)
        self._read: set[tuple[str, int]] = set()

    def new(self, pods: Iterable[PodFact]) -> list[Evidence]:
        """Evidence of new messages, without lines that the log gave."""
        found: list[Evidence] = []
        for fact in pods:
            for end in (fact.last, fact.main) if fact.log == "lost" and fact.slot is not None else ():
                key = (fact.uid, end.restarts) if end is not None else None
                if end is None or key is None or end.state != "terminated" or not end.message or key in self._read:
                    continue
                self._read.add(key)
                if end.reason not in NEVER_BEGAN:
                    found += self._of(fact, end, end.message)
        return found

    def _of(self, fact: PodFact, end: ContainerFact, message: str) -> Iterator[Evidence]:
        data = b"\n".join(line for line in message.encode(errors="replace").split(b"\n") if not self._is_record(line))
        stored = self._stored(fact, end)
        only = next(iter(fact.ranks.values())) if len(fact.ranks) == 1 else None
        for finding in scan(data, self._catalogue).found:
            if _words(data[finding.start : finding.end]) not in stored:
                piece = builders.of_finding(
                    finding,
                    stream=f"pod/{fact.name}/{end.restarts}",
                    byte=finding.start,
                    where=f"pod/{fact.name}: termination message",
                    when=None,
                    rank=only,
                    slot=fact.slot,
                    node=fact.node,
                    attempt=self._attempt,
                )
                # A local rank here may be of any process.
                yield msgspec.structs.replace(piece, local_rank=None)

    def _is_record(self, line: bytes) -> bool:
        """True for a record of the wrapper, which is read elsewhere."""
        try:
            self._decoder.decode(line)
        except ValueError:
            return line.startswith(RECORD_MARK)
        return True

    def _stored(self, fact: PodFact, end: ContainerFact) -> set[bytes]:
        """Last stored lines of this instance, without prefixes."""
        mine = Identity(uid=fact.uid, number=end.restarts)
        found: set[bytes] = set()
        for owner in self._logs.glob(f"*-{fact.slot}/*/{OWNER_NAME}"):
            for index in owner.parent.glob("*.idx") if identity_of(owner.parent) == mine else ():
                try:
                    with open_content(index.with_suffix(".log")) as content:
                        data = content.read(max(0, content.size - _TAIL), _TAIL)
                except OSError:
                    continue
                found |= {_words(line) for line in data.split(b"\n")}
        return found


def _words(line: bytes) -> bytes:
    return line[parse_prefix(line).length :].strip()
