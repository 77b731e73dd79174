"""Launch and removal before the real API server, with the client's own rights, through cuts, stalls, wrong answers and SIGKILL."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
import uuid
from pathlib import Path
from typing import Any

import pytest

from cluster.launch_client import carry_out, order
from cluster.served import SERVED
from rankfall.backends.kubernetes.lifecycle.errors import NameTaken, StillThere
from rankfall.backends.kubernetes.lifecycle.launch import Launched
from rankfall.backends.kubernetes.lifecycle.ownership import resource_of, uid_of
from rankfall.backends.kubernetes.lifecycle.remove import remove
from rankfall.backends.kubernetes.manifests.compile import compile_job
from rankfall.backends.kubernetes.manifests.names import LABEL_RUN
from rankfall.backends.kubernetes.manifests.request import Compiled
from rankfall.backends.payload import build_zip
from rankfall.kube.auth.kubeconfig import load_access
from rankfall.kube.client import Kube
from rankfall.kube.errors import ApiError, KubeError, ServerError
from rankfall.kube.http.transport import Limits
from rankfall.model import spec_from
from support.helpers import wait_until
from testbed import accounts, faults
from testbed.proxy import Answer, Cut, HalfOpen, Match, Proxy, Stall, Way, When, before

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

# All that launch and removal need.
RULES = [
    {"apiGroups": ["batch"], "resources": ["jobs"], "verbs": ["get", "list", "watch", "create", "patch", "delete"]},
    {
        "apiGroups": ["jobset.x-k8s.io"],
        "resources": ["jobsets"],
        "verbs": ["get", "list", "watch", "create", "patch", "delete"],
    },
    {
        "apiGroups": ["trainer.kubeflow.org"],
        "resources": ["trainjobs", "trainingruntimes"],
        "verbs": ["get", "list", "watch", "create", "patch", "delete"],
    },
    {
        "apiGroups": [""],
        "resources": ["configmaps", "services"],
        "verbs": ["get", "list", "watch", "create", "delete"],
    },
    {"apiGroups": [""], "resources": ["pods"], "verbs": ["list", "watch"]},
]
OURS = "^rankfall/"
NOWHERE = {"rankfall.test/node": "there-is-none"}
SLEEP = ["python3", "-c", "import time; time.sleep(600)"]


@pytest.fixture
def config(bed, proxy, kubectl, namespace, tmp_path) -> Path:
    """Our user, with its rights and no more, through the proxy."""
    direct = accounts.create(bed.control, kubectl, "launcher", namespace=namespace, rules=RULES)
    return before.through(proxy.url, direct, tmp_path / "kubeconfig")


def connect(config: Path, **options: Any) -> Kube:
    return Kube(load_access(kubeconfig=str(config)), **{"limits": Limits(total=2.0, head=2.0), **options})


def compiled(
    namespace: str,
    *,
    backend: str = "job",
    run: str | None = None,
    request: str = "t",
    command: Any = None,
    **section: Any,
) -> Compiled:
    """One slot, which no node takes unless the test says so."""
    section = {
        "image": "rankfall.test/python:3.11",
        "image_pull_policy": "Never",
        "node_selector": NOWHERE,
        "pod": {"spec": {"terminationGracePeriodSeconds": 1}},
        **section,
    }
    job = {"name": "train", "backend": backend, "command": command or SLEEP, "nnodes": 1, "kubernetes": section}
    return compile_job(
        spec_from(job),
        run=run or f"train-{uuid.uuid4().hex[:6]}",
        attempt=1,
        token=request,
        served=SERVED,
        inside_zip=build_zip(),
        namespace=namespace,
    )


def ended(kubectl, namespace: str, run: str) -> dict[str, Any]:
    """A job of the run that has ended, made by an earlier launch with another token; its object."""
    made = compiled(namespace, run=run, request="earlier", command=["true"], node_selector={})
    workload = made.objects[made.workload]
    workload["spec"]["suspend"] = False
    workload["spec"]["template"]["spec"]["containers"][0] |= {"command": ["true"], "volumeMounts": []}
    workload["spec"]["template"]["spec"]["volumes"] = []
    kubectl.apply([workload])
    name = made.names.object
    kubectl("wait", "--for=condition=Complete", "-n", namespace, f"job/{name}", "--timeout=90s")
    return kubectl.get("job", "-n", namespace, name)


def whole(kubectl, namespace: str, made: Compiled, done: Launched | dict[str, Any]) -> None:
    """Exactly one job, config map and service of the run, owned by the job, which is released."""
    uid = done["uid"] if isinstance(done, dict) else done.uid
    mine = f"-l{LABEL_RUN}={made.names.run}"
    found = kubectl.get("jobs,configmaps,services", "-n", namespace, mine)["items"]
    assert sorted(item["kind"] for item in found) == ["ConfigMap", "Job", "Service"]
    for item in found:
        if item["kind"] == "Job":
            assert item["metadata"]["uid"] == uid
            assert item["spec"]["suspend"] is False
        else:
            [reference] = item["metadata"]["ownerReferences"]
            assert (reference["kind"], reference["uid"]) == ("Job", uid)


class Client:
    """The client as a process of its own."""

    def __init__(self, proxy: Proxy, config: Path, path: Path) -> None:
        self._proxy, self._config, self._path = proxy, config, path

    def start(self, made: Compiled) -> subprocess.Popen[str]:
        self._path.write_text(json.dumps({**order(made), "kubeconfig": str(self._config)}))
        root = Path(__file__).parents[2]
        words = [sys.executable, str(root / "tests/cluster/launch_client.py"), str(self._path)]
        environment = {**os.environ, "PYTHONPATH": str(root / "src")}
        return subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=environment)

    def killed(self, made: Compiled, number: int, when: When) -> None:
        """Killed at its request of this number, before the server heard of it or after the server did it."""
        self._proxy.add("stop", HalfOpen(at=when), Match(user_agent=OURS, nth=number))
        with self.start(made) as running:
            wait_until(
                lambda: self._proxy.counters().by_rule.get("stop") == self._struck + 1 or running.poll() is not None,
                timeout=60,
                what="the request",
            )
            assert running.poll() is None, "the launch was over before this request"
            running.kill()
        self._struck += 1
        self._proxy.remove("stop")

    _struck = 0

    def done(self, made: Compiled) -> dict[str, Any]:
        """Left alone until it is done."""
        with self.start(made) as running:
            done: dict[str, Any] = json.loads(running.communicate(timeout=60)[0])
        return done


@pytest.fixture
def client(proxy, config, tmp_path) -> Client:
    return Client(proxy, config, tmp_path / "order.json")


# What was done and never answered is harder than what was never sent.
MOMENTS = pytest.mark.parametrize(
    "when", [pytest.param(When(), id="before"), pytest.param(When(answered=True), id="after")]
)


@MOMENTS
def test_launch_s12_killed_at_each_request_and_started_again(client, kubectl, namespace, when):
    for number in range(1, 5):
        made = compiled(namespace)
        client.killed(made, number, when)
        done = client.done(made)
        assert done["outcome"] == ("created" if (number, when) == (1, When()) else "adopted")
        whole(kubectl, namespace, made, done)


@MOMENTS
def test_launch_s1_killed_at_each_request_of_a_removal_and_started_again(client, kubectl, namespace, when):
    # Create, look, delete, then looks and watches until it is gone, then a plain launch.
    for number in range(2, 8):
        run = f"train-{uuid.uuid4().hex[:6]}"
        old = ended(kubectl, namespace, run)
        made = compiled(namespace, run=run)
        client.killed(made, number, when)
        done = client.done(made)
        assert done["uid"] != uid_of(old)
        whole(kubectl, namespace, made, done)
        pods = kubectl.get("pods", "-n", namespace, f"-ljob-name={made.names.object}")["items"]
        assert {pod["metadata"]["ownerReferences"][0]["uid"] for pod in pods} <= {done["uid"]}


@MOMENTS
def test_launch_s12_a_trainjob_killed_at_each_change_and_started_again(client, kubectl, namespace, when):
    # After five looks: the runtime, the TrainJob, the runtime's owner (look and change), the config map, the release.
    for number in range(6, 12):
        made = compiled(namespace, backend="trainjob")
        client.killed(made, number, when)
        done = client.done(made)
        mine = f"-l{LABEL_RUN}={made.names.run}"
        found = kubectl.get("trainjobs,trainingruntimes,configmaps", "-n", namespace, mine)["items"]
        assert sorted(item["kind"] for item in found) == ["ConfigMap", "TrainJob", "TrainingRuntime"]
        for item in found:
            if item["kind"] == "TrainJob":
                assert (item["metadata"]["uid"], item["spec"]["suspend"]) == (done["uid"], False)
            else:
                assert [one["uid"] for one in item["metadata"]["ownerReferences"]] == [done["uid"]]


FAULTS = {
    "401": Answer(status=401),
    "409": Answer(status=409),
    "410": Answer(status=410),
    "429": Answer(status=429, retry_after_s=1),
    "500": Answer(status=500),
    "cut": Cut(),
    "cut-after": Cut(at=When(answered=True)),
    "stall": Stall(way=Way.UP, at=When()),
    "stall-after": HalfOpen(at=When(answered=True)),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_launch_s12_a_fault_at_each_request_leaves_one_of_everything(proxy, config, kubectl, namespace, fault):
    async def story() -> None:
        for number in range(1, 5):
            made = compiled(namespace)
            said: list[str] = []
            async with connect(config) as kube:
                proxy.add("fault", FAULTS[fault], Match(user_agent=OURS, nth=number))
                done = await carry_out(kube, order(made), said)
                assert proxy.counters().by_rule.pop("fault") == number
                proxy.remove("fault")
            whole(kubectl, namespace, made, done)
            assert done.requests <= 8

    asyncio.run(story())


def test_launch_s12_many_faults_at_once_leave_one_of_everything(proxy, config, kubectl, namespace):
    async def story() -> None:
        for seed in range(5):
            made = compiled(namespace)
            for place, (name, action) in enumerate(FAULTS.items()):
                proxy.add(name, action, Match(user_agent=OURS, probability=0.08, seed=100 * seed + place))
            for _ in range(20):
                try:
                    async with connect(config) as kube:
                        done = await carry_out(kube, order(made), [])
                    break
                except KubeError:
                    continue
            proxy.clear()
            whole(kubectl, namespace, made, done)

    asyncio.run(story())


@pytest.mark.parametrize("status", [429, 500])
def test_launch_s12_a_server_in_trouble_is_not_pressed(proxy, config, namespace, status):
    async def story() -> None:
        proxy.add("trouble", Answer(status=status), Match(user_agent=OURS))
        said: list[str] = []
        began, earlier = time.monotonic(), proxy.counters().requests
        async with connect(config, rate=4.0, burst=4) as kube:
            with pytest.raises(ApiError) as caught:
                await carry_out(kube, order(compiled(namespace), wait_s=4.0), said)
        sent = proxy.counters().requests - earlier
        assert caught.value.status == status
        # The stated rate: a burst, then so many a second.
        assert sent <= 4 + 4.0 * (time.monotonic() - began)
        assert str(status) in said[0]

    asyncio.run(story())


def test_launch_s2_a_running_one_is_not_touched(config, kubectl, namespace):
    async def story() -> None:
        run = f"train-{uuid.uuid4().hex[:6]}"
        made = compiled(namespace, run=run)
        async with connect(config) as kube:
            first = await carry_out(kube, order(made, owner="alice@laptop"), [])
            other = compiled(namespace, run=run, request="another")
            with pytest.raises(NameTaken, match=rf"run {run}, attempt 1, launched by alice@laptop, \d+ s old"):
                await carry_out(kube, order(other), [])
            whole(kubectl, namespace, made, first)
            second = await carry_out(kube, order(other, replace=True), [])
        assert (second.outcome, second.uid != first.uid) == ("recreated", True)
        whole(kubectl, namespace, other, second)

    asyncio.run(story())


def test_launch_s3_what_blocks_an_old_one_is_named(bed, config, kubectl, namespace):
    async def story() -> None:
        run = f"train-{uuid.uuid4().hex[:6]}"
        made = compiled(namespace, run=run, node_selector={"kubernetes.io/hostname": bed.layout.node_name(2)})
        other = compiled(namespace, run=run, request="another")
        selector = f"-ljob-name={made.names.object}"
        async with connect(config) as kube:
            await carry_out(kube, order(made), [])
            running = ("get", "pods", "-n", namespace, selector, "--field-selector=status.phase=Running", "-o", "name")
            assert kubectl.wait_until(*running, limit_s=60)
            with faults.kubelet_down(bed, 2):
                said: list[str] = []
                with pytest.raises(StillThere, match=rf"pod {namespace}/\S+ on node n2 (is ending|should have ended)"):
                    await carry_out(kube, order(other, replace=True, wait_s=6.0), said)
                assert any("waiting for the removal of the earlier job" in line for line in said)
                assert len(kubectl.get("jobs", "-n", namespace)["items"]) == 1
            done = await carry_out(kube, order(other), [])
        whole(kubectl, namespace, other, done)

    asyncio.run(story())


def test_launch_s3_a_foreign_finalizer_is_named(config, kubectl, namespace):
    async def story() -> None:
        run = f"train-{uuid.uuid4().hex[:6]}"
        old = ended(kubectl, namespace, run)
        name = f"job/{old['metadata']['name']}"
        hold = '{"metadata": {"finalizers": ["example.com/hold"]}}'
        kubectl("patch", "-n", namespace, name, "--type=merge", "-p", hold)
        made = compiled(namespace, run=run)
        async with connect(config) as kube:
            with pytest.raises(StillThere, match=r"waits for finalizer example\.com/hold"):
                await carry_out(kube, order(made, wait_s=4.0), [])
            kubectl(
                "patch",
                "-n",
                namespace,
                name,
                "--type=json",
                "-p",
                '[{"op": "remove", "path": "/metadata/finalizers"}]',
            )
            done = await carry_out(kube, order(made), [])
        assert done.uid != uid_of(old)
        whole(kubectl, namespace, made, done)

    asyncio.run(story())


def test_jobapi_s23_a_refusal_by_the_server_or_a_webhook_is_told_and_leaves_nothing(config, kubectl, namespace):
    async def story() -> None:
        wrong = compiled(namespace)
        wrong.objects[wrong.workload]["spec"]["backoffLimit"] = -1
        no_runtime = compiled(namespace, backend="trainjob")
        no_runtime.objects[no_runtime.workload]["spec"]["runtimeRef"]["name"] = "there-is-none"
        late = compiled(namespace)
        late.objects[-1]["metadata"]["labels"]["rankfall.dev/role"] = "not a label"
        async with connect(config) as kube:
            for made, words in ((wrong, "backoffLimit"), (no_runtime, "there-is-none"), (late, "not a label")):
                with pytest.raises(ApiError, match=words) as caught:
                    await carry_out(kube, order(made), [])
                assert not isinstance(caught.value, ServerError)
                mine = f"-l{LABEL_RUN}={made.names.run}"
                kinds = "jobs,trainjobs,trainingruntimes,services,configmaps"
                gone = ("wait", "--for=delete", "--timeout=30s", "-n", namespace, kinds, mine)
                assert not kubectl.run(*gone).returncode or not kubectl.get(kinds, "-n", namespace, mine)["items"]

    asyncio.run(story())


# A TrainJob has a JobSet below it.
@pytest.mark.parametrize("backend", ["job", "jobset", "trainjob"])
def test_launch_s42_launched_again_and_removed_on_every_backend(config, kubectl, namespace, backend):
    async def story() -> None:
        made = compiled(namespace, backend=backend, node_selector={})
        workload = made.objects[made.workload]
        selector = f"-l{made.selector}"
        said: list[str] = []
        async with connect(config) as kube:
            done = await carry_out(kube, order(made), said)
            again = await carry_out(kube, order(made), said)
            assert (again.outcome, again.uid) == ("adopted", done.uid)
            running = ("get", "pods", "-n", namespace, selector, "--field-selector=status.phase=Running", "-o", "name")
            assert kubectl.wait_until(*running, limit_s=90)
            answer = await remove(
                kube,
                resource=resource_of(workload),
                name=made.names.object,
                namespace=namespace,
                uid=done.uid,
                pods_selector=made.selector,
                wait_s=60,
                say=said.append,
            )
        assert answer == "gone"
        left = kubectl.get("jobs,jobsets,trainjobs,pods", "-n", namespace)["items"]
        assert left == []
        kinds = ("services", "configmaps", "trainingruntimes")
        mine = f"-l{LABEL_RUN}={made.names.run}"
        wait_until(
            lambda: not kubectl.get(",".join(kinds), "-n", namespace, mine)["items"],
            timeout=30,
            what="the garbage collector",
        )

    asyncio.run(story())


def test_launch_s42_a_pod_that_cannot_end_is_named_and_a_later_removal_ends(bed, config, kubectl, namespace):
    async def story() -> None:
        made = compiled(namespace, node_selector={"kubernetes.io/hostname": bed.layout.node_name(2)})
        selector = f"-l{made.selector}"

        async def removed(uid: str | None, wait_s: float) -> tuple[str, list[str]]:
            said: list[str] = []
            answer = await remove(
                kube,
                resource=resource_of(made.objects[made.workload]),
                name=made.names.object,
                namespace=namespace,
                uid=uid,
                pods_selector=made.selector,
                wait_s=wait_s,
                say=said.append,
            )
            return answer, said

        async with connect(config) as kube:
            done = await carry_out(kube, order(made), [])
            running = ("get", "pods", "-n", namespace, selector, "--field-selector=status.phase=Running", "-o", "name")
            assert kubectl.wait_until(*running, limit_s=60)
            with faults.kubelet_down(bed, 2):
                answer, said = await removed(done.uid, 4.0)
                assert answer == "going"
                assert f"pod {namespace}/{made.names.object}-0-" in said[-1]
                assert "on node n2 should have ended" in said[-1]
                with faults.part_down(bed, "kube-apiserver"):
                    answer, said = await removed(done.uid, 2.0)
                    assert (answer, "cannot find out whether" in said[-1]) == ("unknown", True)
            answer, said = await removed(None, 60.0)
        assert answer == "gone"

    asyncio.run(story())
