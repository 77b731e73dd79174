"""The fault proxy before the real API server: nobody notices it, and each fault reaches a real client."""

from __future__ import annotations

import json
import subprocess
import time
from datetime import UTC, datetime, timedelta

import pytest

from cluster.programs import pod
from support.helpers import wait_until
from testbed import kubeconfig
from testbed.client import Kubectl
from testbed.proxy import (
    Answer,
    Cut,
    EndStream,
    HalfOpen,
    How,
    Match,
    OldServer,
    ShiftTimes,
    WatchError,
    When,
    before,
    old_answers,
)

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(240)]

COUNTS = """
import time
for number in range(100000):
    print("line", number, time.time(), flush=True)
    time.sleep(0.02)
"""
FOLLOW = Match(follow=True)


@pytest.fixture
def guest(bed, proxy, kubectl, tmp_path) -> Kubectl:
    """The administrator, through the proxy."""
    path = before.through(proxy.url, kubectl.kubeconfig, tmp_path / "kubeconfig")
    return Kubectl(kubectl.program, path)


@pytest.fixture
def counter(kubectl, namespace) -> str:
    """A pod on n1 that says something fifty times a second."""
    kubectl.apply([pod("counts", namespace, "python3", "-c", COUNTS, nodeName="n1")])
    kubectl("wait", "--for=condition=Ready", "-n", namespace, "pod/counts", "--timeout=60s")
    return namespace


def test_users_stay_who_they_are(proxy, guest, kubectl, namespace, tmp_path):
    assert guest("auth", "whoami", "-o", "jsonpath={.status.userInfo.username}") == "kubernetes-admin"
    kubectl("create", "serviceaccount", "bot", "-n", namespace)
    token = kubectl("create", "token", "bot", "-n", namespace).strip()
    path = kubeconfig.write(
        tmp_path / "bot", server=proxy.url, authority=proxy._settings.authority, user="bot", token=token
    )
    bot = Kubectl(kubectl.program, path)
    name = bot("auth", "whoami", "-o", "jsonpath={.status.userInfo.username}")
    assert name == f"system:serviceaccount:{namespace}:bot"
    refused = bot.run("get", "secrets", "-n", namespace)
    assert f'User "{name}" cannot list' in refused.stderr
    assert token not in repr(proxy.log())


@pytest.mark.parametrize("websockets", ["true", "false"])
def test_exec_passes_through_as_websocket_and_as_spdy(proxy, guest, counter, websockets, monkeypatch):
    monkeypatch.setenv("KUBECTL_REMOTE_COMMAND_WEBSOCKETS", websockets)
    done = guest.run("exec", "-i", "-n", counter, "counts", "--", "sh", "-c", "wc -c; exit 3", text="x" * 300_000)
    assert done.stdout.strip() == "300000"
    assert "exit code 3" in done.stderr
    assert [record.status for record in proxy.log() if record.path.endswith("/exec")] == [101]


def test_an_exec_is_cut(proxy, guest, counter):
    proxy.add("cut", Cut(at=When(called=True)), Match(path="/exec$"))
    command = guest.command("exec", "-n", counter, "counts", "--", "sleep", "600")
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as running:
        wait_until(lambda: any(record.status == 101 for record in proxy.log()), timeout=30, what="the exec")
        proxy.fire("cut")
        assert "connection reset by peer" in running.communicate(timeout=30)[1]


@pytest.mark.parametrize(
    ("action", "end"),
    [
        (EndStream(at=When(after_bytes=500)), (0, "")),
        (Cut(how=How.FIN, at=When(after_bytes=505)), (1, "unexpected EOF")),
        (Cut(at=When(after_s=1.0)), (1, "connection reset by peer")),
    ],
)
def test_how_a_follow_ends(proxy, guest, counter, action, end):
    proxy.add("end", action, FOLLOW)
    done = guest.run("logs", "-f", "-n", counter, "counts")
    assert done.returncode == end[0]
    assert end[1] in done.stderr
    assert proxy.counters().by_rule == {"end": 1}


