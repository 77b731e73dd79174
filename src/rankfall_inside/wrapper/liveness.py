"""Heartbeats (step, phase, CPU time) on the log channel; stacks and NCCL's RAS report on request.

A rank sends at most one heartbeat in 10 s, without a change in 60 s. A rank without stack handler gets no signal.
"""

from __future__ import annotations

import os
import signal
import time

from rankfall_inside import procfs, untrusted

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket
    from typing import Any, Callable, Generator, Mapping

    from rankfall_inside.procfs import Stat
    from rankfall_inside.wrapper.ranks import Rank, Ranks

EVERY_S, QUIET_S = 10.0, 60.0
# Other facts are in start records.
_PLACE = ("run", "attempt", "role", "slot", "instance")


class Heartbeat:
    """Reports all live ranks of one wrapper, as ``tell("progress", fields)``."""

    def __init__(
        self, ranks: Ranks, *, place: Mapping[str, Any], tell: Callable[[str, Mapping[str, Any]], None]
    ) -> None:
        self._ranks = ranks
        self._place = {name: place[name] for name in _PLACE if name in place}
        self._tell = tell
        self._written: dict[int, tuple[float, tuple[Any, ...]]] = {}

    def write_marks(self, processes: Mapping[int, Stat]) -> None:
        """Reports each rank that is due; ``processes`` is a snapshot of /proc."""
        now = time.monotonic()
        living = self._ranks.live()
        for rank in living:
            at, before = self._written.get(rank.ordinal, (0.0, ()))
            if before and now - at < EVERY_S:
                continue
            seen = processes.get(rank.pid)
            cpu_s = round(seen.cpu_s, 2) if seen is not None and seen.start == rank.start else None
            last = self._ranks.last_progress(rank.ordinal)
            state = (cpu_s, *last.values())
            if state == before and now - at < QUIET_S:
                continue
            self._written[rank.ordinal] = (now, state)
            self._tell(
                "progress",
                dict(
                    self._place,
                    ordinal=rank.ordinal,
                    rank=rank.identity.get("rank"),
                    pid=rank.pid,
                    cpu_s=cpu_s,
                    **last,
                ),
            )
        if len(self._written) > len(living):
            self._written = {
                rank.ordinal: self._written[rank.ordinal] for rank in living if rank.ordinal in self._written
            }


# Far from signals of libraries (glibc, profilers).
STACK_SIGNAL = signal.SIGRTMIN + 7
# A dump is complete after STACKS_QUIET_S without growth, or LIMIT_S.
STACKS_QUIET_S, LIMIT_S = 0.2, 2.0
_MAX_TEXT = 128 * 1024


# NCCL's RAS service: port, seconds for both reports, pause between them, bytes read and kept.
_RAS_PORT, _RAS_LIMIT_S, _RAS_PAUSE_S = 28028, 6.0, 0.5
_MAX_REPORT, _MAX_KEPT, _MAX_ANSWER = 256 * 1024, 6 * 1024, 256
# The job summary before this word names no rank.
_RAS_BEGIN = "Communicators..."
_MAX_SOCKETS = 8 << 20


class RasQuery:
    """Reads two reports of NCCL's RAS service in these ranks; the second shows which counts do not advance.

    It connects to loopback addresses only. Jobs share the port, so a service outside of these ranks gets no query.

    Attributes:
        reports: Answers, bounded.
    """

    def __init__(self, ranks: list[Rank]) -> None:
        self.reports: list[str] = []
        self._pids = [rank.pid for rank in ranks]
        self._limit = time.monotonic() + _RAS_LIMIT_S
        self._talk = self._ask_twice() if ranks else None

    def step(self) -> bool:
        """Continues without waiting; returns True when it is over."""
        if self._talk is not None:
            try:
                if time.monotonic() < self._limit:
                    next(self._talk)
                    return False
                self._talk.close()
            except (StopIteration, OSError):
                pass
            self._talk = None
        return True

    def _ask_twice(self) -> Generator[None, None, None]:
        environ = procfs.environ(self._pids[0]) or {}
        port = untrusted.whole(environ.get("NCCL_RAS_ADDR", "").rpartition(":")[2], 5) or _RAS_PORT
        if environ.get("NCCL_RAS_ENABLE") == "0" or port >= 1 << 16:
            return
        yield from self._ask(port)
        if self.reports:
            again = time.monotonic() + _RAS_PAUSE_S
            while time.monotonic() < again:
                yield
            yield from self._ask(port)

    def _ask(self, port: int) -> Generator[None, None, None]:
        import socket

        for family, host in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):
            try:
                with socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as link:
                    before = len(self.reports)
                    yield from self._converse(link, (host, port))
                    if len(self.reports) > before:
                        return
            except OSError:
                pass  # no service

    def _converse(self, link: socket.socket, address: tuple[str, int]) -> Generator[None, None, None]:
        import errno

        while True:
            found = link.connect_ex(address)
            if found in (0, errno.EISCONN):
                break
            if found not in (errno.EINPROGRESS, errno.EALREADY):
                return
            yield
        for words, expected in ((b"CLIENT PROTOCOL 2\n", b"SERVER PROTOCOL "), (b"TIMEOUT 1\n", b"OK\n")):
            link.send(words)
            answer = yield from self._read(link, _MAX_ANSWER, line=True)
            if not answer.upper().startswith(expected):
                return
        if not self._is_ours(address[1], link.getsockname()[1]):
            return
        link.send(b"VERBOSE STATUS\n")
        text = (yield from self._read(link, _MAX_REPORT, line=False)).decode("utf-8", "replace")
        begin = text.find(_RAS_BEGIN)
        if begin >= 0:
            self.reports.append(text[begin : begin + _MAX_KEPT])

    def _read(self, link: socket.socket, limit: int, *, line: bool) -> Generator[None, None, bytes]:
        """Reads to the end, ``limit`` bytes or with ``line`` a line end."""
        data = b""
        while len(data) < limit and not (line and data.endswith(b"\n")):
            try:
                part = link.recv(min(limit - len(data), 1 << 16))
            except BlockingIOError:
                yield
                continue
            if not part:
                break
            data += part
        return data

    def _is_ours(self, port: int, own: int) -> bool:
        """True if one of the ranks holds the other end of the connection from port ``own``."""
        ends = b":%04X" % port, b":%04X" % own
        sockets = set()
        for name in ("tcp", "tcp6"):
            for row in (procfs.read_bounded("/proc/self/net/" + name, _MAX_SOCKETS) or b"").splitlines():
                if ends[0] in row and ends[1] in row:
                    fields = row.split()
                    if len(fields) > 9 and fields[1].endswith(ends[0]) and fields[2].endswith(ends[1]):  # noqa: PLR2004 - inode's column
                        sockets.add(f"socket:[{fields[9].decode('ascii', 'replace')}]")
        return any(sockets & set(_open_files(pid)) for pid in self._pids)


