"""Times of lines that are read after they were printed, on real kubelets: the pod that failed first is named, also after a kill."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from bench.foreign.fall import LOOK
from cluster.run_world import World
from rankfall.rundir.cluster.log_routes import StampParser
from support.helpers import wait_until
from testbed import accounts, workloads
from testbed.client import Kubectl

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]
NS = 1_000_000_000
# A line and what came within the same tenth of a second.
WITHIN_S = 0.11
# The second pod prints first and fails last: by the stamps of the first lines it would be the first to fail.
PROGRAM = """
import os, time

index = int(os.environ["JOB_COMPLETION_INDEX"])
time.sleep(0 if index else 1.5)
for step in range(2 if index == 0 else 18):
    print(f"pod {index} step {step}", flush=True)
    time.sleep(0.5)
raise ValueError(f"bad sample {index}")
"""


def job(namespace: str) -> list[dict[str, Any]]:
    """A Job whose two pods fail by themselves, each on a node of its own."""
    pod = workloads.torch_pod(
        program="program", command=["python3", "/job/train.py"], mounts=[], spread={"job-name": "two"}
    )
    service, made = workloads.indexed_job("two", namespace=namespace, nnodes=2, pod=pod)
    del made["spec"]["backoffLimit"]
    made["spec"]["backoffLimitPerIndex"] = 0
    return [service, made]


def phases(kubectl: Kubectl, namespace: str) -> list[str]:
    """Of the Job's pods."""
    return [pod["status"]["phase"] for pod in kubectl.get("pods", "-n", namespace)["items"]]


@pytest.mark.parametrize("killed", [False, True], ids=["afterwards", "after-a-kill"])
def test_i19_p1_the_pod_that_failed_first_is_named_by_lines_read_later(bed, kubectl, namespace, tmp_path, killed):
    path = accounts.create(bed.control, kubectl, "looker", namespace=namespace, rules=LOOK)
    (tmp_path / "home").mkdir()
    made = World(tmp_path / "home", kubeconfig=path, kubectl=kubectl, namespace=namespace, program=PROGRAM)
    kubectl.apply(job(namespace))
    if killed:
        words = [sys.executable, "-m", "rankfall", "logs", "-f", "job/two", "-n", namespace]
        with subprocess.Popen(words, env=made.environment(), stdout=subprocess.PIPE, text=True) as first:
            assert first.stdout is not None
            assert any("pod 1 step 2" in line for line in first.stdout)
            first.kill()
    wait_until(
        lambda: kubectl.get("job", "two", "-n", namespace)["status"].get("failed") == 2, timeout=90, what="both ends"
    )
    verdict = made.document("why", "job/two", "-n", namespace)
    assert (verdict["cause"]["slug"], verdict["slot"]) == ("user_code_exception", 0), verdict
    # The log endpoint gives a stamp for each line: that of the traceback's end is within what the verdict states.
    logs = kubectl("logs", verdict["pod"], "-n", namespace, "--timestamps")
    (last,) = (line for line in logs.splitlines() if "ValueError: " in line)
    true, stated = (nanoseconds(text) for text in (last, verdict["time"]["at"]))
    assert abs(true - stated) <= verdict["time"]["uncertainty_s"] * NS
    assert verdict["time"]["uncertainty_s"] <= WITHIN_S


def nanoseconds(text: str) -> int:
    at, _ = StampParser().split(text.encode() + b" ")
    assert at is not None
    return at
