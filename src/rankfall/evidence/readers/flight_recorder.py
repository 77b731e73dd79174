"""Reads torch flight-recorder dumps: which ranks missed a collective, or entered another.

A rank without a dump is a suspect if others have one.

Cost: time linear in bytes. Memory: the limit of ``plain_pickle`` during reading, then 12 bytes a call and each
different text once. At most ``MAX_BYTES`` of all dumps are read, ``MAX_KEPT`` stored; the rest is a problem entry.
"""

from __future__ import annotations

from array import array
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, Final

import msgspec

from rankfall.evidence.readers import plain_pickle
from rankfall.model import Evidence, decoding
from rankfall.model.evidence import digest
from rankfall.model.numbers import matched, whole
from rankfall.model.patterns import bounded

# torch stores 2,000 calls by default, some megabytes.
MAX_DUMP: Final = 64 << 20
# JSON needs up to thirty times its size in memory.
MAX_JSON: Final = 6 << 20
# Limits of all dumps: files, bytes read, bytes stored.
MAX_DUMPS: Final = 20_000
MAX_BYTES: Final = 256 << 20
MAX_KEPT: Final = 96 << 20
# Stored bytes of a call, a member and a group.
_CALL, _MEMBER, _GROUP = 12, 36, 400
# Maximum pieces of evidence.
_MAX_EVIDENCE: Final = 4096
_MAX_OF_ONE: Final = 200_000
_MAX_GROUPS: Final = 4096
# Members of all groups of one dump.
_MAX_MEMBERS: Final = 100_000
# Characters of a dump's different texts.
_MAX_KEPT_TEXT: Final = 4 << 20
# Depth and length of a field: shapes are lists of lists.
_MAX_DEPTH, _MAX_TEXT = 4, 100
_NAME: Final = bounded(
    r"(?:nccl_trace_rank_|fr_trace_rank_|flight[\w.-]{0,200}?rank[_-]?|comm_lib_trace_rank_)(\d{1,6})(?:\.(?:json|pkl))?$",
    limit=255,
)
_NUMBERS: Final = bounded(r"\d{1,7}", limit=8 * _MAX_MEMBERS)
# Numbers of calls have 64 bits.
_MAX_SEQ: Final = 1 << 60


class Calls(msgspec.Struct, frozen=True):
    """Collectives of one group recorded by one rank: number and kind of each, in order.

    ``pending`` is True for each call that is incomplete.
    """

    seqs: array[int]
    kinds: array[int]
    pending: list[bool]


class Dump(msgspec.Struct, frozen=True, kw_only=True):
    """Record of one rank: its calls by group, and the groups' members if known.

    Attributes:
        count: Number of all calls.
        size: Bytes in memory.
        kinds: Name and shape of each call kind.
    """

    rank: int
    name: str
    count: int
    size: int
    kinds: tuple[tuple[str, str], ...]
    groups: dict[str, Calls]
    members: dict[str, tuple[int, ...]]


class Dumps:
    """The dumps that are compared with each other, within a common limit."""

    def __init__(self) -> None:
        self.read: list[Dump] = []
        self.unread: set[int] = set()
        self._files = self._bytes = self._kept = 0
        self._left_out = self._left_out_bytes = 0

    def add(self, rank: int, name: str, size: int, content: Callable[[int], bytes]) -> str | None:
        """Reads one more dump; returns a message about a problem, or None.

        ``content`` returns at most so many bytes.

        Raises:
            OSError: From ``content``.
        """
        self._files += 1
        if self._files > MAX_DUMPS or self._bytes + min(size, MAX_DUMP) > MAX_BYTES or self._kept > MAX_KEPT:
            self.unread.add(rank)
            self._left_out += 1
            self._left_out_bytes += size
            return None
        data = content(MAX_DUMP + 1)
        self._bytes += len(data)
        dump = read_dump(data, rank=rank, name=name)
        if isinstance(dump, str):
            return dump
        self._kept += dump.size
        self.read.append(dump)
        return None

    def evidence(self, *, attempt: int | None = None) -> list[Evidence]:
        """Evidence of all dumps."""
        return flight_evidence(self.read, attempt=attempt, unread=self.unread)

    @property
    def left_out(self) -> list[str]:
        """Returns a message about the number of skipped dumps; empty without any."""
        if not self._left_out:
            return []
        text = (
            f"{self._left_out} flight-recorder dumps ({self._left_out_bytes / 2**20:.1f} MiB) were not read: of at most {MAX_DUMPS} files"
            f" {MAX_BYTES >> 20} MiB are read and {MAX_KEPT >> 20} MiB kept"
        )
        return [text]


