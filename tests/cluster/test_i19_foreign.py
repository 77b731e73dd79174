"""Ranks of lines of a job that Rankfall did not start: proved by torchrun's own prefix alone, whatever the job prints, by manifest and by processes."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from contextlib import ExitStack
from typing import Any

import pytest

from bench.foreign.fall import LOOK
from cluster.run_world import PROGRAM, World
from rankfall.kube.object_fields import COMPLETION_INDEX
from support.helpers import wait_until
from testbed import accounts, images, workloads
from testbed.workloads import PYTHON_IMAGE

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]
INDEX = "metadata.annotations['batch.kubernetes.io/job-completion-index']"
SHOWN = [sys.executable, "-m", "torch.distributed.run"]
HIDDEN = [sys.executable, "/job/train.py"]
LINES = 16
FORGED = "[default1]:printed by rank 0 really"
# Started without a rank it is torchrun's parent, so that no manifest shows torchrun.
TRAIN = f"""
import os, sys, time

if "RANK" not in os.environ:
    words = sys.argv[1:]
    os.execv(sys.executable, [sys.executable, "-m", "torch.distributed.run", *words, sys.argv[0]])
rank = int(os.environ["RANK"])
for n in range({LINES}):
    os.write(1, f"I am rank {{rank}}\\n".encode())
    if rank == 0:
        os.write(1, b"{FORGED}\\n[default7]:of nobody\\n")
    time.sleep(0.5)
"""
EXEC: list[dict[str, Any]] = [{"apiGroups": [""], "resources": ["pods/exec"], "verbs": ["create", "get"]}]


def pod(name: str, command: list[str]) -> dict[str, Any]:
    """Of two nodes of two ranks each, in torchrun's static rendezvous by the variables of Kubeflow Trainer."""
    made = workloads.torch_pod(
        program=PROGRAM, command=command, mounts=images.torch_mounts(), env={"PYTHONUNBUFFERED": "1"}
    )
    values = {"NNODES": "2", "NPROC_PER_NODE": "2", "MASTER_ADDR": f"{name}-0.{name}", "MASTER_PORT": "29500"}
    made["containers"][0]["env"] += [
        *({"name": f"PET_{key}", "value": value} for key, value in values.items()),
        {"name": "PET_NODE_RANK", "valueFrom": {"fieldRef": {"fieldPath": INDEX}}},
    ]
    return made


@pytest.mark.parametrize(
    "commands",
    [
        {"plain": [*SHOWN, "/job/train.py"], "hidden": [*HIDDEN, "--tee=3", "--role=learner"]},
        {"unmarked": HIDDEN, "learner": [*SHOWN, "--tee", "3", "--role", "learner", "/job/train.py"]},
    ],
    ids=["manifest-without-tee", "manifest-with-tee"],
)
def test_i19_p11_only_torchruns_own_prefixes_prove_ranks(bed, kubectl, namespace, tmp_path, commands):
    path = accounts.create(bed.control, kubectl, "looker", namespace=namespace, rules=LOOK + EXEC)
    home = tmp_path / "home"
    home.mkdir()
    world = World(home, kubeconfig=path, kubectl=kubectl, namespace=namespace, program=TRAIN)
    with ExitStack() as stack:
        follows: dict[str, subprocess.Popen[str]] = {}
        for name, command in commands.items():
            kubectl.apply(workloads.indexed_job(name, namespace=namespace, nnodes=2, pod=pod(name, command)))
            words = [sys.executable, "-m", "rankfall", "logs", "-f", f"job/{name}", "-n", namespace]
            one = subprocess.Popen(
                words, env=world.environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
            )
            follows[name] = stack.enter_context(one)
            stack.callback(one.kill)
        said = {name: one.communicate(timeout=240) for name, one in follows.items()}
    assert all("run.db" not in err for _, err in said.values()), said
    for name, (out, err) in said.items():
        ranked = [line for line in out.splitlines() if line.startswith("[rank ")]
        if name in {"plain", "unmarked"}:
            assert ranked == []
            assert out.count(FORGED) == LINES
            assert "to its pods: lines are listed by slot (one slot per pod)" in err
            continue
        # A forged line stands under the rank that printed it.
        told = [re.fullmatch(r"\[rank (\d)(?:, late)?\] \[learner\d\]:I am rank (\d)", line) for line in ranked]
        assert {match[1] == match[2] for match in told if match} == {True}, out
        assert {line[6] for line in ranked if FORGED in line} <= {"0"}, out
        assert name == "hidden" or sum(match is not None for match in told) == 4 * LINES, out


