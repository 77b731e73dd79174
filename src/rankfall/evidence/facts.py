"""Facts of ranks and slots of one attempt, from records in any order.

torch reports no rounds: a start with a repeated rank or another world size begins one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Mapping
from typing import Any, Final, Literal, TypeVar

import msgspec

from rankfall.evidence.node_clocks import NodeClocks
from rankfall.evidence.readers.torchrun import Reported
from rankfall.model import ExitInfo, RankFacts, Record, SlotFacts
from rankfall.model.evidence import SlotLauncher
from rankfall.model.exit_codes import SIGNALLED
from rankfall.rundir.records import Found

K = TypeVar("K", bound=Hashable)


class Seat(msgspec.Struct, frozen=True, kw_only=True):
    """Facts from the start of a rank's process.

    ``at`` in nanoseconds since the epoch by one clock; None sorts last.
    """

    slot: int | None
    local_rank: int | None
    rank: int
    world_size: int | None
    at: int | None


def rounds_of(seats: Mapping[K, Seat]) -> dict[K, int]:
    """Round of each process, from 0, in order of their starts."""
    found: dict[K, int] = {}
    number, held = 0, _Round()
    for key, seat in sorted(seats.items(), key=lambda item: (item[1].at is None, item[1].at or 0, item[1].rank)):
        if not held.takes(seat):
            number, held = number + 1, _Round()
        held.add(seat)
        found[key] = number
    return found


class _Round:
    def __init__(self) -> None:
        self._places: set[tuple[int | None, int | None]] = set()
        self._ranks: set[int] = set()
        self._world: int | None = None

    def takes(self, seat: Seat) -> bool:
        place, world = (seat.slot, seat.local_rank), seat.world_size
        other_world = self._world is not None and world is not None and world != self._world
        return not (place in self._places or seat.rank in self._ranks or other_world)

    def add(self, seat: Seat) -> None:
        self._places.add((seat.slot, seat.local_rank))
        self._ranks.add(seat.rank)
        self._world = self._world if seat.world_size is None else seat.world_size


# Maximum seconds between a process's end and its reaping.
_WAITED_S: Final = 0.05
_STOP_SIGNALS: Final = frozenset({1, 2, 3, 9, 15})
# Signals that a shell reports as 128+N; 138 is a program's own request for a retry.
_CHILD_SIGNALS: Final = frozenset({1, 2, 3, 4, 6, 7, 8, 9, 11, 15})

Process = tuple[int | None, int | None]  # slot, pid


class Facts:
    """Facts of one attempt.

    ``elastic``: slots may join and leave. ``here``: slots share this file system, whose times reveal clock offsets.
    """

    def __init__(self, slots: dict[int, SlotFacts], *, elastic: bool = False, here: bool = True) -> None:
        self.slots = dict(slots)
        self._elastic = elastic
        self._gang_rounds: dict[Process, int] = {}
        self._here = here
        self._starts: dict[Process, tuple[Record, str]] = {}
        self._ends: dict[Process, tuple[Record, str]] = {}
        # By slot and ordinal: ends of the plain launcher's children, which may be shells around the ranks.
        self._child_ends: dict[tuple[int | None, int], tuple[Record, str]] = {}
        self._last_starts: dict[tuple[int | None, int], tuple[int, int | None]] = {}
        self._errors: dict[Process, Record] = {}
        self._rounds: dict[tuple[int | None, int], list[Process]] = defaultdict(list)
        self._agent_stopped: set[Process] = set()
        # First outside signal by the slot's clock; 0 if unknown.
        self._signalled: dict[int | None, int] = {}
        self._reported: dict[Process, tuple[Reported, str]] = {}
        self._reported_ranks: dict[int, tuple[Reported, int | None, str]] = {}
        self.clocks = NodeClocks(self._node_of)
        self._steps: dict[Process, tuple[int, str | None, int | None]] = {}
        self._last_lines: dict[tuple[int | None, int], int] = {}
        self._worked: dict[tuple[int | None, int], int] = {}
        # By slot and ordinal: streams that state complete work.
        self._finished: dict[tuple[int | None, int], set[str]] = {}
        # Time of Rankfall's stop by this machine's clock, or None.
        self._stop_at: int | None = None
        self._rank_facts: tuple[RankFacts, ...] | None = None

    def set_stop(self, at_ns: int) -> None:
        """Sets the time of Rankfall's stop; later signals were Rankfall's."""
        if self._stop_at != at_ns:
            self._stop_at = at_ns
            self._rank_facts = None

    def add(self, found: Found) -> None:
        """Adds one record."""
        self._rank_facts = None
        record = found.record
        key = (record.slot, record.pid)
        self._clock(found)
        if record.kind == "start" and record.rank is not None:
            held = self._starts.get(key)
            if held is None or (held[0].writer, record.writer) == ("wrapper", "hook"):
                if held is None:
                    self._rounds[record.slot, record.rank].append(key)
                self._starts[key] = (record, found.name)
                if record.ordinal is not None:
                    place = record.slot, record.ordinal
                    begun = record.at_ns or 0, record.pid
                    self._last_starts[place] = max(begun, self._last_starts.get(place, begun), key=lambda one: one[0])
        elif record.kind == "end":
            self._ends[key] = (record, found.name)
            if record.rank_source == "launcher" and record.ordinal is not None:
                self._child_ends[record.slot, record.ordinal] = (record, found.name)
        elif record.kind == "error":
            self._errors[key] = record
        elif record.kind == "kill" and record.exit is not None and record.exit.how == "received":
            at = record.at_ns or 0
            self._signalled[record.slot] = min(at, self._signalled.get(record.slot, at))
        elif record.kind in {"slot_start", "slot_end"} and record.slot is not None:
            self._slot(record, found.name)

    def add_report(self, reported: Reported, *, slot: int | None, where: str) -> None:
        """Adds one of torchrun's reports; ignored under the plain launcher, as the job's text."""
        place = self.slots.get(slot) if slot is not None else None
        if place is not None and place.launcher == "plain":
            return
        self._rank_facts = None
        key = (slot, reported.pid)
        if reported.kind == "stopped":
            self._agent_stopped.add(key)
        elif reported.kind == "exit" and reported.code is not None:
            self._reported[key] = (reported, where)
            if reported.rank is not None:
                self._reported_ranks[reported.rank] = (reported, slot, where)

    def add_step(self, process: Process, step: int, phase: str | None, *, at: int | None = None) -> None:
        """Sets the last step that a process reported, and its time by the process's clock."""
        held = self._steps.get(process)
        if held is None or held[:2] != (step, phase):
            self._steps[process] = (step, phase, at)
            self._rank_facts = None

    def step_of(self, process: Process) -> int | None:
        """Last step that a process reported; None without one."""
        held = self._steps.get(process)
        return held[0] if held else None

    def add_line_time(self, *, slot: int, ordinal: int, at: int, worked_at: int | None = None) -> None:
        """Sets the arrival times of the last bytes of a process, and of its newest line that shows work."""
        self._last_lines[slot, ordinal] = at
        self._worked[slot, ordinal] = max(worked_at or 0, self._worked.get((slot, ordinal), 0))
        self._rank_facts = None

    def set_finished(self, *, slot: int, ordinal: int, by: str, done: bool) -> None:
        """Sets whether the text of a process's stream ``by`` states that its work is complete (``done``)."""
        reporters = self._finished.setdefault((slot, ordinal), set())
        if (by in reporters) != done:
            (reporters.add if done else reporters.discard)(by)
            self._rank_facts = None

    def set_slot(self, facts: SlotFacts) -> None:
        """Sets facts of a slot that are not from records."""
        if self.slots.get(facts.slot) != facts:
            self.slots[facts.slot] = facts
            self._rank_facts = None

    def renew(self, slot: int, instance: int) -> None:
        """Forgets the facts of a slot that restarts as start ``instance``."""
        held = self.slots[slot]
        self.slots[slot] = SlotFacts(
            slot=slot,
            instance=instance,
            role=held.role,
            node=held.node if self._here else None,
            launcher=held.launcher,
            state="expected",
        )
        tables: tuple[dict[Any, Any], ...] = (
            *(self._starts, self._last_starts, self._ends, self._child_ends, self._errors, self._rounds),
            *(self._reported, self._steps, self._last_lines, self._worked),
        )
        for table in tables:
            for key in [key for key in table if key[0] == slot]:
                del table[key]
        self._agent_stopped = {key for key in self._agent_stopped if key[0] != slot}
        self._reported_ranks = {rank: report for rank, report in self._reported_ranks.items() if report[1] != slot}
        self._signalled.pop(slot, None)
        self._rank_facts = None

    def rank_of(self, slot: int | None, pid: int | None) -> int | None:
        """Global rank of a process by its start record; None if unknown."""
        held = self._starts.get((slot, pid))
        return held[0].rank if held else None

    def start_of(self, slot: int | None, pid: int | None) -> Record | None:
        """Start record of a process; None if it has not arrived."""
        held = self._starts.get((slot, pid))
        return held[0] if held else None

    def explains_exit(self, record: Record) -> bool:
        """True if an error record explains its process's end; a caught ``sys.exit`` ended nothing."""
        asked = record.error.exit_code if record.error else None
        if asked is None:
            return True
        end = self._end_of((record.slot, record.pid), record.ordinal)
        return end is not None and end[0].exit is not None and end[0].exit.code in {asked & 0xFF, None}

    def _end_of(self, key: Process, ordinal: int | None) -> tuple[Record, str] | None:
        """End of a process, or of the launcher's child around it, such as a shell that ran it last."""
        own = self._ends.get(key)
        place = key[0], ordinal if ordinal is not None else -1
        if own is not None or self._last_starts.get(place, (0, None))[1] != key[1]:
            return own
        return self._child_ends.get(place)

    def ranks(self) -> tuple[RankFacts, ...]:
        """Facts of each rank process, older rounds included, sorted."""
        if self._rank_facts is None:
            self._rank_facts = self._all_rank_facts()
        return self._rank_facts

    def _round(self, key: Process, start: Record, rank: int) -> int:
        if start.round is not None:
            return start.round
        found = self._gang_rounds.get(key)
        return self._rounds[key[0], rank].index(key) if found is None else found

    def _seats(self) -> dict[Process, Seat]:
        return {
            key: Seat(
                slot=key[0],
                local_rank=_local_rank(start),
                rank=start.rank if start.rank is not None else -1,
                world_size=start.world_size,
                at=None if start.at_ns is None else self.clocks.ours(key[0], start.at_ns),
            )
            for key, (start, _) in self._starts.items()
        }

    def _all_rank_facts(self) -> tuple[RankFacts, ...]:
        if self._elastic:
            self._gang_rounds = rounds_of(self._seats())
        rank_facts = [self._sheet(key, record, name) for key, (record, name) in self._starts.items()]
        known = {sheet.rank for sheet in rank_facts}
        for rank, (reported, slot, where) in sorted(self._reported_ranks.items()):
            if rank not in known and self.rank_of(slot, reported.pid) is None:
                rank_facts.append(self._facts_from_report(rank, reported, slot, where))
        return tuple(sorted(rank_facts, key=lambda r: (r.rank, r.round or 0, r.started_at or 0, r.pid or 0)))

    def _sheet(self, key: Process, start: Record, name: str) -> RankFacts:
        slot, pid = key
        end = self._end_of(key, start.ordinal)
        error = self._errors.get(key)
        exit_info = end[0].exit if end else None
        if end is not None and exit_info is not None and end[0].pid != pid:
            exit_info = _signal_of_child(exit_info)
        if (exit_info is None or exit_info.how == "gone") and key in self._reported:
            exit_info = _reported_exit(self._reported[key][0])
        rank = start.rank if start.rank is not None else -1
        place = self.slots.get(slot) if slot is not None else None
        ended = end is not None or key in self._reported
        step, phase, step_at = self._steps.get(key, (None, None, None))
        if error is not None and error.step is not None:
            step, step_at = error.step, error.step_ns
        phase = (error.phase if error else None) or (end[0].phase if end else None) or phase
        how = exit_info.how if exit_info else None
        process = slot, start.ordinal if start.ordinal is not None else -1
        return RankFacts(
            rank=rank,
            slot=slot,
            node=start.node or (place.node if place else None),
            role=start.role or (place.role if place else None),
            local_rank=_local_rank(start),
            group_rank=start.group_rank,
            pod=start.pod,
            pid=pid,
            round=self._round(key, start, rank),
            state="ended" if ended else "running",
            exit_code=exit_info.code if exit_info else None,
            signal=exit_info.signal if exit_info else None,
            killed_by=self._killer(key, exit_info, end[0].at_ns if end else None),
            started_at=start.at_ns,
            ended_at=end[0].at_ns if end else None,
            ended_uncertainty=_WAITED_S if how in {"wait", "pidfd"} else 0.5,
            hook="loaded" if start.writer == "hook" else "absent",
            phase=phase,
            step=step,
            step_at=step_at,
            finished=bool(self._finished.get(process)),
            last_line_at=self._last_lines.get(process),
            worked_at=self._worked.get(process) or None,
            where=f"records/{end[1] if end else name}",
        )

    def _facts_from_report(self, rank: int, reported: Reported, slot: int | None, where: str) -> RankFacts:
        place = self.slots.get(slot) if slot is not None else None
        info = _reported_exit(reported)
        return RankFacts(
            rank=rank,
            slot=slot,
            node=place.node if place else None,
            role=place.role if place else None,
            local_rank=reported.local_rank,
            pid=reported.pid,
            state="ended",
            exit_code=info.code,
            signal=info.signal,
            killed_by=self._killer((slot, reported.pid), info, None),
            hook="absent",
            where=where,
        )

    def _killer(
        self, key: Process, info: ExitInfo | None, ended: int | None
    ) -> Literal["wrapper", "agent", "foreign"] | None:
        if info is None or info.signal is None:
            return None
        if info.ours:
            return "wrapper"
        signalled = info.signal in _STOP_SIGNALS and self._was_signalled(key[0], ended)
        if signalled and key not in self._agent_stopped and self._signal_was_ours(key[0]):
            return "wrapper"
        if info.signal in _STOP_SIGNALS and (key in self._agent_stopped or signalled):
            return "agent"  # its launcher stopped it
        return "foreign"

    def _was_signalled(self, slot: int | None, ended: int | None) -> bool:
        """True if the slot received a signal from outside before its process ended at ``ended``."""
        at = self._signalled.get(slot)
        return at is not None and (ended is None or ended >= at)

    def _signal_was_ours(self, slot: int | None) -> bool:
        """True if the first signal from outside came after Rankfall's stop, within the clock's accuracy."""
        at = self._signalled.get(slot)
        if not at or self._stop_at is None:
            return False
        return at + self.clocks.late(slot) >= self._stop_at

    def _slot(self, record: Record, name: str) -> None:
        slot = record.slot if record.slot is not None else -1
        held = self.slots.get(slot) or SlotFacts(slot=slot)
        info = record.exit or ExitInfo()
        if record.kind == "slot_start":
            if held.state in {"expected", "unknown"}:
                held = msgspec.structs.replace(held, state="running")
            held = msgspec.structs.replace(
                held,
                node=record.node or held.node,
                role=record.role or held.role,
                pod=record.pod or held.pod,
                launcher=held.launcher or _launcher(record),
                started_at=record.at_ns,
                recorder=True,
            )
        else:
            held = msgspec.structs.replace(
                held,
                state="ended",
                exit_code=info.code,
                signal=info.signal,
                killed_by="wrapper" if info.ours else "foreign" if info.signal is not None else None,
                ended_at=record.at_ns,
                ended_uncertainty=_WAITED_S,
                oom_kills=record.oom_kills,
                recorder=True,
                signalled=info.sender_pid is not None,
                where=f"records/{name}",
            )
        self.slots[slot] = held

    def _clock(self, found: Found) -> None:
        """Bounds the error of this slot's clock: the writer sets a record's time right before the file system does."""
        record = found.record
        if self._here and record.at_ns is not None and record.kind in {"slot_start", "start"}:
            self.clocks.written(record.slot, record.at_ns, found.mtime)

    def _node_of(self, slot: int | None) -> str | None:
        facts = self.slots.get(slot) if slot is not None else None
        return facts.node if facts is not None else None


def _launcher(record: Record) -> SlotLauncher | None:
    names: dict[str | None, SlotLauncher] = {"torchrun": "torchrun", "plain": "plain", "exec": "exec"}
    return names.get(record.launcher)


def _signal_of_child(info: ExitInfo) -> ExitInfo:
    """Returns the signal that a shell around a rank reports as 128+N."""
    signal = (info.code or 0) - SIGNALLED
    return msgspec.structs.replace(info, code=None, signal=signal) if signal in _CHILD_SIGNALS else info


def _local_rank(start: Record) -> int | None:
    """Returns torchrun's local rank, derived: virtual ones are all 0."""
    per_node, group, rank = start.local_world_size, start.group_rank, start.rank
    if per_node and group is not None and rank is not None and 0 <= rank - group * per_node < per_node:
        return rank - group * per_node
    return start.local_rank


def _reported_exit(reported: Reported) -> ExitInfo:
    code = reported.code
    if code is None:
        return ExitInfo(how="gone")
    return ExitInfo(signal=-code, how="agent") if code < 0 else ExitInfo(code=code, how="agent")
