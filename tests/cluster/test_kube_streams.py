"""Watch, exec, logs and discovery against the real API server, its restarts, and a proxy that cuts."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import itertools
import json
import shutil
import signal
import subprocess
import sys
import uuid
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import datetime
from typing import Any

import pytest

from cluster.programs import pod
from rankfall.kube.auth.kubeconfig import load_access
from rankfall.kube.client import Kube
from rankfall.kube.discovery import discover
from rankfall.kube.errors import ApiError, Expired, Forbidden, KubeError, ObjectNotFound
from rankfall.kube.exec import protocol as exec_frames
from rankfall.kube.exec.protocol import ExecFailed, ExecLost, ExecTimeout, ExecUnsupported
from rankfall.kube.exec.session import execute, open_exec
from rankfall.kube.pod_logs import complaint, not_started, open_log
from rankfall.kube.resources import (
    CLUSTER_TRAINING_RUNTIMES,
    CONFIG_MAPS,
    JOBS,
    JOBSETS,
    NODES,
    PODS,
    TRAINJOBS,
)
from rankfall.kube.watch.pace import Pace
from rankfall.kube.watch.watcher import Event, watch
from testbed import accounts, faults, process
from testbed.proxy import Answer, Cut, Match, OldServer, When, before, old_answers

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

PACE = Pace(first=0.1, cap=1.0)


def play(story: Any, *, seconds: float = 200) -> Any:
    async def bounded() -> Any:
        async with asyncio.timeout(seconds):
            return await story

    return asyncio.run(bounded())


@pytest.fixture
def access(kubectl, namespace):
    # No pod can be made before the namespace's account is there.
    assert kubectl.wait_until("get", "serviceaccount", "default", "-n", namespace, limit_s=90)
    return load_access(kubeconfig=str(kubectl.kubeconfig), namespace=namespace)


@pytest.fixture
def through(proxy, kubectl, namespace, tmp_path):
    """The same user, through the proxy."""
    path = before.through(proxy.url, kubectl.kubeconfig, tmp_path / "kubeconfig")
    return load_access(kubeconfig=str(path), namespace=namespace)


# -- watch


class Seen:
    """What a watch of numbered config maps told."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.troubles: list[KubeError | None] = []
        self.changed = asyncio.Condition()
        self.stop = asyncio.Event()

    @property
    def numbers(self) -> dict[str, list[int]]:
        """What each object's number was, in the order in which it was told."""
        found: dict[str, list[int]] = defaultdict(list)
        for event in self.events:
            if event.type not in {"bookmark", "deleted"}:
                found[event.object["metadata"]["name"]].append(int(event.object["data"]["n"]))
        return found

    @property
    def state(self) -> dict[str, str]:
        """Version of each object that is there, as who only hears of changes knows it; told in an order that makes sense."""
        there: dict[str, str] = {}
        for event in self.events:
            if event.type == "bookmark":
                continue
            meta = event.object["metadata"]
            if event.type in {"listed", "added"}:
                assert meta["name"] not in there, event
            else:
                assert meta["name"] in there, event
            if event.type == "deleted":
                del there[meta["name"]]
            else:
                there[meta["name"]] = meta["resourceVersion"]
        return there

    async def run(self, access: Any) -> None:
        async with Kube(access) as kube:
            events = watch(kube, CONFIG_MAPS, labels="of=test", stop=self.stop, trouble=self.troubles.append, pace=PACE)
            async with contextlib.aclosing(events):
                async for event in events:
                    self.events.append(event)
                    async with self.changed:
                        self.changed.notify_all()

    async def until(self, condition: Callable[[], bool]) -> None:
        async with self.changed:
            await self.changed.wait_for(condition)


async def write(kube: Kube, name: str, number: int) -> str:
    """Set a config map's number, through whatever befalls the server; its version."""
    body = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, "labels": {"of": "test"}},
        "data": {"n": str(number)},
    }
    done = await kube.apply(CONFIG_MAPS, name, body, manager="writer", force=True)
    return str(done["metadata"]["resourceVersion"])


