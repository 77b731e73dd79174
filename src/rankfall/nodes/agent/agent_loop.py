"""The agent's loop: reads the kernel log with an exact cursor, prints and reports faults.

A kill loses no line but may repeat one. A process's pod comes from its cgroup, so ``hostPID`` is required.
"""

from __future__ import annotations

import contextlib
import os
import select
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Final, Literal, Protocol, Self

import msgspec

from rankfall.kernellog.reader import Entry, Gap, KernelClock, Opened, Ring, Unreadable
from rankfall.kernellog.record import KmsgRecord
from rankfall.model import EvidenceLost
from rankfall.model.node_health.kernel_reports import KernelEntry, KernelLine
from rankfall.model.node_health.records import NodeFault, printable
from rankfall.model.patterns import bounded
from rankfall.nodes.agent.deduplication import Book, BurstLimiter
from rankfall.nodes.agent.probe import Probe
from rankfall.nodes.agent.publisher import Standing
from rankfall.nodes.agent.state_file import AgentState, StateFile
from rankfall.nodes.rules.fault_rules import Rules, packaged
from rankfall.nodes.rules.faults import of_record
from rankfall.nodes.rules.kernel_lines import Recogniser

PROC: Final = Path("/proc")
# Unchanged (cgroupfs) or with underscores (systemd).
_POD: Final = bounded(r"[/-]pod([0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12})", limit=1 << 16)
_LARGEST: Final = 64 << 10


def pod_of(pid: int, *, proc: Path = PROC) -> str | None:
    """Returns the UID of the pod of a process; None if unknown."""
    try:
        with (proc / str(pid) / "cgroup").open(encoding="utf-8", errors="replace") as file:
            found = _POD.search(file.read(_LARGEST))
    except OSError:
        return None
    return None if found is None else found[1].replace("_", "-")


ALIVE_S: Final = 60.0
#: Seconds between saves of the cursor after records without effect.
SAVE_S: Final = 10.0
_SAVE_BURST_S: Final = 1.0
_REOPEN_S: Final = (0.2, 30.0)
_TEXT: Final = 1_024
replace = msgspec.structs.replace


class ReportPublisher(Protocol):
    """Writes the report to the Node."""

    published: int

    def forget(self) -> None:
        """Resets for another boot."""

    def offer(self, standing: Standing, *, new: KernelEntry | None = None, urgent: bool = False) -> None:
        """Publishes this state from now on."""


