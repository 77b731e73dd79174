"""The bed does what a cluster does: torchrun over two nodes by three kinds of job, logs, exec, names, storage, webhooks, rights."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from cluster.programs import TORCH, pod
from testbed import accounts, images, workloads
from testbed.bed import Bed
from testbed.client import Kubectl

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]
PYTHON = Path(sys.executable)


def finished(kubectl: Kubectl, kind: str, name: str, namespace: str, condition: str) -> None:
    kubectl("wait", f"--for=condition={condition}", "-n", namespace, f"{kind}/{name}", "--timeout=180s")


def said_by_both_nodes(kubectl: Kubectl, namespace: str, selector: str) -> None:
    pods = kubectl.get("pods", "-n", namespace, "-l", selector)["items"]
    nodes = {item["spec"]["nodeName"] for item in pods}
    logs = [kubectl("logs", "-n", namespace, item["metadata"]["name"]) for item in pods]
    # torch and torchrun warn of this and that before and after.
    lines = sorted(line for text in logs for line in text.splitlines() if line.startswith("rank "))
    assert len(nodes) == 2
    assert [line.partition(" on ")[0] for line in lines] == ["rank 0 of 2", "rank 1 of 2"], logs
    assert {line.partition(" on ")[2] for line in lines} == {f"{node}: sum 3" for node in nodes}


def torch_pod(
    bed: Bed, kubectl: Kubectl, namespace: str, command: list[str], spread: dict[str, str]
) -> dict[str, object]:
    kubectl.apply([workloads.script("program", namespace=namespace, text=TORCH)])
    return workloads.torch_pod(program="program", command=command, mounts=images.torch_mounts(), spread=spread)


def test_torchrun_runs_over_two_nodes_as_an_indexed_job(bed, kubectl, namespace):
    command = workloads.torchrun(PYTHON, nnodes=2, nproc=1, rank="$JOB_COMPLETION_INDEX", master="two-0.two")
    spec = torch_pod(bed, kubectl, namespace, command, {"job-name": "two"})
    kubectl.apply(workloads.indexed_job("two", namespace=namespace, nnodes=2, pod=spec))
    finished(kubectl, "job", "two", namespace, "complete")
    said_by_both_nodes(kubectl, namespace, "job-name=two")


def test_torchrun_runs_over_two_nodes_as_a_jobset(bed, kubectl, namespace):
    command = workloads.torchrun(PYTHON, nnodes=2, nproc=1, rank="$JOB_COMPLETION_INDEX", master="two-node-0-0.two")
    spec = torch_pod(bed, kubectl, namespace, command, {"jobset.sigs.k8s.io/jobset-name": "two"})
    kubectl.apply(workloads.jobset("two", namespace=namespace, nnodes=2, pod=spec))
    finished(kubectl, "jobset", "two", namespace, "Completed")
    said_by_both_nodes(kubectl, namespace, "jobset.sigs.k8s.io/jobset-name=two")


def test_torchrun_runs_over_two_nodes_as_a_trainjob(bed, kubectl, namespace):
    # The Trainer gives its nodes' places in PET_* variables, which torchrun reads by itself.
    command = [str(PYTHON), "-m", "torch.distributed.run", "/job/train.py"]
    spec = torch_pod(bed, kubectl, namespace, command, {"jobset.sigs.k8s.io/jobset-name": "two"})
    kubectl.apply([workloads.torch_runtime(spec)])
    kubectl.apply([workloads.trainjob("two", namespace=namespace, nnodes=2, nproc=1, command=command)])
    finished(kubectl, "trainjob", "two", namespace, "Complete")
    said_by_both_nodes(kubectl, namespace, "jobset.sigs.k8s.io/jobset-name=two")


def test_logs_and_exec_reach_the_pods_of_every_node(kubectl, namespace, nodes):
    loop = "import time; print('here', flush=True); time.sleep(300)"
    kubectl.apply([pod(f"on-{node}", namespace, "python3", "-c", loop, nodeName=node) for node in nodes])
    for name in (f"on-{node}" for node in nodes):
        kubectl("wait", "--for=condition=Ready", "-n", namespace, f"pod/{name}", "--timeout=60s")
        assert kubectl.wait_until("logs", "-n", namespace, name, limit_s=20)
        assert kubectl("logs", "-n", namespace, name) == "here\n"
        assert kubectl("exec", "-n", namespace, name, "--", "python3", "-c", "print(40 + 2)") == "42\n"


def test_a_headless_service_gives_pods_of_both_nodes_their_names(kubectl, namespace, nodes):
    looked = (
        "import socket, sys, time\n"
        "want = ['a.names', 'b.names']\n"
        "for _ in range(100):\n"
        "    try:\n"
        "        print(sorted(socket.gethostbyname(name) for name in want)); sys.exit(0)\n"
        "    except OSError: time.sleep(0.2)\n"
        "sys.exit(1)\n"
    )
    service = workloads.headless_service("names", namespace=namespace, selector={"group": "names"})
    kubectl.apply([service])
    for name, node in zip("ab", nodes, strict=True):
        one = pod(name, namespace, "python3", "-c", looked, nodeName=node, hostname=name, subdomain="names")
        one["metadata"]["labels"] = {"group": "names"}
        kubectl.apply([one])
    for name in ("a", "b"):
        kubectl("wait", "--for=jsonpath={.status.phase}=Succeeded", "-n", namespace, f"pod/{name}", "--timeout=90s")
    addresses = sorted(kubectl.get("pod", "-n", namespace, name)["status"]["podIP"] for name in ("a", "b"))
    assert kubectl("logs", "-n", namespace, "a").strip() == str(addresses)


def test_a_webhooks_refusal_arrives_at_the_client(kubectl, namespace):
    refused = kubectl.run(
        "apply",
        "-f",
        "-",
        text=f"""