@contextlib.asynccontextmanager
async def watching(access: Any) -> AsyncIterator[Seen]:
    seen = Seen()
    async with asyncio.TaskGroup() as group:
        group.create_task(seen.run(access))
        await seen.until(lambda: any(event.type == "bookmark" for event in seen.events))
        yield seen
        seen.stop.set()


def test_a_watch_that_is_cut_loses_no_change_and_repeats_none(proxy, through, access):
    proxy.add("cut", Cut(at=When(random_bytes=(1, 8000))), Match(watch=True, seed=7))

    async def story() -> Seen:
        async with Kube(access, rate=1000) as writer, watching(through) as seen:
            for number in range(60):
                for name in ("a", "b", "c"):
                    await write(writer, name, number)
            await writer.delete(CONFIG_MAPS, "b")
            await write(writer, "b", 100)
            await seen.until(lambda: seen.numbers["b"][-1:] == [100])
            return seen

    seen = play(story())
    everything = list(range(60))
    assert seen.numbers == {"a": everything, "b": [*everything, 100], "c": everything}
    assert [event.object["metadata"]["name"] for event in seen.events if event.type == "deleted"] == ["b"]
    assert not any(event.vanished or event.type == "relisted" for event in seen.events)
    cuts = proxy.counters().by_rule["cut"]
    assert cuts >= 5
    # One list, then nothing but watches that go on where the last one was cut.
    lists = [record for record in proxy.log() if record.path.endswith("/configmaps") and "watch=" not in record.query]
    assert len(lists) == 1


def restart(bed: Any, how: signal.Signals) -> None:
    with faults.part_down(bed, "kube-apiserver", how=how):
        pass


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_launch_s32_a_watch_survives_a_restart_of_the_api_server(bed, kubectl, access, namespace, how):
    # As an account with just these rights: the server learns of them again when it starts.
    rules = [{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["list", "watch"]}]
    path = accounts.create(bed.control, kubectl, "watcher", namespace=namespace, rules=rules)
    watcher = load_access(kubeconfig=str(path), namespace=namespace)

    async def story() -> tuple[Seen, dict[str, str]]:
        async with Kube(access, rate=1000) as writer, watching(watcher) as seen:
            for name in ("stays", "changes", "goes", "returns"):
                await write(writer, name, 0)
            await seen.until(lambda: len(seen.numbers) == 4)

            down = asyncio.create_task(asyncio.to_thread(restart, bed, how))
            for number in itertools.count(1):
                with contextlib.suppress(KubeError):
                    await write(writer, "changes", number)
                if down.done():
                    break
                await asyncio.sleep(0.02)
            await down
            await writer.delete(CONFIG_MAPS, "goes")
            await writer.delete(CONFIG_MAPS, "returns")
            await write(writer, "returns", 1)
            version = await write(writer, "new", 1)
            await seen.until(
                lambda: any(event.object["metadata"]["resourceVersion"] == version for event in seen.events)
            )
            listed = await writer.list(CONFIG_MAPS, labels="of=test")
            return seen, {item["metadata"]["name"]: item["metadata"]["resourceVersion"] for item in listed.items}

    seen, truth = play(story())
    assert seen.state == truth
    assert set(truth) == {"stays", "changes", "returns", "new"}
    # Nothing told twice, nothing out of order, nothing of what did not change.
    for numbers in seen.numbers.values():
        assert numbers == sorted(set(numbers))
    assert seen.numbers["stays"] == [0]
    versions = [event.object["metadata"]["resourceVersion"] for event in seen.events if event.type != "bookmark"]
    deleted = sum(event.vanished for event in seen.events)
    assert len(set(versions)) >= len(versions) - deleted


def compact(bed: Any, revision: str) -> None:
    """Make etcd forget everything before a revision, as the API server does every five minutes."""
    program = (
        "import json, sys, urllib.request as r\n"
        "body = json.dumps({'revision': sys.argv[1], 'physical': True}).encode()\n"
        "print(r.urlopen('http://127.0.0.1:2379/v3/kv/compaction', body, timeout=30).read())\n"
    )
    words = ["nsenter", f"--net=/run/netns/{bed.layout.control_namespace}", sys.executable, "-c", program, revision]
    subprocess.run(words, check=True, capture_output=True, timeout=60)


