"""Main loop of the wrapper: runs the command, observes it, and exits with its code."""

from __future__ import annotations

import os
import signal
import sys
import time

from rankfall_inside import procfs, records, untrusted
from rankfall_inside.delivery import exit_reports, stream_files
from rankfall_inside.delivery.console import UNKNOWN, Channel, Console
from rankfall_inside.delivery.record_store import Delivery
from rankfall_inside.event_loop import Loop, read_available
from rankfall_inside.wrapper import liveness, outcome, output, processes, ranks, signals, startup
from rankfall_inside.wrapper.commands import Commands
from rankfall_inside.wrapper.control import Orders
from rankfall_inside.wrapper.liveness import Heartbeat
from rankfall_inside.wrapper.options import say
from rankfall_inside.wrapper.outcome import RankFailures
from rankfall_inside.wrapper.output import Pump
from rankfall_inside.wrapper.rank_registry import RankRegistry
from rankfall_inside.wrapper.startup import Startup

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Mapping

    from rankfall_inside.wrapper.options import Options
    from rankfall_inside.wrapper.slot_files import SlotFiles
    from rankfall_inside.wrapper.startup import Choice

# Interval of /proc scans.
_SCAN_FAST_S, _SCAN_SLOW_S, _FAST_FOR_S = 0.25, 1.0, 60.0
# While ending processes or collecting stacks.
_STEP_S = 0.02
# Extra pipes: a restart claims new ones before a refill.
_SPARE = 4
_MAX_TEXTS = 4
# For copies of the last records.
_STORE_S = 15.0


