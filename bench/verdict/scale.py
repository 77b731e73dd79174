"""The verdict of 1,024 ranks on 128 nodes in one process, from files: while it is watched, and afterwards.

``python -m bench.verdict.scale live|after HOME RUN`` measures; the parent writes what is read. Live is as a supervisor does it: it looks again
and again while records and pods' ends come, and makes a verdict of everything when the last one is there.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from bench.common import ROOT, Row, in_fresh_process, peak_mib
from bench.verdict import fall
from rankfall.rundir import RunDir

if TYPE_CHECKING:
    from rankfall.rundir.cluster.journal import JournalWriter

VERDICT_S, VERDICT_MIB = 2.0, 300.0
_LIMIT_S = 300.0
# As the supervisor's, while something falls.
_PAUSE_S = 0.02


def rows() -> list[Row]:
    """The rows of this part."""
    with tempfile.TemporaryDirectory() as name:
        home = Path(name)
        run = RunDir.create(fall.spec(), home=home)
        run.records_dir.mkdir(parents=True, exist_ok=True)
        argv = [sys.executable, "-m", "bench.verdict.scale", "live", str(home), run.id]
        with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT) as watcher:
            last = happen(run)
            out, _ = watcher.communicate("over\n", timeout=_LIMIT_S)
        if watcher.returncode:
            raise RuntimeError("the watcher did not come to its verdict")
        verdict_at, live_cpu, live_mib = map(float, out.split())
        after_s, after_cpu, after_mib = map(float, in_fresh_process("verdict.scale", "after", str(home), run.id))
        size = sum(path.stat().st_size for path in run.records_dir.iterdir()) / 2**20
    how = f"{fall.RANKS:,} ranks on {fall.NODES} nodes, {size:.0f} MiB of records"
    bound = f"{VERDICT_S:.0f} s, {VERDICT_MIB:.0f} MiB"
    took = verdict_at - last
    return [
        Row(
            "from the last evidence to the stored verdict, watched",
            f"{took:.2f} s ({live_cpu:.2f} s of CPU), {live_mib:.0f} MiB",
            bound,
            took <= VERDICT_S and live_mib <= VERDICT_MIB,
            f"{how}, written by another process meanwhile, the culprit's last; CPU is that of the longest look and of the verdict",
        ),
        Row(
            "the same afterwards, from nothing but the directory",
            f"{after_s:.2f} s ({after_cpu:.2f} s of CPU), {after_mib:.0f} MiB",
            bound,
            after_s <= VERDICT_S and after_mib <= VERDICT_MIB,
            "`explain_run` in a fresh process, nothing read before",
        ),
    ]


def happen(run: RunDir) -> float:
    """The job starts, and falls; when the last evidence was there, seconds since the epoch."""
    with _journal(run) as journal:
        _begin(run, journal)
        at = time.time_ns()
        order = [slot for slot in range(fall.NODES) if slot != fall.CULPRIT // fall.PER_NODE]
        # The culprit's node is last.
        for slot in (*order, fall.CULPRIT // fall.PER_NODE):
            for record in fall.fall(run.id, slot, at=at):
                fall.write(run.records_dir, record)
            _show_pod(journal, slot, ended=True)
    return time.time()


def start(run: RunDir) -> None:
    """The job starts."""
    with _journal(run) as journal:
        _begin(run, journal)


def _begin(run: RunDir, journal: JournalWriter) -> None:
    for slot in range(fall.NODES):
        _show_pod(journal, slot, ended=False)
        for record in fall.begin(run.id, slot, at=time.time_ns()):
            fall.write(run.records_dir, record)


def _journal(run: RunDir) -> contextlib.closing[JournalWriter]:
    from rankfall.rundir.cluster.journal import JournalWriter, journal_path

    return contextlib.closing(JournalWriter(journal_path(run.path, 1)))


def _show_pod(journal: JournalWriter, slot: int, *, ended: bool) -> None:
    from rankfall.rundir.cluster.pod_facts import pod_fact
    from rankfall.rundir.cluster.pod_source import PodSource

    source = PodSource(context="", namespace="bench", selector="", container="main", token="", bases={"worker": 0})
    stamp = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    fact = pod_fact(fall.pod_object(slot, ended=ended, at=stamp), source=source, seen_ns=time.time_ns())
    # The log of each that has ended is stored to its end.
    journal.add(msgspec.structs.replace(fact, log="complete") if ended else fact)


def live(home: str, name: str) -> None:
    """Watch until the verdict; print when it was there, CPU seconds of the longest look and the verdict, peak MiB."""
    from rankfall.evidence.attempt.observer import AttemptObserver
    from rankfall.strategy_registry import diagnose_by

    run = RunDir.open(Path(home), name)
    observer = AttemptObserver(run, spec=run.spec, attempt=1, launcher="torchrun")
    until, longest = time.monotonic() + _LIMIT_S, 0.0
    while time.monotonic() < until:
        began = time.process_time()
        observer.poll(time.time_ns())
        slots = observer.slots()
        longest = max(longest, time.process_time() - began)
        if all(one.state in {"ended", "lost"} for one in slots):
            break
        time.sleep(_PAUSE_S)
    while observer.poll(time.time_ns()).changed:
        pass
    begin = time.process_time()
    case = observer.case()
    found = diagnose_by(None, case)
    with run.lease() as writer:
        writer.begin_attempt(1, at=time.time_ns(), plan={})
        writer.put_slots(1, case.slots)
        writer.put_ranks(1, case.ranks)
        writer.add_evidence(1, case.evidence)
        writer.add_verdict(1, found)
    at, used = time.time(), longest + time.process_time() - begin
    _check(found.verdict.rank, found.verdict.cause.slug, len(found.verdict.consequences))
    print(f"{at:.6f} {used:.3f} {peak_mib():.0f}")


def after(home: str, name: str) -> None:
    """Explain a finished run; print seconds, CPU seconds and peak MiB."""
    from rankfall.explain import explain_run

    began, cpu = time.perf_counter(), time.process_time()
    found = explain_run(RunDir.open(Path(home), name), fresh=True)
    took, used = time.perf_counter() - began, time.process_time() - cpu
    _check(found.verdict.rank, found.verdict.cause.slug, len(found.verdict.consequences))
    print(f"{took:.3f} {used:.3f} {peak_mib():.0f}")


def _check(rank: int | None, slug: str, others: int) -> None:
    if (rank, slug, others) != (fall.CULPRIT, fall.CAUSE, fall.RANKS - 1):
        raise SystemExit(f"the verdict is wrong: rank {rank}, {slug}, {others} consequences")


if __name__ == "__main__":
    {"live": live, "after": after}[sys.argv[1]](*sys.argv[2:])
