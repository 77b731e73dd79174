"""How soon a kernel line has become a taint, by an agent and by Loki, while the kernel talks much; what the agent costs, and the controller while nothing is wrong.

``python -m bench.health [--only PART...]`` (``make bench-health ONLY="agent rest"``). Needs a test bed (the make target starts one if none is up). Agents and
controllers run with their own accounts and write to a real API server. A part that fails is told as such on the page; the others are kept.
"""

from __future__ import annotations

import argparse
import asyncio
import datetime as dt
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Final

from bench.bed import bed_machine, bench_bed
from bench.common import ROOT, Row, table
from bench.health import flat, taint, taint_loki, told
from bench.health.figures import PARTS, failed, page
from bench.health.rest import at_rest
from bench.health.soak_cluster import account, await_initialised, booted
from testbed import accounts
from testbed.bed import Bed
from testbed.ondemand import kwok, loki

SPACE: Final = "bench-health"
PAGE: Final = ROOT / "docs/results/bench-health.md"
_READY_S: Final = 120.0
#: Under the table of each part: how it is measured.
TOLD: Final = {
    "agent": (
        "Records come over the agent's socket, a record a message, to a fake node of KWOK with a boot id of its own (the first row: to one of the bed's, with no controller). The plain tail stands for "
        "node-problem-detector's kernel monitor, whose expressions it uses; it is not that program. A node has one taint: after each it is taken away as a person would, and the next Xid is given "
        "once the controller has written that down and 1.3 s have passed, because what may be older than a clearance does not count. The first is not counted: agent and controller come up with it."
    ),
    "rest": "Both read this machine's `/dev/kmsg` at the same time.",
    "kmsg": (
        "A process writes the records, with `kernel.printk_devkmsg=on` for that time, so agent and controller run with `--accept-injected-kmsg`, and the controller with `--shared-kernel-node`, because all nodes of a bed "
        "share this kernel. The rate is told by the ring's own numbers. All else as over the socket."
    ),
    "loki": (
        "Harmless lines of all the nodes are brought in batches, ten a second, to the same streams as the Xids; what is counted of them is what Loki took. Each Xid is on a node of its own, at any moment between two looks of "
        "the controller. The time of the collector itself is not in it."
    ),
    "controller": (
        f"Nodes of KWOK. Each Node's status is written every {flat.HEARTBEAT_S / 60:.0f} minutes, as a kubelet does that has nothing new to say; their leases go on too, and no controller looks at those. Requests are the controller's own count; "
        "most renew its lease. It reads no Loki here. Measured once the cluster itself writes to no Nodes any more: it does when their number changes much."
    ),
}  # fmt: skip


class Bench:
    """The parts, each by its name.

    Args:
        bed: that is up.
        agent: kubeconfig of agents.
        controller: of controllers.
        folder: for sockets, logs and state.
    """

    def __init__(self, bed: Bed, *, agent: Path, controller: Path, folder: Path) -> None:
        self._bed, self._agent, self._controller, self._folder = bed, agent, controller, folder
        self.found: dict[str, list[Row]] = {}
        self.problems: dict[str, str] = {}

    def run(self, part: str) -> None:
        """Measure one part; print its table."""
        ways: dict[str, Callable[[list[Row]], None]] = {
            "agent": self._agent_part,
            "rest": self._rest,
            "kmsg": self._kmsg,
            "loki": self._loki,
            "controller": self._flat,
        }
        rows = self.found[part] = []
        try:
            ways[part](rows)
        except Exception as error:  # noqa: BLE001 - what was measured before it is kept, and the other parts are measured
            traceback.print_exc()
            self.problems[part] = f"{type(error).__name__}, see what the run said"
        print(f"{PARTS[part]}\n{table(rows)}", flush=True)

    def _agent_part(self, rows: list[Row]) -> None:
        taint.untouched(self._bed)
        try:
            rows += asyncio.run(told.told(self._bed.layout.kubeconfig("admin"), self._agent, self._folder))
            rows += told.plain(self._folder)
        finally:
            taint.untouched(self._bed)
        with kwok.fleet(self._bed, nodes=1, pods=0, change=booted, lease_s=60) as fleet:
            await_initialised(self._bed, fleet.nodes, limit_s=_READY_S)
            (node,) = fleet.nodes
            rows += asyncio.run(
                taint.by_socket(
                    self._bed,
                    node=node,
                    agent=self._agent,
                    account=self._controller,
                    namespace=SPACE,
                    folder=self._folder,
                )
            )

    def _rest(self, rows: list[Row]) -> None:
        try:
            rows += at_rest(self._agent, self._folder)
        finally:
            taint.untouched(self._bed)

    def _kmsg(self, rows: list[Row]) -> None:
        rows += asyncio.run(
            taint.by_ring(self._bed, agent=self._agent, account=self._controller, namespace=SPACE, folder=self._folder)
        )

    def _loki(self, rows: list[Row]) -> None:
        with (
            kwok.fleet(self._bed, nodes=taint_loki.COUNT + 1, pods=0, change=booted, lease_s=60) as fleet,
            loki.run(self._bed) as url,
        ):
            await_initialised(self._bed, fleet.nodes, limit_s=_READY_S)
            rows += asyncio.run(
                taint_loki.by_loki(
                    self._bed,
                    url=url,
                    nodes=fleet.nodes,
                    account=self._controller,
                    namespace=SPACE,
                    folder=self._folder,
                )
            )

    def _flat(self, rows: list[Row]) -> None:
        flat.loads(self._bed, rows, account=self._controller, namespace=SPACE, folder=self._folder)


def main() -> int:
    """Measure, print the tables, write the page; 1 when a bound is broken or a part failed."""
    from rankfall.nodes.manifests.agent import CLUSTER_RULES, EVENT_RULES, NAME

    words = argparse.ArgumentParser(prog="python -m bench.health")
    words.add_argument("--only", nargs="+", choices=list(PARTS), default=list(PARTS), metavar="PART", help=", ".join(PARTS))  # fmt: skip
    wanted = words.parse_args().only
    with bench_bed() as bed, account(bed, SPACE) as controller, tempfile.TemporaryDirectory() as name:
        rules = [*CLUSTER_RULES, *EVENT_RULES]
        agent = accounts.create(bed.control, bed.kubectl, NAME, namespace=SPACE, rules=[], cluster_rules=rules)
        bench = Bench(bed, agent=agent, controller=controller, folder=Path(name))
        for part in PARTS:
            if part in wanted:
                bench.run(part)
    head = f"Written by `make bench-health` on {dt.datetime.now(tz=dt.UTC).date()} ({bed_machine()})."
    PAGE.write_text(page(bench.found, bench.problems, head=head, told=TOLD), encoding="utf-8")
    return 1 if failed(bench.found, bench.problems) else 0


if __name__ == "__main__":
    sys.exit(main())