def test_a_watch_goes_on_after_the_server_forgot_its_version(bed, proxy, through, access):
    async def story() -> tuple[Seen, dict[str, str]]:
        async with Kube(access, rate=1000) as writer:
            for name in ("stays", "changes", "goes", "returns"):
                await write(writer, name, 0)
            proxy.add("cut", Cut(at=When(called=True)), Match(watch=True))
            async with watching(through) as seen:
                # It cannot come back before the server has forgotten.
                proxy.add("away", Answer(status=503), Match(watch=True))
                proxy.fire("cut")
                await asyncio.to_thread(restart, bed, signal.SIGTERM)
                await write(writer, "changes", 1)
                await write(writer, "changes", 2)
                await writer.delete(CONFIG_MAPS, "goes")
                await writer.delete(CONFIG_MAPS, "returns")
                await write(writer, "returns", 5)
                version = await write(writer, "new", 1)
                compact(bed, version)
                proxy.remove("away")
                await seen.until(lambda: seen.numbers["new"] == [1])
                await write(writer, "new", 2)
                await seen.until(lambda: seen.numbers["new"] == [1, 2])
            listed = await writer.list(CONFIG_MAPS, labels="of=test")
            return seen, {item["metadata"]["name"]: item["metadata"]["resourceVersion"] for item in listed.items}

    seen, truth = play(story())
    assert any(isinstance(one, Expired) for one in seen.troubles)
    assert seen.state == truth
    told = [
        (event.type, event.object["metadata"]["name"], event.vanished)
        for event in seen.events
        if event.type != "bookmark"
    ]
    assert [one for one in told if one[0] == "listed"] == [
        ("listed", name, False) for name in ("changes", "goes", "returns", "stays")
    ]
    assert sorted(told[4:-1]) == [
        ("added", "new", False),
        ("added", "returns", False),
        ("deleted", "goes", True),
        ("deleted", "returns", True),
        ("relisted", "changes", False),
    ]
    assert told[-1] == ("modified", "new", False)
    # The last state that was seen of what vanished.
    goes = next(event for event in seen.events if event.vanished and event.object["metadata"]["name"] == "goes")
    assert goes.object["data"] == {"n": "0"}


def test_a_watch_without_the_right_to_watch_says_so(bed, kubectl, namespace):
    rules = [{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["list"]}]
    path = accounts.create(bed.control, kubectl, "lister", namespace=namespace, rules=rules)
    access = load_access(kubeconfig=str(path), namespace=namespace)

    async def story() -> list[str]:
        told: list[str] = []

        async def look(kube: Kube) -> None:
            async for event in watch(kube, CONFIG_MAPS):
                told.append(event.type)  # noqa: PERF401 - what came before the error counts

        async with Kube(access) as kube:
            with pytest.raises(Forbidden, match="watch"):
                await look(kube)
        return told

    assert play(story())[-1] == "bookmark"


# -- exec


@pytest.fixture(scope="module")
def sleeper(kubectl) -> Iterator[Any]:
    """A namespace with a pod that sleeps; how to reach it."""
    name = f"t-{uuid.uuid4().hex[:8]}"
    kubectl.create_namespace(name)
    kubectl.apply([pod("p", name, "sleep", "3600")])
    kubectl("wait", "--for=condition=Ready", "-n", name, "pod/p", "--timeout=90s")
    yield load_access(kubeconfig=str(kubectl.kubeconfig), namespace=name)
    kubectl.run("delete", "namespace", name, "--wait=false", "--ignore-not-found")


async def run(access: Any, *argv: str, timeout: float = 60, **options: Any) -> Any:  # noqa: ASYNC109 - passed on
    async with Kube(access) as kube:
        return await execute(kube, "p", argv, container="main", timeout=timeout, **options)


