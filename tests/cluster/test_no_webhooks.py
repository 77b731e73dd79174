"""A JobSet controller whose webhooks are not there: nothing that a run needs may be left to their defaults."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cluster.chaos_world import COUNT, counting
from cluster.run_world import RULES, World
from testbed import accounts, process
from testbed.bed import Bed
from testbed.client import Kubectl

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]
KINDS = ("mutatingwebhookconfigurations", "validatingwebhookconfigurations")
# Its own webhook refuses a policy about a job that is not there; the schema does not know of it.
WRONG = """
apiVersion: jobset.x-k8s.io/v1alpha2
kind: JobSet
metadata: {name: wrong}
spec:
  successPolicy: {operator: All, targetReplicatedJobs: [nobody]}
  replicatedJobs:
  - name: node
    template: {spec: {template: {spec: {restartPolicy: Never, containers: [{name: c, image: x}]}}}}
"""


@pytest.fixture
def webhooks_gone(bed: Bed, kubectl: Kubectl, namespace: str) -> Iterator[None]:
    """JobSet's webhooks away, and back afterwards; the bed is this worker's own."""
    del bed
    found = [
        item for kind in KINDS for item in kubectl.get(kind)["items"] if item["metadata"]["name"].startswith("jobset-")
    ]
    assert len(found) == len(KINDS)

    def refused() -> bool:
        words = ("create", "--dry-run=server", "-n", namespace, "-f", "-")
        return "does not appear in" in kubectl.run(*words, text=WRONG).stderr

    for item in found:
        kubectl("delete", item["kind"], item["metadata"]["name"])
    try:
        assert process.poll(lambda: not refused(), 60)
        yield
    finally:
        kubectl.apply([_as_made(item) for item in found])
        assert process.poll(refused, 60)


def _as_made(item: dict[str, Any]) -> dict[str, Any]:
    return {**item, "metadata": {"name": item["metadata"]["name"]}}


@pytest.mark.usefixtures("webhooks_gone")
def test_jobapi_s24_a_jobset_runs_to_its_end_without_the_controllers_webhooks(
    bed: Bed, kubectl: Kubectl, namespace: str, tmp_path: Path
) -> None:
    account = accounts.create(bed.control, kubectl, "rankfall", namespace=namespace, rules=RULES)
    world = World(tmp_path / "home", kubeconfig=account, kubectl=kubectl, namespace=namespace, program=COUNT)
    done = world.run(counting(backend="jobset", namespace=namespace, lines=3))
    assert done.returncode == 0, done.stderr
    for rank in ("0", "1"):
        said = world.cli("logs", world.only_run().name, "--rank", rank, "--no-prefix").stdout
        assert said.splitlines() == ["line 0", "line 1", "line 2"]
