"""What is done to jobs and nodes of the bed, by the names of ``faults.cluster_table``: each prepares a stage before its job begins.

Those of the local matrix (signals, memory, a full disk …) are done here in the way of a pod.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
from collections.abc import Callable
from typing import Any, Final

from cluster.fault_stage import LABEL, PYTHON, Stage
from testbed import clock, faults, process
from testbed.client import Object
from testbed.preload import compile_clock
from testbed.proxy import before
from testbed.workloads import sleeper

RESOURCE: Final = "rankfall.test/seat"
MEMORY: Final = {False: "160Mi", True: "1400Mi"}
SCRATCH: Final = "/scratch"
PORT: Final = 29999
# Proxies of one bed share its certificates, which the first one makes.
_ONE_PROXY: Final = threading.Lock()
# Long enough for the kubelet to see that it is alive before; then never.
PROBE: Final = {"exec": {"command": ["test", "!", "-e", "/tmp/sick"]}, "periodSeconds": 1, "failureThreshold": 1}


def prepare(stage: Stage) -> None:
    """Make ready what the stage's row wants to be done."""
    name = stage.cell.fault.inject
    if name is not None:
        INJECTORS[name](stage)


# -- as on one machine


def _signal(stage: Stage) -> None:
    def strike() -> None:
        note = stage.here(stage.arguments["rank"])
        os.kill(stage.process(int(note[stage.arguments["to"]] or 1)), stage.arguments["number"])

    stage.meanwhile(strike)


def limit(stage: Stage) -> None:
    """A limit of memory that ranks come to."""
    stage.add(resources={"limits": {"memory": MEMORY[stage.cell.torch]}})


def _oom(stage: Stage) -> None:
    limit(stage)
    stage.meanwhile(lambda: let_go(stage))


def let_go(stage: Stage) -> None:
    """The rank that waits may go on."""
    stage.here(stage.arguments.get("rank", 2))
    stage.plan.with_suffix(".go").touch()


def _small(stage: Stage, path: str, *, medium: str | None = "Memory", size: str = "1Mi") -> None:
    stage.mount(path, emptyDir={"sizeLimit": size} | ({"medium": medium} if medium else {}))


def _tmpfs(stage: Stage) -> None:
    _small(stage, SCRATCH)
    stage.job["env"]["SCRATCH"] = SCRATCH


def _busy_port(stage: Stage) -> None:
    """Somebody else in the pod has the port."""
    hold = f"import socket, time; s = socket.create_server(('127.0.0.1', {PORT})); time.sleep(3600)"
    other = {
        "name": "other",
        "image": stage.job["kubernetes"]["image"],
        "imagePullPolicy": "Never",
        "restartPolicy": "Always",
        "command": [PYTHON, "-c", hold],
    }
    stage.add(pod={"spec": {"initContainers": [other]}})
    stage.job["env"]["BUSY_PORT"] = str(PORT)


def _clock(stage: Stage) -> None:
    stage.job["env"]["LD_PRELOAD"] = str(compile_clock(stage.folder))
    stage.job["env"] |= {f"CLOCK_{name.upper()}": str(value) for name, value in stage.arguments.items()}


def _node_clock(stage: Stage) -> None:
    """All that a client sees of one node is stamped by a wrong clock: programs, lines, statuses; then something else befalls the job."""
    arguments = stage.arguments
    node_clock(stage, int(arguments["node"]), float(arguments["seconds"]))
    # The first pod is made first, so it comes to this node, and the other one elsewhere.
    first = {"key": "kubernetes.io/hostname", "operator": "In", "values": [stage.bed.layout.node_name(1)]}
    wish = [{"weight": 100, "preference": {"matchExpressions": [first]}}]
    stage.add(pod={"spec": {"affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": wish}}}})
    if arguments["then"] is not None:
        INJECTORS[arguments["then"]](stage)


