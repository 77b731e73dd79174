"""The parts that only some tests need do what they are there for, and leave nothing."""

from __future__ import annotations

import http.client
import json
import shutil
import ssl
import subprocess
import sys
import time
import urllib.parse
import uuid

import boto3
import pytest

from cluster.programs import TORCH, pod
from support.helpers import wait_until
from testbed import bed as beds
from testbed import images, limits, process, workloads
from testbed.client import Kubectl
from testbed.layout import Layout, cache_folder
from testbed.ondemand import definitions, extra_images, fake, kwok, loki, pytorchjob, s3

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]
PODS = 1000
# Above the number of follows that one machine allows by default.
FOLLOWS = 150
# Number of a bed that nobody starts.
UNUSED = 62


@pytest.fixture(scope="module")
def fleet(bed):
    with kwok.fleet(bed, nodes=20, pods=PODS, variables=lambda index: {"RANK": str(index)}) as made:
        yield made
    # It leaves nothing, whatever the tests did with it.
    assert process.find(bed.layout, "kwok") is None
    assert not made.folder.exists()
    assert not limits.raised(bed.layout)
    assert {row["metadata"]["name"] for row in bed.kubectl.get("nodes")["items"]}.isdisjoint(made.nodes)
    leases = bed.kubectl.get("leases", "-n", "kube-node-lease")["items"]
    assert {row["metadata"]["name"] for row in leases}.isdisjoint(made.nodes)
    wait_until(lambda: bed.kubectl.run("get", "namespace", made.namespace).returncode, timeout=60, what="no namespace")


def logs(kubectl: Kubectl, fleet: fake.Fleet, name: str, *words: str) -> list[str]:
    return kubectl("logs", "-n", fleet.namespace, name, *words).splitlines()


def test_a_thousand_fake_pods_run_on_nodes_of_their_own(kubectl, fleet):
    items = kubectl.get("pods", "-n", fleet.namespace)["items"]
    assert len(items) == PODS
    assert {item["status"]["phase"] for item in items} == {"Running"}
    assert {item["spec"]["nodeName"] for item in items} == set(fleet.nodes)
    assert len({item["status"]["podIP"] for item in items}) == PODS


def test_each_fake_pod_has_a_log_of_its_own_with_times_tail_and_previous(kubectl, fleet):
    one, other = fleet.pods[1], fleet.pods[2]
    fleet.say(one, "first", "second")
    fleet.say(other, "of the other")
    assert logs(kubectl, fleet, one) == ["first", "second"]
    assert logs(kubectl, fleet, one, "--tail=1") == ["second"]
    assert logs(kubectl, fleet, other) == ["of the other"]
    stamp, _, text = logs(kubectl, fleet, one, "--timestamps")[0].partition(" ")
    assert (stamp.endswith("Z"), text) == (True, "first")
    assert kubectl.run("logs", "-n", fleet.namespace, one, "--previous").returncode
    fleet.previous(one).write_bytes(fake.cri_line("from before"))
    assert logs(kubectl, fleet, one, "--previous") == ["from before"]


def test_parts_of_a_long_line_arrive_as_one(kubectl, fleet):
    name = fleet.pods[3]
    fleet.log(name).write_bytes(fake.cri_line("be", partial=True) + fake.cri_line("gun and ended"))
    assert logs(kubectl, fleet, name) == ["begun and ended"]


def test_a_follow_delivers_what_is_appended(kubectl, fleet):
    name = fleet.pods[4]
    fleet.say(name, "before")
    command = kubectl.command("logs", "-f", "-n", fleet.namespace, name)
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as follow:
        try:
            assert follow.stdout is not None
            assert follow.stdout.readline() == "before\n"
            fleet.say(name, "after")
            assert follow.stdout.readline() == "after\n"
            assert follow.poll() is None
        finally:
            follow.kill()


def test_more_follows_than_a_machine_allows_by_default_are_open_at_once(bed, fleet):
    admin = bed.control.authority.issue("follower", user="follower", groups=("system:masters",))
    context = ssl.create_default_context(cafile=str(bed.control.authority.cert))
    context.load_cert_chain(admin.cert, admin.key)
    names = fleet.pods[10 : 10 + FOLLOWS]
    follows = []
    try:
        for name in names:
            connection = http.client.HTTPSConnection(str(bed.layout.api_address), context=context, timeout=60)
            connection.request("GET", f"/api/v1/namespaces/{fleet.namespace}/pods/{name}/log?follow=true")
            follows.append(connection)
        for name in names:
            fleet.say(name, f"I am {name}")
        for name, connection in zip(names, follows, strict=True):
            answer = connection.getresponse()
            assert answer.status == http.HTTPStatus.OK
            assert answer.readline().decode() == f"I am {name}\n"
            answer.close()
    finally:
        for connection in follows:
            connection.close()