def dump_rank(name: str) -> int | None:
    """Rank in the file name of a dump (torch's naming); None for any other file."""
    match = _NAME.search(name)
    return whole(match.group(1)) if match else None


def read_dump(data: bytes, *, rank: int, name: str) -> Dump | str:
    """Returns a dump, or a message about its problem."""
    json = data[:1] == b"{"
    limit = MAX_JSON if json else MAX_DUMP
    if len(data) > limit:
        return f"{name} is larger than {limit >> 20} MiB and was not used"
    try:
        document = decoding.decode(data) if json else plain_pickle.load(data)
        return _Reader().read(document, rank=rank, name=name)
    except (plain_pickle.NotPlain, msgspec.DecodeError) as error:
        return f"{name} is not a flight-recorder dump: {str(error)[:200]}"
    except Exception as error:  # noqa: BLE001 - a foreign layout may be anything
        return f"{name} is not a flight-recorder dump: {type(error).__name__}"


class _Reader:
    """Reads one document; objects are cached by identity while it exists."""

    def __init__(self) -> None:
        self._texts: dict[int, str] = {}
        self._members: dict[int, tuple[int, ...]] = {}
        self._kinds: dict[tuple[str, str], int] = {}
        self._kept = 0
        self._room = _MAX_MEMBERS

    def read(self, document: Any, *, rank: int, name: str) -> Dump:
        entries = document["entries"]
        if len(entries) > _MAX_OF_ONE:
            raise plain_pickle.NotPlain(f"it holds {len(entries)} calls, more than {_MAX_OF_ONE}")
        groups: dict[str, Calls] = {}
        count = 0
        for entry in entries:
            if not entry.get("is_p2p"):
                self._call(entry, groups)
                count += 1
        configured = dict(document.get("pg_config") or {})
        if max(len(configured), len(groups)) > _MAX_GROUPS:
            raise plain_pickle.NotPlain(f"it names more than {_MAX_GROUPS} groups")
        members = {str(key)[:_MAX_TEXT]: self._members_of(value["ranks"]) for key, value in configured.items()}
        size = (
            count * _CALL + self._kept + (_MAX_MEMBERS - self._room) * _MEMBER + (len(groups) + len(members)) * _GROUP
        )
        kinds = tuple(self._kinds)
        return Dump(rank=rank, name=name, count=count, size=size, kinds=kinds, groups=groups, members=members)

    def _call(self, entry: dict[str, Any], groups: dict[str, Calls]) -> None:
        group = entry.get("process_group") or (entry.get("pg_name", ""),)
        named = self._brief(group[0] if isinstance(group, (list, tuple)) else group)
        shape = f"{self._brief(entry.get('input_sizes'))}{self._brief(entry.get('input_dtypes', ''))}"
        kind = self._brief(entry.get("profiling_name", "")), shape
        if kind not in self._kinds:
            self._kept += len(kind[0]) + len(shape)
            if self._kept > _MAX_KEPT_TEXT:
                raise plain_pickle.NotPlain("its calls differ too much")
        calls = groups.get(named)
        if calls is None:
            calls = groups[named] = Calls(array("q"), array("I"), [])
        calls.seqs.append(_number(entry.get("collective_seq_id", entry.get("seq_id", 0))))
        calls.kinds.append(self._kinds.setdefault(kind, len(self._kinds)))
        if not calls.pending and entry.get("state") != "completed" and not entry.get("retired"):
            calls.pending.append(True)

    def _members_of(self, ranks: Any) -> tuple[int, ...]:
        """Members of a group: numbers, or torch's text of a list."""
        known = self._members.get(id(ranks))
        if known is None:
            if isinstance(ranks, str):
                known = tuple(matched(found.group()) for found in _NUMBERS.finditer(ranks))
            else:
                known = tuple(_number(rank) for rank in ranks[:_MAX_MEMBERS])
            self._members[id(ranks)] = known
            self._room -= len(known)
            if self._room < 0:
                raise plain_pickle.NotPlain(f"its groups have more than {_MAX_MEMBERS} members")
        return known

    def _brief(self, value: Any) -> str:
        """Returns a field as text, bounded in depth and length."""
        known = self._texts.get(id(value))
        if known is None:
            parts: list[str] = []
            _spell(value, parts, depth=0)
            known = self._texts[id(value)] = "".join(parts)[:_MAX_TEXT]
        return known


