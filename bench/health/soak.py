"""A long hard time for the controller: many nodes, faults all the time, controllers killed, Loki and the API server restarted; then every Node is compared.

``make soak-health MINUTES=30`` (``python -m bench.health.soak --minutes 30 --nodes 1000``). Needs a test bed, as ``make bench-health``. Two controllers run with
the rights of their manifests alone; the nodes are KWOK's, the API server and Loki are the real ones.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import datetime as dt
import http.client
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from bench.common import ROOT, Row, machine, table
from bench.health.__main__ import memory
from bench.health.soak_faults import KINDS, POOL_LABEL, SECOND, SMALL_BUDGET, UPTIME_S, Fault, faults, pool
from bench.health.soak_judge import Judgement, judge, settled
from testbed import accounts, process
from testbed import bed as beds
from testbed import faults as bed_faults
from testbed.__main__ import assemble
from testbed.bed import Bed
from testbed.layout import Layout
from testbed.ondemand import kwok, loki

KEY: Final = "rankfall.dev/faulty"
SPACE: Final = "soak-health"
A_MINUTE: Final = 50
READY_S: Final = 300.0
SETTLE_S: Final = 240.0
#: After all is written down: as long as the thorough looks at Loki take to come round once more.
STILL_S: Final = 75.0
POLICY: Final = f"""[policy]
rate_nodes = 100
rate_s = 60
breaker_nodes = 100000
budget = {{ nodes = 100000, percent = 100 }}
pools = {{ small = {{ nodes = {SMALL_BUDGET}, percent = 100 }} }}
"""


class Controllers:
    """Two of them, each started again some seconds after it was killed."""

    def __init__(self, folder: Path, *, kubeconfig: Path, url: str) -> None:
        self._folder = folder
        config = folder / "policy.toml"
        config.write_text(POLICY)
        self._environ = {**os.environ, "KUBECONFIG": str(kubeconfig), "LOG_ENDPOINT": url, "WATCHED_NAMESPACES": "team"}
        words = ("-m", "rankfall", "controller", "--poll", "2", "-n", SPACE, "--config", str(config))
        self._command = [sys.executable, *words]
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self.kills = 0
        self.ended: list[str] = []

    def start(self, name: str) -> None:
        """Start one."""
        with (self._folder / f"{name}.log").open("ab") as log, (self._folder / f"{name}.audit").open("ab") as audit:
            environ = {**self._environ, "POD_NAME": name}
            self._running[name] = subprocess.Popen(self._command, env=environ, stdout=audit, stderr=log)

    async def trouble(self, rng: random.Random, *, every: tuple[float, float]) -> None:
        """Kill one now and then, for ever."""
        while True:
            await asyncio.sleep(rng.uniform(*every))
            name = rng.choice(sorted(self._running))
            victim = self._running[name]
            if victim.poll() is not None:
                self.ended.append(f"{name} had ended by itself with {victim.returncode}")
            victim.send_signal(signal.SIGKILL)
            await asyncio.to_thread(victim.wait)
            self.kills += 1
            await asyncio.sleep(rng.uniform(0.5, 5.0))
            self.start(name)

    def peak(self) -> float:
        """Largest memory of those that run, MiB."""
        return max(memory(each.pid) for each in self._running.values() if each.poll() is None)

    def end(self) -> None:
        """End those that run."""
        for name, each in self._running.items():
            if each.poll() is not None:
                self.ended.append(f"{name} had ended by itself with {each.returncode}")
            each.terminate()
        for each in self._running.values():
            each.wait(60)

    def said(self) -> Counter[str]:
        """What their logs hold, by a few words."""
        words = {"this controller leads": "leads", "answers again": "Loki back", "] Traceback": "traceback"}
        found: Counter[str] = Counter()
        for path in self._folder.glob("*.log"):
            text = path.read_text(errors="replace")
            for word, name in words.items():
                found[name] += text.count(word)
            found["traceback"] += text.count("Traceback (most recent call last)")
        return found


class Injector:
    """Brings faults to the cluster as agents and collectors do: what cannot be brought now is brought later."""

    def __init__(self, kube: Any, url: str, *, begun: int) -> None:
        self._kube, self._url, self._begun = kube, url, begun
        self._entries: dict[str, list[Any]] = {}
        self.given: list[tuple[Fault, int]] = []

    async def give(self, fault: Fault) -> None:
        """Bring one; noted with the moment at which it could be seen first."""
        while True:
            try:
                if fault.way.startswith("agent"):
                    await self._annotate(fault)
                else:
                    await asyncio.to_thread(self._say, fault)
            except Exception as error:  # noqa: BLE001 - whatever it is, the soak has to go on
                sys.stderr.write(f"soak: {fault.way} on {fault.node} is tried again: {str(error)[:100]}\n")
                await asyncio.sleep(1)
                continue
            self.given.append((fault, time.time_ns()))
            return

    async def _annotate(self, fault: Fault) -> None:
        from rankfall.kube.resources import NODES
        from rankfall.model.health_report import REPORT_ANNOTATION, KernelEntry, KernelReport, Place, encode_report

        entries = self._entries.setdefault(fault.node, [])
        code, device = fault.cause
        if all(each.device != device for each in entries):
            place = Place(len(entries) + 1, time.time_ns())
            trust: Any = "injected" if fault.way == "agent_injected" else "kernel"
            entries.append(KernelEntry(code=code, trust=trust, device=device, seen=(place,), first=place, text=fault.text))  # fmt: skip
        report = KernelReport(boot=boot(fault.node), seq=len(entries), entries=tuple(entries))
        body = {"metadata": {"annotations": {REPORT_ANNOTATION: encode_report(report)}}}
        await self._kube.patch(NODES, fault.node, body, kind="merge")

    def _say(self, fault: Fault) -> None:
        labels = {"k8s_namespace_name": "dmesg-logging", "k8s_daemonset_name": "dmesg", "k8s_node_name": fault.node}
        if fault.way == "pod":
            labels = {"k8s_namespace_name": "team", "k8s_pod_name": "train-0", "k8s_node_name": fault.node}
        at = time.time_ns() - int(fault.late_s * SECOND)
        text = fault.text if fault.way == "pod" else fault.dmesg(at=at, begun=self._begun)
        rows = [(at, text)]
        if fault.way == "loki_twice":
            rows.append((at + SECOND // 2, text))
        push(self._url, labels, rows)


def push(url: str, labels: dict[str, str], rows: Sequence[tuple[int, str]]) -> None:
    """Lines to Loki, as a collector brings them."""
    place = urlsplit(url)
    body = json.dumps({"streams": [{"stream": labels, "values": [[str(at), text] for at, text in rows]}]})
    with contextlib.closing(http.client.HTTPConnection(str(place.hostname), place.port, timeout=20)) as connection:
        connection.request("POST", "/loki/api/v1/push", body, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        if answer.status != http.HTTPStatus.NO_CONTENT:
            raise OSError(f"Loki answered {answer.status}: {answer.read(200)!r}")


def boot(node: str) -> str:
    """Boot id of a fake node."""
    return f"boot-{node}"


async def now_and_then(
    work: Callable[[], None], done: Callable[[], None], rng: random.Random, *, every: tuple[float, float]
) -> None:
    """Call it at random times, for ever; it is not cut off in the middle."""
    while True:
        await asyncio.sleep(rng.uniform(*every))
        await asyncio.shield(asyncio.to_thread(work))
        done()


def shaped(index: int, node: dict[str, Any]) -> None:
    """A boot id and a pool for a fake node; some are cordoned by a person, some bear a taint of others."""
    meta, spec = node["metadata"], node["spec"]
    meta["labels"][POOL_LABEL] = pool(index)
    node["status"] = {"nodeInfo": {"bootID": boot(meta["name"])}}
    if index % 7 == 0:
        spec["taints"].append({"key": "theirs", "value": "1", "effect": "NoSchedule"})
    if index % 11 == 0:
        spec["unschedulable"] = True


def initialised(nodes: dict[str, Any]) -> bool:
    """Whether KWOK made all of them ready and left their boot ids as they were."""
    return all(
        node["status"].get("nodeInfo", {}).get("bootID") == boot(name)
        and any((each["type"], each["status"]) == ("Ready", "True") for each in node["status"].get("conditions", ()))
        for name, node in nodes.items()
    )


def nodes_of(bed: Bed, names: Sequence[str]) -> dict[str, Any]:
    """The fake Nodes as they are."""
    known = set(names)
    items = bed.kubectl.get("nodes", "-l", kwok.LABEL)["items"]
    return {each["metadata"]["name"]: each for each in items if each["metadata"]["name"] in known}


def events_of(bed: Bed, names: Sequence[str], *, since: dt.datetime) -> list[Any]:
    """Events that controllers wrote on these nodes since then."""
    known = set(names)
    return [
        each
        for each in bed.kubectl.get("events", "-n", "default")["items"]
        if each.get("source", {}).get("component") == "rankfall-controller"
        and each["involvedObject"]["name"] in known
        and dt.datetime.fromisoformat(each["firstTimestamp"]) >= since
    ]


@contextlib.contextmanager
def account(bed: Bed) -> Iterator[Path]:
    """A kubeconfig with the rights of the controller's manifests alone."""
    from rankfall.health.manifests.controller import CLUSTER_RULES, EVENT_RULES, OWN_RULES

    path = accounts.create(
        bed.control, bed.kubectl, "controller", namespace=SPACE, rules=OWN_RULES, cluster_rules=CLUSTER_RULES
    )
    group = "rbac.authorization.k8s.io"
    meta = {"name": SPACE, "namespace": "default"}
    subject = {"kind": "ServiceAccount", "name": "controller", "namespace": SPACE}
    bed.kubectl.apply([
        {"apiVersion": f"{group}/v1", "kind": "Role", "metadata": meta, "rules": [dict(each) for each in EVENT_RULES]},
        {
            "apiVersion": f"{group}/v1", "kind": "RoleBinding", "metadata": meta,
            "roleRef": {"apiGroup": group, "kind": "Role", "name": SPACE}, "subjects": [subject],
        },
    ])  # fmt: skip
    try:
        yield path
    finally:
        bed.kubectl.run("delete", "namespace", SPACE, "--wait=false")


