"""One node's clock is wrong in everything that a client can see of it, and right again afterwards."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from cluster.programs import pod
from testbed import clock, process

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