def node_clock(stage: Stage, index: int, seconds: float) -> None:
    """The clock of one node of the bed is wrong for this job and its client."""
    with _ONE_PROXY:
        wrong = stage.stack.enter_context(clock.shifted(stage.bed, index, seconds=seconds))
    stage.kubeconfig = before.through(wrong.proxy.url, stage.kubeconfig, stage.folder / "clock.kubeconfig")
    stage.mount(str(wrong.folder), hostPath={"path": str(wrong.folder), "type": "Directory"})
    stage.job["env"] |= {
        "LD_PRELOAD": str(wrong.folder / "clock.so"),
        "CLOCK_SECONDS": str(round(seconds)),
        "CLOCK_NODE": wrong.node,
    }


# -- a pod is taken away


def _pod_name(stage: Stage) -> str:
    stage.here()
    name: str = stage.pod()["metadata"]["name"]
    return name


def _evict(stage: Stage) -> None:
    stage.meanwhile(lambda: faults.evict(stage.kubectl, stage.namespace, _pod_name(stage)))


def _delete_pod(stage: Stage) -> None:
    stage.meanwhile(lambda: stage.kubectl.run("delete", "pod", "-n", stage.namespace, _pod_name(stage), "--wait=false"))


def _kill_container(stage: Stage) -> None:
    stage.meanwhile(lambda: faults.kill_container(stage.bed, stage.namespace, _pod_name(stage)))


def _drain(stage: Stage) -> None:
    def drain() -> None:
        stage.here()
        node = stage.pod()["spec"]["nodeName"]
        stage.stack.callback(stage.kubectl.run, "uncordon", node)
        words = ("--force", "--ignore-daemonsets", "--delete-emptydir-data", "--timeout=60s")
        stage.kubectl.run("drain", node, f"--pod-selector=rankfall.test/case={stage.case}", *words)

    stage.meanwhile(drain)


def _taint(stage: Stage) -> None:
    def taint() -> None:
        stage.here()
        node = stage.pod()["spec"]["nodeName"]
        stage.stack.enter_context(faults.tainted(stage.kubectl, node, key="example.com/repair", effect="NoExecute"))

    stage.meanwhile(taint)


def _take_away(stage: Stage) -> None:
    stage.meanwhile(lambda: faults.take_away(stage.kubectl, stage.namespace, _pod_name(stage), **stage.arguments))


def _preempt(stage: Stage) -> None:
    """One seat on each node; slot 1's is wanted by a pod that counts more."""
    high, low = f"{stage.case}-high", f"{stage.case}-low"
    for name, value in ((low, 1), (high, 1000)):
        made = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": name}}
        stage.kubectl.apply([{**made, "value": value}])
        stage.stack.callback(stage.kubectl.run, "delete", "priorityclass", name, "--wait=false")
    seat = f"{RESOURCE}-{stage.case}"
    for index in (1, 2):
        node = stage.bed.layout.node_name(index)
        patch = [{"op": "add", "path": f"/status/capacity/{seat.replace('/', '~1')}", "value": "1"}]
        words = ("patch", "node", node, "--subresource=status", "--type=json", "--patch")
        stage.kubectl(*words, json.dumps(patch))
        undo = [{"op": "remove", "path": patch[0]["path"]}]
        stage.stack.callback(stage.kubectl.run, *words, json.dumps(undo))
    stage.add(resources={"limits": {seat: "1"}, "requests": {seat: "1"}}, priority_class=low)

    def compete() -> None:
        stage.here()
        node = stage.pod()["spec"]["nodeName"]
        stage.kubectl.apply([rival(stage, node=node, priority=high, seat=seat)])
        stage.stack.callback(
            stage.kubectl.run, "delete", "pod", "-n", stage.namespace, f"{stage.case}-rival", "--wait=false"
        )

    stage.meanwhile(compete)


def rival(stage: Stage, *, node: str, priority: str, seat: str) -> Object:
    """A pod of somebody else that takes a seat."""
    return sleeper(
        f"{stage.case}-rival",
        namespace=stage.namespace,
        image=stage.job["kubernetes"]["image"],
        container={"resources": {"limits": {seat: "1"}, "requests": {seat: "1"}}},
        restartPolicy="Never",
        terminationGracePeriodSeconds=1,
        priorityClassName=priority,
        nodeSelector={"kubernetes.io/hostname": node},
    )


def _disk_limit(stage: Stage) -> None:
    _small(stage, SCRATCH, medium=None)
    stage.job["env"]["SCRATCH"] = SCRATCH