def test_a_limit_that_a_killed_fleet_left_raised_goes_down_with_its_bed(bed, tmp_path, monkeypatch):
    del bed  # it says whether this machine can at all
    monkeypatch.setattr(limits, "INSTANCES", tmp_path / "max_user_instances")
    limits.INSTANCES.write_text("128\n")
    # Apart from beds that have raised it too.
    cache = cache_folder() / f"unused-{uuid.uuid4().hex[:8]}"
    monkeypatch.setenv("TESTBED_CACHE", str(cache))
    other = Layout(UNUSED)
    other.folder.mkdir(parents=True)
    try:
        limits.raise_follows(other)
        assert int(limits.INSTANCES.read_text()) > FOLLOWS
        beds.down(other)
        assert limits.INSTANCES.read_text() == "128\n"
    finally:
        shutil.rmtree(cache)


def test_what_is_executed_in_a_fake_pod_has_the_given_variables(kubectl, fleet):
    said = kubectl("exec", "-n", fleet.namespace, fleet.pods[7], "--", "sh", "-c", 'echo "$RANK of $POD_NAME"')
    assert said == "7 of fleet-7\n"


def test_pods_of_others_get_to_fake_nodes_only_when_they_ask(kubectl, fleet, namespace):
    large = pod("large", namespace, "true", resources={"requests": {"cpu": "500"}})
    asks = {"nodeSelector": kwok.SELECTOR, "tolerations": [kwok.TOLERATION]}
    template = {"spec": {**pod("x", namespace, "true")["spec"], **asks}}
    job = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "guests", "namespace": namespace},
        "spec": {"completions": 3, "parallelism": 3, "template": template},
    }
    kubectl.apply([large, job])
    guests = ("-n", namespace, "-l", "job-name=guests")

    def running() -> list[dict]:
        items = kubectl.get("pods", *guests)["items"]
        return items if [item["status"]["phase"] for item in items] == ["Running"] * 3 else []

    items = wait_until(running, timeout=60, what="the guests run")
    assert {item["spec"]["nodeName"] for item in items} <= set(fleet.nodes)
    fleet.say(None, "for all guests")
    assert kubectl("logs", *guests).splitlines() == ["for all guests"] * 3

    def refused() -> str:
        conditions = kubectl.get("pod", "-n", namespace, "large")["status"].get("conditions", [])
        return next((item.get("message", "") for item in conditions if item["type"] == "PodScheduled"), "")

    assert "20 node(s) had untolerated taint" in wait_until(refused, timeout=30, what="the scheduler's word")


def test_torchrun_runs_over_two_nodes_as_a_pytorchjob_of_the_real_operator(bed, kubectl, namespace):
    label = "training.kubeflow.org/job-name"
    # The operator gives its pods' places in PET_* variables, which torchrun reads by itself.
    command = [sys.executable, "-m", "torch.distributed.run", "/job/train.py"]
    spec = workloads.torch_pod(
        program="program",
        command=command,
        mounts=images.torch_mounts(),
        spread={label: "two"},
        name=pytorchjob.CONTAINER,
    )
    with pytorchjob.run(bed):
        kubectl.apply([workloads.script("program", namespace=namespace, text=TORCH)])
        kubectl.apply([pytorchjob.job("two", namespace=namespace, workers=1, nproc=1, pod=spec)])
        kubectl("wait", "--for=condition=Succeeded", "-n", namespace, "pytorchjob/two", "--timeout=180s")
        said = {name: kubectl("logs", "-n", namespace, name) for name in ("two-master-0", "two-worker-0")}
        pods = kubectl.get("pods", "-n", namespace, "-l", f"{label}=two")["items"]
        nodes = {item["metadata"]["name"]: item["spec"]["nodeName"] for item in pods}
        assert len(set(nodes.values())) == 2
        assert f"rank 0 of 2 on {nodes['two-master-0']}: sum 3" in said["two-master-0"]
        assert f"rank 1 of 2 on {nodes['two-worker-0']}: sum 3" in said["two-worker-0"]

        wrong = pytorchjob.job("wrong", namespace=namespace, workers=1, nproc=1, pod=spec)
        wrong["spec"]["pytorchReplicaSpecs"]["Master"]["replicas"] = 2
        refused = kubectl.run("create", "-f", "-", text=json.dumps(wrong))
        assert "validator.pytorchjob.training-operator.kubeflow.org" in refused.stderr
        assert "must be 1" in refused.stderr
    assert process.find(bed.layout, "training-operator") is None
    assert kubectl.run("get", "crd", "pytorchjobs.kubeflow.org").returncode
    assert "training-operator" not in kubectl("get", "validatingwebhookconfigurations,services,secrets", "-A")


