"""The wrapper: process 1 of a container or of one slot on this machine. Runs the command and sees everything it does.

Holds the pipes and writes the streams; forwards signals and remembers who sent them; reaps orphans; writes start and end records; ends
every descendant; and leaves with the command's own code. It never stops a job because something of its own fails.
"""

from __future__ import annotations

import os
import signal
import sys
import time

from rankfall_inside import plain, procfs, ranks, reap, records, signals, spawn, stacks, streams
from rankfall_inside.console import Console
from rankfall_inside.loop import Loop
from rankfall_inside.pump import Pump

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Mapping

    from rankfall_inside.__main__ import Options
    from rankfall_inside.slot import SlotFiles

# Between two looks at /proc: often while ranks start, seldom afterwards.
_SCAN_FAST_S, _SCAN_SLOW_S, _FAST_FOR_S = 0.25, 1.0, 60.0
# Between two looks while processes are being ended or asked for stacks.
_STEP_S = 0.02
# Spare pipes beyond one for each rank: a restart claims new ones before the old ones are refilled.
_SPARE = 4
# After a second request to end.
_HURRY_S = 1.0
_ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT, signal.SIGHUP)
_MAX_COMMAND = 1 << 16
_MAX_NOTES = 20


class Wrapper:
    """One slot's main loop, in one thread; a second thread only waits for signals."""

    def __init__(self, options: Options, files: SlotFiles, environ: Mapping[str, str]) -> None:
        self._options = options
        self._files = files
        self._environ = dict(environ)
        self._pid = os.getpid()
        self._loop = Loop()
        console = Console(1) if options.console else None
        self._pump = Pump(
            self._loop, stream_dir=options.stream_dir, console=console, prefix=self._prefix, on_gap=self._gap
        )
        self._ranks = ranks.Ranks(files.path, write=files.write, watch=self._watch_rank)
        self._pool = streams.Pool(os.path.join(files.path, "pipes"), spare=options.nproc + _SPARE)
        self._control = files.control()
        self._notices = files.notices()
        self._signals = -1
        self._commands: list[int] = []
        self._plain: plain.Plain | None = None
        self._status: int | None = None
        self._deadline: float | None = None
        self._ender: reap.Ender | None = None
        self._asked: dict[str, Any] | None = None
        self._stop_reason: str | None = None
        self._own: dict[int, tuple[int, str]] = {}
        self._stacks: stacks.Collector | None = None
        self._buffer = b""
        self._gaps: list[str] = []
        self._trouble = ""
        self._began = time.monotonic()
        self._next_scan = self._began

    def run(self) -> int:
        """Run the command to its end; the exit code for this process."""
        spawn.become_subreaper()
        signals.block()
        self._loop.watch(self._control, self._on_control)
        self._loop.watch(self._notices, self._on_notice)
        argv = records.safe_argv(self._options.command)
        self._files.write("slot_start", {"pid": self._pid, "argv": argv, "python": sys.version.split()[0]}, False)
        self._start()
        # Only now: a thread must not be there while processes are forked.
        self._signals = signals.start()
        self._loop.watch(self._signals, self._on_signal)
        self._reap()
        while not self._over():
            try:
                self._turn()
            except OSError as error:
                # No descriptors, no memory: what was to be done is missing, the job goes on.
                self._trouble = f"the wrapper met {error!r}"
        self._finish()
        return self._exit_code()

    # -- start

    def _start(self) -> None:
        environ = dict(self._environ, RANKFALL_WRAPPER=str(self._pid), RANKFALL_INSTANCE=self._options.instance)
        for name in ("RANKFALL_ORDINAL", "RANKFALL_CLAIMED", "RANKFALL_PIPES"):
            # Of another wrapper, when this one runs inside a rank.
            environ.pop(name, None)
        if environ.get("RANKFALL_INSIDE") != "off":
            theirs = environ.get("PYTHONPATH")
            environ["PYTHONPATH"] = self._options.home + (os.pathsep + theirs if theirs else "")
        if self._options.launcher == "plain":
            self._start_plain(environ)
            return
        out, out_write = os.pipe()
        err, err_write = os.pipe()
        # By the inode a hook knows whether its fd 1 is still this pipe or the user's own redirect.
        environ["RANKFALL_PIPES"] = f"{os.fstat(out_write).st_ino}:{os.fstat(err_write).st_ino}"
        self._refill()
        self._commands.append(spawn.start(self._options.command, environ, out=out_write, err=err_write))
        os.close(out_write)
        os.close(err_write)
        self._pump.add(out, "slot", "out")
        self._pump.add(err, "slot", "err")

    def _start_plain(self, environ: dict[str, str]) -> None:
        options = self._options
        self._plain = plain.Plain(
            options.command,
            nproc=options.nproc,
            slot_dir=self._files.path,
            grace=options.grace,
            signal_rank=self._send,
        )
        for local, (pid, named, out, err) in enumerate(self._plain.start(environ)):
            self._commands.append(pid)
            self._ranks.add_own(pid, local, named)
            self._pump.add(out, str(local), "out")
            self._pump.add(err, str(local), "err")

    def _refill(self) -> None:
        for ordinal, kind, fd in self._pool.refill(self._ranks.claimed):
            self._pump.add(fd, str(ordinal), kind)

    # -- loop

    def _turn(self) -> None:
        now = time.monotonic()
        due = self._next_scan
        for deadline in (self._deadline, self._plain.deadline if self._plain else None):
            due = due if deadline is None else min(due, deadline)
        if self._ender is not None or self._stacks is not None:
            due = min(due, now + _STEP_S)
        self._loop.turn(due - now)
        now = time.monotonic()
        if now >= self._next_scan:
            young = now - self._began < _FAST_FOR_S and len(self._ranks.live()) < self._options.nproc
            self._next_scan = now + (_SCAN_FAST_S if young else _SCAN_SLOW_S)
            self._claims()
            self._ranks.scan(self._pid, procfs.snapshot())
        if self._plain is not None:
            self._plain.step()
        if self._stacks is not None and self._stacks.step():
            self._stacks = None

    def _over(self) -> bool:
        """Whether nothing of the slot lives any more; ends what must be ended."""
        if self._status is None and (self._deadline is None or time.monotonic() < self._deadline):
            return False
        if self._ender is None:
            grace = 0.0 if self._status is None else self._options.grace
            if self._deadline is not None:
                grace = max(0.0, min(grace, self._deadline - time.monotonic()))
            reason = self._stop_reason or ("asked twice to end" if self._status is None else "the command has ended")
            self._ender = reap.Ender(self._pid, grace=grace, reason=reason, mark=self._mark)
            self._deadline = None
        over = self._ender.step()
        self._reap()
        return over

    # -- ranks

    def _prefix(self, name: str) -> bytes:
        rank = self._ranks.by_ordinal.get(int(name)) if name.isdigit() else None
        number = rank.identity.get("rank") if rank is not None else None
        return b"" if number is None else b"[rank %d] " % number

    def _on_notice(self) -> None:
        notice = _swallow(self._notices)
        self._claims()
        self._ranks.hooked(notice)

    def _claims(self) -> None:
        if self._ranks.read_claims() and self._plain is None:
            self._refill()

    def _watch_rank(self, fd: int, rank: ranks.Rank) -> None:
        self._loop.watch(fd, lambda: self._rank_ended(rank, *self._ranks.exit_of(rank)))

    def _rank_ended(self, rank: ranks.Rank, status: int | None, how: str) -> None:
        if rank.pidfd is not None:
            self._loop.unwatch(rank.pidfd)
        exit_info: dict[str, Any] = {}
        if status is not None and os.WIFSIGNALED(status):
            number = os.WTERMSIG(status)
            own = self._own.get(rank.pid)
            if own is not None and own[0] == number:
                exit_info = {"ours": True, "reason": own[1]}
            elif self._stop_reason is not None and number in (signal.SIGTERM, signal.SIGKILL):
                # The command ended its ranks because it was told to.
                exit_info = {"ours": True, "reason": self._stop_reason}
        self._ranks.ended(rank, status, how, {"exit": exit_info, "oom_kills": self._files.oom_kills()})

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if not pid:
                return
            self._claims()
            rank = self._ranks.find(pid)
            if rank is not None:
                self._rank_ended(rank, status, "wait")
            if self._plain is not None:
                self._plain.ended(pid, status)
                if self._plain.done and self._status is None:
                    self._status = self._plain.status
            elif pid == self._commands[0]:
                self._status = status

    # -- signals and commands

    def _on_signal(self) -> None:
        for number, sender in signals.drain(self._signals):
            if number == signal.SIGCHLD:
                self._reap()
            else:
                self._foreign(number, sender)

    def _foreign(self, number: int, sender: int) -> None:
        """A signal to the wrapper itself: recorded with its sender and passed on to the command."""
        if number in _ENDING:
            seen = {"signal": number, "how": "received", "sender_pid": sender}
            words = procfs.cmdline(sender) if sender else ()
            if words:
                seen["sender"] = " ".join(records.safe_argv(words))[:200]
            seen["ours"] = sender > 0 and str(sender) == self._environ.get("RANKFALL_SUPERVISOR_PID")
            seen["reason"] = "signal from outside to the wrapper, passed on to the command"
            self._files.write("kill", {"pid": self._pid, "exit": seen}, False)
            if self._asked is not None or self._stop_reason is not None:
                self._hurry(_HURRY_S)
            self._asked = self._asked or seen
        self._signal_commands(number)

    def _hurry(self, grace: float) -> None:
        """A second request: whoever sent it will not wait for the whole grace time."""
        if self._ender is not None:
            self._ender.hurry(grace)
        else:
            due = time.monotonic() + grace
            self._deadline = due if self._deadline is None else min(self._deadline, due)

    def _living_commands(self) -> list[int]:
        if self._plain is not None:
            return [pid for pid in self._commands if self._plain.is_live(pid)]
        return self._commands if self._status is None else []

    def _signal_commands(self, number: int) -> None:
        for pid in self._living_commands():
            try:
                os.killpg(pid, number)
            except OSError:
                continue

    def _on_control(self) -> None:
        self._buffer = (self._buffer + _swallow(self._control))[-_MAX_COMMAND:]
        *lines, self._buffer = self._buffer.split(b"\n")
        for line in lines:
            words = line.decode("utf-8", "replace").split(None, 2)
            if words[:1] == ["stop"]:
                self._stop(words)
            elif words == ["stacks"]:
                self._claims()
                if self._stacks is None:
                    self._stacks = stacks.Collector(self._files.path, self._ranks.live(), write=self._files.write)
            elif words[:1] == ["signal"] and len(words) > 1 and words[1].isdigit() and 0 < int(words[1]) < signal.NSIG:
                for pid in self._living_commands():
                    self._send(pid, int(words[1]), "asked for by the supervisor")

    def _stop(self, words: list[str]) -> None:
        try:
            grace = max(0.0, min(float(words[1]), 86_400.0))
        except (IndexError, ValueError):
            grace = self._options.grace
        if self._stop_reason is not None:
            self._hurry(grace)
            return
        self._stop_reason = words[2][:200] if len(words) > 2 else "stop"  # noqa: PLR2004 - verb, grace, reason
        for pid in self._living_commands():
            self._send(pid, signal.SIGTERM, self._stop_reason)
        self._hurry(grace)

    def _send(self, pid: int, number: int, reason: str) -> None:
        """Mark a signal as our own, then send it to the process group of one of the commands."""
        self._mark(pid, number, reason)
        try:
            os.killpg(pid, number)
            if number == signal.SIGTERM:
                # A stopped process takes SIGTERM only when it runs again.
                os.killpg(pid, signal.SIGCONT)
        except OSError:
            return

    def _mark(self, pid: int, number: int, reason: str) -> None:
        self._own[pid] = (number, reason)
        rank = self._ranks.find(pid)
        self._files.mark_kill(pid, number, reason, rank.fields() if rank else {})

    # -- end

    def _gap(self, name: str, text: str) -> None:
        self._gaps.append(text)
        self._files.write("gap", {"ordinal": int(name) if name.isdigit() else None, "notes": [text]}, False)

    def _finish(self) -> None:
        self._claims()
        self._pump.drain()
        self._reap()
        self._ranks.settle()
        for rank in self._ranks.live():
            self._rank_ended(rank, *self._ranks.exit_of(rank))
        left = self._ender.left if self._ender is not None else []
        notes = self._gaps[:_MAX_NOTES] + [f"process {one.pid} ({one.comm}) did not die" for one in left[:_MAX_NOTES]]
        if self._trouble:
            notes.append(self._trouble)
        if self._files.unwritten:
            notes.append(f"{self._files.unwritten} records could not be written")
        exit_info: dict[str, Any] = dict(
            ranks.exit_fields(self._status), how="gone" if self._status is None else "wait"
        )
        if self._stop_reason is not None:
            exit_info.update(ours=True, reason=self._stop_reason)
        elif self._asked is not None:
            exit_info.update(
                {name: self._asked[name] for name in ("sender_pid", "sender", "ours") if name in self._asked}
            )
            exit_info["reason"] = f"signal {self._asked['signal']} from outside"
        fields = {"pid": self._pid, "exit": exit_info, "oom_kills": self._files.oom_kills(), "notes": notes}
        self._files.finish(fields)

    def _exit_code(self) -> int:
        if self._status is None:
            return 128 + signal.SIGKILL
        if os.WIFSIGNALED(self._status):
            return 128 + os.WTERMSIG(self._status)
        return os.WEXITSTATUS(self._status)


def _swallow(fd: int) -> bytes:
    try:
        return os.read(fd, _MAX_COMMAND)
    except OSError:
        return b""