def test_a_half_open_follow_hangs_until_it_is_released(proxy, guest, counter):
    proxy.add("dead", HalfOpen(at=When(after_bytes=500)), FOLLOW)
    with subprocess.Popen(guest.command("logs", "-f", "-n", counter, "counts"), stdout=subprocess.PIPE) as running:
        wait_until(lambda: proxy.counters().by_rule == {"dead": 1}, timeout=30, what="the fault")
        with pytest.raises(subprocess.TimeoutExpired):
            running.wait(3)
        proxy.release("dead")
        assert running.wait(30) == 1


def test_answers_instead_of_the_server_reach_a_client(proxy, guest, namespace):
    words = ("get", "configmaps", "-n", namespace, "-o", "name")
    proxy.add("busy", Answer(status=429, retry_after_s=1), Match(path="/configmaps$", times=1))
    began = time.monotonic()
    assert "kube-root-ca.crt" in guest(*words)
    assert time.monotonic() - began >= 1
    for code, complaint in {401: "Unauthorized", 403: "Forbidden", 500: "InternalError", 409: "Conflict"}.items():
        with proxy.fault("no", Answer(status=code), Match(path="/configmaps$")):
            assert complaint.lower() in guest.run(*words).stderr.lower()
    with proxy.fault("gone", WatchError(), Match(watch=True)):
        said = guest("get", "configmaps", "-n", namespace, "-o", "json", "--watch-only")
        assert '"code": 410' in said


def test_the_clock_of_one_node_is_wrong_in_logs_statuses_and_leases(proxy, guest, kubectl, counter):
    hour = timedelta(hours=1)

    def seen(who: Kubectl) -> dict[str, datetime]:
        state = who.get("pod", "-n", counter, "counts")["status"]
        leases = who.get("leases", "-n", "kube-node-lease")["items"]
        renewed = {item["metadata"]["name"]: item["spec"]["renewTime"] for item in leases}
        line = who("logs", "-n", counter, "counts", "--timestamps", "--limit-bytes=60").split()[0]
        stamps = {
            "started": state["containerStatuses"][0]["state"]["running"]["startedAt"],
            "log": line[:26],
            "n1": renewed["n1"],
            "n2": renewed["n2"],
        }
        return {name: datetime.fromisoformat(stamp).replace(tzinfo=UTC) for name, stamp in stamps.items()}

    proxy.pods({f"{counter}/counts": "n1"})
    proxy.add("clock", ShiftTimes(node="n1", seconds=3600))
    wrong, right = seen(guest), seen(kubectl)
    assert (wrong["started"], wrong["log"]) == (right["started"] + hour, right["log"] + hour)
    # Leases are renewed all the time.
    assert abs(wrong["n1"] - right["n1"] - hour) < timedelta(minutes=1)
    assert abs(wrong["n2"] - right["n2"]) < timedelta(minutes=1)
    since = (datetime.now(UTC) + hour - timedelta(seconds=1)).strftime("%Y-%m-%dT%H:%M:%SZ")
    lines = guest("logs", "-n", counter, "counts", f"--since-time={since}").splitlines()
    assert 10 < len(lines) < 1000
    proxy.clear()
    assert seen(guest)["log"] == right["log"]


@pytest.mark.parametrize("minor", sorted(old_answers.VERSIONS))
def test_kubectl_believes_in_an_older_server(proxy, guest, tmp_path, minor):
    proxy.add("old", OldServer(folder=str(old_answers.make(minor))))
    cache = f"--cache-dir={tmp_path}/cache"
    version = json.loads(guest("version", "-o", "json", cache))["serverVersion"]["gitVersion"]
    assert version == f"v{old_answers.VERSIONS[minor]}"
    resources = {
        line.split()[0]: line.split()[1:] for line in guest("api-resources", "--no-headers", cache).splitlines()
    }
    assert resources["pods"][:3] == ["po", "v1", "true"]
    assert resources["jobsets"][0] == "jobset.x-k8s.io/v1alpha2"
    assert resources["trainjobs"][0] == "trainer.kubeflow.org/v1alpha1"
    assert "resourceclaims" not in resources
    assert "FIELDS" in guest("explain", "job.spec", cache)
    assert "FIELDS" in guest("explain", "jobset.spec", cache)
    assert {"node/n1", "node/n2"} <= set(guest("get", "nodes", "-o", "name", cache).split())
