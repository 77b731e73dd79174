"""The same fall on a cluster: 128 pods on fake nodes, followed through a real API server whose requests are counted.

Needs the test bed (root): ``TESTBED=N`` names one that is up. Records come as the product has them: whole in a shared record store, and cut to
8 KiB as lines of the pods' logs, so each is known twice and counts once. The pods' ends come from the API.
"""

from __future__ import annotations

import base64
import json
import subprocess
import sys
import tempfile
import time
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from bench.bed import bench_bed
from bench.cluster.place import verbs
from bench.common import ROOT, Row, peak_mib
from bench.verdict import fall
from rankfall.rundir import RunDir
from testbed.ondemand import fake, kwok
from testbed.proxy import Proxy, before

VERDICT_S, VERDICT_MIB = 2.0, 300.0
APP = {"app": "large"}
CHANNEL = "t0k3n"
# Lists and watches; a page more for each 500 pods.
OTHERS = 40
_LIMIT_S = 300.0
_LINE = 5000


def rows() -> list[Row]:
    """The rows of this part."""
    with bench_bed() as bed:
        return _rows(bed)


def _labels(index: int) -> dict[str, str]:
    labels: dict[str, str] = fall.pod_object(index, ended=False, at="")["metadata"]["labels"]
    return APP | labels


def _rows(bed: Any) -> list[Row]:
    with (
        tempfile.TemporaryDirectory() as name,
        kwok.fleet(bed, nodes=8, pods=fall.NODES, labels=_labels) as fleet,
        Proxy(before.settings(bed.layout)) as proxy,
    ):
        home, store = Path(name) / "home", Path(name) / "store"
        config = before.through(proxy.url, bed.kubectl.kubeconfig, Path(name) / "kubeconfig")
        run = RunDir.create(msgspec.structs.replace(fall.spec(), record_store=f"file://{store}"), home=home)
        folder = store / run.id / "errors"
        folder.mkdir(parents=True)
        argv = [sys.executable, "-m", "bench.verdict.fleet", str(home), run.id, str(config), fleet.namespace]
        with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, cwd=ROOT) as watcher:
            last = _happen(bed, fleet, run, folder)
            out, _ = watcher.communicate(timeout=_LIMIT_S)
        if watcher.returncode:
            raise RuntimeError("the watcher did not come to its verdict")
        verdict_at, cpu, mib = map(float, out.split())
        # When the last of them had come through the API and was a file here; the time of a record's file is its writer's.
        culprit = f"-worker-{fall.CULPRIT // fall.PER_NODE}-"
        arrived = max(one.stat().st_ctime for one in run.records_dir.iterdir() if culprit in one.name)
        asked: Counter[str] = verbs(proxy.log(), since=0)
    took, way = verdict_at - arrived, arrived - last
    logs, others = asked.pop("log", 0), sum(asked.values())
    told = ", ".join(f"{number} {verb}" for verb, number in sorted(asked.items()))
    return [
        Row(
            f"the same through a real API server, {fall.NODES} pods",
            f"{took:.2f} s ({cpu:.2f} s of CPU), {mib:.0f} MiB",
            f"{VERDICT_S:.0f} s, {VERDICT_MIB:.0f} MiB",
            took <= VERDICT_S and mib <= VERDICT_MIB,
            f"KWOK's pods, records as log lines and in a shared store; feed and verdict in one process; from the last record's arrival, {way:.1f} s after it was written, on",
        ),
        Row(
            "its requests, from the first pod to the verdict",
            f"{logs} logs; {told}",
            f"3 logs a pod, {OTHERS} others",
            logs <= 3 * fall.NODES and others <= OTHERS,
            "a pod's log is opened once, and up to twice more when its container has ended; the others are lists and watches, the same number for each connection; ranks and records add none",
        ),
    ]


def _happen(bed: Any, fleet: fake.Fleet, run: RunDir, folder: Path) -> float:
    def tell(slot: int, records: list[dict[str, Any]]) -> None:
        lines = []
        for record in records:
            fall.write(folder, record)
            short = json.loads(json.dumps(record))
            if "error" in short:
                short["error"]["traceback"] = short["error"]["traceback"][: _LINE // 2]
            data = base64.urlsafe_b64encode(json.dumps(short).encode()).decode()
            lines.append(f"\x1erankfall/1 {CHANNEL} {data}")
        fleet.say(fleet.pods[slot], *lines)

    for slot in range(fall.NODES):
        tell(slot, list(fall.begin(run.id, slot, at=time.time_ns())))
    at = time.time_ns()
    culprit = fall.CULPRIT // fall.PER_NODE
    for slot in range(fall.NODES):
        if slot != culprit:
            tell(slot, list(fall.fall(run.id, slot, at=at)))
    _end(bed, fleet)
    tell(culprit, list(fall.fall(run.id, culprit, at=at)))
    return time.time()


def _end(bed: Any, fleet: fake.Fleet) -> None:
    """The API says of each container that it has ended with 1."""
    found = json.loads(bed.kubectl("get", "pods", "-n", fleet.namespace, "-o", "json"))
    stamp = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    for item in found["items"]:
        slot = int(item["metadata"]["name"].rpartition("-")[2])
        over = fall.pod_object(slot, ended=True, at=stamp)["status"]
        own = item["status"]["containerStatuses"][0]
        own["state"], own["ready"] = over["containerStatuses"][0]["state"], False
        item["status"]["phase"] = over["phase"]
    bed.kubectl("replace", "--subresource=status", "-f", "-", text=json.dumps(found))


def watch(home: str, name: str, kubeconfig: str, namespace: str) -> None:
    """Follow and explain; print when the verdict was there, CPU seconds of the last look and the verdict, peak MiB."""
    from rankfall.collect.pods.lazy_collector import LazyCollector
    from rankfall.evidence.attempt.observer import AttemptObserver
    from rankfall.rundir.cluster.pod_source import PodSource
    from rankfall.strategy_registry import diagnose_by

    run = RunDir.open(Path(home), name)
    source = PodSource(
        context="kubernetes-admin",
        kubeconfig=kubeconfig,
        namespace=namespace,
        selector="app=large",
        container="main",
        token=CHANNEL,
        bases={"worker": 0},
    )
    feed = LazyCollector(run, attempt=1, source=source)
    feed.start()
    observer = AttemptObserver(run, spec=run.spec, attempt=1, launcher="torchrun")
    until = time.monotonic() + _LIMIT_S
    try:
        while time.monotonic() < until:
            cpu = time.thread_time()
            observer.poll(time.time_ns())
            if all(one.state in {"ended", "lost"} for one in observer.slots()):
                break
            time.sleep(0.02)
        while observer.poll(time.time_ns()).changed:
            pass
        verdict = diagnose_by(None, observer.case()).verdict
        at, used = time.time(), time.thread_time() - cpu
    finally:
        feed.stop()
        for trouble in feed.troubles():
            print(trouble, file=sys.stderr)
    if (verdict.rank, verdict.cause.slug) != (fall.CULPRIT, fall.CAUSE):
        raise SystemExit(f"the verdict is wrong: rank {verdict.rank}, {verdict.cause.slug}")
    print(f"{at:.6f} {used:.3f} {peak_mib():.0f}")


if __name__ == "__main__":
    watch(*sys.argv[1:])