def _container(stage: Stage, **fields: Any) -> None:
    """Merge into the training container."""
    stage.add(pod={"spec": {"containers": [{"name": stage.container, **fields}]}})


def _probe(stage: Stage) -> None:
    _container(stage, livenessProbe=PROBE)

    def sicken() -> None:
        name = _pod_name(stage)
        stage.kubectl("exec", "-n", stage.namespace, name, "--", "touch", "/tmp/sick")

    stage.meanwhile(sicken)


def _deadline_of_pod(stage: Stage) -> None:
    def shorten() -> None:
        name = _pod_name(stage)
        stage.kubectl("patch", "pod", "-n", stage.namespace, name, "--patch", '{"spec": {"activeDeadlineSeconds": 1}}')

    stage.meanwhile(shorten)


# -- nodes


def _node_down(stage: Stage) -> None:
    def cut() -> None:
        stage.here()
        stage.stack.enter_context(faults.node_down(stage.bed, stage.node_index()))

    stage.meanwhile(cut)


def _kubelet_away(stage: Stage) -> None:
    def stop() -> None:
        stage.here()
        away = faults.kubelet_down(stage.bed, stage.node_index())
        seconds = stage.arguments.get("seconds")
        if seconds is None:
            stage.stack.enter_context(away)
            return
        with away:
            stage.stop.wait(seconds)

    stage.meanwhile(stop)


def _late_names(stage: Stage) -> None:
    """Nobody answers for names until both pods run."""
    found = process.find(stage.bed.layout, "coredns")
    if found is None:
        raise ProcessLookupError("the bed has no coredns")
    os.kill(found.pid, signal.SIGSTOP)
    stage.stack.callback(os.kill, found.pid, signal.SIGCONT)

    def answer() -> None:
        stage.until(lambda: [pod["status"]["phase"] for pod in stage.pods()] == ["Running"] * 2, "two running pods")
        stage.stop.wait(3)
        os.kill(found.pid, signal.SIGCONT)

    stage.meanwhile(answer)


# -- what keeps slots from starting


def _image_on_one_node(stage: Stage) -> None:
    """An image that the first node alone has."""
    node, image = stage.bed.node(1), "rankfall.test/only-here:1"
    tag = ("images", "tag", "--force", stage.job["kubernetes"]["image"], image)
    subprocess.run(
        node.enter("ctr", "--address", str(node.socket), "--namespace", "k8s.io", *tag), check=True, capture_output=True
    )
    stage.add(image=image)


def _no_such_claim(stage: Stage) -> None:
    stage.mount("/data", persistentVolumeClaim={"claimName": "not-there"})


def _missing_folder(stage: Stage) -> None:
    stage.mount("/data", hostPath={"path": "/not-there/data", "type": "Directory"})


def _missing_config(stage: Stage) -> None:
    stage.add(env_from={"LEARNING_RATE": {"config_map": "not-there", "key": "lr"}})


def _quota(stage: Stage) -> None:
    """One pod of this job's priority, and it needs two."""
    name = f"{stage.case}-few"
    made = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": name}, "value": 0}
    few = {"matchExpressions": [{"scopeName": "PriorityClass", "operator": "In", "values": [name]}]}
    quota = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": name, "namespace": stage.namespace},
        "spec": {"hard": {"pods": "1"}, "scopeSelector": few},
    }
    stage.kubectl.apply([made, quota])
    stage.stack.callback(stage.kubectl.run, "delete", "priorityclass", name, "--wait=false")
    stage.stack.callback(stage.kubectl.run, "delete", "resourcequota", "-n", stage.namespace, name, "--wait=false")

    def counted() -> bool:
        status = stage.kubectl.get("resourcequota", "-n", stage.namespace, name).get("status", {})
        return "used" in status

    stage.until(counted, "the quota")
    stage.add(priority_class=name)


def _asked(stage: Stage, sample: Object, word: str) -> None:
    """Wait until the API server knows what was configured: until a sample is refused with this word."""
    words = ("create", "--dry-run=server", "-f", "-")
    stage.until(lambda: word in stage.kubectl.run(*words, text=json.dumps(sample)).stderr, f"{word} to refuse")


