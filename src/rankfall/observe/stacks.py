"""Stacks of all ranks at a standstill: group them, name the odd ones out, and say what a mismatch looks like.

The healthy ranks of a hang stand in one and the same collective; who stands elsewhere holds them up. Ranks that all stand in
collectives, but in different ones, disagree about the order of calls. A rank whose stack is inside of an import has not begun yet, which is
said of it: whether it moves, only a second look can tell (``imports``).

Cost: time linear in the text of the stacks, of which each is read once (``stack_text.main_frames``); nothing else is kept.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Final

import msgspec

from rankfall.model import Evidence, EvidenceRole, RankFacts, Record
from rankfall.model.numbers import whole
from rankfall.model.patterns import bounded
from rankfall.observe.stack_text import main_frames
from rankfall.observe.text import digest

_COLLECTIVES: Final = bounded(
    r"^(?:all_reduce|_?all_gather\w*|_?reduce_scatter\w*|broadcast\w*|barrier|monitored_barrier|all_to_all\w*|reduce|gather\w*"
    r"|scatter\w*|send|recv|isend|irecv|batch_isend_irecv|wait|_store_based_barrier|init_process_group|_rendezvous_helper)$",
    limit=256,
)
_COMM_FILE: Final = bounded(
    r"distributed_c10d\.py$|torch/distributed/|torch/nn/parallel/|c10d_logger\.py$|horovod|deepspeed/comm/",
    limit=4096,
)
# py-spy leaves out the folder of installed packages, so torch's own begin with its name.
_LIBRARY: Final = bounded(r"site-packages|^<frozen|^torch/", limit=4096)
_IMPORT: Final = "<frozen importlib"
# The kernel's line of a process's main thread, as rankfall_inside.stacks writes it; of the system call only the number counts.
_KERNEL_THREAD: Final = bounded(
    r"\A  thread (?P<tid>\d+) \(.{0,64}\) state=(?P<state>\S) .{0,128}?wchan=(?P<wchan>\S*) syscall=(?P<syscall>\S*)",
    limit=512,
)


# Of the healthy ranks so many are shown.
MAX_SHOWN: Final = 16
# So many ranks must sleep in one and the same system call before the only other one is called odd.
MIN_ASLEEP: Final = 3


class Standing(msgspec.Struct, frozen=True, kw_only=True):
    """Where one rank stands.

    Attributes:
        collective: name of the collective it waits in, or None.
        place: ``file:function:line`` of the user's innermost frame.
        top: ``file:function`` of the innermost frame at all.
        importing: it is inside of an import, and in no collective.
    """

    rank: int
    collective: str | None
    place: str
    top: str
    importing: bool = False

    @property
    def stands(self) -> str:
        """Where it is, in words: ``stands at PLACE``, ``is still importing at PLACE``."""
        return f"{'is still importing' if self.importing else 'stands'} at {self.place or self.top}"


def stand(rank: int, text: str) -> Standing | None:
    """Where a rank's main thread stands, from the text of faulthandler or py-spy; None when there is no stack in it."""
    frames = main_frames(text)
    if not frames:
        return None
    collective = None
    place = ""
    for file, line, function in frames:
        in_comm = bool(_COMM_FILE.search(file))
        if in_comm and _COLLECTIVES.match(function):
            collective = function
        if not in_comm and not place and not _LIBRARY.search(file):
            place = f"{file.rpartition('/')[2]}:{function}:{line}"
    file, line, function = frames[0]
    importing = collective is None and any(file.startswith(_IMPORT) for file, _, _ in frames)
    top = f"{file.rpartition('/')[2]}:{function}"
    return Standing(rank=rank, collective=collective, place=place, top=top, importing=importing)


def imports(records: Iterable[Record]) -> dict[tuple[int | None, int | None], str]:
    """Processes that are inside of an import by their stacks.

    Args:
        records: of kind ``stacks``; of each process the last one counts.

    Returns:
        By slot and pid: what its stack is known again by, so that two looks tell whether it moves.
    """
    newest = {(record.slot, record.pid): record.stacks or "" for record in records}
    found = {key: stand(0, text) for key, text in newest.items()}
    return {
        key: digest("imports", main_frames(newest[key])) for key, where in found.items() if where and where.importing
    }


def stack_evidence(
    records: Sequence[tuple[str, Record]], *, ranks: Iterable[RankFacts], attempt: int | None
) -> list[Evidence]:
    """Evidence from the newest stacks of each rank: the odd ones out, or a mismatch between collectives."""
    known = {(r.slot, r.pid): r for r in ranks}
    newest: dict[int, tuple[int, str, Record, RankFacts]] = {}
    for name, record in records:
        facts = known.get((record.slot, record.pid))
        rank = facts.rank if facts else record.rank
        if rank is None or facts is None or record.stacks is None:
            continue
        at = record.at_ns or 0
        if rank not in newest or at >= newest[rank][0]:
            newest[rank] = (at, name, record, facts)
    standings = {rank: s for rank, row in newest.items() if (s := stand(rank, row[2].stacks or "")) is not None}
    if not standings:
        return _kernel_evidence(newest, attempt=attempt)
    return [
        _piece(newest[where.rank], where, slug=slug, role=role, line=line, attempt=attempt)
        for where, slug, role, line in told_apart(standings)
    ]