class Agent:
    """Reads the kernel log until stopped.

    ``boot``: the kernel's boot id if the ring cannot be opened, or None. ``injected``: accept records that processes
    wrote.
    """

    def __init__(
        self,
        *,
        node: str,
        open_: Callable[[], Opened],
        out: BinaryIO,
        state: StateFile,
        shows: ReportPublisher | None,
        say: Callable[[str], None],
        all_: bool = False,
        injected: bool = False,
        once: bool = False,
        boot: str | None = None,
        probe: Probe | None = None,
        rules: Rules | None = None,
        proc: Path = PROC,
        monotonic: Callable[[], float] = time.monotonic,
        kernel_clock: Callable[[], KernelClock] = KernelClock,
    ) -> None:
        self._node, self._open, self._out, self._file = node, open_, out, state
        self._report_publisher, self._say, self._all, self._injected, self._once = shows, say, all_, injected, once
        self._rules, self._proc, self._monotonic = rules or packaged(), proc, monotonic
        self._make_clock, self._probe = kernel_clock, probe
        self._state = state.load()
        self._cursor = self._state.cursor
        self._report = self._state.report
        self._standing: Standing | None = None
        self._burst_limiter = BurstLimiter()
        self._jobs: dict[int, str | None] = {}
        self._saved_at = self._alive_at = monotonic()
        self._stopping = False
        self._wake_in, self._wake_out = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._fresh(boot or "")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._wake_in)
        os.close(self._wake_out)

    @property
    def wakes(self) -> int:
        """A descriptor for ``signal.set_wakeup_fd``; a byte makes the agent check for a stop."""
        return self._wake_out

    def stop(self) -> None:
        """Ends after the current batch. Safe in signal handlers and other threads."""
        self._stopping = True
        os.write(self._wake_out, b"s")

    def run(self) -> None:
        """Reads the ring, and reopens it whenever it breaks.

        Raises:
            EvidenceLost: With ``once``: the ring cannot be opened.
        """
        failures = 0
        while not self._stopping:
            try:
                opened = self._open()
            except EvidenceLost as error:
                if self._once:
                    raise
                self._unreadable(error, first=failures == 0)
                failures += 1
                self._pause(failures)
                continue
            try:
                gave = self._follow(opened)
            finally:
                os.close(opened.fd)
            if self._once:
                break
            failures = 0 if gave else failures + 1
            self._pause(failures)
        self._print(self._burst_limiter.due(now=self._monotonic(), all_=True))
        self._save()

    def _follow(self, opened: Opened) -> bool:
        """Reads one open ring to its end. Returns True if it had records."""
        self._begin(opened.boot)
        ring = Ring(opened.fd, boot=opened.boot, after=self._cursor)
        poll = self._poll()
        poll.register(opened.fd, select.POLLIN)
        gave = waited = False
        while not self._stopping:
            try:
                entries = ring.take()
            except OSError as error:
                self._say(f"reading the kernel log failed: {error}; it is opened again")
                return gave
            if entries:
                gave = True
                self._batch(ring, entries, live=waited)
                waited = False
                self._woken()  # an endless log must not delay the probe
                continue
            if ring.ended or self._once:
                return gave
            self._idle()
            waited = any(fd == opened.fd for fd, _ in poll.poll(self._patience() * 1_000))
            self._woken()
        return gave

    def _begin(self, boot: str) -> None:
        if boot != self._boot:
            self._fresh(boot)
        if self._report_publisher is not None and (self._report is None or self._report.boot != boot):
            self._report_publisher.forget()
        note = (
            "TEST MODE: records that processes wrote into the kernel log count as records of the kernel"
            * self._injected
        )
        self._print(
            [KernelLine(kind="start", node=self._node, boot=boot, seq=self._seq(), at=time.time_ns(), note=note)]
        )
        self._show(readable=True, urgent=True)
        # Kinds whose Event an earlier agent did not send.
        for entry in self._book.report(None).entries:
            self._show(readable=True, new=entry)

    def _fresh(self, boot: str) -> None:
        self._boot = boot
        self._book = Book(boot, rules=self._rules, injected=self._injected, report=self._report)
        self._reader, self._clock = Recogniser(), self._make_clock()
        self._zero = self._clock.ring_start()

    def _batch(self, ring: Ring, entries: Sequence[Entry], *, live: bool) -> None:
        lines: list[KernelLine] = []
        now = self._monotonic()
        changed = False
        # The last record is the newest, so it bounds the clock best.
        records = [each for each in entries if isinstance(each, KmsgRecord)]
        for each in records[:1] + records[-1:]:
            self._clock.read(each.stamp_us, live=live and each is records[0])
        self._zero = self._clock.ring_start()
        self._jobs.clear()
        # At ten thousand records a second only one check of all is cheap.
        worth = self._reader.worth([each.text for each in records])
        printing = {records[place].seq for place in worth}
        for entry in entries:
            if isinstance(entry, KmsgRecord):
                line, counted = self._record(entry, printing=entry.seq in printing)
                changed = changed or counted
            elif isinstance(entry, Gap):
                self._book.lost += entry.size
                line, changed = self._gap(entry), True
            else:
                line = self._strange(entry)
            if line is not None and (line.kind in {"plain", "gap"} or self._burst_limiter.admit(line, now=now)):
                lines.append(line)
        self._cursor = ring.cursor
        if changed:
            self._show(readable=True)
        lines += self._burst_limiter.due(now=now)
        self._print(lines)
        if lines or now - self._saved_at >= (_SAVE_BURST_S if changed else SAVE_S):
            self._save()

    def _record(self, record: KmsgRecord, *, printing: bool) -> tuple[KernelLine | None, bool]:
        """Line to print for a record, or None, and True if the record changed the report."""
        fault = self._fault(record) if printing else None
        if not printing and record.by_kernel:  # a line written by a process is not the kernel's, as in ``of_record``
            self._reader.skip()
        if fault is None:
            return (replace(self._line("plain", record), **self._time(record)) if self._all else None), False
        entry = self._book.add(fault)
        if entry is not None and entry.count == 1:
            self._show(readable=True, new=entry, seq=record.seq)
        line = replace(
            self._line("record", record),
            at=fault.at,
            uncertainty=fault.uncertainty,
            code=fault.code,
            device=fault.device,
            instance=fault.instance,
            slug=fault.slug,
            job=fault.job,
            pid=fault.pid,
            process=fault.process,
            detail=fault.detail,
        )
        return line, entry is not None

    def _fault(self, record: KmsgRecord) -> NodeFault | None:
        fault = of_record(
            record,
            node=self._node,
            boot=self._boot,
            boot_at=self._zero.at,
            uncertainty=self._zero.uncertainty,
            reader=self._reader,
        )
        if fault is None or fault.pid is None or not record.by_kernel:
            return fault
        # In a burst it is always the same process; numbers are reused.
        if fault.pid not in self._jobs:
            self._jobs[fault.pid] = pod_of(fault.pid, proc=self._proc)
        return replace(fault, job=self._jobs[fault.pid])

    def _time(self, record: KmsgRecord) -> dict[str, float]:
        return {"at": self._zero.at + record.stamp_us * 1_000, "uncertainty": self._zero.uncertainty}

    def _line(self, kind: Literal["record", "plain"], record: KmsgRecord) -> KernelLine:
        return KernelLine(
            kind=kind,
            node=self._node,
            boot=self._boot,
            seq=record.seq,
            stamp_us=record.stamp_us,
            facility=record.facility,
            level=record.level,
            trust="kernel" if record.by_kernel else "injected",
            text=printable(record.text[: 2 * _TEXT].decode("ascii", "backslashreplace"), _TEXT),
        )

    def _gap(self, gap: Gap) -> KernelLine:
        text = f"{gap.size} records were overwritten before they were read"
        self._say(text)
        return KernelLine(
            kind="gap", node=self._node, boot=gap.boot, seq=gap.first, last_seq=gap.last, count=gap.size, note=text
        )

    def _strange(self, entry: Unreadable) -> KernelLine:
        text = printable(entry.data[:_TEXT].decode("ascii", "backslashreplace"), _TEXT)
        return KernelLine(kind="unreadable", node=self._node, boot=self._boot, text=text)

    def _idle(self) -> None:
        now = self._monotonic()
        lines = self._burst_limiter.due(now=now)
        if now - self._alive_at >= ALIVE_S:
            lines.append(KernelLine(kind="alive", node=self._node, boot=self._boot, seq=self._seq(), at=time.time_ns()))
            self._alive_at = now
        self._print(lines)
        if lines or (self._cursor != self._state.cursor and now - self._saved_at >= SAVE_S):
            self._save()

    def _patience(self) -> float:
        """Seconds until the next periodic work."""
        now = self._monotonic()
        ends = [self._alive_at + ALIVE_S]
        ends += [] if (fold := self._burst_limiter.next()) is None else [fold]
        ends += [self._saved_at + SAVE_S] if self._cursor != self._state.cursor else []
        return max(0.01, min(ends) - now)

    def _pause(self, failures: int) -> None:
        first, cap = _REOPEN_S
        until = time.monotonic() + min(cap, first * 2.0 ** min(failures, 20))
        poll = self._poll()
        while not self._stopping and (left := until - time.monotonic()) > 0:
            poll.poll(left * 1_000)
            self._woken()

    def _poll(self) -> select.poll:
        poll = select.poll()
        poll.register(self._wake_in, select.POLLIN)
        if self._probe is not None:
            poll.register(self._probe, select.POLLIN)
        return poll

    def _woken(self) -> None:
        """Answers the probe and empties the pipe: other signals wake the loop too."""
        if self._probe is not None:
            self._probe.serve()
        with contextlib.suppress(BlockingIOError):
            os.read(self._wake_in, 4_096)

    def _unreadable(self, error: EvidenceLost, *, first: bool) -> None:
        if first:
            self._say(str(error))
        self._show(readable=False, note=error.message, urgent=first)

    def _show(
        self,
        *,
        readable: bool,
        new: KernelEntry | None = None,
        seq: int | None = None,
        note: str = "",
        urgent: bool = False,
    ) -> None:
        if not self._boot:
            return  # the boot is unknown
        report = self._book.report(seq if seq is not None else self._seq())
        before = self._state
        since = before.since if before.since and before.readable == readable else time.time_ns()
        self._state = replace(before, readable=readable, since=since)
        self._standing = Standing(report=report, readable=readable, since=since, note=note)
        if self._report_publisher is not None:
            self._report_publisher.offer(self._standing, new=new, urgent=urgent)

    def _seq(self) -> int | None:
        return self._cursor.seq if self._cursor is not None and self._cursor.boot == self._boot else None

    def _print(self, lines: Iterable[KernelLine]) -> None:
        data = b"".join(msgspec.json.encode(each) + b"\n" for each in lines)
        if data:
            self._out.write(data)
            self._out.flush()

    def _save(self) -> None:
        self._saved_at = self._monotonic()
        report = self._book.report(self._seq()) if self._boot else self._report
        published = self._state.published if self._report_publisher is None else self._report_publisher.published
        state = AgentState(
            cursor=self._cursor,
            report=report,
            published=published,
            since=self._state.since,
            readable=self._state.readable,
        )
        if state != self._state:
            self._file.save(state)
        self._state = state