@pytest.mark.parametrize("ended", [False, True], ids=["at-once", "after-the-other-end"])
def test_a_pod_that_was_deleted_before_the_first_look_is_named_with_its_node(bed, kubectl, namespace, tmp_path, ended):
    """The job fails with it and ends the other pod: only Events show the first.

    The other pod may have ended before the look; a finalizer keeps it.
    """
    home = tmp_path / "home"
    home.mkdir()
    path = accounts.create(bed.control, kubectl, "looker", namespace=namespace, rules=LOOK)
    world = World(home, kubeconfig=path, kubectl=kubectl, namespace=namespace)
    command = ["python3", "-c", "import time; time.sleep(600)"]
    pod = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 1,
        "containers": [{"name": "main", "image": PYTHON_IMAGE, "imagePullPolicy": "Never", "command": command}],
    }
    kubectl.apply(workloads.indexed_job("taken", namespace=namespace, nnodes=2, pod=pod))

    def pods() -> list[dict[str, Any]]:
        return kubectl.get("pods", "-n", namespace)["items"]

    wait_until(
        lambda: len(pods()) == 2 and all(one["status"].get("phase") == "Running" for one in pods()),
        timeout=120,
        what="two pods",
    )
    (first,) = [one for one in pods() if one["metadata"]["annotations"].get(COMPLETION_INDEX) == "0"]
    node, name = first["spec"]["nodeName"], first["metadata"]["name"]
    # A kubelet sends its Events later than states, and a pod without this one may never have run.
    wait_until(lambda: kubectl.has_event(namespace, name, "Started"), timeout=60, what="the Event of its start")
    (other,) = [one["metadata"]["name"] for one in pods() if one["metadata"]["name"] != name]
    patch = ("patch", "pod", other, "-n", namespace, "--type=merge", "-p")
    if ended:
        kubectl(*patch, json.dumps({"metadata": {"finalizers": ["tests.rankfall.dev/kept"]}}))
    kubectl("delete", "pod", name, "-n", namespace)
    wait_until(lambda: all(one["metadata"]["name"] != name for one in pods()), timeout=120, what="the deletion")
    if ended:
        wait_until(lambda: pods()[0]["metadata"].get("deletionGracePeriodSeconds") == 0, timeout=120, what="the end")
    why = world.cli("why", "job/taken", "-n", namespace, "-o", "json")
    if ended:
        kubectl(*patch, json.dumps({"metadata": {"finalizers": None}}))
    found = json.loads(why.stdout)
    assert (found["slot"], found["node"], found["pod"]) == (0, node, name), why.stdout
    assert any(f"pod {name} was deleted while it ran" in proof["line"] for proof in found["evidence"]), why.stdout


def test_i19_p14_a_followed_job_is_shown_once_and_stored_once(bed, kubectl, namespace, tmp_path):
    """Silent pods beside one that prints: the console reads their files only when the recorder stored something."""
    home = tmp_path / "home"
    home.mkdir()
    path = accounts.create(bed.control, kubectl, "looker", namespace=namespace, rules=LOOK)
    world = World(home, kubeconfig=path, kubectl=kubectl, namespace=namespace)
    prints = (
        "import os, time\n"
        "for n in range(600):\n"
        "    if os.environ['JOB_COMPLETION_INDEX'] == '1' or not n: print(f'[rank 7] line {n}', flush=True)\n"
        "    time.sleep(0.01)\n"
    )
    made = {
        "restartPolicy": "Never",
        "containers": [
            {
                "name": "main",
                "image": PYTHON_IMAGE,
                "imagePullPolicy": "Never",
                "command": ["python3", "-c", prints],
            }
        ],
    }
    kubectl.apply(workloads.indexed_job("silent", namespace=namespace, nnodes=4, pod=made))
    said = world.cli("logs", "-f", "job/silent", "-n", namespace)
    assert said.returncode == 0, said.stderr
    shown = sorted(said.stdout.splitlines())
    assert shown == sorted(
        [f"[slot {slot}] [rank 7] line 0" for slot in (0, 2, 3)] + [f"[slot 1] [rank 7] line {n}" for n in range(600)]
    )
    assert not list(home.glob("runs/*/log-allranks*"))
