"""Transfers over exec: cut anywhere they go on, a lost pod is replaced, what never runs is told at once, and no pod is left."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from backends.kubernetes.mover_world import RUNNING, Cluster, cluster
from inside.test_carry import odd_tree
from rankfall.backends import files
from rankfall.backends.kubernetes.copy import copy_pod, transfer, workspace
from rankfall.backends.kubernetes.copy import transfer as movers
from rankfall.backends.kubernetes.copy.copy_pod import manifest, running
from rankfall.backends.kubernetes.copy.transfer import copy_pod_of
from rankfall.kube.client import Kube
from rankfall.model import InfrastructureError, Kubernetes, Workspace, spec_from
from rankfall.rundir import RunDir
from rankfall_inside.transfer.tree import scan
from support.carry_world import picture

Story = Callable[[Cluster, Kube], Awaitable[Any]]


@pytest.fixture
def play(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Story], Any]:
    monkeypatch.setattr(copy_pod, "_LOOK_S", 0.02)
    monkeypatch.setattr(copy_pod, "_EVENTS_AFTER_S", 0.0)
    monkeypatch.setattr(movers, "_PAUSE_S", 0.01)

    def go(story: Story) -> Any:
        async def all_of_it() -> Any:
            async with cluster(tmp_path) as (made, kube, _):
                found = await story(made, kube)
                assert not [pod for pod in made.pods.values() if pod["metadata"]["uid"].startswith("made")]
                return found

        return asyncio.run(all_of_it())

    return go


async def put(
    made: Cluster, kube: Kube, source: Path, below: bytes, say: Callable[[str], None] = lambda _: None
) -> Any:
    async with copy_pod_of(kube, made.volume, say=say) as one:
        return await one.put(scan(os.fsencode(source)), below)


def test_there_and_back_through_one_pod(play, tmp_path):
    source = odd_tree(tmp_path / "source")

    async def story(made: Cluster, kube: Kube) -> None:
        async with copy_pod_of(kube, made.volume, say=print) as one:
            counts = await one.put(scan(os.fsencode(source)), b"a/b c")
            again = await one.put(scan(os.fsencode(source)), b"a/b c")
            back = await one.get(b"a/b c", tmp_path / "back", exclude=["*.sh"])
        assert (counts.files, again.same, again.sent, back.files) == (4, 4, 0, 3)
        assert len(made.made) == 1

    play(story)
    assert picture(tmp_path / "volume" / "a" / "b c") == picture(source)
    assert len(picture(tmp_path / "back")) == len(picture(source)) - 1


def test_cuts_are_gone_on_with_in_the_same_pod(play, tmp_path):
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "big").write_bytes(os.urandom(2_000_000))
    said: list[str] = []

    async def story(made: Cluster, kube: Kube) -> Any:
        made.cuts = [10, 400_000, 800_000]
        counts = await put(made, kube, tmp_path / "source", b"x", said.append)
        assert (made.sessions, len(made.made)) == (4, 1)
        return counts

    counts = play(story)
    assert picture(tmp_path / "volume" / "x") == picture(tmp_path / "source")
    assert counts.sent < 2_000_000
    assert len([line for line in said if "was cut and resumes" in line]) == 3


def test_a_cut_that_the_api_server_calls_a_success_is_a_cut(play, tmp_path):
    """The frame that Kubernetes 1.34 sends when its connection to the kubelet ends without the exit code."""
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "big").write_bytes(os.urandom(2_000_000))
    said: list[str] = []

    async def story(made: Cluster, kube: Kube) -> None:
        made.cut_says = b'\x03{"metadata":{},"status":"Success"}'
        made.cuts = [10, 400_000, 800_000]
        await put(made, kube, tmp_path / "source", b"x", said.append)
        assert made.sessions == 4

    play(story)
    assert picture(tmp_path / "volume" / "x") == picture(tmp_path / "source")
    assert len([line for line in said if "was cut and resumes" in line]) == 3


def test_a_pod_that_is_lost_is_replaced_by_another(play, tmp_path):
    (tmp_path / "big").write_bytes(os.urandom(1_000_000))

    async def story(made: Cluster, kube: Kube) -> None:
        made.cuts = [300_000, 300_000]
        made.on_cut = lambda world: world.pods.clear()
        await put(made, kube, tmp_path / "big", b"big")
        assert len(made.made) == 3
        assert len({pod["metadata"]["name"] for pod in made.made}) == 3

    play(story)
    assert (tmp_path / "volume" / "big").read_bytes() == (tmp_path / "big").read_bytes()


def test_cuts_without_progress_end(play, tmp_path):
    (tmp_path / "x").write_text("x")

    async def story(made: Cluster, kube: Kube) -> None:
        made.cuts = [10] * 10
        with pytest.raises(InfrastructureError, match="cut 6 times in a row") as caught:
            await put(made, kube, tmp_path / "x", b"x")
        assert "run the same command again: it resumes" in str(caught.value)

    play(story)


def test_what_the_other_side_cannot_do_is_said_in_its_words(play, tmp_path):
    source = odd_tree(tmp_path / "source")

    async def story(made: Cluster, kube: Kube) -> None:
        (tmp_path / "volume" / "x").write_text("in the way")
        with pytest.raises(InfrastructureError, match="a folder cannot replace a file"):
            await put(made, kube, source, b"x")
        async with copy_pod_of(kube, made.volume, say=print) as one:
            with pytest.raises(InfrastructureError, match="No such file"):
                await one.get(b"nothing", tmp_path / "y")
        (tmp_path / "source" / "word").write_text("1")
        tree = scan(os.fsencode(source))
        (tmp_path / "source" / "word").write_text("12")
        async with copy_pod_of(kube, made.volume, say=print) as one:
            with pytest.raises(InfrastructureError, match="changed during the copy"):
                await one.put(tree, b"z")
        assert made.sessions == 3

    play(story)


def test_an_image_without_python_and_one_that_breaks_are_named(play, tmp_path, monkeypatch):
    (tmp_path / "x").write_text("x")

    async def story(made: Cluster, kube: Kube) -> None:
        monkeypatch.setattr(movers, "_FIND", f"exit {movers._NO_PYTHON}")
        with pytest.raises(InfrastructureError, match="image i has no Python"):
            await put(made, kube, tmp_path / "x", b"x")
        monkeypatch.setattr(movers, "_FIND", "echo it broke >&2; exit 3")
        with pytest.raises(InfrastructureError, match="ended with code 3: it broke"):
            await put(made, kube, tmp_path / "x", b"x")

    play(story)


def test_a_side_that_is_silent_counts_as_gone(play, tmp_path, monkeypatch):
    (tmp_path / "x").write_text("x")
    monkeypatch.setattr(transfer, "_PING_S", 0.02)
    monkeypatch.setattr(transfer, "_SILENT_S", 0.1)

    async def story(made: Cluster, kube: Kube) -> None:
        made.deaf = True
        with pytest.raises(InfrastructureError, match="in a row"):
            await put(made, kube, tmp_path / "x", b"x")

    play(story)


def test_who_is_cancelled_leaves_no_pod(play, tmp_path):
    (tmp_path / "x").write_text("x")

    async def story(made: Cluster, kube: Kube) -> None:
        made.deaf = True
        task = asyncio.create_task(put(made, kube, tmp_path / "x", b"x"))
        await made.begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    play(story)


def waiting(reason: str, message: str = "") -> dict[str, Any]:
    return {"phase": "Pending", "containerStatuses": [{"state": {"waiting": {"reason": reason, "message": message}}}]}


UNSCHEDULABLE = {
    "phase": "Pending",
    "conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/2 nodes"}],
}
ATTACH = {"reason": "FailedAttachVolume", "message": "Multi-Attach error for volume"}


@pytest.mark.parametrize(
    ("states", "events", "words"),
    [
        (
            [waiting("ContainerCreating"), waiting("ErrImagePull", "x"), waiting("ImagePullBackOff", "no such")],
            [],
            "no such",
        ),
        ([waiting("ErrImageNeverPull")], [], "ErrImageNeverPull"),
        ([waiting("StartError", 'exec: "sh": executable file not found in $PATH')], [], "image i has no sh"),
        ([UNSCHEDULABLE], [], "no node accepts it: 0/2 nodes"),
        ([waiting("ContainerCreating")], [ATTACH], "Multi-Attach"),
        ([{"phase": "Failed", "reason": "OutOfcpu", "message": "no cpu"}], [], "OutOfcpu: no cpu"),
        ([{"phase": "Succeeded"}], [], "Succeeded"),
    ],
)
def test_launch_s54_what_never_runs_is_told_at_once(play, states, events, words):
    async def story(made: Cluster, kube: Kube) -> None:
        made.states, made.events = states, events
        with pytest.raises(InfrastructureError, match=words):
            async with running(kube, made.volume, say=print, unschedulable_s=0.1):
                pass

    play(story)


def test_a_start_that_takes_its_time_is_told_once(play, monkeypatch):
    said: list[str] = []

    async def story(made: Cluster, kube: Kube) -> None:
        made.states = [waiting("ContainerCreating")] * 4 + [RUNNING]
        made.events = [{"reason": "FailedMount", "message": "timed out"}, {"reason": "Scheduled", "message": "yes"}]
        async with running(kube, made.volume, say=said.append):
            pass
        made.states = [waiting("ContainerCreating")]
        monkeypatch.setattr(copy_pod, "_STARTING_S", 0.05)
        with pytest.raises(InfrastructureError, match="did not start within"):
            async with running(kube, made.volume, say=said.append):
                pass

    play(story)
    assert said[0] == "the pod that copies waits: ContainerCreating: timed out"


def test_a_quota_or_a_claim_that_cannot_be_used_is_told(play):
    async def story(made: Cluster, kube: Kube) -> None:
        made.refusal = (403, "Forbidden", "exceeded quota: none")
        with pytest.raises(InfrastructureError, match="exceeded quota"):
            async with running(kube, made.volume, say=print):
                pass
        for claim, words in (
            (None, "not found"),
            ({"status": {"phase": "Lost"}}, "its volume is lost"),
        ):
            made.claim = claim
            with pytest.raises(InfrastructureError, match=words):
                async with running(kube, made.volume, say=print):
                    pass
        assert made.made == []

    play(story)


def test_a_volume_of_one_node_is_followed_there(play):
    user = {
        "metadata": {"name": "train-0", "uid": "u"},
        "spec": {"nodeName": "n7", "volumes": [{"persistentVolumeClaim": {"claimName": "team"}}]},
        "status": {"phase": "Running"},
    }
    other = {"metadata": {"name": "x", "uid": "v"}, "spec": {"nodeName": "n1"}, "status": {"phase": "Running"}}
    dead = {"metadata": {"name": "rankfall-cp-1", "uid": "w"}, "status": {"phase": "Succeeded"}}

    async def story(made: Cluster, kube: Kube) -> None:
        made.claim = {"spec": {"accessModes": ["ReadWriteOnce"]}}
        made.pods = {"x": other, "train-0": user, "rankfall-cp-1": dead}
        async with running(kube, made.volume, say=print):
            assert "rankfall-cp-1" not in made.pods, "what a dead client left is removed"
        assert "'n7'" in str(made.made[0]["spec"]["affinity"])
        made.claim = {"spec": {"accessModes": ["ReadWriteOncePod"]}}
        with pytest.raises(InfrastructureError, match="used by pod train-0"):
            async with running(kube, made.volume, say=print):
                pass
        del made.pods["train-0"]
        made.claim = {"spec": {"accessModes": ["ReadWriteOnce"]}}
        async with running(kube, made.volume, say=print):
            pass
        assert "affinity" not in made.made[1]["spec"]

    play(story)


def test_the_pod_may_little_and_ends_by_itself(tmp_path):
    body = manifest(Cluster(tmp_path).volume, name="n", transfer="t")
    pod = body["spec"]
    assert pod["activeDeadlineSeconds"] == 12 * 3600
    assert pod["automountServiceAccountToken"] is False
    (container,) = pod["containers"]
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert set(container["resources"]) == {"requests", "limits"}
    assert body["metadata"]["labels"]["app.kubernetes.io/managed-by"] == "rankfall"
    assert "rankfall.dev/run" not in body["metadata"]["labels"], "no pod of an attempt"


def test_code_is_brought_once_and_its_list_comes_last(play, tmp_path):
    source = odd_tree(tmp_path / "source")
    spec = spec_from(
        {
            "backend": "job",
            "command": ["x.py"],
            "code": str(source),
            "kubernetes": {
                "image": "i",
                "workspace": {"claim": "team", "path": str(tmp_path / "volume"), "folder": "ann/x"},
            },
        }
    )
    run = RunDir.create(spec, home=tmp_path / "home", fill=lambda fresh: odd_tree(fresh / "code"))

    async def story(made: Cluster, kube: Kube) -> None:
        made.cuts = [200_000]
        for _ in range(2):
            await workspace.upload_code(kube, run, namespace="here", say=print)
        assert len(made.made) == 1

    play(story)
    place = tmp_path / "volume" / "ann" / "x" / run.id
    assert picture(place / "code") == picture(source)
    assert (place / "code.json").read_bytes() == (run.path / "kube" / "code.json").read_bytes()


def test_launch_s55_the_files_of_a_run_and_of_a_claim_are_found_through_what_is_recorded(tmp_path, monkeypatch):
    (tmp_path / "x").write_text("x")
    kubeconfig = tmp_path / "config"
    base = {"kubeconfig": str(kubeconfig), "context": "c", "namespace": "here"}
    volume = {"claim": "team", "path": str(tmp_path / "volume"), "image": "i", "folder": "ann/x"}

    async def all_of_it() -> None:
        async with cluster(tmp_path) as (_, _, server):
            kubeconfig.write_text(
                f"apiVersion: v1\nkind: Config\ncurrent-context: c\nclusters: [{{name: k, cluster: {{server: '{server.access().endpoint.server}'}}}}]\n"
                "users: [{name: u, user: {}}]\ncontexts: [{name: c, context: {cluster: k, user: u}}]\n"
            )
            spec = spec_from(
                {"backend": "job", "command": ["x"], "kubernetes": {**base, "image": "j", "workspace": volume}}
            )
            place = workspace.place_of_run(spec, "x-000001", say=print, image="other")
            assert place is not None
            done = await files.put(place, [tmp_path / "x"], "in/")
            assert (done.files, done.sent) == (1, 1)
            assert (tmp_path / "volume" / "ann" / "x" / "x-000001" / "code" / "in" / "x").read_text() == "x"
            section = Kubernetes(**base, workspace=Workspace(claim="team", path=str(tmp_path / "volume"), image="i"))
            whole = workspace.place_of_claim(section, say=print)
            back = await files.get(whole, "ann/x/x-000001/code/in", tmp_path / "back", into=False)
            assert back.files == 1
            assert (tmp_path / "back" / "x").read_text() == "x"
            plain = spec_from({"backend": "job", "command": ["x"], "kubernetes": {**base, "image": "j"}})
            assert workspace.place_of_run(plain, "x-000001", say=print) is None

    asyncio.run(all_of_it())