def _admission(stage: Stage, kind: str, **fields: Any) -> None:
    made = {"apiVersion": "admissionregistration.k8s.io/v1", "kind": kind, "metadata": {"name": stage.case}}
    stage.kubectl.apply([{**made, **fields}])
    stage.stack.callback(stage.kubectl.run, "delete", kind, stage.case)


def _refuse_pods(stage: Stage) -> None:
    """A webhook that does not answer is asked about the pods of this job."""
    hook = {
        "name": "policy.example.com",
        "clientConfig": {"url": f"https://{stage.bed.layout.host_address}:9/check"},
        "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"], "operations": ["CREATE"]}],
        "objectSelector": {"matchLabels": {LABEL: stage.case}},
        "failurePolicy": "Fail",
        "sideEffects": "None",
        "timeoutSeconds": 2,
        "admissionReviewVersions": ["v1"],
    }
    _admission(stage, "ValidatingWebhookConfiguration", webhooks=[hook])
    sample = rival(stage, node="n1", priority="", seat=RESOURCE)
    sample["metadata"]["labels"] = {LABEL: stage.case}
    _asked(stage, sample, "policy.example.com")


def _refuse_job(stage: Stage) -> None:
    """A policy of the cluster denies the job's own object."""
    rule = {"apiGroups": ["batch"], "apiVersions": ["v1"], "resources": ["jobs"], "operations": ["CREATE"]}
    match = {"resourceRules": [rule], "objectSelector": {"matchLabels": {LABEL: stage.case}}}
    spec = {"matchConstraints": match, "validations": [{"expression": "false", "message": "team-a is over its budget"}]}
    _admission(stage, "ValidatingAdmissionPolicy", spec=spec)
    binding = {"policyName": stage.case, "validationActions": ["Deny"]}
    _admission(stage, "ValidatingAdmissionPolicyBinding", spec=binding)
    meta = {"name": f"{stage.case}-sample", "namespace": stage.namespace, "labels": {LABEL: stage.case}}
    pod = {"restartPolicy": "Never", "containers": [{"name": "main", "image": "none"}]}
    sample = {"apiVersion": "batch/v1", "kind": "Job", "metadata": meta, "spec": {"template": {"spec": pod}}}
    _asked(stage, sample, "over its budget")


# -- people


def _delete_job(stage: Stage) -> None:
    def delete() -> None:
        stage.here()
        stage.kubectl("delete", stage.workload(), "-n", stage.namespace, "--wait=false")

    stage.meanwhile(delete)


def _suspend(stage: Stage) -> None:
    """Somebody suspends it, and after a while its user gives it up."""

    def suspend() -> None:
        stage.here()
        patch = ("--type", "merge", "--patch", '{"spec": {"suspend": true}}')
        stage.kubectl("patch", stage.workload(), "-n", stage.namespace, *patch)
        stage.until(lambda: stage.state() == "suspended", "the run to be suspended")
        stage.cli("cancel", "--yes", stage.run())

    stage.meanwhile(suspend)


INJECTORS: Final[dict[str, Callable[[Stage], None]]] = {
    "busy_port": _busy_port,
    "clock": _clock,
    "deadline_of_pod": _deadline_of_pod,
    "delete_job": _delete_job,
    "delete_pod": _delete_pod,
    "disk_limit": _disk_limit,
    "drain": _drain,
    "evict": _evict,
    "image_on_one_node": _image_on_one_node,
    "kill_container": _kill_container,
    "kubelet_away": _kubelet_away,
    "late_names": _late_names,
    "limit": limit,
    "missing_config": _missing_config,
    "missing_folder": _missing_folder,
    "no_such_claim": _no_such_claim,
    "node_clock": _node_clock,
    "node_down": _node_down,
    "oom": _oom,
    "preempt": _preempt,
    "probe": _probe,
    "quota": _quota,
    "refuse_job": _refuse_job,
    "refuse_pods": _refuse_pods,
    "signal": _signal,
    "small_shm": lambda stage: _small(stage, "/dev/shm", size="2Mi"),
    "suspend": _suspend,
    "taint": _taint,
    "take_away": _take_away,
    "tmpfs": _tmpfs,
}
