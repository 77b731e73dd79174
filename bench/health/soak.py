"""A long hard time for the controller: many nodes, faults all the time, controllers killed, Loki and the API server restarted; then every Node is compared.

``make soak-health MINUTES=30`` (``python -m bench.health.soak --minutes 30 --nodes 1000``). Needs a test bed, as ``make bench-health``. Two controllers run with
the rights of their manifests alone; the nodes are KWOK's, the API server and Loki are the real ones.
"""

from __future__ import annotations

import argparse
import asyncio
import datetime as dt
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from bench.bed import bed_machine, bench_bed
from bench.common import ROOT, Row, table
from bench.health.controlling import KEY
from bench.health.soak_cluster import account, await_initialised, events_of, nodes_of, shaped
from bench.health.soak_controllers import Controllers
from bench.health.soak_faults import KINDS, SECOND, SMALL_BUDGET, UPTIME_S, faults
from bench.health.soak_inject import Injector
from bench.health.soak_judge import Judgement, judge, settled
from testbed import faults as bed_faults
from testbed import process
from testbed.bed import Bed
from testbed.errors import StartError
from testbed.ondemand import kwok, loki

A_MINUTE: Final = 50
READY_S: Final = 300.0
SETTLE_S: Final = 240.0
#: After all is written down: as long as the thorough looks at Loki take to come round once more.
STILL_S: Final = 75.0


async def now_and_then(
    work: Callable[[], None], done: Callable[[], None], rng: random.Random, *, every: tuple[float, float]
) -> None:
    """Call it at random times, for ever. It is not cut off in the middle: whoever cancels this waits until it is done."""
    while True:
        await asyncio.sleep(rng.uniform(*every))
        running = asyncio.create_task(asyncio.to_thread(work))
        try:
            await asyncio.shield(running)
        except asyncio.CancelledError:
            await running
            raise
        finally:
            if running.done() and not running.cancelled() and running.exception() is None:
                done()


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
        from rankfall.kube.auth.kubeconfig import load_access
        from rankfall.kube.client import Kube

        admin = load_access(kubeconfig=str(self.bed.layout.kubeconfig("admin")))
        async with Kube(admin) as kube:
            await_initialised(self.bed, names, limit_s=READY_S)
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
                now_and_then(self._loki_away, lambda: self._count("Loki"), random.Random(self.seed + 3), every=(80, 160)),
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
            for said in await asyncio.gather(*disturbing, return_exceptions=True):
                if isinstance(said, Exception):
                    raise said
        # What was disturbed last comes back first: a restart is never cut off.
        await asyncio.to_thread(self._all_up)
        await asyncio.gather(*giving)

    def _api_away(self) -> None:
        try:
            with bed_faults.part_down(self.bed, "kube-apiserver"):
                time.sleep(3)
        except StartError:
            # It was started, and on a busy machine takes longer than the bed gives it.
            self._all_up()

    def _loki_away(self) -> None:
        try:
            loki.restart(self.bed)
        except StartError:
            # As above: it runs, and what is to be brought to it waits.
            sys.stderr.write("soak: Loki takes long to become ready\n")

    def _all_up(self) -> None:
        if not process.poll(lambda: self.bed.kubectl.run("get", "--raw", "/readyz").returncode == 0, READY_S):
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
            Row("nodes that are as they were before", f"{len(found.untouched)}", "-", None, f"no record, no condition, no taint; on {found.ttl} nodes the cluster itself changed how long kubelets may keep Secrets, which follows its size"),
            Row("wrong", f"{len(found.wrong)}", "0", not found.wrong, "each fault in its node's record exactly once; one taint or held; one Event at most; all else as before"),
            Row("tainted without an Event", f"{len(found.untold)}", "0", not found.untold, "also where a kill came between the taint and the Event"),
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
    folder = Path(tempfile.mkdtemp(prefix="soak-health-"))
    with bench_bed() as bed:
        soak = Soak(bed, minutes=given.minutes, count=given.nodes, seed=given.seed, folder=folder)
        # Leases that are renewed seldom: on few cores a thousand heartbeats would be all the API server does.
        with (
            kwok.fleet(bed, nodes=given.nodes, pods=0, change=shaped, lease_s=60) as fleet,
            loki.run(bed) as url,
            account(bed) as path,
        ):
            found, rows = asyncio.run(soak.run(url, path, fleet.nodes))
            # Before the fleet is removed: on a busy machine that takes minutes, and may fail.
            _tell(found, rows, given=given, folder=folder)
    return 1 if any(row.holds is False for row in rows) else 0


def _tell(found: Judgement, rows: list[Row], *, given: argparse.Namespace, folder: Path) -> None:
    """Print what was found, and write the page."""
    page = table(rows)
    print(page)
    print(dict(found.events), f"logs: {folder}")
    kinds = Counter(each.partition(": ")[2].partition(" ['")[0] for each in found.wrong)
    for kind, count in kinds.most_common(20):
        print(f"wrong, {count} times: {kind}")
    for each in found.wrong:
        print("wrong:", each, flush=True)
    (ROOT / "docs/results/soak-health.md").write_text(_page(page, given), encoding="utf-8")


def _page(page: str, given: argparse.Namespace) -> str:
    return (
        "# The controller under a long hard time\n\n"
        f"Written by `make soak-health` on {dt.datetime.now(tz=dt.UTC).date()} ({bed_machine()}). Faults came for {given.minutes:g} minutes, about {A_MINUTE} a minute, "
        f"to {given.nodes:,} fake nodes of KWOK (seed {given.seed}); one node in four got none. API server and Loki are the real ones.\n\n"
        f"{page}\n"
        "\nFaults come as agents' annotations and as lines in Loki. Two controllers run with the rights of their manifests; one of them is killed every 20 to 60 s and "
        "started again. A Loki that is restarted is away until it is ready again; the API server is killed and away for three seconds and its start. What could not be brought "
        "meanwhile is brought later, with its old stamp. At the end every Node is compared with what it was before: every field that is not a heartbeat.\n"
    )


if __name__ == "__main__":
    sys.exit(main())
