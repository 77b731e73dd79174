"""Reads reports of NCCL's RAS service and finds the ranks that are missing or behind.

A rank of the report counts as the job's if its process has that rank, or if only one rank has its process ID: numbers
are those of a communicator. Counts of one report may differ for a moment; two equal reports prove a standstill.

Cost: at most ``_MAX_LINES`` lines of a report.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import msgspec

from rankfall.model import Evidence, RankFacts, Record
from rankfall.model.evidence import digest
from rankfall.model.numbers import whole
from rankfall.model.patterns import bounded

_MAX_LINES: Final = 1000
_LOOK: Final = 512
# Reports of one slot that are compared.
_COMPARED: Final = 2

# Group, communicators, nodes, ranks on a node, ranks in each communicator.
_GROUP: Final = bounded(r"\A {0,9}(\d{1,6}) +\d{1,9} +[\d-]{1,20} +[\d-]{1,20} +(\d{1,9}) +\d{1,9} +[A-Z]", limit=_LOOK)
_COMM: Final = bounded(r"\A#(\d{1,6})-\d{1,6} \(([0-9a-fA-F]{1,32})\) (INCOMPLETE|MISMATCH)\b", limit=_LOOK)
_WORD: Final = bounded(r"\A(INCOMPLETE|DEAD)[ \r]*\Z", limit=_LOOK)
_PROCESS: Final = bounded(r"\A  Process (\d{1,10}) on node ", limit=_LOOK)
_MISSING: Final = bounded(r"\A  The missing ranks?: ([\d, -]{1,400})", limit=_LOOK)
_RANK: Final = bounded(
    r"\A  Rank (\d{1,9})(?: has (?:status ([A-Z]{1,12})|launched up to operation (\d{1,18})|(not) launched any operations))?"
    r" -- (?:GPU .{0,99}? managed by process (\d{1,10}) on node |\[process)",
    limit=_LOOK,
)
_DIFFERENT: Final = bounded(
    r"\A  Communicator ranks have different (?:(status)|(\w{1,30}) operation counts)", limit=_LOOK
)
_SAME: Final = bounded(
    r"\A  (\d{1,9}) ranks have (?:status ([A-Z]{1,12})|launched up to operation (\d{1,18})|(not) launched any operations)",
    limit=_LOOK,
)
# Order of a communicator's life; ranks at an earlier stage are behind. Before NCCL 2.26 NOCOMM was UNKNOWN.
_STAGES: Final = {"INIT": 0, "RUNNING": 1, "FINALIZE": 2, "NOCOMM": 3, "UNKNOWN": 3}


class _Member(msgspec.Struct, frozen=True):
    """A rank as a report names it; ``rank`` is None for a process without number, ``size`` the communicator's."""

    rank: int | None
    size: int | None
    pid: int | None


class Counts(msgspec.Struct):
    """One property of a communicator's ranks: value of each named one, and all values."""

    named: dict[_Member, int] = {}
    all: set[int] = set()


class Report(msgspec.Struct, frozen=True):
    """Findings of one report.

    Attributes:
        missing: Ranks and processes that did not answer, with the words for users.
        values: By communicator and property.
    """

    missing: list[tuple[_Member, str]]
    values: dict[tuple[str, str], Counts]


def read_report(text: str) -> Report:
    """Reads the text of one report; unknown lines are ignored."""
    sizes: dict[str, int] = {}
    missing: list[tuple[_Member, str]] = []
    values: dict[tuple[str, str], Counts] = {}
    size: int | None = None
    name, part, value = "", "", None
    for line in text.split("\n", _MAX_LINES)[:_MAX_LINES]:
        if (group := _GROUP.match(line)) is not None:
            sizes[group[1]] = whole(group[2]) or 0
        elif (comm := _COMM.match(line)) is not None:
            name, size, part, value = comm[2], sizes.get(comm[1]), "", None
            part = "missing" if comm[3] == "INCOMPLETE" else ""
        elif (word := _WORD.match(line)) is not None:
            name, size, part = "", None, "gone" if word[1] == "DEAD" else "unanswered"
        elif (process := _PROCESS.match(line)) is not None and part in {"gone", "unanswered"}:
            words = "is considered dead" if part == "gone" else "does not answer"
            missing.append((_Member(None, None, whole(process[1])), words))
        elif (numbers := _MISSING.match(line)) is not None and part == "missing":
            every = (whole(one.strip()) for one in numbers[1].split(","))
            missing += [
                (_Member(rank, size, None), f"is missing in communicator {name}") for rank in every if rank is not None
            ]
        elif (different := _DIFFERENT.match(line)) is not None:
            part, value = different[1] or different[2], None
            values[name, part] = Counts()
        elif (same := _SAME.match(line)) is not None and (name, part) in values:
            value = _value(part, same[2], same[3], same[4])
            if value is not None:
                values[name, part].all.add(value)
        elif (rank := _RANK.match(line)) is not None:
            member = _Member(whole(rank[1]), size, whole(rank[5]))
            if part == "missing":
                missing.append((member, f"is missing in communicator {name}"))
            elif (name, part) in values:
                own = _value(part, rank[2], rank[3], rank[4]) if rank[2] or rank[3] or rank[4] else value
                if own is not None:
                    values[name, part].named[member] = own
                    values[name, part].all.add(own)
    return Report(missing, values)


