"""A real TrainJob of 2 nodes x 2 ranks under the real torchrun; one rank raises, the others lose it. Nothing of Rankfall is in its pods.

Who looks at it may only read, as somebody does who is asked for help with another's job.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from bench.logs.scene import until
from testbed import accounts, images, workloads
from testbed.bed import Bed
from testbed.client import Kubectl

NAME: Final = "train"
# Of the rank that falls: the first one of the second node, so that nothing on node 0 shows it.
RANK, SLOT = 2, 1
MESSAGE: Final = "sample 1184 of shard 17 has no label"
PROGRAM: Final = f"""
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
weights = torch.ones(8)
for step in range(1, 100):
    if step == 3 and dist.get_rank() == {RANK}:
        raise ValueError("{MESSAGE}")
    dist.all_reduce(weights)
    print(f"rank {{dist.get_rank()}} step {{step}}", flush=True)
"""
# What looking at jobs of others takes.
LOOK: Final[list[dict[str, Any]]] = [
    {"apiGroups": ["batch"], "resources": ["jobs"], "verbs": ["get", "list", "watch"]},
    {"apiGroups": ["jobset.x-k8s.io"], "resources": ["jobsets"], "verbs": ["get", "list", "watch"]},
    {"apiGroups": ["trainer.kubeflow.org"], "resources": ["trainjobs"], "verbs": ["get", "list", "watch"]},
    {"apiGroups": [""], "resources": ["pods", "events"], "verbs": ["get", "list", "watch"]},
    {"apiGroups": [""], "resources": ["pods/log"], "verbs": ["get"]},
]
_SET: Final = "jobset.sigs.k8s.io/jobset-name"
_INDEX: Final = "batch.kubernetes.io/job-completion-index"
# Of a machine that does much else; torch alone takes seconds to come.
_LIMIT_S: Final = 600.0


@dataclass(frozen=True)
class SlotFailure:
    """What was said of it.

    Attributes:
        logs: what ``kubectl logs -f`` printed, by the index of the pod.
        described: what ``kubectl describe trainjob`` printed.
        why: what ``rankfall why`` printed.
        verdict: the same as a document.
        nodes: node of each pod, by its index.
        untouched: whether the object is the same after ``why`` as before it.
    """

    logs: dict[int, str]
    described: str
    why: str
    verdict: dict[str, Any]
    nodes: dict[int, str]
    untouched: bool


def fall(bed: Bed, kubectl: Kubectl, *, namespace: str, folder: Path) -> SlotFailure:
    """Let the job run and fall, and ask all three.

    Args:
        bed: with JobSet and Trainer.
        kubectl: of the administrator.
        namespace: of the job; it is there.
        folder: for what is kept meanwhile.
    """
    config = accounts.create(bed.control, kubectl, "looker", namespace=namespace, rules=LOOK)
    command = [sys.executable, "-m", "torch.distributed.run", f"{workloads.SCRIPT_FOLDER}/train.py"]
    pod = workloads.torch_pod(
        program=NAME, command=command, mounts=images.torch_mounts(), spread={_SET: NAME}, env={"PYTHONUNBUFFERED": "1"}
    )
    job = workloads.trainjob(NAME, namespace=namespace, nnodes=2, nproc=2, command=command)
    kubectl.apply([workloads.script(NAME, namespace=namespace, text=PROGRAM), workloads.torch_runtime(pod), job])
    env = os.environ | {"RANKFALL_HOME": str(folder / "home"), "KUBECONFIG": str(config), "NO_COLOR": "1"}
    with ExitStack() as stack:
        pods = _pods(kubectl, namespace)
        # The Job takes pods away that still run when another has failed: their lines are read while they are there.
        follows = {
            index: _follow(stack, kubectl.command("logs", "-f", "-n", namespace, name), folder / f"{name}.log")
            for index, (name, _) in pods.items()
        }
        # Which pod is taken away is a race of milliseconds: it may be that of the rank that fell.
        own = [sys.executable, "-m", "rankfall", "logs", "-f", f"trainjob/{NAME}", "-n", namespace]
        ours, _ = _follow(stack, own, folder / "rankfall.log", env=env)
        if not kubectl.wait_until(
            "wait", "--for=condition=Failed", f"trainjob/{NAME}", "-n", namespace, limit_s=_LIMIT_S
        ):
            raise TimeoutError(f"trainjob/{NAME} did not fail within {_LIMIT_S:.0f} s")
        watched = [ours, *(one for one, _ in follows.values())]
        until(lambda: all(one.poll() is not None for one in watched), "the ends of the logs", limit_s=_LIMIT_S)
        logs = {index: path.read_text(errors="replace") for index, (_, path) in follows.items()}
    before = _object(kubectl, namespace)
    why = [sys.executable, "-m", "rankfall", "why", f"trainjob/{NAME}", "-n", namespace]
    said = subprocess.run(why, env=env, capture_output=True, text=True, check=True, timeout=120).stdout
    document = subprocess.run([*why, "-o", "json"], env=env, capture_output=True, text=True, check=True, timeout=120)
    return SlotFailure(
        logs=logs,
        described=kubectl("describe", "trainjob", NAME, "-n", namespace),
        why=said,
        verdict=json.loads(document.stdout),
        nodes={index: node for index, (_, node) in pods.items()},
        untouched=_object(kubectl, namespace) == before,
    )


def _object(kubectl: Kubectl, namespace: str) -> dict[str, Any]:
    return dict(kubectl.get("trainjob", NAME, "-n", namespace))


def _pods(kubectl: Kubectl, namespace: str) -> dict[int, tuple[str, str]]:
    """Name and node of each pod, by its index, once both have started."""
    found: dict[int, tuple[str, str]] = {}

    def started() -> bool:
        items = kubectl.get("pods", "-n", namespace, "-l", f"{_SET}={NAME}")["items"]
        for item in items:
            if item["status"]["phase"] in {"Running", "Succeeded", "Failed"}:
                meta = item["metadata"]
                found[int(meta["annotations"][_INDEX])] = (meta["name"], item["spec"]["nodeName"])
        return len(found) == 2

    until(started, "both pods", limit_s=_LIMIT_S)
    return found


def _follow(
    stack: ExitStack, words: list[str], path: Path, *, env: dict[str, str] | None = None
) -> tuple[subprocess.Popen[bytes], Path]:
    file = stack.enter_context(path.open("wb"))
    one = stack.enter_context(subprocess.Popen(words, stdout=file, stderr=file, env=env))
    stack.callback(one.kill)
    return one, path
