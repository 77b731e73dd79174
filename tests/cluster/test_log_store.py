"""A log store in real pods: the lines of ranks go over a volume of the nodes, and the API's log has none of them."""

from __future__ import annotations

import shutil
import uuid

import pytest

from cluster.run_world import RULES, World
from testbed import accounts
from testbed.workloads import PYTHON_IMAGE

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]
LINES = 2000
COUNT = f"import os\nfor number in range({LINES}): print('rank', os.environ['RANK'], 'number', number, flush=True)"


@pytest.fixture
def world(bed, kubectl, namespace, tmp_path):
    path = accounts.create(bed.control, kubectl, "rankfall", namespace=namespace, rules=RULES)
    (tmp_path / "home").mkdir()
    return World(tmp_path / "home", kubeconfig=path, kubectl=kubectl, namespace=namespace)


def test_each_line_of_each_rank_comes_once_over_the_volume_and_none_through_the_api(bed, world):
    # Where the nodes see it by the same path.
    volume = bed.layout.folder / f"log-store-{uuid.uuid4().hex[:8]}"
    volume.mkdir()
    try:
        done = world.run(
            {
                "name": "far",
                "backend": "job",
                "command": ["python3", "-c", COUNT],
                "launcher": "plain",
                "nnodes": 2,
                "nproc_per_node": 2,
                "kubernetes": {
                    "image": PYTHON_IMAGE,
                    "image_pull_policy": "Never",
                    "namespace": world.namespace,
                    "volumes": [{"name": "logs", "hostPath": {"path": str(volume), "type": "Directory"}}],
                    "volume_mounts": [{"name": "logs", "mountPath": str(volume)}],
                    "log_store": f"file://{volume}",
                },
            }
        )
        assert done.returncode == 0, done.stderr
        run = world.only_run()
        for rank in range(4):
            text = world.cli("logs", run.name, "--rank", str(rank), "--no-prefix").stdout
            assert text.splitlines() == [f"rank {rank} number {number}" for number in range(LINES)]
        pods = world.kubectl("logs", "-n", world.namespace, "-l", f"rankfall.dev/run={run.name}", "--tail=-1")
        assert "number" not in pods
        assert "lines of ranks go to the log store" in pods
        assert len(list(volume.glob("*/attempt-1/*/*/end.json"))) == 2
    finally:
        shutil.rmtree(volume)
