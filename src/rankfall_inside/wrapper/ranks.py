"""Ranks of a slot: claimed by a hook, found in /proc, or started by the plain launcher.

The exit status of a process that is no child is in /proc while it is a zombie, and from kernel 6.15 in its pidfd.
"""

from __future__ import annotations

import os
import struct
import time

from rankfall_inside import claims, identity, procfs, records, untrusted

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable

# pidfd_open on all Linux architectures except alpha.
_NR_PIDFD_OPEN = 434
# struct pidfd_info, first version: u64 mask, u64 cgroupid, 11 u32 ids, s32 exit_code.
_INFO_SIZE = 64
_INFO_EXIT = 1 << 3
_EXIT_OFFSET = 60
# Python's code if it cannot flush its output at the end.
_FLUSH_FAILED = 120
# _IOWR(0xFF, 11, struct pidfd_info)
_GET_INFO = (3 << 30) | (_INFO_SIZE << 16) | (0xFF << 8) | 11


def open_pid(pid: int) -> int | None:
    """Returns a pidfd, or None if the kernel (before 5.3) or a policy refuses, or the process ended."""
    opener = getattr(os, "pidfd_open", None)
    try:
        if opener is not None:
            return int(opener(pid))  # foreign-text: a file descriptor
        return _by_syscall(pid)
    except (OSError, ImportError, AttributeError):
        return None


def _by_syscall(pid: int) -> int | None:
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    fd = int(libc.syscall(_NR_PIDFD_OPEN, pid, 0))
    return fd if fd >= 0 else None


def exit_status(pid: int, start: int, fd: int | None) -> tuple[int | None, str]:
    """Returns the wait(2) status of ``pid`` and its source (``proc``, ``pidfd``), or (None, ``gone``)."""
    seen = procfs.stat(pid)
    if seen is not None and seen.start == start and seen.state == "Z":
        return seen.exit_status, "proc"
    if fd is not None:
        status = _info_status(fd)
        if status is not None:
            return status, "pidfd"
    return None, "gone"


def _info_status(fd: int) -> int | None:
    import fcntl

    info = bytearray(_INFO_SIZE)
    struct.pack_into("<Q", info, 0, _INFO_EXIT)
    try:
        fcntl.ioctl(fd, _GET_INFO, info)
    except OSError:
        return None
    (mask,) = struct.unpack_from("<Q", info, 0)
    if not mask & _INFO_EXIT:
        return None
    (status,) = struct.unpack_from("<i", info, _EXIT_OFFSET)
    return int(status)  # foreign-text: unpacked from four bytes


# Seconds before a rank counts as without hook.
_HOOK_WAIT_S = 2.0


class Rank:
    """A process that is a rank; ``hook`` is True if its hook claimed the rank."""

    def __init__(self, *, ordinal: int, pid: int, start: int, identity: dict[str, Any], hook: bool) -> None:
        self.ordinal = ordinal
        self.pid = pid
        self.start = start
        self.identity = identity
        self.hook = hook
        self.pidfd: int | None = None
        self.ended = False

    def fields(self) -> dict[str, Any]:
        """Returns fields of every record about this rank."""
        return dict(self.identity, ordinal=self.ordinal, pid=self.pid, start_ticks=self.start)


class _Candidate:
    """Process with RANK but no claim yet; the pidfd preserves its exit status."""

    __slots__ = ("argv", "found", "ordinal", "pidfd", "since")

    def __init__(self, found: dict[str, Any], *, ordinal: int | None, pidfd: int | None) -> None:
        self.found = found
        self.ordinal = ordinal
        self.pidfd = pidfd
        self.since = time.monotonic()
        self.argv: list[str] = []


