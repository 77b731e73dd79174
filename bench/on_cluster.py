"""What a run costs an API server and this machine: requests of a launch, a job of a thousand pods, the way to the first pod beside kubectl.

Needs a test bed (``make bench-cluster`` starts one if none is up). All requests go through the bed's proxy, which counts them.
"""

from __future__ import annotations

import base64
import datetime as dt
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from bench.common import ROOT, Row, machine, median_pairs, table
from testbed import bed as beds
from testbed.__main__ import assemble
from testbed.bed import Bed
from testbed.client import Kubectl
from testbed.layout import Layout
from testbed.ondemand import kwok
from testbed.proxy import Proxy, Record, before
from testbed.workloads import PYTHON_IMAGE

SLOTS = (8, 64, 512)
PODS = 1000
NOWHERE = {"rankfall.test/node": "there-is-none"}
QUIET_S = 20.0
# Requests of a launch after its plan, by backend; of the plan, once the schemas are known. Trainer's webhook may not see the new runtime at once
# and is asked again then, at most so often: a create, a look, and another look at the runtime each.
LAUNCH = {"job": 4, "jobset": 3, "trainjob": 11}
AGAIN = {"job": 0, "jobset": 0, "trainjob": 9}
PLAN = 2
# Of the client on a thousand pods: resident memory, and the share of one core while nothing is said and while each pod says a line a second.
MEMORY_MIB, IDLE_SHARE, BUSY_SHARE = 400.0, 0.15, 1.0
STATUS_S, STATUS_MIB = 5.0, 200.0
FIRST_POD_S = 3.0
_WAIT_S = 400.0


@dataclass(frozen=True)
class Place:
    """Where the bench works: a namespace of its own, a client through the proxy.

    Attributes:
        kubectl: of the administrator, straight to the server.
        config: kubeconfig that leads through the proxy.
        home: of the runs.
    """

    bed: Bed
    kubectl: Kubectl
    proxy: Proxy
    config: Path
    namespace: str
    home: Path

    def requests(self, since: int) -> Counter[str]:
        """The product's requests after the one of this number, by what they ask for."""
        return verbs(self.proxy.log(), since=since)

    def run(self, *words: str) -> None:
        """A command, whatever becomes of it."""
        argv = [sys.executable, "-m", "rankfall", *words]
        subprocess.run(argv, check=False, capture_output=True, env=self.environment())

    @property
    def last(self) -> int:
        """Number of the newest request."""
        return self.proxy.counters().requests

    def environment(self) -> dict[str, str]:
        """Of the product's processes."""
        return os.environ | {"RANKFALL_HOME": str(self.home), "KUBECONFIG": str(self.config), "NO_COLOR": "1"}

    def cli(self, *words: str) -> str:
        """What a command of the product says."""
        argv = [sys.executable, "-m", "rankfall", *words]
        return subprocess.run(argv, check=True, capture_output=True, text=True, env=self.environment()).stdout.strip()

    def end(self) -> None:
        """End all runs."""
        from rankfall.model import FINAL_STATES
        from rankfall.store import list_runs

        for run in list_runs(self.home):
            with run.reader() as reader:
                over = reader.summary().state in FINAL_STATES
            if not over and run.lease_holder() is not None:
                self.run("cancel", run.id, "-y")


@contextmanager
def place(bed: Bed) -> Iterator[Place]:
    """A namespace, a proxy and a home; gone afterwards."""
    namespace = f"bench-{uuid.uuid4().hex[:8]}"
    bed.kubectl.create_namespace(namespace)
    with tempfile.TemporaryDirectory() as name, Proxy(before.settings(bed.layout)) as proxy:
        folder = Path(name)
        config = before.through(proxy.url, bed.kubectl.kubeconfig, folder / "kubeconfig")
        made = Place(bed, bed.kubectl, proxy, config, namespace, folder / "home")
        try:
            yield made
        finally:
            made.end()
            bed.kubectl.run("delete", "namespace", namespace, "--wait=false")


