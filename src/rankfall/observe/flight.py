"""torch's flight-recorder dumps: who never entered a collective, and who entered another one.

A dump is a pickle, and a pickle from a job is hostile: it is read by ``plain_pickle``, which knows containers, numbers and text and never
Python's own loader; what it makes may still be a maze of references, so of every field a bounded part is looked at. The JSON form is read as
well. A rank that left no dump while others did is itself a suspect (errors.md, step 9).
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from rankfall.model import Evidence, decoding
from rankfall.observe import plain_pickle
from rankfall.observe.text import digest

# torch keeps 2,000 calls unless told otherwise, some megabytes with their stacks.
MAX_DUMP: Final = 64 << 20
_MAX_CALLS: Final = 200_000
_MAX_MEMBERS: Final = 100_000
# How deep a field is looked into, and how much of it is kept: shapes are lists of lists of numbers.
_MAX_DEPTH, _MAX_TEXT = 4, 100
_NAME: Final = re.compile(
    r"(?:nccl_trace_rank_|fr_trace_rank_|flight[\w.-]*?rank[_-]?|comm_lib_trace_rank_)(\d{1,6})(?:\.(?:json|pkl))?$"
)


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """One collective as one rank recorded it; ``pending`` when it had not completed."""

    group: str
    seq: int
    op: str
    shape: str
    pending: bool


class Dump(msgspec.Struct, frozen=True, kw_only=True):
    """What one rank recorded: its calls in order, and the members of each group where the dump says them."""

    rank: int
    name: str
    calls: tuple[Call, ...]
    members: dict[str, tuple[int, ...]]


def dump_rank(name: str) -> int | None:
    """The rank in the file name of a dump (torch names them so); None for any other file."""
    match = _NAME.search(name)
    return int(match.group(1)) if match else None


def read_dump(data: bytes, *, rank: int, name: str) -> Dump | str:
    """A dump, or what is wrong with it in words."""
    if len(data) > MAX_DUMP:
        return f"{name} is larger than {MAX_DUMP >> 20} MiB and was not used"
    try:
        document = decoding.decode(data) if data[:1] == b"{" else plain_pickle.load(data)
        entries = document["entries"]
        if len(entries) > _MAX_CALLS:
            return f"{name} holds {len(entries)} calls and was not used"
        calls = tuple(_call(entry) for entry in entries if not entry.get("is_p2p"))
        groups = dict(document.get("pg_config") or {}).items()
        members = {str(key)[:_MAX_TEXT]: _members(value["ranks"]) for key, value in groups}
    except (plain_pickle.NotPlain, msgspec.DecodeError) as error:
        return f"{name} is no flight-recorder dump: {str(error)[:200]}"
    except Exception as error:  # noqa: BLE001 - a foreign layout may be anything
        return f"{name} is no flight-recorder dump: {type(error).__name__}"
    return Dump(rank=rank, name=name, calls=calls, members=members)


def _members(ranks: Any) -> tuple[int, ...]:
    """The members of a group: numbers, or as torch writes them the text of a list."""
    if isinstance(ranks, str):
        return tuple(int(word) for word in re.findall(r"\d{1,7}", ranks[: 8 * _MAX_MEMBERS]))
    return tuple(int(rank) for rank in ranks[:_MAX_MEMBERS])


def _call(entry: dict[str, Any]) -> Call:
    group = entry.get("process_group") or (entry.get("pg_name", ""),)
    return Call(
        group=_brief(group[0] if isinstance(group, (list, tuple)) else group),
        seq=int(entry.get("collective_seq_id", entry.get("seq_id", 0))),
        op=_brief(entry.get("profiling_name", "")),
        shape=f"{_brief(entry.get('input_sizes'))}{_brief(entry.get('input_dtypes', ''))}"[: 2 * _MAX_TEXT],
        pending=entry.get("state") != "completed" and not entry.get("retired"),
    )


def _brief(value: Any) -> str:
    """A field as text, however deep or wide it is."""
    parts: list[str] = []
    _spell(value, parts, depth=0)
    return "".join(parts)[:_MAX_TEXT]


def _spell(value: Any, parts: list[str], *, depth: int) -> None:
    if isinstance(value, (list, tuple)) and depth < _MAX_DEPTH:
        parts.append("[")
        for item in value[:_MAX_TEXT]:
            # Each part has a character at least, so that many are enough.
            if len(parts) > _MAX_TEXT:
                return
            _spell(item, parts, depth=depth + 1)
            parts.append(",")
        parts.append("]")
    elif isinstance(value, (str, int, float)) or value is None:
        parts.append(str(value)[:_MAX_TEXT])
    else:
        parts.append("...")


def flight_evidence(dumps: Sequence[Dump], *, attempt: int | None = None) -> list[Evidence]:
    """Evidence of a mismatch, else of the ranks that lag in the innermost blocked group."""
    if len(dumps) < 2:  # noqa: PLR2004 - one rank alone has nobody to differ from
        return []
    by_group: dict[str, dict[int, dict[int, Call]]] = defaultdict(lambda: defaultdict(dict))
    members: dict[str, set[int]] = defaultdict(set)
    for dump in dumps:
        for call in dump.calls:
            by_group[call.group][dump.rank][call.seq] = call
        for group, ranks in dump.members.items():
            members[group].update(ranks)
    found: list[Evidence] = []
    for group in sorted(by_group):
        found += _mismatch(group, by_group[group], dumps, attempt)
    if found:
        return found
    return _lagging(by_group, members, dumps, attempt)


def _mismatch(
    group: str, ranks: dict[int, dict[int, Call]], dumps: Sequence[Dump], attempt: int | None
) -> list[Evidence]:
    """The first call that ranks of a group made differently; the fewest are named, or nobody when it is even."""
    shared = set.intersection(*(set(calls) for calls in ranks.values())) if len(ranks) > 1 else set()
    for seq in sorted(shared):
        kinds = Counter((calls[seq].op, calls[seq].shape) for calls in ranks.values())
        if len(kinds) == 1:
            continue
        common, most = kinds.most_common(1)[0]
        odd = sorted(r for r, calls in ranks.items() if (calls[seq].op, calls[seq].shape) != common)
        named: list[int | None] = list(odd) if most > len(ranks) // 2 else [None]
        words = "; ".join(f"{n} x {op} {shape}" for (op, shape), n in kinds.most_common(4))
        line = f"group {group or 'default'}, call {seq}: {words}"
        return [
            _piece("collective_mismatch", rank, line, dumps, attempt, fingerprint=f"collective_mismatch:{group}")
            for rank in named
        ]
    return []


def _lagging(
    by_group: dict[str, dict[int, dict[int, Call]]],
    members: dict[str, set[int]],
    dumps: Sequence[Dump],
    attempt: int | None,
) -> list[Evidence]:
    dumped = {dump.rank for dump in dumps}
    lag: dict[int, tuple[str, int, int]] = {}
    for group, ranks in by_group.items():
        last = {rank: max(calls) for rank, calls in ranks.items() if calls}
        front = max(last.values(), default=0)
        for rank in (members.get(group) or set(last)) & dumped:
            if last.get(rank, 0) < front:
                lag.setdefault(rank, (group, last.get(rank, 0), front))
    waiting = {dump.rank: {c.group for c in dump.calls if c.pending} for dump in dumps}
    # Who lags in one group because it waits in another is blocked there itself: the innermost group holds the culprit.
    innermost = {rank: row for rank, row in lag.items() if not (waiting[rank] - {row[0]})} or lag
    found = [
        _piece(
            "rank_stuck",
            rank,
            f"rank {rank} made call {seq} of group {group or 'default'} last, others reached {front}",
            dumps,
            attempt,
            fingerprint=f"rank_stuck:{group}",
        )
        for rank, (group, seq, front) in sorted(innermost.items())
    ]
    absent = sorted(set().union(*members.values()) - dumped) if members else []
    if not found and any(waiting.values()):
        found = [
            _piece(
                "rank_stuck",
                rank,
                f"rank {rank} left no dump while others wait",
                dumps,
                attempt,
                fingerprint="rank_stuck:absent",
            )
            for rank in absent
        ]
    return found


def _piece(
    slug: str, rank: int | None, line: str, dumps: Sequence[Dump], attempt: int | None, *, fingerprint: str
) -> Evidence:
    where = next((d.name for d in dumps if d.rank == rank), dumps[0].name)
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