class Soak:
    """One soak.

    Args:
        minutes: in which faults are injected.
        count: of nodes.
        seed: of all that is random.
    """

    def __init__(self, bed: Bed, *, minutes: float, count: int, seed: int, folder: Path) -> None:
        self.bed, self.minutes, self.count, self.seed, self.folder = bed, minutes, count, seed, folder
        self.restarts: Counter[str] = Counter()

    async def run(self, url: str, kubeconfig: Path, names: Sequence[str]) -> tuple[Judgement, list[Row]]:
        """Inject, disturb, wait until all is written down, and compare."""
        from rankfall.kube.client import Kube
        from rankfall.kube.kubeconfig import load_access

        admin = load_access(kubeconfig=str(self.bed.layout.kubeconfig("admin")))
        async with Kube(admin) as kube:
            if not process.poll(lambda: initialised(nodes_of(self.bed, names)), READY_S):
                raise SystemExit("the fake nodes do not become ready")
            before = nodes_of(self.bed, names)
            since = dt.datetime.now(tz=dt.UTC).replace(microsecond=0)
            controllers = Controllers(self.folder, kubeconfig=kubeconfig, url=url)
            injector = Injector(kube, url, begun=time.time_ns() - UPTIME_S * SECOND)
            for name in ("one", "two"):
                controllers.start(name)
            try:
                await self._hard_time(injector, controllers, names)
                took = await self._settle(injector, names)
            finally:
                peak = controllers.peak()
                controllers.end()
            after = nodes_of(self.bed, names)
            found = judge(before, after, events_of(self.bed, names, since=since), injector.given, key=KEY)
            found.wrong += controllers.ended
        return found, self._rows(found, injector, controllers, took=took, peak=peak)

    async def _hard_time(self, injector: Injector, controllers: Controllers, names: Sequence[str]) -> None:
        rng = random.Random(self.seed)
        end = time.monotonic() + 60 * self.minutes
        source = faults(names, random.Random(self.seed + 1))
        giving: set[asyncio.Task[None]] = set()
        disturbing = [
            asyncio.create_task(each)
            for each in (
                controllers.trouble(random.Random(self.seed + 2), every=(20, 60)),
                now_and_then(lambda: loki.restart(self.bed), lambda: self._count("Loki"), random.Random(self.seed + 3), every=(80, 160)),
                now_and_then(self._api_away, lambda: self._count("API server"), random.Random(self.seed + 4), every=(100, 200)),
            )
        ]  # fmt: skip
        try:
            while time.monotonic() < end:
                task = asyncio.create_task(injector.give(next(source)))
                giving.add(task)
                task.add_done_callback(giving.discard)
                await asyncio.sleep(rng.expovariate(A_MINUTE / 60))
        finally:
            for each in disturbing:
                each.cancel()
            for each in await asyncio.gather(*disturbing, return_exceptions=True):
                if isinstance(each, Exception):
                    raise each
        # What was disturbed last comes back first: a restart is never cut off.
        await asyncio.to_thread(self._all_up)
        await asyncio.gather(*giving)

    def _api_away(self) -> None:
        with bed_faults.part_down(self.bed, "kube-apiserver"):
            time.sleep(3)

    def _all_up(self) -> None:
        if not process.poll(lambda: self.bed.kubectl.run("get", "--raw", "/readyz").returncode == 0, 120):
            raise SystemExit("the API server does not come back")

    def _count(self, what: str) -> None:
        self.restarts[what] += 1

    async def _settle(self, injector: Injector, names: Sequence[str]) -> float:
        """Wait until all is written down, then long enough for anything that is done twice; seconds of the first wait."""
        begin = time.monotonic()
        while time.monotonic() - begin < SETTLE_S:
            if settled(await asyncio.to_thread(nodes_of, self.bed, names), injector.given):
                break
            await asyncio.sleep(3)
        took = time.monotonic() - begin
        await asyncio.sleep(STILL_S)
        return took

    def _rows(
        self, found: Judgement, injector: Injector, controllers: Controllers, *, took: float, peak: float
    ) -> list[Row]:
        ways = Counter(fault.way for fault, _ in injector.given)
        by_due = Counter(fault.due for fault, _ in injector.given)
        said = controllers.said()
        waits = sorted(found.waits_s)
        middle, last = (
            (waits[len(waits) // 2], waits[min(len(waits) - 1, int(len(waits) * 0.99))]) if waits else (0.0, 0.0)
        )
        struck = len({fault.node for fault, _ in injector.given})
        return [
            Row("faults injected", f"{len(injector.given)}", "-", None, "; ".join(f"{ways[way]} {kind.told}" for way, kind in KINDS.items())),
            Row("to be acted on, noted, left alone", ", ".join(str(by_due[each]) for each in ("quarantine", "noted", "nothing")), "-", None, f"on {struck} of {self.count} nodes"),
            Row("controllers killed (SIGKILL)", f"{controllers.kills}", "-", None, f"of two; the lead was won {said['leads']} times"),
            Row("Loki restarted, API server killed and restarted", f"{self.restarts['Loki']}, {self.restarts['API server']}", "-", None, f"controllers said {said['Loki back']} times that Loki answers again"),
            Row("nodes tainted, held by the budget, noted only", f"{len(found.tainted)}, {len(found.held)}, {len(found.noted)}", "-", None, f"the pool of the held ones may have {SMALL_BUDGET} tainted nodes"),
            Row("nodes that are as they were before", f"{len(found.untouched)}", "-", None, "no record, no condition, no taint; nothing foreign changed on any node"),
            Row("wrong", f"{len(found.wrong)}", "0", not found.wrong, "each fault in its node's record exactly once; one taint or held; one Event at most; all else as before"),
            Row("tainted without an Event", f"{len(found.untold)}", "-", None, "a kill came between the taint and the Event; record, condition and log tell it"),
            Row("fault until its node's quarantine, p50, p99, most", f"{middle:.1f}, {last:.1f}, {waits[-1] if waits else 0:.1f} s", "-", None, "kills, restarts and late lines included"),
            Row("from the last fault until all was written down", f"{took:.0f} s", f"{SETTLE_S:.0f} s", took < SETTLE_S, "then the Nodes were left alone for over a minute and compared"),
            Row("tracebacks in the logs", f"{said['traceback']}", "0", not said["traceback"], "of both controllers"),
            Row("peak memory of a controller", f"{peak:.0f} MiB", "-", None, "VmHWM, of those that ran at the end"),
        ]  # fmt: skip


def main() -> int:
    """Soak, print the table and what was wrong, write the page; 1 when anything was."""
    words = argparse.ArgumentParser(prog="python -m bench.health.soak")
    words.add_argument("--minutes", type=float, default=30.0)
    words.add_argument("--nodes", type=int, default=1_000)
    words.add_argument("--seed", type=int, default=8)
    given = words.parse_args()
    layout = Layout(int(os.environ.get("TESTBED", "0")))
    mine = not beds.is_up(layout)
    bed = assemble(layout)
    folder = Path(tempfile.mkdtemp(prefix="soak-health-"))
    try:
        if mine:
            bed.up()
        soak = Soak(bed, minutes=given.minutes, count=given.nodes, seed=given.seed, folder=folder)
        # Leases that are renewed seldom: on few cores a thousand heartbeats would be all the API server does.
        with (
            kwok.fleet(bed, nodes=given.nodes, pods=0, change=shaped, lease_s=60) as fleet,
            loki.run(bed) as url,
            account(bed) as path,
        ):
            found, rows = asyncio.run(soak.run(url, path, fleet.nodes))
    finally:
        if mine:
            beds.down(layout)
    page = table(rows)
    print(page)
    print(dict(found.events), f"logs: {folder}")
    for each in found.wrong[:50]:
        print("wrong:", each)
    (ROOT / "docs/results/soak-health.md").write_text(_page(page, given), encoding="utf-8")
    return 1 if any(row.holds is False for row in rows) else 0


def _page(page: str, given: argparse.Namespace) -> str:
    told = f"{machine()}; the whole test bed runs on it too; load average at the end {os.getloadavg()[1]:.0f}"
    return (
        "# The controller under a long hard time\n\n"
        f"Written by `make soak-health` on {dt.datetime.now(tz=dt.UTC).date()} ({told}). Faults came for {given.minutes:g} minutes, about {A_MINUTE} a minute, "
        f"to {given.nodes:,} fake nodes of KWOK (seed {given.seed}); one node in four got none. API server and Loki are the real ones.\n\n"
        f"{page}\n"
        "\nFaults come as agents' annotations and as lines in Loki. Two controllers run with the rights of their manifests; one of them is killed every 20 to 60 s and "
        "started again. A Loki that is restarted is away until it is ready again; the API server is killed and away for three seconds and its start. What could not be brought "
        "meanwhile is brought later, with its old stamp. At the end every Node is compared with what it was before: every field that is not a heartbeat.\n"
    )


if __name__ == "__main__":
    sys.exit(main())
