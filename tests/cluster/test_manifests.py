"""What is compiled, before the real API server with its webhooks, and then in real pods: bytes, names, places, exit codes."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
import yaml

from cluster.programs import TORCH
from cluster.served import SERVED, TRAINER
from rankfall.backends.kubernetes.manifests.compile import compile_job
from rankfall.backends.kubernetes.manifests.request import Compiled, ServedFacts
from rankfall.backends.payload import build_zip
from rankfall.model import spec_from
from testbed import images, process, workloads
from testbed.client import Kubectl

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

BACKENDS = ("job", "jobset", "trainjob")
RESOURCES = {"Job": "jobs.batch", "JobSet": "jobsets.jobset.x-k8s.io", "TrainJob": "trainjobs.trainer.kubeflow.org"}
IMAGE = "rankfall.test/python:3.11"
HARD = ["a b", "", "'\"", "$(HOME) $$ $$(X) ${Y} $é $", "line\nline", "`id` \\ *"]
HELD = "$(x) 'y'"
TELL = """
import json, os, socket, sys
names = ("HARD", "RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "RANKFALL_NODE", "RANKFALL_POD_UID", "FROM_SECRET")
print(json.dumps({"argv": sys.argv[1:], "host": socket.gethostname(), **{name: os.environ.get(name) for name in names}}), flush=True)
"""
RICH: dict[str, Any] = {
    "image_pull_policy": "Never",
    "image_pull_secrets": ["pull"],
    "service_account": "default",
    "node_selector": {"kubernetes.io/os": "linux"},
    "tolerations": [{"key": "gpu", "operator": "Exists"}],
    "volumes": [{"name": "data", "emptyDir": {}}],
    "volume_mounts": [{"name": "data", "mountPath": "/data"}],
    "resources": {"gpus": 8, "requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"memory": "2Gi"}},
    "env_from": {"KEY": {"secret": "s", "key": "k"}, "MAP": {"config_map": "c", "key": "m"}},
    "labels": {"team": "a"},
    "annotations": {"networking/interfaces": "eth1"},
    "queue": "gpus",
    "exclude_nodes": ["n9"],
    "affinity": {
        "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {
                "nodeSelectorTerms": [{"matchExpressions": [{"key": "kubernetes.io/os", "operator": "Exists"}]}]
            }
        }
    },
    "pod": {
        "metadata": {"annotations": {"more": "1"}},
        "spec": {
            "hostIPC": True,
            "securityContext": {"fsGroup": 7},
            "containers": [{"name": "side", "image": "proxy:1"}],
        },
    },
}
SHARED = {
    **{name: RICH[name] for name in ("service_account", "node_selector", "tolerations", "volumes", "volume_mounts")},
    "resources": RICH["resources"],
    "runtime": "shared",
}
RULES = [
    {"exit_codes": [3, 4], "action": "fail"},
    {"signals": [9], "action": "restart"},
    {"causes": ["memory"], "action": "fail"},
]
ALONE = {"unattended": True, "rules": RULES, "deadlines": {"attempt_s": 600}, "success": {"policy": "rank0"}}


def compiled(namespace: str, *, run: str = "made-0a1b2c", served: ServedFacts = SERVED, **fields: Any) -> Compiled:
    section = {"image": IMAGE, "image_pull_policy": "Never", **fields.pop("kubernetes", {})}
    if section.get("runtime"):
        del section["image_pull_policy"]
    job = spec_from({"command": ["train.py"], **fields, "kubernetes": section})
    options: dict[str, Any] = {"token": "t0k3n", "inside_zip": build_zip(), "namespace": namespace}
    return compile_job(job, run=run, attempt=1, served=served, **options)


def lost(sent: Any, got: Any, path: str = "$") -> list[str]:
    """What was sent and did not come back."""
    if isinstance(sent, dict):
        if not isinstance(got, dict):
            return [path]
        return [one for key, value in sent.items() for one in lost(value, got.get(key), f"{path}.{key}")]
    if isinstance(sent, list):
        if not isinstance(got, list) or len(got) < len(sent):
            return [path]
        return [one for place, value in enumerate(sent) for one in lost(value, got[place], f"{path}[{place}]")]
    return [] if sent == got else [f"{path}: {sent!r} became {got!r}"]


def dry_run(kubectl: Kubectl, item: dict[str, Any]) -> dict[str, Any]:
    words = ("create", "--dry-run=server", "--validate=strict", "-o", "json", "-f", "-")
    done = kubectl.run(*words, text=yaml.safe_dump(item))
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


@pytest.fixture
def shared(kubectl, namespace):
    """A runtime as a platform team makes it."""
    container = {"name": "node", "image": IMAGE}
    job = {
        "metadata": {"labels": {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}},
        "spec": {"template": {"spec": {"restartPolicy": "Never", "containers": [container]}}},
    }
    runtime = {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainingRuntime",
        "metadata": {"name": "shared", "namespace": namespace},
        "spec": {
            "mlPolicy": {"numNodes": 1, "torch": {"numProcPerNode": "auto"} if TRAINER < (2, 3) else {}},
            "template": {
                "spec": {
                    "network": {"enableDNSHostnames": True, "publishNotReadyAddresses": True},
                    "successPolicy": {"operator": "All"},
                    "replicatedJobs": [{"name": "node", "replicas": 1, "template": job}],
                }
            },
        },
    }
    kubectl.apply([runtime])
    return {"runtime": "shared", "runtime_kind": "TrainingRuntime"}


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"nnodes": 4, "nproc_per_node": 8, "ttl_s": 60, "kubernetes": RICH, "cwd": "/tmp", "env": {"A": "$(B)"}},
        {"inside": "off"},
        {**ALONE, "nnodes": 4},
    ],
    ids=["plain", "rich", "off", "unattended"],
)
@pytest.mark.parametrize("backend", BACKENDS)
def test_the_server_takes_every_field_of_every_manifest(kubectl, namespace, backend, fields):
    fields = dict(fields)
    if fields.get("unattended"):
        fields["policies"] = {"max_restarts": 0 if backend == "job" else 2}
        if backend == "trainjob":
            del fields["deadlines"]
    made = compiled(namespace, backend=backend, **fields)
    for item in made.objects:
        if item["kind"] == "TrainingRuntime":
            # A TrainJob is refused, dry or not, while its runtime is not there.
            kubectl("create", "--validate=strict", "-f", "-", text=yaml.safe_dump(item))
            got = kubectl.get("trainingruntime", item["metadata"]["name"], "-n", namespace)
        else:
            got = dry_run(kubectl, item)
        assert lost(item, got) == []


def test_the_server_takes_a_trainjob_on_a_shared_runtime(kubectl, namespace, shared):
    made = compiled(namespace, backend="trainjob", nnodes=2, nproc_per_node=2, kubernetes={**SHARED, **shared})
    for item in made.objects:
        assert lost(item, dry_run(kubectl, item)) == []


def test_the_server_takes_a_job_with_min_max_nodes(kubectl, namespace):
    for item in compiled(namespace, backend="job", nnodes=2, nnodes_max=4).objects:
        assert lost(item, dry_run(kubectl, item)) == []


@pytest.mark.parametrize("backend", BACKENDS)
def test_launch_s04_the_longest_name_of_a_backend_is_taken(kubectl, namespace, backend):
    made = compiled(namespace, run=f"{'m' * 40}-0a1b2c", backend=backend, role="r" * 20, nnodes=100)
    for item in made.objects:
        if item["kind"] == "TrainingRuntime":
            kubectl("create", "-f", "-", text=yaml.safe_dump(item))
        else:
            dry_run(kubectl, item)


def launch(kubectl: Kubectl, made: Compiled) -> str:
    """Create everything in order and let it run; ``kind/name`` of the workload."""
    for item in made.objects:
        kubectl("create", "--validate=strict", "-f", "-", text=yaml.safe_dump(item))
    top = made.objects[made.workload]
    name = f"{RESOURCES[top['kind']]}/{top['metadata']['name']}"
    kubectl("patch", name, "-n", top["metadata"]["namespace"], "--type=merge", "-p", '{"spec":{"suspend":false}}')
    return name


def finished(kubectl: Kubectl, made: Compiled, *, count: int) -> list[dict[str, Any]]:
    """The pods of an attempt, when so many have ended, by completion index."""
    namespace = made.objects[0]["metadata"]["namespace"]
    ended = "-o=jsonpath={range .items[?(@.status.phase!='Pending')]}{.status.phase} {end}"

    def all_ended() -> bool:
        phases = kubectl.run("get", "pods", "-n", namespace, "-l", made.selector, ended).stdout.split()
        return sum(phase in {"Succeeded", "Failed"} for phase in phases) >= count

    described = kubectl.run("describe", "pods", "-n", namespace) if not process.poll(all_ended, 150) else None
    assert described is None, described.stdout
    pods = kubectl.get("pods", "-n", namespace, "-l", made.selector)["items"]
    return sorted(pods, key=lambda item: int(item["metadata"]["labels"]["batch.kubernetes.io/job-completion-index"]))


def said(kubectl: Kubectl, pod: dict[str, Any], container: str) -> list[dict[str, Any]]:
    text = kubectl("logs", "-n", pod["metadata"]["namespace"], pod["metadata"]["name"], "-c", container)
    return [
        json.loads(line[line.index("{") :]) for line in text.splitlines() if re.search(r"^(\[rank \d+\] )?\{", line)
    ]


@pytest.mark.parametrize(
    ("backend", "inside"),
    [(backend, inside) for backend in BACKENDS for inside in ("auto", "off")],
)
def test_launch_s07_words_and_values_arrive_byte_for_byte_on_every_node(kubectl, namespace, backend, inside):
    kubectl("create", "secret", "generic", "keys", "-n", namespace, f"--from-literal=one={HELD}")
    made = compiled(
        namespace,
        backend=backend,
        command=["python3", "-c", TELL, *HARD],
        env={"HARD": "\n".join(HARD)},
        nnodes=2,
        inside=inside,
        kubernetes={"env_from": {"FROM_SECRET": {"secret": "keys", "key": "one"}}},
    )
    launch(kubectl, made)
    pods = finished(kubectl, made, count=2)
    for slot, pod in enumerate(pods):
        assert pod["status"]["phase"] == "Succeeded"
        (told,) = said(kubectl, pod, made.container)
        assert told["argv"] == HARD
        assert told["HARD"] == "\n".join(HARD)
        assert told["FROM_SECRET"] == HELD
        # The same contract on every backend (launch scenario 8).
        assert (told["RANK"], told["LOCAL_RANK"], told["WORLD_SIZE"]) == (str(slot), "0", "2")
        assert told["MASTER_ADDR"] == made.names.address(0, namespace=namespace)
        assert told["host"] == made.names.host(slot)
        assert told["RANKFALL_NODE"] == pod["spec"]["nodeName"]
        assert told["RANKFALL_POD_UID"] == pod["metadata"]["uid"]


@pytest.mark.parametrize("backend", BACKENDS)
def test_pods_keep_away_from_excluded_nodes(kubectl, namespace, bed, backend):
    first, second = (bed.layout.node_name(number) for number in (1, 2))
    made = compiled(
        namespace, backend=backend, command=["python3", "-c", ""], nnodes=3, kubernetes={"exclude_nodes": [first]}
    )
    launch(kubectl, made)
    assert {pod["spec"]["nodeName"] for pod in finished(kubectl, made, count=3)} == {second}


@pytest.mark.parametrize("backend", BACKENDS)
def test_supervised_a_failed_slot_leaves_its_peers_alone_and_is_not_replaced(kubectl, namespace, backend):
    loop = "import os, sys, time\nsys.exit(7) if os.environ['RANK'] == '1' else time.sleep(3)"
    made = compiled(namespace, backend=backend, command=["python3", "-c", loop], nnodes=2)
    name = launch(kubectl, made)
    pods = finished(kubectl, made, count=2)
    codes = [pod["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"] for pod in pods]
    assert codes == [0, 7]
    kubectl("wait", "--for=condition=Failed", "-n", namespace, name, "--timeout=60s")
    assert [pod["metadata"]["uid"] for pod in finished(kubectl, made, count=2)] == [
        pod["metadata"]["uid"] for pod in pods
    ]


@pytest.mark.parametrize("backend", ["job", "jobset"])
def test_unattended_a_permanent_code_ends_the_job_by_the_native_rule(kubectl, namespace, backend):
    made = compiled(
        namespace,
        backend=backend,
        command=["python3", "-c", "raise SystemExit(3)"],
        unattended=True,
        restart_scope="replica" if backend == "job" else "gang",
        policies={"max_restarts": 5},
    )
    name = launch(kubectl, made)
    kubectl("wait", "--for=condition=Failed", "-n", namespace, name, "--timeout=120s")
    conditions = kubectl.get(name, "-n", namespace)["status"]["conditions"]
    (failed,) = [item for item in conditions if item["type"] == "Failed"]
    assert failed["reason"] in {"PodFailurePolicy", "FailJobSetFailurePolicyAction"}
    assert len(kubectl.get("pods", "-n", namespace, "-l", made.selector)["items"]) == 1


@pytest.mark.torch
@pytest.mark.parametrize(
    ("backend", "fields"),
    [
        ("job", {}),
        ("job", {"nnodes_max": 3}),
        ("jobset", {"rdzv": "c10d", "launcher": "torchrun"}),
        ("trainjob", {}),
    ],
    ids=["job", "job-elastic", "jobset-c10d", "trainjob"],
)
def test_torchrun_finds_its_peers_by_the_names_of_slots(kubectl, namespace, backend, fields):
    kubectl.apply([workloads.script("program", namespace=namespace, text=TORCH)])
    folders = [str(path) for path in images.torch_mounts()]
    volumes = [{"name": f"torch{place}", "hostPath": {"path": path}} for place, path in enumerate(folders)]
    mounts = [{"name": f"torch{place}", "mountPath": path, "readOnly": True} for place, path in enumerate(folders)]
    apart = {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"rankfall.dev/attempt": "1"}}}
    section = {
        "volumes": [*volumes, {"name": "program", "configMap": {"name": "program"}}],
        "volume_mounts": [*mounts, {"name": "program", "mountPath": "/job"}],
        "affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [apart]}},
    }
    made = compiled(
        namespace,
        backend=backend,
        command=["/job/train.py"],
        python=str(images.torch_python()),
        nnodes=2,
        env={"OMP_NUM_THREADS": "1", "NODE_NAME": "x"},
        kubernetes=section,
        **fields,
    )
    launch(kubectl, made)
    # Of MIN:MAX the third slot finds no room here before the others have ended, and they do not wait for it.
    ended = [pod for pod in finished(kubectl, made, count=2) if pod["status"]["phase"] == "Succeeded"]
    assert len(ended) == 2
    texts = [kubectl("logs", "-n", namespace, pod["metadata"]["name"], "-c", made.container) for pod in ended]
    assert len({pod["spec"]["nodeName"] for pod in ended}) == 2
    told = sorted(line for text in texts for line in re.findall(r"rank \d of 2 on x: sum 3", text))
    assert told == ["rank 0 of 2 on x: sum 3", "rank 1 of 2 on x: sum 3"]