VERSION = ("python3", "-c", "import sys; print(sys.version_info[:2])")
# Image -> what to run, what it says.
IMAGES = {
    "python39": (VERSION, "(3, 9)"),
    "python313": (VERSION, "(3, 13)"),
    "static": (("/static", "-text", "no shell, no Python"), "no shell, no Python"),
}


@pytest.mark.parametrize("name", IMAGES)
def test_an_image_runs_on_every_node(bed, kubectl, namespace, name):
    command, said = IMAGES[name]
    image = extra_images.give(bed, [name])[name]
    nodes = [item["metadata"]["name"] for item in kubectl.get("nodes", "-l", f"!{kwok.LABEL}")["items"]]
    assert len(nodes) >= 2
    kubectl.apply([pod(f"on-{node}", namespace, *command, image=image, nodeName=node) for node in nodes])
    for node in nodes:
        done = "--for=jsonpath={.status.phase}=Succeeded"
        kubectl("wait", done, "-n", namespace, f"pod/on-{node}", "--timeout=60s")
        assert said in kubectl("logs", "-n", namespace, f"on-{node}")


def test_the_static_image_has_no_shell_and_no_python(bed, kubectl, namespace):
    image = extra_images.give(bed, ["static"])["static"]
    for word in ("sh", "python3"):
        kubectl.apply([pod(f"no-{word}", namespace, word, "-c", "", image=image)])
        waiting = "--for=jsonpath={.status.containerStatuses[0].state.terminated.reason}=StartError"
        kubectl("wait", waiting, "-n", namespace, f"pod/no-{word}", "--timeout=60s")


def ask(url: str, path: str, body: dict | None = None, **words: object) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection(urllib.parse.urlsplit(url).netloc, timeout=30)
    try:
        connection.request(
            "POST" if body else "GET",
            f"{path}?{urllib.parse.urlencode(words)}",
            json.dumps(body) if body else None,
            {"Content-Type": "application/json"},
        )
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def push(url: str, *streams: tuple[dict[str, str], list[tuple[int, str]]]) -> tuple[int, bytes]:
    rows = [{"stream": labels, "values": [[str(stamp), text] for stamp, text in lines]} for labels, lines in streams]
    return ask(url, "/loki/api/v1/push", {"streams": rows})


def query(url: str, selector: str, start: int, end: int) -> list[dict]:
    words = {"query": selector, "start": start, "end": end, "direction": "forward", "limit": 1000}
    status, body = ask(url, "/loki/api/v1/query_range", **words)
    assert status == http.HTTPStatus.OK, body
    return json.loads(body)["data"]["result"]


def test_loki_gives_back_what_was_pushed_by_label_and_in_order(bed):
    second = 1_000_000_000
    now = time.time_ns()
    lines = [(now - (100 - index) * second, f"line {index}") for index in range(100)]
    old = (now - 30 * 24 * 3600 * second, "a month ago, by a shifted clock")
    one, other, shifted = ({"namespace": "jobs", "pod": f"worker-{index}"} for index in range(3))
    with loki.run(bed) as url:
        # The second half first: collectors do not promise an order.
        assert push(url, (one, lines[50:]), (other, lines[:1]))[0] == http.HTTPStatus.NO_CONTENT
        assert push(url, (one, lines[:50]), (shifted, [old]))[0] == http.HTTPStatus.NO_CONTENT
        status, why = push(url, (one, [(now - 2 * 3600 * second, "too late for its stream")]))
        assert (status, b"too far behind" in why) == (http.HTTPStatus.BAD_REQUEST, True)
        (stream,) = query(url, '{pod="worker-0"}', now - 200 * second, now)
        assert {"namespace": "jobs", "pod": "worker-0"}.items() <= stream["stream"].items()
        assert [(int(stamp), text) for stamp, text in stream["values"]] == lines
        assert len(query(url, '{namespace="jobs"}', now - 200 * second, now)) == 2
        (found,) = query(url, '{pod="worker-2"} |= "shifted"', old[0] - second, old[0] + second)
        assert [text for _, text in found["values"]] == [old[1]]
    assert process.find(bed.layout, "loki") is None
    assert not (bed.layout.folder / "loki").exists()


