"""The wrapper: process 1 of a container or of one slot on this machine. Runs the command and sees everything it does.

Holds the pipes and writes the streams; forwards signals and remembers who sent them; reaps orphans; writes start and end records; ends
every descendant; and leaves with the command's own code. It never stops a job because something of its own fails.
"""

from __future__ import annotations

import os
import signal
import sys
import time

from rankfall_inside import environ as environment
from rankfall_inside import (
    launch,
    old_forms,
    outcome,
    procfs,
    ranks,
    reap,
    records,
    signals,
    spawn,
    stacks,
    streams,
    termination,
)
from rankfall_inside.channel import Channel
from rankfall_inside.commands import Commands
from rankfall_inside.console import UNKNOWN, Console
from rankfall_inside.deliver import Delivery
from rankfall_inside.falls import Falls
from rankfall_inside.inbox import Inbox
from rankfall_inside.loop import Loop
from rankfall_inside.orders import Orders
from rankfall_inside.prelude import Prelude
from rankfall_inside.pulse import Pulse
from rankfall_inside.pump import Pump
from rankfall_inside.store import LogStore, folder_name

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Mapping

    from rankfall_inside.launch import Choice
    from rankfall_inside.options import Options
    from rankfall_inside.slot import SlotFiles

# Between two looks at /proc: often while ranks start, seldom afterwards.
_SCAN_FAST_S, _SCAN_SLOW_S, _FAST_FOR_S = 0.25, 1.0, 60.0
# Between two looks while processes are being ended or asked for stacks.
_STEP_S = 0.02
# Spare pipes beyond one for each rank: a restart claims new ones before the old ones are refilled.
_SPARE = 4
# At once from a pipe that everybody in the job may fill.
_MAX_READ, _MAX_READS = 1 << 16, 16
_MAX_NOTES = 20
# For copies of the last records in a store, twice.
_STORE_S = 15.0
# How long the end waits for a log store that takes nothing any more.
_LOG_STORE_S = 60.0