@pytest.fixture(params=["v5", "v4"])
def protocol(request, monkeypatch) -> str:
    """Asked for version 4 alone, the API server passes the kubelet's own websocket on, as all of them did before 1.30."""
    if request.param == "v4":
        monkeypatch.setattr(exec_frames, "PROTOCOLS", (exec_frames.V4,))
    return str(request.param)


@pytest.mark.parametrize(("words", "code"), [("exit 0", 0), ("exit 3", 3), ("kill -9 $$", 137), ("exit 255", 255)])
def test_exit_codes(sleeper, protocol, words, code):
    found = play(run(sleeper, "sh", "-c", f"echo out; echo err >&2; {words}"))
    assert (found.stdout, found.stderr, found.code) == (b"out\n", b"err\n", code)


def test_words_are_passed_as_they_are(sleeper):
    words = ["$HOME", "a b", "", "*", "`id`", "$(id)", "ü\n&command=x", "%41", "'\"\\", "--"]
    program = "import json, sys; print(json.dumps(sys.argv[1:]))"
    assert json.loads(play(run(sleeper, "python3", "-c", program, *words)).stdout) == words


BLOCK = bytes(range(256)) * 1024


async def there_and_back(access: Any, blocks: int) -> tuple[str, int, int | None]:
    digest, count = hashlib.sha256(), 0
    async with (
        Kube(access) as kube,
        open_exec(kube, "p", ["cat"], container="main", stdin=True, timeout=150) as session,
        asyncio.TaskGroup() as group,
    ):

        async def feed() -> None:
            for _ in range(blocks):
                await session.write(BLOCK)
            await session.close_stdin()

        group.create_task(feed())
        async for name, data in session.output():
            assert name == "stdout"
            digest.update(data)
            count += len(data)
    return digest.hexdigest(), count, session.code


def test_64_mib_through_stdin_and_back(sleeper):
    blocks = (64 << 20) // len(BLOCK)
    expected = hashlib.sha256()
    for _ in range(blocks):
        expected.update(BLOCK)
    assert play(there_and_back(sleeper, blocks)) == (expected.hexdigest(), 64 << 20, 0)


def test_stdin_ends_while_the_command_runs_on(sleeper):
    program = "import hashlib, sys; print(hashlib.sha256(sys.stdin.buffer.read()).hexdigest()); sys.exit(4)"
    found = play(run(sleeper, "python3", "-c", program, stdin=BLOCK))
    assert (found.stdout.decode().strip(), found.code) == (hashlib.sha256(BLOCK).hexdigest(), 4)


def test_an_older_protocol_cannot_end_stdin_but_can_count(sleeper, monkeypatch):
    monkeypatch.setattr(exec_frames, "PROTOCOLS", (exec_frames.V4,))
    with pytest.raises(ExecUnsupported):
        play(run(sleeper, "cat", stdin=b"x"))
    found = play(run(sleeper, "head", "-c", "100000", stdin=BLOCK[:100_000], stdin_ends=False))
    assert (found.stdout, found.code) == (BLOCK[:100_000], 0)


def test_a_command_that_reads_nothing_ends_all_the_same(sleeper):
    found = play(run(sleeper, "sh", "-c", "echo enough; exit 5", stdin=BLOCK[:10_000]))
    assert (found.stdout, found.code) == (b"enough\n", 5)


def test_megabytes_that_nobody_reads_hold_us_no_longer_than_the_time_out(sleeper, monkeypatch):
    """The kubelet's own connection is then full, and mostly it never tells of the end; kubectl waits for ever."""
    code, statuses, split = None, [], exec_frames.split

    def seen(message: bytes) -> tuple[int, bytes]:
        channel, data = split(message)
        if channel == exec_frames.STATUS:
            statuses.append(json.loads(data)["status"])
        return channel, data

    monkeypatch.setattr(exec_frames, "split", seen)
    # The kubelet's proxy stops both ways when its write to the container runtime fails; then the exit code may not have passed. The API
    # server reports its absence as Success (seen with 1.34.4; kubernetes/kubectl issue 1726), or its own status is lost when it closes
    # with stdin unread.
    with contextlib.suppress(ExecTimeout, ExecLost):
        code = play(run(sleeper, "sh", "-c", "exit 5", stdin=BLOCK * 256, timeout=5)).code
    assert (code, statuses) in [(5, ["Failure"]), (0, ["Success"])] or code is None


