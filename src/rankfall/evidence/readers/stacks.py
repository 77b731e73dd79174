"""Reads stack dumps (faulthandler, py-spy) and finds the ranks that differ at a hang.

Healthy ranks wait in one collective. Dumps of crashes, or with much later output, are ignored.

Cost: at most ``_LOOK`` characters a line; each stack is read once. Memory: the last ``_END`` bytes of a log, the newest
dump, at most ``_MAX_DUMP`` bytes; frames of at most 2,048 short texts are cached.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import Any, Final

import msgspec

from rankfall.evidence.readers.frames import COLLECTIVES, COMM_FILE
from rankfall.model import Evidence, EvidenceRole, RankFacts, Record, decoding
from rankfall.model.evidence import digest
from rankfall.model.numbers import whole
from rankfall.model.patterns import bounded

# file, line, function; the innermost first.
Frame = tuple[str, str, str]

# JSON needs up to thirty times its size in memory.
MAX_JSON: Final = 4 << 20
# Characters of a line that are read.
_LOOK: Final = 4096
_THREAD: Final = bounded(
    r"\A(?:Stack|(?:Current t|T)hread 0x[0-9a-fA-F]+(?: \[[^\]]*\])?)(?: \(most recent call first\))?:", limit=_LOOK
)
_CURRENT: Final = ("Current thread", "Stack (")  # the second one heads the only stack that a dump has
_HEADS: Final = ("Thread ", *_CURRENT)
_FRAME: Final = bounded(r'\A[ \t]+File "([^"\n]+)", line (\d+) in ([^\n]+)', limit=_LOOK)
_SPY_THREAD: Final = bounded(r'\AThread \S+ \([\w+]+\)(?:: "([^"\n]*)")?[ \t\r]*$', limit=_LOOK)
_SPY_FRAME: Final = bounded(r"\A    (\S[^\n]*?) \(([^()\n]+):(\d+)\)[ \t\r]*$", limit=_LOOK)
_MAIN: Final = "MainThread"
# Frames of shorter texts are cached.
_MAX_KNOWN: Final = 32 << 10

# Lines of a dump, and its first line.
_HEADER: Final = bounded(
    rb"\A(?:(?:(?:Current thread|Thread) 0x[0-9a-fA-F]+(?![0-9a-fA-F]).*|Stack )\(most recent call first\):"
    rb"|Thread \S+ \([\w+]+\)(?:: \".*\")?\s*$|Python v\d)",
    limit=_LOOK,
)
_BEGIN: Final = bounded(rb"\A(?:Timeout \(\d+:\d+:\d+(?:\.\d+)?\)!|Process \d+: |Fatal Python error)", limit=_LOOK)
_BODY: Final = bounded(rb'\A(?:\s*$|  File "|    \S|  \.\.\.)', limit=_LOOK)
_FATAL: Final = b"Fatal Python error"
# A chunk without these contains no dump.
_HINTS: Final = (b"(most recent call first)", b"Python v", b"Process ", b"Timeout (", _FATAL)
_MAX_DUMP: Final = 256 << 10
_MAX_LINE: Final = 4096
# A process with so much later output was not hanging.
_WENT_ON: Final = 64 << 10
# Bytes of the end that are searched for a dump: four times the stored size and that output.
_END: Final = 4 * _MAX_DUMP + _WENT_ON


def main_frames(text: str) -> list[Frame]:
    """Main thread's frames, innermost first, or empty."""
    return list(_known_frames(text)) if len(text) <= _MAX_KNOWN else _Stacks(text).main()


@lru_cache(maxsize=2048)
def _known_frames(text: str) -> tuple[Frame, ...]:
    """Main thread's frames; cached, because each poll needs them again."""
    return tuple(_Stacks(text).main())