def _number(value: Any) -> int:
    number = whole(value) if isinstance(value, str) else value if isinstance(value, int) else None
    if number is None or abs(number) >= _MAX_SEQ:
        raise plain_pickle.NotPlain("a number in the dump is invalid, or has more than 60 bits")
    return number


def _spell(value: Any, parts: list[str], *, depth: int) -> None:
    if isinstance(value, (list, tuple)) and depth < _MAX_DEPTH:
        parts.append("[")
        for item in value[:_MAX_TEXT]:
            # Each part has a character: their number bounds the length.
            if len(parts) > _MAX_TEXT:
                return
            _spell(item, parts, depth=depth + 1)
            parts.append(",")
        parts.append("]")
    elif isinstance(value, str):
        parts.append(value[:_MAX_TEXT])
    elif isinstance(value, (int, float)) or value is None:
        parts.append(str(value)[:_MAX_TEXT])
    else:
        parts.append("...")


def flight_evidence(
    dumps: Sequence[Dump], *, attempt: int | None = None, unread: Collection[int] = ()
) -> list[Evidence]:
    """Returns evidence of a mismatch, else of the ranks that lag in the innermost blocked group.

    ``unread``: ranks whose dump may be unread.
    """
    if len(dumps) < 2:  # noqa: PLR2004 - one rank alone cannot differ
        return []
    by_group: dict[str, dict[int, list[Dump]]] = defaultdict(lambda: defaultdict(list))
    for dump in dumps:
        for group in dump.groups:
            by_group[group][dump.rank].append(dump)
    found: list[Evidence] = []
    names = {dump.rank: dump.name for dump in reversed(dumps)}
    for group in sorted(by_group):
        found += _mismatch(group, by_group[group], names, attempt)
        if len(found) >= _MAX_EVIDENCE:
            break
    if not found:
        found = _lagging(by_group, _Members(dumps), dumps, names, attempt, unread=unread)
    return found[:_MAX_EVIDENCE]


def _calls(group: str, dumps: list[Dump]) -> dict[int, tuple[str, str]]:
    """Kinds of one rank's calls in a group, by their numbers."""
    found: dict[int, tuple[str, str]] = {}
    for dump in dumps:
        calls = dump.groups[group]
        found.update(zip(calls.seqs, map(dump.kinds.__getitem__, calls.kinds), strict=True))
    return found


def _mismatch(group: str, ranks: dict[int, list[Dump]], names: dict[int, str], attempt: int | None) -> list[Evidence]:
    """Returns evidence of the group's first call that differs between ranks, at the minority if there is one."""
    seq = _first_difference(group, ranks)
    if seq is None:
        return []
    made = {rank: _calls(group, own)[seq] for rank, own in ranks.items()}
    kinds = Counter(made.values())
    common, most = kinds.most_common(1)[0]
    odd = sorted(rank for rank, kind in made.items() if kind != common)
    named: list[int | None] = list(odd) if most > len(ranks) // 2 else [None]
    words = "; ".join(f"{n} x {op} {shape}" for (op, shape), n in kinds.most_common(4))
    line = f"group {group or 'default'}, call {seq}: {words}"
    return [
        _piece("collective_mismatch", rank, line, names, attempt, fingerprint=f"collective_mismatch:{group}")
        for rank in named
    ]