def test_a_command_that_takes_too_long_is_left_in_time(sleeper):
    async def story() -> None:
        with pytest.raises(ExecTimeout):
            await run(sleeper, "sleep", "3600", stdin=BLOCK * 64, timeout=2)

    play(story())


def test_a_program_that_is_not_there(sleeper, protocol):
    with pytest.raises(ExecFailed) as raised:
        play(run(sleeper, "no-such-program"))
    assert raised.value.why == "no_program"
    assert "no-such-program" in raised.value.message


def test_what_is_not_there_is_told_apart(sleeper, kubectl):
    namespace = sleeper.namespace
    kubectl.apply([pod("done", namespace, "true")])
    kubectl("wait", "--for=jsonpath={.status.phase}=Succeeded", "-n", namespace, "pod/done", "--timeout=60s")
    kubectl.apply([pod("homeless", namespace, "true", nodeSelector={"no": "node"})])

    async def story() -> list[KubeError]:
        found: list[KubeError] = []
        async with Kube(sleeper) as kube:
            for name, container in (("nobody", "main"), ("p", "other"), ("done", "main"), ("homeless", "main")):
                with pytest.raises(KubeError) as raised:
                    await execute(kube, name, ["true"], container=container, timeout=30)
                found.append(raised.value)
        return found

    no_pod, no_container, ended, homeless = play(story())
    assert isinstance(no_pod, ObjectNotFound)
    assert isinstance(no_container, ApiError)
    assert "container other is not valid for pod p" in no_container.message
    assert isinstance(ended, ExecFailed)
    assert ended.why == "no_container"
    assert isinstance(homeless, ApiError)
    assert "does not have a host assigned" in homeless.message


def test_a_container_that_is_down_between_two_starts(sleeper, kubectl):
    fails = pod("fails", sleeper.namespace, "false")
    fails["spec"]["restartPolicy"] = "OnFailure"
    kubectl.apply([fails])
    kubectl(
        "wait",
        "--for=jsonpath={.status.containerStatuses[0].state.waiting.reason}=CrashLoopBackOff",
        "-n",
        sleeper.namespace,
        "pod/fails",
        "--timeout=90s",
    )

    async def story() -> None:
        async with Kube(sleeper) as kube:
            with pytest.raises(ExecFailed) as raised:
                await execute(kube, "fails", ["true"], container="main", timeout=30)
        assert raised.value.why == "no_container"

    play(story())


def test_an_exec_that_is_cut_is_of_unknown_end(proxy, sleeper, kubectl, tmp_path):
    path = before.through(proxy.url, kubectl.kubeconfig, tmp_path / "kubeconfig")
    access = load_access(kubeconfig=str(path), namespace=sleeper.namespace)
    proxy.add("cut", Cut(at=When(called=True)), Match(path="/exec$"))

    async def story() -> None:
        async with (
            Kube(access) as kube,
            open_exec(kube, "p", ["sh", "-c", "echo one; sleep 60"], container="main", timeout=60) as session,
        ):
            output = session.output()
            assert await anext(output) == ("stdout", b"one\n")
            proxy.fire("cut")
            with pytest.raises(ExecLost):
                await anext(output)

    play(story())


# -- logs