class _Stacks:
    def __init__(self, text: str) -> None:
        # faulthandler: frames after the last thread's head, and under the current thread's first.
        self._last: list[Frame] = []
        self._threads = 0
        self._current: list[Frame] = []
        self._in_current = False
        # py-spy: name and frames of each thread.
        self._spied: list[tuple[str | None, list[Frame]]] = []
        self._spy_frames = False
        for line in text.split("\n"):
            if line.startswith(_HEADS):
                self._head(line)
            elif line[:1] in {" ", "\t"}:
                self._body(line)
            else:
                self._in_current = False

    def main(self) -> list[Frame]:
        """Frames of the main thread."""
        if self._spy_frames and self._spied:
            # py-spy prints it first.
            return next((frames for name, frames in self._spied if name == _MAIN), self._spied[0][1])
        return self._current or self._last

    def _head(self, line: str) -> None:
        if _THREAD.match(line):
            self._threads += 1
            self._last = []
        if (spied := _SPY_THREAD.match(line)) is not None:
            self._spied.append((spied[1], []))
        self._in_current = not self._current and line.startswith(_CURRENT)

    def _body(self, line: str) -> None:
        frame = _FRAME.match(line)
        if frame is not None:
            found = frame[1], frame[2], frame[3].strip()
            if self._threads:
                self._last.append(found)
            if self._in_current:
                self._current.append(found)
            return
        self._in_current = self._in_current and line.lstrip().startswith("File ")
        if (spied := _SPY_FRAME.match(line)) is not None:
            self._spy_frames = True
            if self._spied:
                self._spied[-1][1].append((spied[2], spied[3], spied[1]))


def text_of_json(data: bytes) -> str | None:
    """Converts py-spy's JSON to its text output; None for any other JSON."""
    try:
        threads: Any = decoding.decode(data)
        lines: list[str] = []
        for thread in threads:
            frames = thread["frames"]
            lines.append(f'Thread {thread["thread_id"]} (idle): "{thread.get("thread_name") or ""}"')
            lines += [f"    {one['name']} ({one['filename']}:{_line_of(one)})" for one in frames]
    except (msgspec.DecodeError, UnicodeDecodeError, KeyError, TypeError, ValueError, AttributeError):
        return None
    return "\n".join(lines) or None


def _line_of(frame: dict[str, Any]) -> int:
    line = frame.get("line")
    return line if type(line) is int else 0


class NewestDump:
    """Finds the newest dump near the end of a log: after more output than ``_WENT_ON`` the process was not hanging."""

    def __init__(self) -> None:
        self._end: deque[bytes] = deque()
        self._held = 0
        self._cut = False
        self._lines: list[bytes] | None = None
        self._size = 0
        self._fatal = False
        self._after = 0
        self._kept = b""

    def push(self, data: bytes) -> None:
        """Stores the last bytes of the log so far; searching all of it would take as long as its signatures."""
        self._end.append(data[-_END:])
        self._held += len(self._end[-1])
        self._cut = self._cut or len(data) > _END
        while self._held - len(self._end[0]) >= _END:
            self._held -= len(self._end.popleft())
            self._cut = True

    def text(self) -> str | None:
        """Newest dump, None if much output followed or there is none; call once, at the end."""
        end = b"".join(self._end)
        if not any(hint in end for hint in _HINTS):
            return None
        lines = end.split(b"\n")
        for line in lines[1:] if self._cut else lines:
            self._line(line)
        self._close()
        return self._kept.decode("utf-8", "replace") if self._kept and self._after <= _WENT_ON else None

    def _line(self, line: bytes) -> None:
        begins = _BEGIN.match(line)
        if begins or (self._lines is None and _HEADER.match(line)):
            self._close()
            self._lines, self._size, self._fatal = [], 0, line.startswith(_FATAL)
        if self._lines is None:
            self._after += len(line) + 1
        elif len(line) <= _MAX_LINE and (begins or _HEADER.match(line) or _BODY.match(line)):
            self._size += len(line) + 1
            if self._size <= _MAX_DUMP:
                self._lines.append(line)
        else:
            self._close()
            self._after += len(line) + 1

    def _close(self) -> None:
        text = b"\n".join(self._lines or ())
        if self._lines is not None and not self._fatal and main_frames(text.decode("utf-8", "replace")):
            self._kept, self._after = text, 0
        elif self._lines is not None:
            self._after += self._size
        self._lines = None


