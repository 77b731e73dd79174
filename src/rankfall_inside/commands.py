"""The processes that the wrapper itself started, and the signals that it sends: each is marked as ours before it is sent."""

from __future__ import annotations

import os
import signal

from rankfall_inside import plain, spawn

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Mapping

    from rankfall_inside.options import Options
    from rankfall_inside.slot import SlotFiles


class Commands:
    """The command of one slot: one process (``exec``), or one for each rank (``plain``).

    Args:
        options: of the wrapper.
        files: of the slot.
        fields: called with a pid, gives what a record about a signal to it says of its rank.
    """

    def __init__(self, options: Options, files: SlotFiles, *, fields: Callable[[int], dict[str, Any]]) -> None:
        self._options = options
        self._files = files
        self._fields = fields
        self._pids: list[int] = []
        # The last signal of ours to each process, and why.
        self._own: dict[int, tuple[int, str]] = {}
        self.plain: plain.Plain | None = None
        # Of wait(2), when all have ended.
        self.status: int | None = None

    @property
    def started(self) -> bool:
        """Whether there is, or was, any process."""
        return bool(self._pids)

    def start(self, command: list[str], environ: dict[str, str]) -> tuple[int, int]:
        """Start ``command`` once; read sides of its stdout and stderr."""
        out, out_write = os.pipe()
        err, err_write = os.pipe()
        # By the inode a hook knows whether its fd 1 is still this pipe or the user's own redirect.
        environ["RANKFALL_PIPES"] = f"{os.fstat(out_write).st_ino}:{os.fstat(err_write).st_ino}"
        self._pids.append(spawn.start(command, environ, out=out_write, err=err_write))
        os.close(out_write)
        os.close(err_write)
        return out, err

    def start_plain(self, command: list[str], environ: Mapping[str, str]) -> list[tuple[int, dict[str, Any], int, int]]:
        """Start ``command`` for each rank; (pid, identity, read side of stdout, of stderr) of each."""
        self.plain = plain.Plain(
            command,
            nproc=self._options.nproc,
            slot_dir=self._files.path,
            grace=self._options.grace,
            signal_rank=self.send,
        )
        started = list(self.plain.start(environ))
        self._pids.extend(pid for pid, _, _, _ in started)
        return started

    def reaped(self, pid: int, status: int) -> bool:
        """Take in that ``pid`` was reaped; whether that was the slot's one command."""
        if self.plain is not None:
            self.plain.ended(pid, status)
            if self.plain.done and self.status is None:
                self.status = self.plain.status
        elif self._pids[:1] == [pid]:
            self.status = status
            return True
        return False

    def living(self) -> list[int]:
        """Pids of those that have not ended."""
        if self.plain is not None:
            return [pid for pid in self._pids if self.plain.is_live(pid)]
        return self._pids if self.status is None else []

    def pass_on(self, number: int) -> None:
        """Send a signal of somebody else to the process groups of all."""
        for pid in self.living():
            try:
                os.killpg(pid, number)
            except OSError:
                continue

    def send(self, pid: int, number: int, reason: str) -> None:
        """Mark a signal as our own, then send it to the process group of one of the commands."""
        self.mark(pid, number, reason)
        try:
            os.killpg(pid, number)
            if number == signal.SIGTERM:
                # A stopped process takes SIGTERM only when it runs again.
                os.killpg(pid, signal.SIGCONT)
        except OSError:
            return

    def mark(self, pid: int, number: int, reason: str) -> None:
        """Say that we send this signal next."""
        self._own[pid] = (number, reason)
        self._files.mark_kill(pid, number, reason, self._fields(pid))

    def own_reason(self, pid: int, number: int) -> str | None:
        """Why we sent this signal to ``pid``; None when we did not."""
        sent = self._own.get(pid)
        return sent[1] if sent is not None and sent[0] == number else None