def job(where: Place, *, backend: str = "job", slots: int = 1, **section: Any) -> dict[str, Any]:
    """A job file whose pods no node takes, unless the section says otherwise."""
    return {
        "name": "bench",
        "backend": backend,
        "command": ["train.py"],
        "nnodes": slots,
        "launcher": "plain",
        "policies": {"max_restarts": 0, "grace_s": 1},
        "kubernetes": {
            "image": PYTHON_IMAGE,
            "image_pull_policy": "Never",
            "namespace": where.namespace,
            "kubeconfig": str(where.config),
            "node_selector": NOWHERE,
            **section,
        },
    }


def launched(where: Place, spec: Mapping[str, Any]) -> tuple[Counter[str], Counter[str]]:
    """What the server was asked for by the plan and by the launch of one attempt; it is removed again."""
    from rankfall.backends.cluster.backend import ClusterBackend
    from rankfall.model import spec_from
    from rankfall.store import RunDir

    directory = RunDir.create(spec_from(dict(spec)), home=where.home)
    backend = ClusterBackend()
    try:
        began = where.last
        plan = backend.plan(directory.spec, directory, 1)
        planned = where.last
        backend.submit(plan)
        done = where.requests(planned)
        backend.clear(plan)
    finally:
        backend.release()
    return where.requests(began) - where.requests(planned), done


def rows(bed: Bed) -> list[Row]:
    """The rows of the page."""
    with place(bed) as where:
        return [*_launches(where), *_thousand(where), *_first_pod(where)]


def verbs(log: Sequence[Record], *, since: int) -> Counter[str]:
    """The product's requests in a proxy's log, after the one of this number, by what they ask for."""
    ours = [one for one in log if one.number > since and one.user_agent.startswith("rankfall/")]
    return Counter(_verb(one.method, one.path, one.query) for one in ours)


def _verb(method: str, path: str, query: str) -> str:
    kind = path.rsplit("/", 1)[-1]
    if kind == "log" or "/leases" in path:
        return "log" if kind == "log" else "lease"
    if "watch=1" in query:
        return "watch"
    if kind == "version" or path.startswith("/openapi"):
        return "discovery"
    return {"GET": "get", "POST": "create", "PATCH": "patch", "DELETE": "delete"}.get(method, method)


# -- requests


def _launches(where: Place) -> list[Row]:
    # No pod is made: this is about our requests, and thousands of pods take the controllers of a small machine minutes.
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "none", "namespace": where.namespace}}
    where.kubectl.apply([quota | {"spec": {"hard": {"pods": "0"}}}])
    try:
        return _launched_by_backend(where)
    finally:
        where.kubectl("delete", "resourcequota", "none", "-n", where.namespace)


def _launched_by_backend(where: Place) -> list[Row]:
    found = []
    for backend, bound in LAUNCH.items():
        launched(where, job(where, backend=backend))  # fetches the schemas
        counts = {slots: launched(where, job(where, backend=backend, slots=slots)) for slots in SLOTS}
        totals = [sum(done.values()) for _, done in counts.values()]
        plans = [sum(asked.values()) for asked, _ in counts.values()]
        by_verb = ", ".join(f"{number} {verb}" for verb, number in sorted(counts[SLOTS[-1]][1].items()))
        found.append(
            Row(
                f"requests of a launch, `{backend}`, {', '.join(map(str, SLOTS))} slots",
                f"{', '.join(map(str, totals))} ({by_verb}) after {', '.join(map(str, plans))} of the plan",
                f"{bound}{f' to {bound + AGAIN[backend]}' if AGAIN[backend] else ''}, after {PLAN}",
                all(bound <= total <= bound + AGAIN[backend] for total in totals) and set(plans) == {PLAN},
                "from the proxy's log; the schemas are known from an earlier launch",
            )
        )
    return found


# -- a thousand pods


def _thousand(where: Place) -> list[Row]:
    with kwok.fleet(where.bed, nodes=20, pods=0) as fleet:
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
        began = where.last
        seconds, status_mib = _measured(where, "status", run)
        status = where.requests(began)
        where.cli("cancel", run, "-y")
    logs = asked.pop("log")
    return [
        Row(
            f"requests until every one of {PODS} pods is followed",
            f"{', '.join(f'{number} {verb}' for verb, number in sorted(asked.items()))}, {logs} log",
            "one log a pod, the rest as for one pod",
            logs == PODS and asked["watch"] <= 2,
            f"{took:.0f} s, at 20 requests a second",
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
            f"{seconds:.2f} s CPU, {status_mib:.0f} MiB, {sum(status.values())} requests",
            f"{STATUS_S:.0f} s, {STATUS_MIB:.0f} MiB, none",
            seconds <= STATUS_S and status_mib <= STATUS_MIB and not status.total(),
            "it reads the run directory; the supervisor's requests in the same moment would show here too",
        ),
    ]