# py-spy omits the packages' folder.
_LIBRARY: Final = bounded(r"site-packages|^<frozen|^torch/", limit=4096)
_IMPORT: Final = "<frozen importlib"
# The kernel's line of a main thread, by rankfall_inside.wrapper.liveness; of the system call only the number counts.
_KERNEL_THREAD: Final = bounded(
    r"\A  thread (?P<tid>\d+) \(.{0,64}\) state=(?P<state>\S) .{0,128}?wchan=(?P<wchan>\S*) syscall=(?P<syscall>\S*)",
    limit=512,
)


# Time, file, record and rank of the newest stacks; of each rank.
_Row = tuple[int, str, Record, RankFacts]
_Newest = dict[int, _Row]
# Position, cause, role and text of each rank.
_Compared = list[tuple["Standing", str, EvidenceRole, str]]
# The kernel's states of a process that a signal or a debugger stopped.
_HALTED: Final = ("T/", "t/")

# Outermost frame of a program that still runs.
_PROGRAM: Final = "<module>"
# Maximum listed healthy ranks.
MAX_LISTED: Final = 16
# Minimum ranks asleep in one system call, so that the only other one differs.
MIN_ASLEEP: Final = 3


class Standing(msgspec.Struct, frozen=True, kw_only=True):
    """Position of one rank's main thread.

    Attributes:
        collective: In which the thread waits.
        place: ``file:function:line`` of the user's innermost frame.
        top: ``file:function`` of the innermost frame.
        importing: True inside an import.
    """

    rank: int
    collective: str | None
    place: str
    top: str
    importing: bool = False

    @property
    def stands(self) -> str:
        """Position for users: ``stands at PLACE`` or ``is still importing at PLACE``."""
        return f"{'is still importing' if self.importing else 'stands'} at {self.place or self.top}"

    @property
    def inside(self) -> str:
        """Position with the collective that it waits in."""
        return f"waits in {self.collective} at {self.place or self.top}" if self.collective else self.stands


def stand(rank: int, text: str) -> Standing | None:
    """Position of a rank's main thread in faulthandler's or py-spy's text; None without a stack."""
    frames = main_frames(text)
    if not frames:
        return None
    collective = None
    place = ""
    for file, line, function in frames:
        in_comm = bool(COMM_FILE.search(file))
        if in_comm and COLLECTIVES.match(function):
            collective = function
        if not in_comm and not place and not _LIBRARY.search(file):
            place = f"{file.rpartition('/')[2]}:{function}:{line}"
    file, line, function = frames[0]
    importing = collective is None and any(file.startswith(_IMPORT) for file, _, _ in frames)
    top = f"{file.rpartition('/')[2]}:{function}"
    return Standing(rank=rank, collective=collective, place=place, top=top, importing=importing)


def imports(records: Iterable[Record]) -> dict[tuple[int | None, int | None], str]:
    """Processes inside an import, with a digest of their stack, to compare polls."""
    newest = {(record.slot, record.pid): record.stacks or "" for record in records}
    found = {key: stand(0, text) for key, text in newest.items()}
    return {
        key: digest("imports", main_frames(newest[key])) for key, where in found.items() if where and where.importing
    }


def stack_evidence(
    records: Sequence[tuple[str, Record]], *, ranks: Iterable[RankFacts], attempt: int | None
) -> list[Evidence]:
    """Returns evidence from the newest stacks of each rank: ranks that differ, or a mismatch of collectives."""
    known = {(r.slot, r.pid): r for r in ranks}
    newest: _Newest = {}
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
    compared = _without_stack(newest, standings) or _only_living(newest, standings, known.values())
    return [
        stack_piece(newest[where.rank], where, slug=slug, role=role, line=line, attempt=attempt)
        for where, slug, role, line in compared or compare_stacks(standings)
    ]


def compare_stacks(standings: dict[int, Standing]) -> _Compared:
    """Compares the stacks of at least two ranks.

    Returns position, cause, role and text of each rank; differing ranks come first.
    """
    if len(standings) < 2:  # noqa: PLR2004 - one stack alone cannot differ
        return []
    odd, slug, words = _odd_ones(standings)
    found: _Compared = [(standings[rank], slug, "primary", words(standings[rank])) for rank in odd]
    return found + _listed([standings[rank] for rank in sorted(standings) if rank not in odd])