apiVersion: trainer.kubeflow.org/v1alpha1
kind: TrainJob
metadata: {{name: wrong, namespace: {namespace}}}
spec: {{runtimeRef: {{name: there-is-none}}}}
""",
    )
    assert refused.returncode
    assert "validator.trainjob.trainer.kubeflow.org" in refused.stderr
    assert "there-is-none" in refused.stderr


def test_a_jobset_is_refused_by_its_own_webhook(kubectl, namespace):
    refused = kubectl.run(
        "apply",
        "-f",
        "-",
        text=f"""
apiVersion: jobset.x-k8s.io/v1alpha2
kind: JobSet
metadata: {{name: wrong, namespace: {namespace}}}
spec:
  successPolicy: {{operator: All, targetReplicatedJobs: [nobody]}}
  replicatedJobs:
  - name: node
    template: {{spec: {{template: {{spec: {{restartPolicy: Never, containers: [{{name: c, image: x}}]}}}}}}}}
""",
    )
    assert refused.returncode
    assert "vjobset.kb.io" in refused.stderr


def test_an_account_can_do_what_its_rules_say_and_no_more(bed, kubectl, namespace):
    rules = [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list"]}]
    config = accounts.create(bed.control, kubectl, "reader", namespace=namespace, rules=rules)
    reader = Kubectl(kubectl.program, config)
    assert reader.get("pods", "-n", namespace)["items"] == []
    for words in (("get", "pods", "-n", "default"), ("get", "secrets", "-n", namespace), ("get", "nodes")):
        refused = reader.run(*words)
        assert refused.returncode
        assert "Forbidden" in refused.stderr


def test_a_shared_volume_is_seen_by_both_nodes_and_a_local_one_by_its_own(bed, kubectl, namespace):
    def claim(name: str, storage_class: str, mode: str) -> dict[str, object]:
        return {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": name, "namespace": namespace},
            "spec": {
                "storageClassName": storage_class,
                "accessModes": [mode],
                "resources": {"requests": {"storage": "1Gi"}},
            },
        }

    kubectl.apply([claim("shared", "shared", "ReadWriteMany"), claim("local", "local", "ReadWriteOnce")])

    def user(name: str, volume: str, program: str, **spec: object) -> dict[str, object]:
        one = pod(name, namespace, "python3", "-c", program, **spec)
        one["spec"]["volumes"] = [{"name": "v", "persistentVolumeClaim": {"claimName": volume}}]
        one["spec"]["containers"][0]["volumeMounts"] = [{"name": "v", "mountPath": "/data"}]
        return one

    write = "open('/data/word','w').write('from node 1')"
    read = "print(open('/data/word').read())"
    done = "--for=jsonpath={.status.phase}=Succeeded"
    try:
        kubectl.apply([user("writer", "shared", write, nodeSelector={"kubernetes.io/hostname": "n1"})])
        kubectl("wait", done, "-n", namespace, "pod/writer", "--timeout=60s")
        kubectl.apply(
            [
                user("reader", "shared", read, nodeSelector={"kubernetes.io/hostname": "n2"}),
                user("bound", "local", write),
            ]
        )
        kubectl("wait", done, "-n", namespace, "pod/reader", "pod/bound", "--timeout=60s")
        assert kubectl("logs", "-n", namespace, "reader") == "from node 1\n"
        assert kubectl.get("pod", "-n", namespace, "bound")["spec"]["nodeName"] == "n1"
    finally:
        kubectl.run("delete", "pods,pvc", "--all", "-n", namespace, "--grace-period=0", "--force")
        # A retained volume stays bound to the claim that is gone: the next test finds it free again.
        for volume in ("shared-1", "local-1"):
            kubectl.run("patch", "pv", volume, "--type=json", "-p", '[{"op": "remove", "path": "/spec/claimRef"}]')


def test_the_bed_says_what_runs_and_that_nodes_share_a_kernel(bed):
    words = subprocess.run(
        (sys.executable, "-m", "testbed", "--bed", str(bed.layout.number), "status"),
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert '"kube-apiserver"' in words
    assert "all nodes share one kernel" in words
    boots = {item["status"]["nodeInfo"]["bootID"] for item in bed.kubectl.get("nodes")["items"]}
    assert len(boots) == 1