def test_a_log_is_followed_to_its_end_and_read_again(kubectl, access, namespace):
    program = "import time\nfor n in range(200):\n    print('line', n, flush=True)\n    time.sleep(0.01)\nprint('no end', end='')"
    kubectl.apply([pod("p", namespace, "python3", "-u", "-c", program)])

    async def read(kube: Kube, **options: Any) -> bytes:
        async with open_log(kube, "p", container="main", **options) as chunks:
            return b"".join([chunk async for chunk in chunks])

    async def story() -> tuple[bytes, bytes, bytes]:
        async with Kube(access) as kube:
            stop = asyncio.Event()
            async for event in watch(kube, PODS, stop=stop):
                if event.type != "bookmark" and event.object["status"].get("containerStatuses"):
                    states = event.object["status"]["containerStatuses"][0]["state"]
                    if not {"running", "terminated"}.isdisjoint(states):
                        stop.set()
            followed = await read(kube, follow=True, read_timeout=60)
            return followed, await read(kube, timestamps=False), await read(kube, timestamps=False, tail=3)

    followed, again, tail = play(story())
    lines = [f"line {number}".encode() for number in range(200)]
    assert again == b"\n".join([*lines, b"no end"])
    stamped = followed.split(b"\n")
    assert [line.partition(b" ")[2] for line in stamped] == [*lines, b"no end"]
    assert tail == b"line 198\nline 199\nno end"

    async def later() -> bytes:
        async with Kube(access) as kube:
            second = stamped[150].partition(b".")[0].decode()
            since = datetime.fromisoformat(f"{second}+00:00")
            return await read(kube, since=since)

    assert play(later()).endswith(b"\n".join(stamped[150:]))


def test_no_log_yet_and_no_previous_one_are_told_apart(access, kubectl, namespace):
    kubectl.apply(
        [pod("waits", namespace, "true", image="rankfall.test/nothing:1"), pod("p", namespace, "sleep", "600")]
    )
    kubectl("wait", "--for=condition=Ready", "-n", namespace, "pod/p", "--timeout=60s")
    kubectl(
        "wait",
        "--for=jsonpath={.status.containerStatuses[0].state.waiting.reason}=ErrImageNeverPull",
        "-n",
        namespace,
        "pod/waits",
        "--timeout=60s",
    )

    async def story() -> list[KubeError]:
        found: list[KubeError] = []
        async with Kube(access) as kube:
            for name, container, previous in (
                ("waits", "main", False),
                ("p", "main", True),
                ("p", "other", False),
                ("nobody", "main", False),
            ):
                with pytest.raises(KubeError) as raised:
                    async with open_log(kube, name, container=container, previous=previous):
                        pass
                found.append(raised.value)
        return found

    waits, no_previous, no_container, no_pod = play(story())
    assert isinstance(waits, ApiError)
    assert (waits.status, not_started(waits.message)) == (400, "ErrImageNeverPull")
    for error in (no_previous, no_container):
        assert isinstance(error, ApiError)
        assert (error.status, not_started(error.message)) == (400, None)
    assert "previous terminated container" in no_previous.message
    assert isinstance(no_pod, ObjectNotFound)


def test_launch_s31_what_a_real_kubelet_writes_when_the_log_is_gone(bed, kubectl, access, namespace):
    kubectl.apply([pod("p", namespace, "echo", "hello", nodeName="n1")])
    kubectl("wait", "--for=jsonpath={.status.phase}=Succeeded", "-n", namespace, "pod/p", "--timeout=60s")
    status = kubectl.get("pod", "-n", namespace, "p")["status"]["containerStatuses"][0]
    container = status["state"]["terminated"]["containerID"].rpartition("/")[2]

    async def body() -> bytes:
        async with Kube(access) as kube, open_log(kube, "p", container="main") as chunks:
            return b"".join([chunk async for chunk in chunks])

    assert play(body()).endswith(b" hello\n")
    node = bed.node(1)
    uid = kubectl.get("pod", "-n", namespace, "p")["metadata"]["uid"]
    shutil.rmtree(node.folder / "pod-logs" / f"{namespace}_p_{uid}" / "main")
    found = complaint(play(body()))
    assert found is not None
    assert (found.kind, "no such file or directory" in found.text) == ("gone", True)
    done = node._ctr("containers", "delete", container)
    assert done.returncode == 0, done.stderr
    # The runtime looks at what there is when it starts.
    process.stop(bed.layout, "n1-containerd")
    node.start_containerd()
    found = complaint(play(body()))
    assert found is not None
    assert (found.kind, found.text) == ("gone", f"unable to retrieve container logs for containerd://{container}")