def _listed(standings: list[Standing]) -> _Compared:
    """Positions of the first healthy ranks, as context."""
    return [(where, "rank_stuck", "context", f"rank {where.rank} {where.inside}") for where in standings[:MAX_LISTED]]


def _without_stack(newest: _Newest, standings: dict[int, Standing]) -> _Compared:
    """Ranks without a Python stack while all others wait in one place; a rank that a signal stopped, in any case."""
    kernel = {
        rank: kernel_state(row[3].pid or 0, row[2].stacks or "")
        for rank, row in newest.items()
        if rank not in standings
    }
    halted = [rank for rank, state in kernel.items() if (state or "").startswith(_HALTED)]
    waiting = len({(s.collective, None if s.collective else s.place) for s in standings.values()}) == 1
    odd = sorted(halted or (kernel if waiting and len(standings) > len(kernel) else ()))

    def line(rank: int) -> str:
        what = "is stopped by a signal" if rank in halted else "gave no Python stack"
        seen = f" (state/system call {kernel[rank]})" if kernel[rank] else ""
        return f"rank {rank} {what}{seen} while {len(standings)} others gave theirs"

    nowhere = [Standing(rank=rank, collective=None, place="", top=kernel[rank] or "") for rank in odd]
    found: _Compared = [(where, "rank_stuck", "primary", line(where.rank)) for where in nowhere]
    return found + _listed([standings[rank] for rank in sorted(standings)]) if odd else []


def _only_living(newest: _Newest, standings: dict[int, Standing], ranks: Iterable[RankFacts]) -> _Compared:
    """The only rank that still lived, if its program was over and no other rank had failed."""
    if len(newest) != 1:
        return []
    ((rank, (at, _, record, _)),) = newest.items()
    others = [facts for facts in ranks if facts.rank != rank]
    ended = all(
        facts.state == "ended" and not facts.exit_code and facts.signal is None and (facts.ended_at or 0) < at
        for facts in others
    )
    where = standings[rank]
    # A rank inside its program may wait for those that left early.
    over = all(function != _PROGRAM for _, _, function in main_frames(record.stacks or ""))
    line = f"rank {rank} is exiting and {where.stands} while all others have ended"
    return [(where, "rank_stuck", "primary", line)] if others and ended and over else []


def kernel_state(pid: int, text: str) -> str | None:
    """Kernel's state of a process's main thread as ``state/system call``; None without such a line."""
    for line in text.split("\n"):
        found = _KERNEL_THREAD.match(line) if line.startswith("  thread ") else None
        if found is not None and whole(found["tid"]) == pid:
            return f"{found['state']}/{found['syscall'] or found['wchan'] or '?'}"
    return None


def _kernel_evidence(newest: _Newest, *, attempt: int | None) -> list[Evidence]:
    """Returns evidence without Python stacks: the only main thread that does not sleep in the others' system call."""
    seen = {rank: kernel_state(row[3].pid or 0, row[2].stacks or "") for rank, row in newest.items()}
    groups: dict[str | None, list[int]] = defaultdict(list)
    for rank, where in seen.items():
        groups[where].append(rank)
    if len(groups) != 2 or None in groups:  # noqa: PLR2004 - the majority and the exception
        return []
    (alone, one), (asleep, many) = sorted(groups.items(), key=lambda item: len(item[1]))
    if len(one) != 1 or len(many) < MIN_ASLEEP or not (asleep or "").startswith("S/"):
        return []
    words = {
        one[
            0
        ]: f"rank {one[0]}: main thread in {alone} while those of {len(many)} others sleep in {asleep} (state/system call)"
    }
    words |= {rank: f"rank {rank}: main thread sleeps in {asleep} (state/system call)" for rank in many[:MAX_LISTED]}
    standing = Standing(rank=one[0], collective=None, place="", top=alone or "")
    return [
        # Weaker than a stack: shows which rank differs, not why.
        msgspec.structs.replace(
            stack_piece(
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


def stack_piece(
    row: _Row, standing: Standing, *, slug: str, role: EvidenceRole, line: str, attempt: int | None
) -> Evidence:
    """Evidence of a rank's position, from its record: time, name, record and facts."""
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