def _supervisor(where: Place, run: str) -> int:
    from rankfall.store import RunDir

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
    begin, cpu = time.perf_counter(), _cpu(pid)
    time.sleep(seconds)
    return (_cpu(pid) - cpu) / (time.perf_counter() - begin)


def _cpu(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _peak_mib(pid: int) -> float:
    found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    return int(found[1]) / 1024 if found else 0.0


def _measured(where: Place, *words: str) -> tuple[float, float]:
    """CPU seconds and peak memory in MiB of a command."""
    argv = [sys.executable, "-m", "rankfall", *words]
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


# -- the first pod


def _first_pod(where: Place) -> list[Row]:
    from rankfall.backends.bundle import build_zip

    path = where.home.parent / "first.yaml"
    path.write_text(yaml.safe_dump(job(where)))
    manifests = where.cli("run", "--file", str(path), "--dry-run")
    number = 0

    def ours() -> float:
        return _until_pod(where, [sys.executable, "-m", "rankfall", "submit", "--file", str(path)])

    def plain() -> float:
        nonlocal number
        number += 1
        text = manifests.replace("bench-000000", f"plain-{number:06d}")
        items = [item for item in yaml.safe_load_all(text) if item]
        for item in items:
            if item["kind"] == "Job":
                item["spec"]["suspend"] = False
            if item["kind"] == "ConfigMap":
                # Shown by its size only.
                item["binaryData"] = {"inside.pyz": base64.b64encode(build_zip()).decode()}
        file = where.home.parent / "plain.yaml"
        file.write_text(yaml.safe_dump_all(items))
        return _until_pod(where, where.kubectl.command("apply", "-n", where.namespace, "-f", str(file)))

    a, b, added = median_pairs(ours, plain, runs=7)
    return [
        Row(
            "from the command to the first pod, beside `kubectl apply` of the same manifests",
            f"+{added:.2f} s ({a:.2f} / {b:.2f}, {a / b:.1f} x)",
            f"+{FIRST_POD_S:.0f} s",
            added <= FIRST_POD_S,
            "median of 7 pairs; start of two Python processes, plan with refusals, detached supervisor, launch",
        )
    ]


def _until_pod(where: Place, argv: list[str]) -> float:
    """Seconds from the start of a command to the first new pod, as a watch tells it."""
    words = where.kubectl.command("get", "pods", "-n", where.namespace, "--watch-only", "-o", "name")
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as watch:
        try:
            # A watch says nothing of its beginning.
            time.sleep(1.0)
            begin = time.perf_counter()
            with subprocess.Popen(argv, env=where.environment(), stdout=subprocess.DEVNULL):
                if watch.stdout is None or not watch.stdout.readline():
                    raise RuntimeError("no pod came")
                return time.perf_counter() - begin
        finally:
            watch.kill()


def main() -> int:
    """Measure, print the table, write the page; 1 when a bound is broken."""
    layout = Layout(int(os.environ.get("TESTBED", "0")))
    mine = not beds.is_up(layout)
    bed = assemble(layout)
    try:
        if mine:
            bed.up()
        found = rows(bed)
    finally:
        if mine:
            beds.down(layout)
    page = table(found)
    print(page)
    where = f"{machine()}; the whole test bed runs on it too; load average at the end {os.getloadavg()[1]:.0f}"
    head = (
        f"# Load on a cluster\n\nWritten by `make bench-cluster` on {dt.datetime.now(tz=dt.UTC).date()} ({where}).\n\n"
    )
    (ROOT / "docs/results/bench-cluster.md").write_text(head + page + "\n", encoding="utf-8")
    return 1 if any(row.holds is False for row in found) else 0


if __name__ == "__main__":
    sys.exit(main())