# -- discovery


def jobset(namespace: str) -> dict[str, Any]:
    template = pod("x", namespace, "true")["spec"]
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": "j", "namespace": namespace},
        "spec": {
            "network": {"enableDNSHostnames": True, "publishNotReadyAddresses": True},
            "successPolicy": {"operator": "All"},
            "replicatedJobs": [
                {
                    "name": "node",
                    "replicas": 1,
                    "template": {
                        "spec": {
                            "completionMode": "Indexed",
                            "completions": 1,
                            "parallelism": 1,
                            "template": {"metadata": {"labels": {"a/b": "c"}}, "spec": template},
                        }
                    },
                }
            ],
        },
    }


def test_what_is_said_to_be_dropped_is_what_the_server_drops(access, namespace, tmp_path):
    async def story() -> tuple[list[str], list[str], str, int]:
        async with Kube(access) as kube:
            asked = [JOBS, PODS, NODES, JOBSETS, TRAINJOBS, CLUSTER_TRAINING_RUNTIMES]
            served = await discover(kube, asked, cache=tmp_path / "cache")
            assert served.version == await kube.version()
            assert all(served.serves(resource) for resource in asked)
            assert served.offers(TRAINJOBS, "spec", "podSpecOverrides")
            assert not served.offers(TRAINJOBS, "spec", "podTemplateOverrides")
            good, bad = jobset(namespace), jobset(namespace)
            template = bad["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]
            template["spec"]["containers"][0]["restartPolicyRules"] = [{"action": "Restart"}]
            template["metadata"]["lables"] = {"x": "y"}
            bad["spec"]["groups"] = [{"name": "x"}]
            # The client asks for strict checking, so a good one is taken whole.
            await kube.create(JOBSETS, good, dry_run=True)
            with pytest.raises(ApiError) as raised:
                await kube.create(JOBSETS, bad, dry_run=True)
            before_again = kube.counters.requests
            again = await discover(kube, asked, cache=tmp_path / "cache")
            assert again.pruned(bad) == served.pruned(bad)
            return served.pruned(good), served.pruned(bad), raised.value.message, kube.counters.requests - before_again

    good, bad, message, requests = play(story())
    assert good == []
    role = "spec.replicatedJobs[0].template.spec.template"
    assert bad == [f"$.{role}.metadata.lables", f"$.{role}.spec.containers[0].restartPolicyRules", "$.spec.groups"]
    for path in bad:
        assert f'unknown field "{path.removeprefix("$.")}"' in message
    assert message.count("unknown field") == len(bad)
    # The version and the index; the schemas have not changed.
    assert requests == 2


def test_an_account_without_any_right_may_discover(bed, kubectl, namespace):
    path = accounts.create(bed.control, kubectl, "nobody", namespace=namespace, rules=[])

    async def story() -> bool:
        async with Kube(load_access(kubeconfig=str(path), namespace=namespace)) as kube:
            return (await discover(kube, [JOBS, JOBSETS])).serves(JOBSETS)

    assert play(story())


@pytest.mark.parametrize("minor", ["1.25", "1.30", "1.33"])
def test_an_older_server_with_custom_resources(proxy, through, minor):
    proxy.add("old", OldServer(folder=str(old_answers.make(minor))))

    async def story() -> Any:
        async with Kube(through) as kube:
            return await discover(kube, [JOBS, JOBSETS, TRAINJOBS])

    served = play(story())
    assert served.version == (1, int(minor.partition(".")[2]))
    assert served.serves(JOBSETS)
    assert served.serves(TRAINJOBS)
    job = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "spec": {"backoffLimitPerIndex": 1, "podReplacementPolicy": "Failed"},
    }
    assert bool(served.pruned(job)) is (minor == "1.25")
    assert served.pruned(jobset("x")) == []