def told_apart(standings: dict[int, Standing]) -> list[tuple[Standing, str, EvidenceRole, str]]:
    """What the stacks of at least two ranks say of each: where it stands, cause, role, words. The odd ones first."""
    if len(standings) < 2:  # noqa: PLR2004 - one stack alone has nobody to differ from
        return []
    odd, slug, words = _odd_ones(standings)
    found: list[tuple[Standing, str, EvidenceRole, str]] = [
        (standings[rank], slug, "primary", words(standings[rank])) for rank in odd
    ]
    for rank in [rank for rank in sorted(standings) if rank not in odd][:MAX_SHOWN]:
        where = standings[rank]
        inside = f"waits in {where.collective} at {where.place or where.top}" if where.collective else where.stands
        found.append((where, "rank_stuck", "context", f"rank {rank} {inside}"))
    return found


def kernel_stand(pid: int, text: str) -> str | None:
    """What the main thread of a process does as the kernel says it, ``state/system call``; None when there is no such line in ``text``."""
    for line in text.split("\n"):
        found = _KERNEL_THREAD.match(line) if line.startswith("  thread ") else None
        if found is not None and whole(found["tid"]) == pid:
            return f"{found['state']}/{found['syscall'] or found['wchan'] or '?'}"
    return None


def _kernel_evidence(newest: dict[int, tuple[int, str, Record, RankFacts]], *, attempt: int | None) -> list[Evidence]:
    """Where no rank gave Python stacks: the one main thread that does not sleep in the system call in which all others sleep."""
    seen = {rank: kernel_stand(row[3].pid or 0, row[2].stacks or "") for rank, row in newest.items()}
    groups: dict[str | None, list[int]] = defaultdict(list)
    for rank, where in seen.items():
        groups[where].append(rank)
    if len(groups) != 2 or None in groups:  # noqa: PLR2004 - the many and the one
        return []
    (alone, one), (asleep, many) = sorted(groups.items(), key=lambda item: len(item[1]))
    if len(one) != 1 or len(many) < MIN_ASLEEP or not (asleep or "").startswith("S/"):
        return []
    words = {
        one[
            0
        ]: f"rank {one[0]}: main thread in {alone} while those of {len(many)} others sleep in {asleep} (state/system call)"
    }
    words |= {rank: f"rank {rank}: main thread sleeps in {asleep} (state/system call)" for rank in many[:MAX_SHOWN]}
    standing = Standing(rank=one[0], collective=None, place="", top=alone or "")
    return [
        # Less than a stack: where others sleep together it says who does not, and not why.
        msgspec.structs.replace(
            _piece(
                newest[rank],
                standing,
                slug="rank_stuck",
                role="primary" if rank == one[0] else "context",
                line=line,
                attempt=attempt,
            ),
            specificity=30,
            trust="wrapper",
        )
        for rank, line in words.items()
    ]


def _piece(
    row: tuple[int, str, Record, RankFacts],
    standing: Standing,
    *,
    slug: str,
    role: EvidenceRole,
    line: str,
    attempt: int | None,
) -> Evidence:
    at, name, record, facts = row
    return Evidence(
        id=digest("stacks", attempt, facts.rank, record.id),
        source="recorder",
        slug=slug,
        role=role,
        trust="inside",
        rank=facts.rank,
        slot=facts.slot,
        node=facts.node,
        pid=facts.pid,
        at=at or None,
        uncertainty=1.0,
        where=f"records/{name}",
        line=line,
        specificity=60,
        fingerprint=f"{slug}:{standing.place or standing.top}",
        attempt=attempt,
    )


def _odd_ones(standings: dict[int, Standing]) -> tuple[list[int], str, Callable[[Standing], str]]:
    waiting = {rank: s for rank, s in standings.items() if s.collective is not None}
    if not waiting and len({s.place for s in standings.values()}) == 1:
        return sorted(standings), "rank_stuck", lambda s: f"every rank {s.stands}, in no collective"
    elsewhere = sorted(set(standings) - set(waiting))
    if waiting and elsewhere:
        names = sorted({s.collective or "" for s in waiting.values()})

        def away(s: Standing) -> str:
            return f"rank {s.rank} {s.stands} while {len(waiting)} others wait in {', '.join(names)}"

        return elsewhere, "rank_stuck", away
    groups: dict[tuple[str | None, str], list[int]] = defaultdict(list)
    for rank, s in waiting.items():
        groups[s.collective, s.place].append(rank)
    if len(groups) > 1:
        sizes = sorted(groups.values(), key=len)
        fewest = sizes[0] if len(sizes[0]) < len(sizes[-1]) else []

        def differs(s: Standing) -> str:
            others = sorted(
                {t.collective or "" for t in waiting.values() if (t.collective, t.place) != (s.collective, s.place)}
            )
            return f"rank {s.rank} waits in {s.collective} at {s.place} while others wait in {', '.join(others)}"

        different = len({collective for collective, _ in groups}) > 1
        return sorted(fewest), "collective_mismatch" if different else "rank_stuck", differs
    return [], "rank_stuck", lambda s: s.top