def _first_difference(group: str, ranks: dict[int, list[Dump]]) -> int | None:
    """Number of the first call that all ranks of a group made and that differs; None if there is none."""
    each: Iterator[dict[int, tuple[str, str]]] = (_calls(group, own) for own in ranks.values())
    first = next(each)
    shared, differs = set(first), set[int]()
    for calls in each:
        shared.intersection_update(calls)
        differs.update(seq for seq in shared if calls[seq] != first[seq])
    return min(differs & shared, default=None)


class _Members:
    """Members of all groups; a shared list is processed once."""

    def __init__(self, dumps: Sequence[Dump]) -> None:
        self.all: set[int] = set()
        dumped = {dump.rank for dump in dumps}
        seen: dict[int, frozenset[int]] = {}
        self._of: dict[str, set[int]] = defaultdict(set)
        for dump in dumps:
            for group, ranks in dump.members.items():
                if id(ranks) not in seen:
                    seen[id(ranks)] = frozenset(dumped.intersection(ranks))
                    self.all.update(ranks)
                if ranks:
                    self._of[group] |= seen[id(ranks)]

    def dumped_of(self, group: str) -> set[int] | None:
        """Members with a dump; None if no dump lists members."""
        return self._of.get(group)


def _lagging(
    by_group: dict[str, dict[int, list[Dump]]],
    members: _Members,
    dumps: Sequence[Dump],
    names: dict[int, str],
    attempt: int | None,
    *,
    unread: Collection[int],
) -> list[Evidence]:
    dumped = {dump.rank for dump in dumps}
    lag: dict[int, tuple[str, int, int]] = {}
    for group, ranks in by_group.items():
        last = {rank: max(max(dump.groups[group].seqs) for dump in own) for rank, own in ranks.items()}
        front = max(last.values(), default=0)
        known = members.dumped_of(group)
        for rank in dumped & set(last) if known is None else known:
            if last.get(rank, 0) < front:
                lag.setdefault(rank, (group, last.get(rank, 0), front))
    waiting = {dump.rank: {group for group, calls in dump.groups.items() if calls.pending} for dump in dumps}
    # A rank that lags because it waits in another group is blocked there.
    innermost = {rank: row for rank, row in lag.items() if not (waiting[rank] - {row[0]})} or lag
    found = [
        _piece(
            "rank_stuck",
            rank,
            f"rank {rank} made call {seq} of group {group or 'default'} last, others reached {front}",
            names,
            attempt,
            fingerprint=f"rank_stuck:{group}",
        )
        for rank, (group, seq, front) in sorted(innermost.items())
    ]
    absent = sorted(members.all - dumped - set(unread))
    if not found and any(waiting.values()):
        found = [
            _piece(
                "rank_stuck",
                rank,
                f"rank {rank} left no dump while others wait",
                names,
                attempt,
                fingerprint="rank_stuck:absent",
            )
            for rank in absent[:_MAX_EVIDENCE]
        ]
    return found


def _piece(
    slug: str, rank: int | None, line: str, names: dict[int, str], attempt: int | None, *, fingerprint: str
) -> Evidence:
    where = next(reversed(names.values())) if rank is None else names.get(rank, next(reversed(names.values())))
    return Evidence(
        id=digest("flight", slug, rank, line),
        source="recorder",
        slug=slug,
        role="primary",
        trust="inside",
        rank=rank,
        where=where,
        line=line[:2000],
        specificity=75,
        fingerprint=fingerprint,
        attempt=attempt,
    )