def _open_files(pid: int) -> list[str]:
    folder = f"/proc/{pid}/fd"
    found = []
    try:
        for name in os.listdir(folder):
            try:
                found.append(os.readlink(os.path.join(folder, name)))
            except OSError:
                pass  # closed meanwhile
    except OSError:
        pass
    return found


class Collector:
    """One request for stacks: signals immediately, collects in :meth:`step`.

    RAS reports come before the last rank's stacks, for which the supervisor waits.
    """

    def __init__(self, slot_dir: str, ranks: list[Rank], *, write: Callable[[str, dict[str, Any], bool], None]) -> None:
        self._folder = os.path.join(slot_dir, "stacks")
        self._write = write
        now = time.monotonic()
        self._limit = now + LIMIT_S
        self._ras: RasQuery | None = RasQuery(ranks)
        # rank -> (dump's offset in its file, last size, time of last growth); None = no dump follows
        self._waiting: dict[Rank, tuple[int, int, float] | None] = {}
        for rank in ranks:
            size = self._size(rank)
            if (
                procfs.catches(rank.pid, STACK_SIGNAL)
                and procfs.start_ticks(rank.pid) == rank.start
                and self._ask(rank)
            ):
                self._waiting[rank] = (size, size, now)
            else:
                self._waiting[rank] = None

    @staticmethod
    def _ask(rank: Rank) -> bool:
        try:
            os.kill(rank.pid, STACK_SIGNAL)
        except OSError:
            return False
        return True

    def _path(self, rank: Rank) -> str:
        return os.path.join(self._folder, f"{rank.ordinal}.txt")

    def _size(self, rank: Rank) -> int:
        try:
            return os.stat(self._path(rank)).st_size
        except OSError:
            return 0

    def step(self) -> bool:
        """Checks for complete dumps; returns True when all are written."""
        now = time.monotonic()
        if self._ras is not None and self._ras.step():
            for text in self._ras.reports:
                self._write("ras", {"ras": text}, False)
            self._ras = None
        for rank, dump in list(self._waiting.items()):
            offset, seen = None, 0
            if dump is not None:
                offset, size, grown = dump
                seen = self._size(rank)
                if seen != size:
                    self._waiting[rank] = (offset, seen, now)
                    continue
                if (seen <= offset or now - grown < STACKS_QUIET_S) and now < self._limit:
                    continue
            if self._ras is not None and len(self._waiting) == 1:
                break
            del self._waiting[rank]
            self._finish(rank, offset if offset is not None and seen > offset else None)
        return not self._waiting

    def _finish(self, rank: Rank, offset: int | None) -> None:
        text = ""
        notes = []
        if offset is None:
            notes.append("no Python stacks: the process has no handler for the signal, or did not answer")
        else:
            try:
                with open(self._path(rank), "rb", opener=procfs.at_once) as file:
                    file.seek(offset)
                    text = file.read(_MAX_TEXT).decode("utf-8", "replace")
            except OSError:
                notes.append("the file of Python stacks cannot be read")
        shape = "  thread {tid} ({comm}) state={state} cpu_s={cpu_s} wchan={wchan} syscall={syscall}\n"
        kernel = "".join([shape.format(**thread) for thread in procfs.threads(rank.pid)])
        text += ("\n" if text else "") + "Kernel view:\n" + kernel
        self._write("stacks", dict(rank.fields(), stacks=text, notes=notes), False)
