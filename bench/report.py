"""The report of 1,024 ranks beside gigabytes of their logs, and what watching as many ranks costs; each is the command that users type."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from bench.common import Row, cpu_seconds
from bench.verdict import fall, scale
from rankfall.rundir import RunDir

GIB = float(os.environ.get("REPORT_GIB", "5"))
LIMIT_S, LIMIT_MIB, LIMIT_SIZE_MB, LIMIT_SHARE = 5.0, 300.0, 2.0, 2.0
# Seconds of watching that are measured, after as many of start.
_WATCHED_S, _START_S = 15.0, 5.0
_ROWS, _COLUMNS = 24, 80
_LIMIT_S = 300.0


def rows() -> list[Row]:
    """The rows of this part."""
    with tempfile.TemporaryDirectory() as name:
        home = Path(name)
        took, mib, size = _report(home, _fallen(home))
        share = _share(home, _running(home))
    return [
        Row(
            "`rankfall report` of a run of 1,024 ranks",
            f"{took:.2f} s, {mib:.0f} MiB, a page of {size:.2f} MB",
            f"{LIMIT_S:.0f} s, {LIMIT_MIB:.0f} MiB, {LIMIT_SIZE_MB:.0f} MB",
            took <= LIMIT_S and mib <= LIMIT_MIB and size <= LIMIT_SIZE_MB,
            f"{GIB:g} GiB of logs in {fall.RANKS:,} files; whole command, its verdict stored before",
        ),
        Row(
            "`rankfall status --watch` of 1,024 running ranks",
            f"{share:.1f} % of a core",
            f"{LIMIT_SHARE:.0f} %",
            share <= LIMIT_SHARE,
            f"on a terminal of {_COLUMNS} x {_ROWS}, {_WATCHED_S:.0f} s after {_START_S:.0f} s of start",
        ),
    ]


def _fallen(home: Path) -> RunDir:
    """A run that has fallen, with its verdict and with logs."""
    run = RunDir.create(fall.spec(), home=home)
    run.records_dir.mkdir(parents=True, exist_ok=True)
    argv = [sys.executable, "-m", "bench.verdict.scale", "live", str(home), run.id]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as watcher:
        scale.happen(run)
        watcher.communicate("over\n", timeout=_LIMIT_S)
    if watcher.returncode:
        raise RuntimeError("the watcher did not come to its verdict")
    with run.lease() as writer:
        writer.set_run("running", at=time.time_ns())
        writer.end_attempt(1, at=time.time_ns(), state="failed")
        writer.set_run("failed", at=time.time_ns())
    lines = "".join(
        f"2026-11-21 09:00:00 INFO step {n} loss 0.6931 lr 3.0e-04 tokens/s 81234\n" for n in range(20_000)
    ).encode()
    each = int(GIB * 2**30 / fall.RANKS)
    block = (lines * (each // len(lines) + 1))[:each]
    for rank in range(fall.RANKS):
        folder = run.path / "logs" / "attempt-1" / f"worker-{rank // fall.PER_NODE}" / "1"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{rank % fall.PER_NODE}.out.log").write_bytes(block)
    return run


def _running(home: Path) -> RunDir:
    """A run in which all ranks run."""
    from rankfall.evidence.attempt.observer import AttemptObserver

    run = RunDir.create(msgspec.structs.replace(fall.spec(), name="alive"), home=home)
    run.records_dir.mkdir(parents=True, exist_ok=True)
    scale.start(run)
    observer = AttemptObserver(run, spec=run.spec, attempt=1, launcher="torchrun")
    while observer.poll(time.time_ns()).changed:
        pass
    case = observer.case()
    with run.lease() as writer:
        writer.set_run("running", at=time.time_ns())
        writer.begin_attempt(1, at=time.time_ns(), plan={})
        writer.put_slots(1, case.slots)
        writer.put_ranks(1, case.ranks)
    return run


def _report(home: Path, run: RunDir) -> tuple[float, float, float]:
    """Seconds and peak MiB of the command, MB of its page."""
    page = home / "report.html"
    argv = [sys.executable, "-m", "rankfall", "report", run.id, "-o", str(page)]
    begin = time.perf_counter()
    process = subprocess.Popen(argv, env=os.environ | {"RANKFALL_HOME": str(home)}, stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    took = time.perf_counter() - begin
    process.returncode = os.waitstatus_to_exitcode(status)
    text = page.read_text(encoding="utf-8") if page.exists() else ""
    if process.returncode or f"rank {fall.CULPRIT}" not in text:
        raise SystemExit(f"the report ended with {process.returncode}, or does not name rank {fall.CULPRIT}")
    return took, used.ru_maxrss / 1024, page.stat().st_size / 1e6


def _share(home: Path, run: RunDir) -> float:
    """Percent of a core that watching takes."""
    with _terminal() as end:
        argv = [sys.executable, "-m", "rankfall", "status", "--watch", run.id]
        env = os.environ | {"RANKFALL_HOME": str(home), "TERM": "xterm"}
        with subprocess.Popen(argv, env=env, stdin=end, stdout=end, stderr=end) as process:
            time.sleep(_START_S)
            before = cpu_seconds(process.pid)
            time.sleep(_WATCHED_S)
            used = cpu_seconds(process.pid) - before
            if process.poll() is not None:
                raise SystemExit("status --watch ended by itself")
            process.send_signal(signal.SIGINT)
    return 100 * used / _WATCHED_S


@contextlib.contextmanager
def _terminal() -> Iterator[int]:
    """A terminal whose other end is read."""
    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", _ROWS, _COLUMNS, 0, 0))

    def read() -> None:
        with contextlib.suppress(OSError):
            while os.read(leader, 1 << 16):
                pass

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    try:
        yield follower
    finally:
        os.close(follower)
        reader.join(_START_S)
        os.close(leader)