class Ranks:
    """All ranks of one wrapper, by ordinal; ``watch(pidfd, rank)`` watches an end."""

    def __init__(
        self,
        slot_dir: str,
        *,
        write: Callable[[str, dict[str, Any], bool], None],
        watch: Callable[[int, Rank], None],
    ) -> None:
        self._claims = os.path.join(slot_dir, "claims")
        self._progress = os.path.join(slot_dir, "progress")
        self._write = write
        self._watch = watch
        self._next = 0
        # Unclaimed processes with RANK, by (pid, start).
        self._candidates: dict[tuple[int, int], _Candidate] = {}
        self._no_rank: set[tuple[int, int]] = set()
        self.by_ordinal: dict[int, Rank] = {}

    @property
    def claimed(self) -> int:
        """Number of used ordinals."""
        return self._next

    def live(self) -> list[Rank]:
        """Returns ranks that have not ended."""
        return [rank for rank in self.by_ordinal.values() if not rank.ended]

    def find(self, pid: int) -> Rank | None:
        """Returns the live rank with this pid, or None."""
        for rank in self.by_ordinal.values():
            if rank.pid == pid and not rank.ended:
                return rank
        return None

    def hooked(self, ordinal: int) -> None:
        """Records that a hook claimed ``ordinal``, perhaps after the wrapper's own claim."""
        rank = self.by_ordinal.get(ordinal)
        if rank is not None:
            rank.hook = True

    def rank_of(self, ordinal: int) -> int | None:
        """Returns the global rank of an ordinal, also from an unread claim; None if unknown."""
        rank = self.by_ordinal.get(ordinal)
        if rank is not None:
            found = rank.identity.get("rank")
            return found if isinstance(found, int) else None
        numbers = claims.read(os.path.join(self._claims, f"o{ordinal}"))
        return claims.rank_in(numbers)

    def read_claims(self) -> list[Rank]:
        """Reads hooks' new claims; returns the new ranks."""
        fresh: list[Rank] = []
        while True:
            numbers = claims.read(os.path.join(self._claims, f"o{self._next}"))
            if numbers is None or len(numbers) < 4 + len(claims.IDENTITY):
                # Missing, or not completely written.
                return fresh
            ordinal, self._next = self._next, self._next + 1
            if ordinal in self.by_ordinal:
                continue
            named = {name: None if value < 0 else value for name, value in zip(claims.IDENTITY, numbers[4:])}
            rank = Rank(ordinal=ordinal, pid=numbers[0], start=numbers[1], identity=named, hook=True)
            self.by_ordinal[ordinal] = rank
            self._begin(rank)
            fresh.append(rank)

    def add_own(self, pid: int, ordinal: int, named: dict[str, Any]) -> None:
        """Adds a rank of the plain launcher with its ordinal; its hook may claim later."""
        start = procfs.start_ticks(pid) or 0
        claims.take(self._claims, ordinal, claims.text_of(pid=pid, start=start, root=(pid, start), found=named))
        self.by_ordinal[ordinal] = Rank(ordinal=ordinal, pid=pid, start=start, identity=named, hook=False)
        self._next = max(self._next, ordinal + 1)
        self._candidates[(pid, start)] = _Candidate(named, ordinal=ordinal, pidfd=None)

    def _begin(self, rank: Rank) -> None:
        fd = open_pid(rank.pid)
        if fd is not None and procfs.start_ticks(rank.pid) in (rank.start, None):
            rank.pidfd = fd
            self._watch(fd, rank)
            return
        if fd is not None:
            os.close(fd)
        if procfs.start_ticks(rank.pid) != rank.start:
            self.ended(rank, None, "gone", {})

    def scan(self, root: int, processes: dict[int, procfs.Stat]) -> None:
        """Finds processes below ``root`` with RANK but no hook, and ends without pidfd."""
        known = {rank.pid for rank in self.live()}
        for one in procfs.descendants(root, processes):
            ident = (one.pid, one.start)
            if one.ppid in known:
                # A rank's child is no rank, even after its parent's end. Parents are first, so this covers
                # grandchildren.
                known.add(one.pid)
                self._no_rank.add(ident)
            elif one.state != "Z" and ident not in self._candidates and ident not in self._no_rank:
                self._look(one, root)
        for ident in list(self._candidates):
            self._decide(ident, gone=ident[0] not in processes or processes[ident[0]].start != ident[1])
        self._no_rank = {ident for ident in self._no_rank if ident[0] in processes}
        for rank in self.live():
            seen = processes.get(rank.pid)
            if rank.pidfd is None and (seen is None or seen.start != rank.start):
                self.ended(rank, None, "gone", {})

    def _look(self, one: procfs.Stat, root: int) -> None:
        ident = (one.pid, one.start)
        environ = procfs.environ(one.pid)
        if environ is None:
            return
        found = identity.read(environ) if identity.has_rank(environ) else None
        argv = procfs.cmdline(one.pid)
        if found is None:
            # Between fork and exec a child resembles its parent: check again.
            return
        if (
            environ.get("RANKFALL_CLAIMED")
            or identity.is_launcher(argv)
            or (one.ppid == root and self._slot_outlives_rank(found))
            or claims.find_root(one.pid, environ, root) != ident
        ):
            self._no_rank.add(ident)
            return
        found["rank_source"] = str(found["rank_source"]).replace("env:", "proc:")
        candidate = _Candidate(found, ordinal=None, pidfd=open_pid(one.pid))
        candidate.argv = records.safe_argv(argv)
        self._candidates[ident] = candidate

    def _slot_outlives_rank(self, found: dict[str, Any]) -> bool:
        """Returns True if a rank with this orphan's rank number and restart count has ended: it is no rank."""
        return any(
            rank.ended and all(rank.identity.get(name) == found.get(name) for name in ("rank", "restart_count"))
            for rank in self.by_ordinal.values()
        )

    def _decide(self, ident: tuple[int, int], *, gone: bool) -> None:
        """Makes a candidate a rank without hook, unless its hook still may claim."""
        pid, start = ident
        candidate = self._candidates[ident]
        claimed = os.path.exists(os.path.join(self._claims, f"r{pid}-{start}.0"))
        if not claimed and not gone and time.monotonic() - candidate.since < _HOOK_WAIT_S:
            return
        del self._candidates[ident]
        self._no_rank.add(ident)
        own = self.by_ordinal.get(candidate.ordinal) if candidate.ordinal is not None else None
        if claimed:
            if candidate.pidfd is not None:
                os.close(candidate.pidfd)
            if own is not None:
                own.hook = True
            return
        rank = own or self._adopt(pid, start, candidate)
        if rank is not None:
            argv = candidate.argv or records.safe_argv(procfs.cmdline(pid))
            fields = dict(rank.fields(), argv=argv, streams=own is not None, notes=["hook absent"])
            self._write("start", fields, False)

    def _adopt(self, pid: int, start: int, candidate: _Candidate) -> Rank | None:
        root = (pid, start)
        text = claims.text_of(pid=pid, start=start, root=root, found=candidate.found, adopted=True)
        try:
            ordinal = claims.claim(self._claims, text=text, root=root)
        except OSError:
            ordinal = None
        if ordinal is None:
            if candidate.pidfd is not None:
                os.close(candidate.pidfd)
            return None
        rank = Rank(ordinal=ordinal, pid=pid, start=start, identity=candidate.found, hook=False)
        self.by_ordinal[ordinal] = rank
        if candidate.pidfd is not None:
            rank.pidfd = candidate.pidfd
            self._watch(candidate.pidfd, rank)
        return rank

    def settle(self) -> None:
        """Decides about all candidates at the slot's end."""
        for ident in list(self._candidates):
            self._decide(ident, gone=True)

    def exit_of(self, rank: Rank) -> tuple[int | None, str]:
        """Returns the exit status (None if unknown) and its source, once the rank's pidfd is readable."""
        return exit_status(rank.pid, rank.start, rank.pidfd)

    def ended(self, rank: Rank, status: int | None, how: str, extra: dict[str, Any]) -> None:
        """Writes the end record of ``rank``; does nothing after the first call.

        Args:
            rank: Rank whose process ended.
            status: Wait status; None if unknown.
            how: Source of the status.
            extra: Further fields of the record.
        """
        if rank.ended:
            return
        rank.ended = True
        for ident in list(self._candidates):
            if ident == (rank.pid, rank.start):
                self._decide(ident, gone=True)
        fields = rank.fields()
        fields.update(self.last_progress(rank.ordinal))
        exit_info = extra.pop("exit", {})
        exit_info.update(exit_fields(status), how=how)
        fields.update(extra, exit=exit_info)
        if not rank.hook:
            fields["notes"] = ["hook absent"]
        self._record_exit(rank, exit_info.get("code"))
        self._write("end", fields, True)

    def _record_exit(self, rank: Rank, code: int | None) -> None:
        """Writes the error record of a raised SystemExit, which the hook cannot see."""
        # Around the rank there may be a shell, whose code is its own.
        mark = os.path.join(self._progress, f"{rank.ordinal}-{rank.pid}.exit")
        if not code or code == _FLUSH_FAILED or not os.path.exists(mark):
            return
        error = {"types": ["SystemExit"], "message": str(code), "chain": [str(code)], "exit_code": code}
        self._write("error", dict(rank.fields(), error=dict(error, raised_ns=time.time_ns())), True)

    def last_progress(self, ordinal: int) -> dict[str, Any]:
        """Returns the rank's last ``step``, ``step_ns`` and ``phase``, or nothing."""
        data = procfs.read_bounded(os.path.join(self._progress, f"{ordinal}.json"), 4096)
        if not data:
            return {}
        try:
            found = untrusted.loads(data)
            step, at_ns, phase = found.get("step"), found.get("at_ns"), found.get("phase")
        except (ValueError, AttributeError):
            return {}
        return {
            "step": step if isinstance(step, int) else None,
            "step_ns": at_ns if isinstance(at_ns, int) else None,
            "phase": phase[:64] if isinstance(phase, str) else None,
        }


def exit_fields(status: int | None) -> dict[str, Any]:
    """Returns ``code`` or ``signal`` of a wait(2) status; empty if unknown."""
    if status is None:
        return {}
    if os.WIFSIGNALED(status):
        return {"signal": os.WTERMSIG(status)}
    return {"code": os.WEXITSTATUS(status)}