def test_an_object_is_shared_by_a_pod_and_this_machine(bed, kubectl, namespace):
    with s3.run(bed) as url:
        client = boto3.client(
            "s3",
            endpoint_url=url,
            region_name=s3.LOGIN["AWS_DEFAULT_REGION"],
            aws_access_key_id=s3.LOGIN["AWS_ACCESS_KEY_ID"],
            aws_secret_access_key=s3.LOGIN["AWS_SECRET_ACCESS_KEY"],
        )
        client.create_bucket(Bucket="runs")
        client.put_object(Bucket="runs", Key="a/from-here", Body=b"from this machine")
        assert ask(url, "/runs/a/from-here")[0] == http.HTTPStatus.FORBIDDEN
        # A pod without an SDK: signed addresses, plain HTTP.
        get = client.generate_presigned_url("get_object", Params={"Bucket": "runs", "Key": "a/from-here"})
        put = client.generate_presigned_url("put_object", Params={"Bucket": "runs", "Key": "a/from-pod"})
        program = (
            "import urllib.request as r\n"
            "kind = {'Content-Type': 'application/octet-stream'}\n"
            f"word = r.urlopen({get!r}).read()\n"
            f"r.urlopen(r.Request({put!r}, b'pod read: ' + word, kind, method='PUT'))\n"
        )
        kubectl.apply([pod("user", namespace, "python3", "-c", program)])
        kubectl("wait", "--for=jsonpath={.status.phase}=Succeeded", "-n", namespace, "pod/user", "--timeout=60s")
        assert client.get_object(Bucket="runs", Key="a/from-pod")["Body"].read() == b"pod read: from this machine"
        keys = [row["Key"] for row in client.list_objects_v2(Bucket="runs", Prefix="a/")["Contents"]]
        assert keys == ["a/from-here", "a/from-pod"]
    assert process.find(bed.layout, "s3") is None


TRAINJOB = {
    "apiVersion": "trainer.kubeflow.org/v1alpha1",
    "kind": "TrainJob",
    "metadata": {"name": "one", "namespace": "default"},
}
# Version -> fields of a TrainJob that it was the first to have.
NEW_FIELDS = {
    "2.1": {"podTemplateOverrides": [{"targetJobs": [{"name": "node"}], "spec": {"nodeSelector": {"a": "b"}}}]},
    "2.2": {"activeDeadlineSeconds": 600},
}


def dry_run(kubectl: Kubectl, spec: dict) -> subprocess.CompletedProcess[str]:
    whole = TRAINJOB | {"spec": {"runtimeRef": {"name": workloads.RUNTIME}, **spec}}
    return kubectl.run("create", "--dry-run=server", "--validate=strict", "-f", "-", text=json.dumps(whole))


@pytest.mark.parametrize("version", ["2.1", "2.2"])
def test_a_field_of_a_later_trainer_is_taken_there_and_refused_by_the_beds_own(bed, kubectl, version):
    refused = dry_run(kubectl, NEW_FIELDS[version])
    assert refused.returncode
    assert f'unknown field "spec.{next(iter(NEW_FIELDS[version]))}"' in refused.stderr
    with definitions.trainer(bed, version) as later:
        taken = dry_run(later, NEW_FIELDS[version])
        assert taken.returncode == 0, taken.stderr
        wrong = dry_run(later, {"noSuchField": 1})
        assert 'unknown field "spec.noSuchField"' in wrong.stderr
        # A dry run leaves nothing, and the bed's own cluster is another one.
        assert later.get("trainjobs", "-A")["items"] == []
        assert later.get("nodes")["items"] == []
    assert process.find(bed.layout, f"trainer-{version}-apiserver") is None
    assert process.find(bed.layout, f"trainer-{version}-etcd") is None
    assert not (bed.layout.folder / f"trainer-{version}-etcd").exists()
