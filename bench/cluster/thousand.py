"""What a job of a thousand pods costs: requests until each is followed, memory and CPU of its supervisor, and of ``rankfall status``."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from bench.cluster.place import Place, job
from bench.common import Row, cpu_seconds
from rankfall.collect.pods.cluster_context import MAX_NODE_WATCHES
from testbed.ondemand import kwok

PODS = 1000
QUIET_S = 20.0
# Of the client on a thousand pods: resident memory, and the share of one core while nothing is said and while each pod says a line a second.
MEMORY_MIB, IDLE_SHARE, BUSY_SHARE = 400.0, 0.15, 1.0
STATUS_S, STATUS_MIB = 5.0, 200.0
_WAIT_S = 400.0
_NODES = 20
# Pods, what is around them (five), and nodes one by one or all together: nothing that grows with the number of pods.
_MOST_WATCHES = 6 + max(MAX_NODE_WATCHES, 1)


def rows(where: Place) -> list[Row]:
    """The rows of the page."""
    with kwok.fleet(where.bed, nodes=_NODES, pods=0) as fleet:
        spec = job(
            where,
            slots=PODS,
            node_selector=dict(kwok.SELECTOR),
            tolerations=[kwok.TOLERATION],
            pod={"spec": {"automountServiceAccountToken": False}},
        )
        spec["inside"] = "off"
        spec["launcher"] = "exec"
        spec["command"] = ["train"]
        path = where.home.parent / "thousand.yaml"
        path.write_text(yaml.safe_dump(spec))
        began, clock = where.last, time.perf_counter()
        run = where.cli("submit", "--file", str(path))
        pid = _supervisor(where, run)
        fleet.say(None, "first")
        _await(lambda: _heard(where, run, b"first") == PODS, "a line of each pod")
        took = time.perf_counter() - clock
        asked = where.requests(began)
        idle = _share(pid, QUIET_S)
        rested = where.requests(began)
        with _talking(fleet):
            busy = _share(pid, QUIET_S)
        memory = _peak_mib(pid)
        seconds, status_mib = _measured(where, "status", run)
        where.cli("cancel", run, "-y")
    logs = asked.pop("log")
    return [
        Row(
            f"requests until every one of {PODS} pods is followed",
            f"{', '.join(f'{number} {verb}' for verb, number in sorted(asked.items()))}, {logs} log",
            f"one log a pod, {_MOST_WATCHES} watches",
            logs == PODS and asked["watch"] <= _MOST_WATCHES,
            f"{took:.0f} s, at 20 requests a second; {_NODES} nodes, each with a watch and the Lease of its kubelet",
        ),
        Row(
            f"memory of the supervisor of {PODS} pods",
            f"{memory:.0f} MiB",
            f"{MEMORY_MIB:.0f} MiB",
            memory <= MEMORY_MIB,
            "VmHWM, a followed log of each pod open",
        ),
        Row(
            "its CPU while nothing is said",
            f"{idle:.1%} of a core",
            f"{IDLE_SHARE:.0%}",
            idle <= IDLE_SHARE,
            f"over {QUIET_S:.0f} s; {sum(rested.values()) - sum(asked.values()) - logs} requests meanwhile",
        ),
        Row(
            "its CPU while each pod says a line a second",
            f"{busy:.0%} of a core",
            f"{BUSY_SHARE:.0%}",
            busy <= BUSY_SHARE,
            f"over {QUIET_S:.0f} s",
        ),
        Row(
            f"`rankfall status` of {PODS} slots",
            f"{seconds:.2f} s CPU, {status_mib:.0f} MiB, no request",
            f"{STATUS_S:.0f} s, {STATUS_MIB:.0f} MiB, no request",
            seconds <= STATUS_S and status_mib <= STATUS_MIB,
            "in a network namespace without any network, so that it can ask nobody",
        ),
    ]


def _supervisor(where: Place, run: str) -> int:
    from rankfall.rundir import RunDir

    holder = RunDir(where.home / "runs" / run).lease_holder()
    if holder is None:
        raise RuntimeError(f"nobody supervises {run}")
    return holder.pid


def _heard(where: Place, run: str, word: bytes) -> int:
    files = (where.home / "runs" / run).glob("logs/attempt-1/*/*/slot.out.log")
    return sum(1 for path in files if word in path.read_bytes())


@contextmanager
def _talking(fleet: Any) -> Iterator[None]:
    over = threading.Event()

    def talk() -> None:
        number = 0
        while not over.wait(1.0):
            number += 1
            fleet.say(None, f"step {number} loss 0.12345 and some more words to make the line as long as they are")

    thread = threading.Thread(target=talk, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _share(pid: int, seconds: float) -> float:
    """CPU that a process takes, as a share of one core."""
    begin, cpu = time.perf_counter(), cpu_seconds(pid)
    time.sleep(seconds)
    return (cpu_seconds(pid) - cpu) / (time.perf_counter() - begin)


def _peak_mib(pid: int) -> float:
    found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    return int(found[1]) / 1024 if found else 0.0


def _measured(where: Place, *words: str) -> tuple[float, float]:
    """CPU seconds and peak memory in MiB of a command that has no network."""
    argv = ["unshare", "--net", sys.executable, "-m", "rankfall", *words]
    process = subprocess.Popen(argv, env=where.environment(), stdout=subprocess.DEVNULL)
    _, code, used = os.wait4(process.pid, 0)
    if code:
        raise RuntimeError(f"rankfall {' '.join(words)} ended with {code}")
    return used.ru_utime + used.ru_stime, used.ru_maxrss / 1024


def _await(true: Any, what: str) -> None:
    deadline = time.monotonic() + _WAIT_S
    while not true():
        if time.monotonic() > deadline:
            raise RuntimeError(f"never came: {what}")
        time.sleep(2.0)
