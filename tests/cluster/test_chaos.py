"""Whole runs while the API server, or the way to it, fails again and again: one workload, every line once, and no more requests than stated."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster.chaos_world import OURS, PLUGIN, Chaos, counting, heard
from support.helpers import wait_until
from testbed import faults, kubeconfig
from testbed.bed import Bed
from testbed.client import Kubectl
from testbed.proxy import (
    Action,
    Answer,
    Cut,
    EndStream,
    HalfOpen,
    Match,
    Place,
    Proxy,
    Stall,
    WatchError,
    Way,
    When,
)

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]
BACKENDS = ("job", "jobset", "trainjob")

# What befalls every second request that is no stream, in turn. Each is passed by the request after it, so that every kind of request meets every
# kind of fault sooner or later, and a repeat gets through.
TROUBLE = (
    Answer(status=401),
    Answer(status=429, retry_after_s=1),
    Answer(status=500),
    Cut(),
    Cut(at=When(answered=True)),
    Answer(status=503),
    Stall(way=Way.UP, at=When(), for_s=1.0),
)
STRUCK = 60
# What befalls the logs, one after the other. The last stream is never heard of again: only the container's end tells that it is over.
STREAMS: dict[str, Action] = {
    "log-500": Answer(status=500),
    "log-cut": Cut(at=When(after_bytes=200)),
    "log-401": Answer(status=401),
    "log-end": EndStream(at=When(after_s=1.0)),
    "log-torn": EndStream(at=When(after_bytes=300), place=Place.INSIDE),
    "log-429": Answer(status=429, retry_after_s=1),
    "log-stall": Stall(at=When(after_bytes=200), for_s=2.0),
    "log-dead": HalfOpen(at=When(after_bytes=200)),
}
# Of docs/kubernetes.md, "How many requests": long-run rate and burst of both clients of a run together.
RATE, BURST = 20 + 50, 40 + 100
# Likewise: each stream that is refused is asked for again so often in the first quarter of a minute.
OUTAGE_S, STREAM_TRIES = 15.0, 12


@pytest.fixture
def chaos(bed: Bed, proxy: Proxy, kubectl: Kubectl, namespace: str, tmp_path: Path) -> Iterator[Chaos]:
    made = Chaos(bed, proxy, home=tmp_path / "home", kubectl=kubectl, namespace=namespace)
    yield made
    made.close()


def everything_fails(proxy: Proxy) -> None:
    """Every second request, each log again and again, one change in conflict, and a watch that is cut, then one whose history is gone."""
    for turn in range(STRUCK):
        match = Match(user_agent=OURS, follow=False, watch=False, nth=2 * turn + 1)
        proxy.add(f"trouble-{turn}", TROUBLE[turn % len(TROUBLE)], match)
    for number, (name, action) in enumerate(STREAMS.items(), start=1):
        proxy.add(name, action, Match(follow=True, user_agent=OURS, nth=number))
    proxy.add("conflict", Answer(status=409), Match(method="PATCH", user_agent=OURS, times=1))
    proxy.add("watch-cut", Cut(), Match(watch=True, user_agent=OURS, nth=1))
    proxy.add("history", WatchError(code=410, at=When(after_s=1.0)), Match(watch=True, user_agent=OURS, nth=2))


@pytest.mark.parametrize("backend", BACKENDS)
def test_launch_s12_a_whole_run_while_every_second_request_fails(chaos, backend):
    everything_fails(chaos.proxy)
    began = time.monotonic()
    done = chaos.run(counting(backend=backend, namespace=chaos.namespace, lines=120))
    took = time.monotonic() - began
    sent = chaos.requests()
    struck = chaos.proxy.counters().by_rule
    chaos.proxy.clear()
    assert done.returncode == 0, done.stderr
    chaos.whole(chaos.only_run().name, backend=backend, lines=120)
    assert {*STREAMS, "watch-cut", "history", *(f"trouble-{turn}" for turn in range(len(TROUBLE)))} <= struck.keys()
    # Never faster than stated, and far from it: so many faults cost hardly more than as many requests.
    assert sent <= BURST + RATE * took
    assert sent <= 120


@pytest.mark.parametrize("status", [429, 503])
def test_launch_s32_a_server_that_refuses_everything_for_a_while_is_not_pressed(chaos, status):
    spec = counting(backend="job", namespace=chaos.namespace, lines=250)
    with chaos.started(spec) as run:
        run.hear("line 5")
        chaos.proxy.add("trouble", Answer(status=status), Match(user_agent=OURS))
        before_it = chaos.proxy.counters().requests
        began = time.monotonic()
        chaos.proxy.cut_all()
        wait_until(lambda: time.monotonic() - began >= OUTAGE_S, timeout=2 * OUTAGE_S, what="the end of the outage")
        sent = chaos.proxy.counters().requests - before_it
        chaos.proxy.clear()
    chaos.whole(run.id, backend="job", lines=250)
    # The pods, two logs, and what is around the pods: Events of them and of nodes, the workload, two nodes.
    assert 3 <= sent <= 8 * STREAM_TRIES


def alive(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_launch_s32_a_run_survives_a_restart_of_the_api_server(bed, chaos, how):
    spec = counting(backend="job", namespace=chaos.namespace, lines=100)
    with chaos.started(spec) as run:
        run.hear("line 5")
        began = chaos.proxy.counters().requests
        with faults.part_down(bed, "kube-apiserver", how=how):
            pass
        back = chaos.proxy.counters().requests
    chaos.whole(run.id, backend="job", lines=100)
    # While it was away; the last reading of two logs and what a status costs come after.
    assert back - began <= 3 * STREAM_TRIES


def test_launch_s32_ranks_that_end_while_the_api_server_is_away_lose_no_line(bed, kubectl, chaos):
    with chaos.started(counting(backend="job", namespace=chaos.namespace, lines=60)) as run:
        run.hear("line 5")
        pods = kubectl.get("pods", "-n", chaos.namespace)["items"]
        pids = {pid for pod in pods for pid in faults.processes_of(bed, chaos.namespace, pod["metadata"]["name"])}
        assert pids
        with faults.part_down(bed, "kube-apiserver"):
            # On the nodes they run to their end, and nobody is told.
            wait_until(lambda: not any(alive(pid) for pid in pids), timeout=60, what="the end of both ranks")
    chaos.whole(run.id, backend="job", lines=60)


def test_launch_s50_a_token_that_is_revoked_is_renewed_in_logs_watch_and_cancel_alike(bed, chaos, kubectl, tmp_path):
    """A real one: bound to a Secret, it ends with that; the plug-in has the next one."""
    space = chaos.namespace
    session = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "session", "namespace": space}}
    kubectl.apply([session])
    make = ("create", "token", "rankfall", "--namespace", space)
    first = kubectl(*make, "--bound-object-kind", "Secret", "--bound-object-name", "session").strip()
    plugin = tmp_path / "login"
    plugin.write_text(PLUGIN)
    plugin.chmod(0o700)
    token = tmp_path / "login.token"
    token.write_text(first)
    chaos.log_in_by(plugin)

    spec = counting(backend="job", namespace=space, lines=150)
    counts, other = (
        chaos.cli("submit", "--file", str(chaos.file(spec | {"name": name}))) for name in ("count", "other")
    )
    assert (counts.returncode, other.returncode) == (0, 0), counts.stderr + other.stderr
    counts_id, other_id = counts.stdout.strip(), other.stdout.strip()
    runs = chaos.home / "runs"
    for run in (counts_id, other_id):
        wait_until(lambda run=run: heard(runs / run, "line 2"), timeout=90, what=f"a line of {run}")
    token.write_text(kubectl(*make).strip())
    kubectl("delete", "secret", "session", "--namespace", space)
    old = Kubectl(
        kubectl.program,
        kubeconfig.write(
            tmp_path / "old", server=bed.control.server, authority=bed.control.authority.cert, user="old", token=first
        ),
    )
    wait_until(lambda: old.run("auth", "whoami").returncode, timeout=60, what="the end of the first token")
    chaos.proxy.cut_all()
    cancelled = chaos.cli("cancel", other_id, "-y")
    assert cancelled.returncode == 0, cancelled.stderr
    assert chaos.document("status", counts_id)["state"] in {"running", "succeeded"}
    done = chaos.cli("wait", counts_id)
    assert done.returncode == 0, done.stderr
    chaos.whole(counts_id, backend="job", lines=150)
    log = [one for one in chaos.proxy.log() if one.user_agent.startswith("rankfall/")]
    refused = [one for one in log if one.status == 401]
    # Each run was refused what it had in flight and its next changes (Lease, cancel), and no more than that.
    assert {one.method for one in refused} >= {"GET", "PATCH"}
    assert len(refused) <= 2 * (3 + 2)
    for one in refused:
        assert any(
            (later.method, later.path) == (one.method, one.path) and 0 < later.status < 300
            for later in log
            if later.number > one.number
        )
    assert first not in "".join(path.read_text(errors="replace") for path in runs.rglob("*") if path.is_file())
