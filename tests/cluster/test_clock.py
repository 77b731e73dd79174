"""One node's clock is wrong in everything that a client can see of it, and right again afterwards."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from cluster.programs import pod
from cluster.run_world import RULES
from rankfall.collect.pods.cluster_context import NAMESPACE, SOON_S, LeasePoller
from rankfall.kube.auth.kubeconfig import load_access
from rankfall.kube.client import Kube
from rankfall.model.timestamps import Bound
from support.patience import scaled
from testbed import accounts, clock, process
from testbed.proxy import before

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(180)]
SAY = "import time\nwhile True: print(time.time(), flush=True); time.sleep(0.2)"
# Between two looks leases are renewed and lines come.
SLACK = timedelta(seconds=60)


def when(stamp: str) -> datetime:
    return datetime.fromisoformat(stamp[:26].rstrip("Z")).replace(tzinfo=UTC)


@pytest.mark.parametrize("seconds", [600.0, -600.0])
def test_programs_logs_statuses_and_leases_of_one_node_are_shifted_together(bed, kubectl, namespace, seconds):
    with clock.shifted(bed, 1, seconds=seconds) as wrong:
        one = pod("wrong", namespace, "python3", "-c", SAY, nodeName="n1")
        one["spec"] = wrong.wear(one["spec"])
        kubectl.apply([one, pod("right", namespace, "python3", "-c", SAY, nodeName="n2")])
        kubectl("wait", "--for=condition=Ready", "-n", namespace, "pod/wrong", "pod/right", "--timeout=60s")
        for name, node, off in (("wrong", "n1", timedelta(seconds=seconds)), ("right", "n2", timedelta())):
            assert process.poll(lambda name=name: bool(wrong.kubectl.run("logs", "-n", namespace, name).stdout), 20)
            stamp, said = wrong.kubectl("logs", "-n", namespace, name, "--timestamps", "--tail=1").split()
            status = wrong.kubectl.get("pod", "-n", namespace, name)["status"]
            lease = wrong.kubectl.get("lease", "-n", "kube-node-lease", node)
            seen = {
                "time.time()": datetime.fromtimestamp(float(said), UTC),
                "--timestamps": when(stamp),
                "startedAt": when(status["containerStatuses"][0]["state"]["running"]["startedAt"]),
                "renewTime": when(lease["spec"]["renewTime"]),
            }
            now = datetime.now(UTC) + off
            assert {what: abs(at - now) < SLACK for what, at in seen.items()} == dict.fromkeys(seen, True), seen
    plain = kubectl("logs", "-n", namespace, "wrong", "--timestamps", "--tail=1").split()[0]
    assert abs(when(plain) - datetime.now(UTC)) < SLACK


def told_by_leases(config: Path, *, looks: int) -> dict[str, list[Bound]]:
    """What so many looks at the Leases of both nodes tell of their clocks, a renewal between any two of them."""
    told: dict[str, list[Bound]] = {"n1": [], "n2": []}

    async def look() -> None:
        async with Kube(load_access(kubeconfig=str(config))) as kube:
            leases = LeasePoller(kube, nodes=lambda: told, on_lease=lambda name, ahead: told[name].append(ahead))
            for number in range(looks):
                await leases.step(time.monotonic() + number * 1000)
                if number + 1 < looks:
                    await asyncio.sleep(SOON_S)

    asyncio.run(look())
    return told


@pytest.mark.parametrize("seconds", [90.0, -90.0])
def test_errors_s31_the_leases_of_a_real_server_bound_the_clocks_of_nodes_and_the_true_offset_is_inside(
    bed, kubectl, namespace, tmp_path, seconds
):
    config = accounts.create(bed.control, kubectl, "rankfall", namespace=namespace, rules=RULES)
    with clock.shifted(bed, 1, seconds=seconds) as wrong:
        seen = before.through(wrong.proxy.url, config, tmp_path / "kubeconfig")
        # Without the right to read them nothing is told, and nothing fails.
        assert told_by_leases(seen, looks=1) == {"n1": [], "n2": []}
        name = f"{namespace}-leases"
        group = "rbac.authorization.k8s.io"
        kubectl.apply(
            [
                {
                    "apiVersion": f"{group}/v1",
                    "kind": "Role",
                    "metadata": {"name": name, "namespace": NAMESPACE},
                    "rules": [{"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["get"]}],
                },
                {
                    "apiVersion": f"{group}/v1",
                    "kind": "RoleBinding",
                    "metadata": {"name": name, "namespace": NAMESPACE},
                    "roleRef": {"apiGroup": group, "kind": "Role", "name": name},
                    "subjects": [{"kind": "ServiceAccount", "name": "rankfall", "namespace": namespace}],
                },
            ]
        )
        try:
            told = told_by_leases(seen, looks=2)
        finally:
            kubectl("delete", "-n", NAMESPACE, "role,rolebinding", name)
    for node, off in (("n1", seconds), ("n2", 0.0)):
        assert len(told[node]) == 2
        for bound in told[node]:
            assert bound.lo is not None
            assert bound.lo <= off * 1e9
            assert bound.hi is None or bound.hi >= off * 1e9
        whole = told[node][0].meet(told[node][1])
        assert whole.hi is not None
        # From below by what came last, from above by the renewal before: 10 s, a second of each stamp, and how busy the server is.
        assert whole.hi - whole.lo < scaled(40) * 10**9  # type: ignore[operator]