def _value(part: str, status: str | None, count: str | None, none: str | None) -> int | None:
    """Stage or number of operations; None for a row that does not state its block's property."""
    if (part == "status") != (status is not None):
        return None
    if status is not None:
        return _STAGES.get(status, max(_STAGES.values()))
    return 0 if none else whole(count) or 0


class _Ranks:
    """Finds the job's rank of a member; None if it is unsure."""

    def __init__(self, ranks: Iterable[RankFacts]) -> None:
        known = list(ranks)
        newest = max((-1 if one.round is None else one.round for one in known), default=-1)
        self.facts = {one.rank: one for one in known if (-1 if one.round is None else one.round) == newest}
        self._by_pid: dict[int, set[int]] = defaultdict(set)
        for one in self.facts.values():
            if one.pid is not None:
                self._by_pid[one.pid].add(one.rank)

    def of(self, member: _Member) -> int | None:
        whole_world = member.rank in self.facts and member.size == len(self.facts)
        if member.pid is None:
            return member.rank if whole_world else None
        same = self._by_pid.get(member.pid, set())
        if whole_world and member.rank in same:
            return member.rank
        return next(iter(same)) if len(same) == 1 else None


def ras_evidence(
    records: Sequence[tuple[str, Record]], *, ranks: Iterable[RankFacts], attempt: int | None
) -> list[Evidence]:
    """Returns evidence from the newest reports: ranks that are missing, else those that are behind."""
    by_slot: dict[int | None, list[tuple[str, Record, Report]]] = defaultdict(list)
    for name, record in sorted(records, key=lambda item: item[1].at_ns or 0):
        by_slot[record.slot].append((name, record, read_report(record.ras or "")))
    named = _Ranks(ranks)
    newest = [reports[-1] for reports in by_slot.values()]
    gone: dict[int, tuple[str, tuple[str, Record]]] = {}
    for name, record, report in newest:
        for member, words in report.missing:
            if (rank := named.of(member)) is not None:
                gone[rank] = (f"NCCL RAS: rank {rank} {words}", (name, record))
    if len(gone) * 2 > len(named.facts):
        # Both sides of a broken network miss the other one.
        return []
    if gone:
        return [
            _piece(named.facts[rank], "rank_stuck", line, source, attempt)
            for rank, (line, source) in sorted(gone.items())
        ]
    return list(_behind([reports for reports in by_slot.values() if len(reports) >= _COMPARED], named, attempt))


def _behind(slots: list[list[tuple[str, Record, Report]]], named: _Ranks, attempt: int | None) -> Iterator[Evidence]:
    """Yields the ranks that are behind in most communicators, unless these are most ranks.

    A rank that left is behind in all of its communicators; those that wait for it are not behind where they wait.
    """
    lag: dict[int, dict[tuple[str, str], tuple[int, int]]] = defaultdict(dict)
    ahead: dict[str, Counter[int]] = defaultdict(Counter)
    source: dict[int, tuple[str, Record]] = {}
    for reports in slots:
        (_, _, before), (name, record, after) = reports[-_COMPARED:]
        for key, counts in after.values.items():
            if before.values.get(key) != counts:
                continue
            least, most = min(counts.all, default=0), max(counts.all, default=0)
            for member, value in counts.named.items():
                rank = named.of(member)
                if rank is None:
                    continue
                if value == least < most:
                    lag[rank][key] = (value, most)
                    source[rank] = (name, record)
                elif value == most and key[1] != "status":
                    ahead[key[0]][rank] += 1
    depth = {rank: len({comm for comm, _ in keys}) for rank, keys in lag.items()}
    deepest = sorted(rank for rank, number in depth.items() if number == max(depth.values()))
    if len(deepest) * 2 > len(named.facts):
        return
    for rank in deepest:
        (comm, part), (value, most) = min(lag[rank].items())
        other = any(ahead[name][rank] for name, _ in lag[rank])
        texts = {stage: text for text, stage in reversed(_STAGES.items())}
        line = (
            f"NCCL RAS: rank {rank} of communicator {comm} has status {texts[value]}, others {texts[most]}"
            if part == "status"
            else f"NCCL RAS: rank {rank} launched {part} operation {value} of communicator {comm} last, others {most}"
        )
        slug = "collective_mismatch" if other else "rank_stuck"
        yield _piece(named.facts[rank], slug, line, source[rank], attempt)


def _piece(facts: RankFacts, slug: str, line: str, source: tuple[str, Record], attempt: int | None) -> Evidence:
    name, record = source
    return Evidence(
        id=digest("ras", attempt, slug, facts.rank),
        source="recorder",
        slug=slug,
        role="primary",
        trust="inside",
        rank=facts.rank,
        slot=facts.slot,
        node=facts.node,
        pid=facts.pid,
        at=record.at_ns,
        uncertainty=1.0,
        where=f"records/{name}",
        line=line,
        # Above stacks, which show only the place; below a dump of all calls.
        specificity=70,
        fingerprint=f"{slug}:ras",
        attempt=attempt,
    )