class Wrapper:
    """One slot's main loop, in one thread; a second thread only waits for signals.

    Args:
        options: the command line.
        files: of the slot.
        environ: of the wrapper, without the token.
        token: of the log channel; "" when there is none.
        notes: what is to be said in the start record.
    """

    def __init__(
        self, options: Options, files: SlotFiles, environ: Mapping[str, str], *, token: str, notes: list[str]
    ) -> None:
        self._options = options
        self._files = files
        self._pid = os.getpid()
        self._notes = notes
        self._loop = Loop()
        self._console = Console(1, self._loop, secret=token.encode()) if options.console or token else None
        self._channel = files.channel = Channel(self._console, token)
        self._environ = environment.of_command(environ, options, files, channel=self._channel.active)
        self._torchrun = launch.words_of(environ)
        self._store = self._open_store(options.log_store, environ) if options.log_store else None
        self._told = self._told_trouble = False
        self._pump = Pump(
            self._loop,
            stream_dir=options.stream_dir,
            console=self._console if options.console else None,
            prefix=self._prefix,
            store=self._store,
            on_gap=self._gap,
        )
        self._ranks = ranks.Ranks(files.path, write=self._write_rank, watch=self._watch_rank)
        self._delivery = Delivery(environ, files.records, files.place)
        self._pulse = Pulse(self._ranks, place=files.place, tell=files.tell)
        self._pool = streams.Pool(os.path.join(files.path, "pipes"), spare=options.nproc + _SPARE)
        self._commands = Commands(options, files, fields=self._rank_fields)
        self._falls = Falls()
        self._orders = Orders(
            options,
            files,
            self._commands,
            supervisor=environ.get("RANKFALL_SUPERVISOR_PID"),
            on_stacks=self._collect_stacks,
            on_asked=self._falls.asked,
        )
        # Several slots of one machine would overwrite each other's.
        self._last_words = environ.get(termination.VARIABLE) or (termination.DEFAULT_PATH if options.alone else "")
        self._error_file = environ.get(old_forms.VARIABLE, "")
        needed = (
            bool(self._error_file)
            or self._channel.active
            or options.exit_code == "cause"
            or os.path.exists(self._last_words)
        )
        self._inbox = Inbox(files.records, place=files.place, take=self._hook_record, look=needed)
        self._control = files.control()
        self._notices = files.notices()
        self._signals = -1
        self._refused = ""
        self._claimed: list[int] = []
        self._ender: reap.Ender | None = None
        self._stacks: stacks.Collector | None = None
        self._gaps: list[str] = []
        self._trouble = ""
        self._began = time.monotonic()
        self._next_scan = self._began

    def _open_store(self, root: str, environ: Mapping[str, str]) -> LogStore | None:
        """The log store; None where it can take nothing: lines are better in a log that is slow than nowhere."""
        store = LogStore(root, folder_name(environ), environ)
        refusal = store.refusal()
        if refusal:
            self._notes.append(f"lines of ranks stay on stdout: nothing can be stored in {root}: {refusal}")
            _say(self._notes[-1])
            return None
        return store

    def run(self) -> int:
        """Run the command to its end; the exit code for this process."""
        spawn.become_subreaper()
        self._loop.watch(self._control, lambda: self._orders.lines(_swallow(self._control)))
        self._loop.watch(self._notices, self._listen)
        self._begin()
        # Only now: a thread must not be there while processes are forked.
        self._signals = signals.start()
        self._delivery.start()
        self._loop.watch(self._signals, self._on_signal)
        self._reap()
        while self._commands.started and not self._over():
            try:
                self._turn()
            except OSError as error:
                # No descriptors, no memory: what was to be done is missing, the job goes on.
                self._trouble = f"the wrapper met {error!r}"
        self._finish()
        self._flush()
        falls = self._falls if self._options.exit_code == "cause" else None
        return outcome.exit_code(self._commands, self._orders, refused=self._refused, falls=falls)

    # -- start

    def _begin(self) -> None:
        prelude = Prelude(self._options, self._orders, self._loop, self._environ)
        choice = prelude.choose(self._torchrun)
        self._refused = choice.problem
        fields = {
            "pid": self._pid,
            "argv": records.safe_argv(choice.command),
            "python": sys.version.split()[0],
            "launcher": choice.launcher,
            "notes": self._notes + [note for note in (choice.note, choice.problem) if note],
        }
        if self._store is not None:
            fields["log_store"] = self._store.name
            _say(f"lines of ranks go to the log store: {self._store.path}")
        self._files.write("slot_start", fields, False)
        if choice.problem:
            _say(choice.problem)
        else:
            prelude.wait_for_names(self._waiting)
        if not choice.problem and not self._orders.ending:
            self._start(choice)

    def _waiting(self, text: str) -> None:
        _say(text)
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

    # -- loop

    def _turn(self) -> None:
        now = time.monotonic()
        due = self._next_scan
        plain = self._commands.plain
        for deadline in (self._orders.deadline, plain.deadline if plain else None):
            due = due if deadline is None else min(due, deadline)
        if self._ender is not None or self._stacks is not None:
            due = now + _STEP_S
        self._loop.turn(due - now)
        now = time.monotonic()
        if now >= self._next_scan:
            young = now - self._began < _FAST_FOR_S and len(self._ranks.live()) < self._options.nproc
            self._watch_store()
            self._next_scan = now + (_SCAN_FAST_S if young else _SCAN_SLOW_S)
            self._claims()
            processes = procfs.snapshot()
            self._ranks.scan(self._pid, processes)
            if self._channel.active:
                self._hear()
                self._pulse.beat(processes)
        if plain is not None:
            plain.step()
        if self._stacks is not None and self._stacks.step():
            self._stacks = None

    def _over(self) -> bool:
        """Whether nothing of the slot lives any more; ends what must be ended."""
        status, deadline = self._commands.status, self._orders.deadline
        left = None if deadline is None else max(0.0, deadline - time.monotonic())
        if self._ender is None:
            if status is None and (left is None or left > 0):
                return False
            reason = self._orders.stop_reason or (
                "asked to end, and the time is over" if status is None else "the command has ended"
            )
            grace = 0.0 if status is None else self._options.grace
            self._ender = reap.Ender(self._pid, grace=grace, reason=reason, mark=self._commands.mark)
        if left is not None:
            self._ender.hurry(left)
        over = self._ender.step()
        self._reap()
        return over

    # -- ranks

    def _prefix(self, name: str) -> bytes:
        if not name.isdigit():
            return b""
        rank = self._ranks.rank_of(int(name))
        return UNKNOWN if rank is None else b"[rank %d] " % rank

    def _rank_fields(self, pid: int) -> dict[str, Any]:
        rank = self._ranks.find(pid)
        return rank.fields() if rank is not None else {}

    def _hear(self) -> None:
        """What hooks have told since the last look."""
        for _ in range(_MAX_READS):
            data = _swallow(self._notices)
            self._claimed += self._inbox.notice(data)
            if len(data) < _MAX_READ:
                break
        self._inbox.sweep()

    def _listen(self) -> None:
        self._hear()
        self._claims()
        claimed, self._claimed = self._claimed, []
        for ordinal in claimed:
            self._ranks.hooked(ordinal)

    def _write_rank(self, kind: str, fields: dict[str, Any], sync: bool) -> None:  # noqa: FBT001 - a callback
        if kind == "end":
            # Its last words come before its end.
            self._hear()
        self._files.write(kind, fields, sync)

    def _hook_record(self, record: dict[str, Any], stored: bool) -> None:  # noqa: FBT001 - a callback
        if record["kind"] == "error":
            self._falls.error(record)
        self._files.pass_on(record, stored=stored)

    def _claims(self) -> None:
        if self._ranks.read_claims() and self._commands.plain is None:
            self._refill()

    def _watch_rank(self, fd: int, rank: ranks.Rank) -> None:
        self._loop.watch(fd, lambda: self._rank_ended(rank, *self._ranks.exit_of(rank)))

    def _rank_ended(self, rank: ranks.Rank, status: int | None, how: str) -> None:
        if rank.pidfd is not None:
            self._loop.unwatch(rank.pidfd)
        if rank.ended:
            return
        self._listen()
        found = ranks.exit_fields(status)
        exit_info: dict[str, Any] = {}
        if "signal" in found:
            own = self._commands.own_reason(rank.pid, found["signal"])
            if own is not None:
                exit_info = {"ours": True, "reason": own}
            elif self._orders.stop_reason is not None and found["signal"] in (signal.SIGTERM, signal.SIGKILL):
                # The command ended its ranks because it was told to.
                exit_info = {"ours": True, "reason": self._orders.stop_reason}
        oom_kills = self._files.oom_kills()
        self._fell(rank.ordinal, found, oom_kills, ours="ours" in exit_info or status is None)
        self._ranks.ended(rank, status, how, {"exit": exit_info, "oom_kills": oom_kills})

    def _fell(self, ordinal: int, found: Mapping[str, Any], oom_kills: int | None, *, ours: bool) -> None:
        self._falls.ended(ordinal, code=found.get("code"), signum=found.get("signal"), oom_kills=oom_kills, ours=ours)

    def _reap(self) -> None:
        for pid, status in reap.ended():
            self._claims()
            rank = self._ranks.find(pid)
            if rank is not None:
                self._rank_ended(rank, status, "wait")
            if self._commands.reaped(pid, status):
                found = ranks.exit_fields(status)
                own = "signal" in found and self._commands.own_reason(pid, found["signal"]) is not None
                self._fell(-1, found, self._files.oom_kills(), ours=own or self._orders.stop_reason is not None)

    # -- orders

    def _on_signal(self) -> None:
        for number, sender in signals.drain(self._signals):
            if number == signal.SIGCHLD:
                self._reap()
            else:
                self._orders.signal(number, sender)

    def _collect_stacks(self) -> None:
        self._claims()
        if self._stacks is None:
            self._stacks = stacks.Collector(self._files.path, self._ranks.live(), write=self._files.write)

    # -- end

    def _gap(self, name: str, text: str) -> None:
        self._gaps.append(text)
        self._files.write("gap", {"ordinal": int(name) if name.isdigit() else None, "notes": [text]}, False)

    def _watch_store(self) -> None:
        """Say once, where people look, that lines are lost, or that they wait."""
        if self._store is None:
            return
        if self._store.trouble and not self._told_trouble:
            self._told_trouble = True
            _say(f"the log store {self._store.path} takes nothing: {self._store.trouble}; it is tried again")
        if self._store.lost and not self._told:
            self._told = True
            text = f"the log store {self._store.path} is too slow: lines of ranks are lost"
            _say(text)
            self._files.write("gap", {"notes": [text]}, False)

    def _finish_store(self) -> None:
        """Let the store write what it has; once somebody wants the end, only until the time is over."""
        if self._store is None:
            return
        began = time.monotonic()
        while True:
            gaps = self._store.finish(_SCAN_FAST_S)
            if self._store.done or self._hopeless() or time.monotonic() - began > _LOG_STORE_S:
                break
            self._loop.turn(0.0)
        if not self._store.done:
            self._store.give_up()
            gaps = self._store.finish(0.0)
        self._watch_store()
        for stream, text in gaps:
            self._gap(stream.partition(".")[0], text)

    def _finish(self) -> None:
        self._claims()
        while not self._pump.drain():
            # A slow reader of stdout: what the pipes still hold has to wait for it.
            self._loop.turn(_SCAN_SLOW_S)
            if self._hopeless():
                break
        self._finish_store()
        self._reap()
        self._ranks.settle()
        for rank in self._ranks.live():
            self._rank_ended(rank, *self._ranks.exit_of(rank))
        self._listen()
        self._gaps += self._delivery.settle(self._patience())
        end = self._files.finish(
            {
                "pid": self._pid,
                "exit": outcome.exit_info(self._commands, self._orders, refused=self._refused),
                "oom_kills": self._files.oom_kills(),
                "notes": self._all_notes(),
                **self._printed(),
            }
        )
        termination.write(self._last_words, self._falls.first_error(), end)
        old_forms.write(self._error_file, self._falls.first_error(), folder=self._files.records)
        self._delivery.settle(self._patience(), last=True)

    def _printed(self) -> dict[str, Any]:
        """What stdout was given, for a reader that stores it: who has a record of it by the same way."""
        if self._console is None or not self._channel.active:
            return {}
        return {"printed": self._console.printed.told()}

    def _patience(self) -> float:
        """How long copies of records may take at the end: what is left of the time to end, where there is one."""
        if self._orders.deadline is None:
            return _STORE_S
        return max(1.0, min(_STORE_S, self._orders.deadline - time.monotonic()))

    def _all_notes(self) -> list[str]:
        left = self._ender.left if self._ender is not None else []
        notes = self._gaps[:_MAX_NOTES] + [f"process {one.pid} ({one.comm}) did not die" for one in left[:_MAX_NOTES]]
        if not self._commands.started:
            notes.append(self._refused or "the command was not started: the slot was told to end before")
        if self._trouble:
            notes.append(self._trouble)
        if self._files.unwritten:
            notes.append(f"{self._files.unwritten} records could not be written")
        if self._channel.lost:
            notes.append(f"{self._channel.lost} records found no room on the log channel")
        return notes

    def _hopeless(self) -> bool:
        """Whether the time to end is over, and so the time to wait for whoever reads stdout."""
        if not self._orders.ending:
            return False
        if self._orders.deadline is None:
            self._orders.hurry(self._options.grace)
        return self._orders.deadline is not None and time.monotonic() >= self._orders.deadline

    def _flush(self) -> None:
        """Wait until the reader of stdout has everything; once somebody wants the end, until the time is over."""
        while self._console is not None and not self._console.empty and not self._hopeless():
            self._loop.turn(_SCAN_SLOW_S)


def _swallow(fd: int) -> bytes:
    try:
        return os.read(fd, _MAX_READ)
    except OSError:
        return b""


def _say(text: str) -> None:
    try:
        os.write(2, f"rankfall: {text}\n".encode("utf-8", "backslashreplace"))
    except OSError:
        return