class Wrapper:
    """Main loop of one slot; a second thread only waits for signals. The token "" means no log channel."""

    def __init__(
        self, options: Options, files: SlotFiles, environ: Mapping[str, str], *, token: str, notes: list[str]
    ) -> None:
        self._options = options
        self._files = files
        self._pid = os.getpid()
        # The caller's list decides about the slot directory.
        self._notes = list(notes)
        self._loop = Loop()
        self._console = Console(1, self._loop, secret=token.encode()) if options.console or token else None
        self._channel = files.channel = Channel(self._console, token)
        self._environ = startup.command_environment(environ, options, files, channel=self._channel.active)
        self._torchrun = startup.words_of(environ)
        store = output.opened(options.log_store, environ, self._notes)
        self._storing = output.LogStoreSession(store, files)
        if options.stream_dir:
            files.reserve(2 + 3 * options.nproc)
        self._pump = Pump(
            self._loop,
            stream_dir=options.stream_dir,
            console=self._console if options.console else None,
            prefix=self._prefix,
            store=store,
            on_gap=self._gap,
        )
        self._delivery = Delivery(environ, files.records, files.place)
        self._pool = stream_files.Pool(os.path.join(files.path, "pipes"), spare=options.nproc + _SPARE)
        self._falls = RankFailures()
        # Slots of one machine would overwrite each other's.
        self._last_words = environ.get(exit_reports.TERMINATION_VARIABLE) or (
            exit_reports.TERMINATION_PATH if options.alone else ""
        )
        self._error_file = environ.get(exit_reports.ERROR_FILE_VARIABLE, "")
        needed = (
            bool(self._error_file)
            or self._channel.active
            or options.exit_code == "cause"
            or os.path.exists(self._last_words)
        )
        self._registry = RankRegistry(
            files,
            self._loop,
            falls=self._falls,
            look=needed,
            why_ours=self._why_ours,
            on_claims=self._claimed,
        )
        self._ranks = self._registry.ranks
        self._commands = Commands(options, files, fields=self._registry.fields)
        self._orders = Orders(
            options,
            files,
            self._commands,
            supervisor=environ.get("RANKFALL_SUPERVISOR_PID"),
            on_stacks=self._collect_stacks,
            on_asked=self._falls.asked,
        )
        self._heartbeats = bool(environ.get("RANKFALL_HEARTBEATS"))
        self._heartbeat = Heartbeat(
            self._ranks, place=files.place, tell=files.write_heartbeat if self._heartbeats else files.tell
        )
        self._control = files.control()
        self._signals = -1
        self._refused = ""
        self._ender: processes.DescendantKiller | None = None
        self._stacks: liveness.Collector | None = None
        self._gaps: list[str] = []
        self._trouble = ""
        self._began = time.monotonic()
        self._next_scan = self._began

    def run(self) -> int:
        """Runs the command to its end; returns this process's exit code."""
        processes.become_subreaper()
        self._loop.watch(self._control, lambda: self._orders.lines(read_available(self._control)))
        self._registry.begin()
        self._begin()
        # Late: no thread may exist during a fork.
        self._signals = signals.start()
        self._delivery.start()
        self._loop.watch(self._signals, self._on_signal)
        self._reap()
        while self._commands.started and not self._over():
            try:
                self._step()
            except OSError as error:
                # No descriptors or memory: the job continues.
                self._trouble = f"the wrapper got an error: {error!r}"
        self._finish()
        self._flush()
        falls = self._falls if self._options.exit_code == "cause" else None
        return outcome.exit_code(self._commands, self._orders, refused=self._refused, falls=falls)

    def _begin(self) -> None:
        startup_steps = Startup(self._options, self._orders, self._loop, self._environ)
        choice = startup_steps.choose(self._torchrun)
        self._refused = choice.problem
        fields = {
            "pid": self._pid,
            "argv": records.safe_argv(choice.command),
            "python": sys.version.split()[0],
            "launcher": choice.launcher,
            "notes": self._notes + [note for note in (choice.note, choice.problem) if note],
            **self._storing.begin(),
        }
        self._files.write("slot_start", fields, False)
        if choice.problem:
            say(choice.problem)
        else:
            startup_steps.wait_for_names(self._waiting)
        if not choice.problem and not self._orders.stop_requested:
            self._start(choice)

    def _waiting(self, text: str) -> None:
        say(text)
        self._files.tell("progress", dict(self._files.place, phase="waiting", notes=[text]))

    def _start(self, choice: Choice) -> None:
        if choice.launcher == "plain":
            for local, (pid, named, out, err) in enumerate(self._commands.start_plain(choice.command, self._environ)):
                self._ranks.add_own(pid, local, named)
                self._pump.add(out, str(local), "out")
                self._pump.add(err, str(local), "err")
            return
        self._refill()
        out, err = self._commands.start(choice.command, self._environ)
        self._pump.add(out, "slot", "out")
        self._pump.add(err, "slot", "err")

    def _refill(self) -> None:
        for ordinal, kind, fd in self._pool.refill(self._ranks.claimed):
            self._pump.add(fd, str(ordinal), kind)

    def _step(self) -> None:
        now = time.monotonic()
        due = self._next_scan
        plain = self._commands.plain
        for deadline in (self._orders.deadline, plain.deadline if plain else None):
            due = due if deadline is None else min(due, deadline)
        if self._ender is not None or self._stacks is not None:
            due = now + _STEP_S
        self._loop.run_once(due - now)
        now = time.monotonic()
        if now >= self._next_scan:
            young = now - self._began < _FAST_FOR_S and len(self._ranks.live()) < self._options.nproc
            self._storing.watch()
            self._pump.tell_gaps()
            self._next_scan = now + (_SCAN_FAST_S if young else _SCAN_SLOW_S)
            self._registry.claims()
            snapshot = procfs.snapshot()
            self._ranks.scan(self._pid, snapshot)
            if self._channel.active:
                self._registry.hear()
            if self._channel.active or self._heartbeats:
                self._heartbeat.write_marks(snapshot)
        if plain is not None:
            plain.step()
        if self._stacks is not None and self._stacks.step():
            self._stacks = None

    def _over(self) -> bool:
        """Ends leftover processes when the command ended or a stop is due; True if no process of the slot lives."""
        status, deadline = self._commands.status, self._orders.deadline
        left = None if deadline is None else max(0.0, deadline - time.monotonic())
        if self._ender is None:
            if status is None and (left is None or left > 0):
                return False
            reason = self._orders.stop_reason or (
                "a stop was requested, and the grace time has passed" if status is None else "the command has ended"
            )
            grace = 0.0 if status is None else self._options.grace
            self._ender = processes.DescendantKiller(self._pid, grace=grace, reason=reason, mark=self._commands.mark)
        if left is not None:
            self._ender.shorten_grace(left)
        over = self._ender.step()
        self._reap()
        return over

    def _prefix(self, name: str) -> bytes:
        ordinal = untrusted.whole(name)
        if ordinal is None:
            return b""
        rank = self._ranks.rank_of(ordinal)
        return UNKNOWN if rank is None else b"[rank %d] " % rank

    def _claimed(self) -> None:
        if self._commands.plain is None:
            self._refill()

    def _why_ours(self, pid: int, number: int) -> str | None:
        """Returns why Rankfall ended a rank with this signal, or None if it did not."""
        own = self._commands.own_reason(pid, number)
        if own is None and number in (signal.SIGTERM, signal.SIGKILL):
            # The command ended its ranks on request.
            return self._orders.stop_reason
        return own

    def _reap(self) -> None:
        for pid, status in processes.ended():
            self._registry.reaped(pid, status)
            if self._commands.reaped(pid, status):
                found = ranks.exit_fields(status)
                number = found.get("signal")
                own = number is not None and self._commands.own_reason(pid, number) is not None
                self._falls.ended(
                    -1,
                    code=found.get("code"),
                    signum=number,
                    oom_kills=self._files.oom_kills(),
                    ours=own or self._orders.stop_reason is not None,
                )

    def _on_signal(self) -> None:
        for number, sender in signals.drain(self._signals):
            if number == signal.SIGCHLD:
                self._reap()
            else:
                self._orders.signal(number, sender)

    def _collect_stacks(self) -> None:
        self._registry.claims()
        if self._stacks is None:
            self._stacks = liveness.Collector(self._files.path, self._ranks.live(), write=self._files.write)

    def _gap(self, stream: str, gaps: list[stream_files.Gap]) -> None:
        ordinal = untrusted.whole(stream.partition(".")[0])
        rank = None if ordinal is None else self._ranks.rank_of(ordinal)
        texts = [gap.text(stream) for gap in gaps]
        self._gaps += texts
        lost: dict[str, Any] = {
            "stream": "slot" if rank is None else f"r{rank}",
            "bytes": sum(gap.lost for gap in gaps),
            "why": gaps[0].why(),
        }
        if all(gap.since for gap in gaps):
            lost.update(
                lines=sum(gap.lines for gap in gaps),
                after_ns=min(gap.since for gap in gaps),
                before_ns=max(gap.until for gap in gaps),
            )
        self._files.write("gap", {"ordinal": ordinal, "rank": rank, "notes": texts[:_MAX_TEXTS], "lost": lost}, False)

    def _finish(self) -> None:
        self._registry.claims()
        while not self._pump.drain():
            # Pipes wait for a slow reader of stdout.
            self._loop.run_once(_SCAN_SLOW_S)
            if self._orders.grace_expired():
                break
        for stream, gap in self._storing.finish(self._loop, self._orders.grace_expired):
            self._gap(stream, [gap])
        self._reap()
        self._registry.settle()
        self._gaps += self._delivery.settle(self._orders.time_left(_STORE_S))
        end = self._files.finish(
            {
                "pid": self._pid,
                "exit": outcome.exit_info(self._commands, self._orders, refused=self._refused),
                "oom_kills": self._files.oom_kills(),
                "notes": outcome.notes(
                    self._gaps,
                    left=self._ender.left if self._ender is not None else [],
                    started=self._commands.started,
                    refused=self._refused,
                    trouble=self._trouble,
                    unwritten=self._files.unwritten,
                    unsent=self._channel.lost,
                ),
                **self._printed(),
            }
        )
        exit_reports.write_termination_message(self._last_words, self._falls.first_error(), end)
        exit_reports.write_error_file(self._error_file, self._falls.first_error(), folder=self._files.records)
        self._delivery.settle(self._orders.time_left(_STORE_S), last=True)

    def _printed(self) -> dict[str, Any]:
        """Returns line counts of stdout."""
        if self._console is None or not self._channel.active:
            return {}
        return {"printed": self._console.printed.counts()}

    def _flush(self) -> None:
        """Waits until all lines are written to the wrapper's stdout, or the stop's grace time expires."""
        while self._console is not None and not self._console.empty and not self._orders.grace_expired():
            self._loop.run_once(_SCAN_SLOW_S)
