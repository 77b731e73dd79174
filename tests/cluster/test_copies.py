"""``rankfall cp`` against real volumes: whole trees both ways, through cuts and lost pods, and nothing left behind."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cluster.run_world import World
from cluster.workspace_world import CLAIM, user_of, volume
from inside.test_carry import odd_tree
from rankfall.backends.kubernetes.copy.transfer import owner_of
from rankfall_inside.transfer.tree import scan
from support import helpers
from support.carry_world import picture
from testbed.bed import Bed
from testbed.client import Kubectl
from testbed.workloads import PYTHON_IMAGE

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(240)]


@pytest.fixture
def world(bed: Bed, kubectl: Kubectl, namespace: str, tmp_path: Path) -> World:
    return World.with_account(bed, kubectl, namespace, tmp_path / "home")


@pytest.fixture
def shared(bed: Bed, kubectl: Kubectl, namespace: str) -> Iterator[Path]:
    with volume(bed, kubectl, namespace) as folder:
        yield folder


def wait_until(predicate: Callable[[], Any], *, timeout: float = 30) -> None:
    helpers.wait_until(predicate, timeout=timeout, what="what the test waits for")


def cp(world: World, *words: str, image: str = PYTHON_IMAGE) -> subprocess.CompletedProcess[str]:
    return world.cli("cp", "--claim", CLAIM, "--image", image, "-n", world.namespace, *words, timeout=500)


def movers(world: World) -> list[str]:
    found = world.kubectl("get", "pods", "-n", world.namespace, "-l", "rankfall.dev/transfer", "-o", "name")
    return found.split()


def test_launch_s53_a_tree_goes_to_a_volume_and_back_as_it_was(world, shared, tmp_path):
    source = odd_tree(tmp_path / "source")
    done = cp(world, str(source), ":in/a place")
    assert done.returncode == 0, done.stderr
    assert picture(shared / "in" / "a place") == picture(source)
    again = cp(world, str(source), ":in/a place")
    assert "0 bytes sent, 4 were there already" in again.stderr
    back = cp(world, ":/volume/in/a place", str(tmp_path / "back"))
    assert back.returncode == 0, back.stderr
    assert picture(tmp_path / "back") == picture(source)
    one = cp(world, ":in/a place/run.sh", str(tmp_path))
    assert one.returncode == 0, one.stderr
    assert (tmp_path / "run.sh").stat().st_mode & 0o100
    assert movers(world) == []


def test_launch_s54_what_never_runs_fails_early_with_its_reason_and_leaves_no_pod(world, shared, kubectl, tmp_path):
    (tmp_path / "x").write_text("x")
    done = cp(world, str(tmp_path / "x"), ":x", image="rankfall.test/nothing:1")
    assert done.returncode == 69
    assert "does not run: " in done.stderr
    assert "Pull" in done.stderr
    done = world.cli("cp", "--claim", "none", "--image", PYTHON_IMAGE, "-n", world.namespace, str(tmp_path / "x"), ":x")
    assert done.returncode == 69
    assert "none" in done.stderr
    quota = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "none", "namespace": world.namespace},
        "spec": {"hard": {"pods": "0"}},
    }
    kubectl.apply([quota])
    wait_until(lambda: "hard" in kubectl.get("resourcequota", "none", "-n", world.namespace).get("status", {}))
    done = cp(world, str(tmp_path / "x"), ":x")
    assert done.returncode == 69
    assert "exceeded quota" in done.stderr
    assert movers(world) == []
    assert not list(shared.iterdir())


def test_launch_s54_a_volume_of_one_node_is_followed_there_or_the_reason_is_told(
    bed, world, kubectl, namespace, tmp_path
):
    (tmp_path / "x").write_text("x")
    with volume(bed, kubectl, namespace, mode="ReadWriteOnce") as folder:
        # Nobody can follow it to a node that is not there.
        kubectl.apply([user_of(namespace, name="lost", node="n9")])
        done = cp(world, str(tmp_path / "x"), ":x")
        assert done.returncode == 69
        assert "no node accepts it" in done.stderr
        assert movers(world) == []
        kubectl("delete", "pod", "lost", "-n", namespace, "--force", "--grace-period=0", "--ignore-not-found")
        kubectl.apply([user_of(namespace, name="holder", node="n2")])
        with begun(world, str(tmp_path / "x"), ":x") as process:
            wait_until(lambda: movers(world), timeout=60)
            (pod,) = kubectl.get("pods", "-n", namespace, "-l", "rankfall.dev/transfer")["items"]
            assert "'n2'" in str(pod["spec"]["affinity"])
            assert process.wait(60) == 0
        assert (folder / "x").read_text() == "x"


def begun(world: World, *words: str) -> subprocess.Popen[str]:
    command = (sys.executable, "-m", "rankfall", "cp", "--claim", CLAIM, "--image", PYTHON_IMAGE, "-n", world.namespace)
    return subprocess.Popen(
        (*command, *words),
        env=world.environment(),
        stderr=subprocess.PIPE,
        text=True,
        # Whoever runs the tests in the background lets them ignore Ctrl-C, and what they start would too.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),  # noqa: PLW1509 - one call
    )


def halves(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*.part"))


def test_launch_s53_ctrl_c_leaves_no_pod_and_the_copy_goes_on_later(world, shared, tmp_path):
    with (tmp_path / "big").open("wb") as file:
        file.truncate(1 << 30)
    with begun(world, str(tmp_path / "big"), ":big") as process:
        wait_until(lambda: halves(shared) > 4 << 20, timeout=60)
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
    assert movers(world) == []
    assert not (shared / "big").exists()
    there = halves(shared)
    os.truncate(tmp_path / "big", there + 5_000_000)
    done = cp(world, str(tmp_path / "big"), ":big")
    assert done.returncode == 0, done.stderr
    assert "1 files, 5000000 bytes sent" in done.stderr
    assert (shared / "big").stat().st_size == there + 5_000_000


def test_launch_s54_the_pod_of_a_killed_client_ends_by_itself_and_the_next_one_tidies(world, shared, kubectl, tmp_path):
    with (tmp_path / "big").open("wb") as file:
        file.truncate(1 << 30)
    with begun(world, str(tmp_path / "big"), ":big") as process:
        wait_until(lambda: halves(shared) > 1 << 20, timeout=60)
        process.kill()
    (pod,) = movers(world)
    ended = lambda: kubectl.get(pod, "-n", world.namespace)["status"]["phase"] == "Succeeded"  # noqa: E731
    wait_until(ended, timeout=150)
    (tmp_path / "x").write_text("x")
    assert cp(world, str(tmp_path / "x"), ":x").returncode == 0
    assert movers(world) == []


@pytest.mark.timeout(600)
def test_launch_s52_a_file_of_more_than_two_gibibytes(world, shared, tmp_path):
    # All but its end is there, as a cut left it: what is read twice costs a disk nothing when it is all holes.
    there, size = (2 << 30) + 11, (2 << 30) + 100_000
    with (tmp_path / "big").open("wb") as file:
        file.truncate(size)
        file.seek(size - 1)
        file.write(b"!")
    owner = owner_of(scan(bytes(tmp_path / "big")), b"big")
    mark = hashlib.sha256(b"").hexdigest()[:16]
    with (shared / f".rankfall-{owner}-{mark}.part").open("wb") as file:
        file.truncate(there)
    done = cp(world, str(tmp_path / "big"), ":big")
    assert done.returncode == 0, done.stderr
    assert f"1 files, {size - there} bytes sent" in done.stderr
    with (shared / "big").open("rb") as file:
        file.seek(size - 1)
        assert file.read() == b"!"


SHOW = """
import os, pathlib, time
print(os.getcwd(), flush=True)
seen = []
while True:
    seen.append(pathlib.Path("word").read_text())
    if pathlib.Path("go").exists() or not os.environ.get("WAIT"):
        break
    time.sleep(0.1)
print(sorted(set(seen)), flush=True)
pathlib.Path("out").write_text("made")
"""


@pytest.fixture
def code(tmp_path: Path) -> Path:
    path = tmp_path / "project"
    path.mkdir()
    (path / "show.py").write_text(SHOW)
    (path / "word").write_text("first")
    return path


def job(world: World, code: Path, *, name: str = "show", backend: str = "job", **fields: Any) -> dict[str, Any]:
    section = {"image": PYTHON_IMAGE, "image_pull_policy": "Never", "namespace": world.namespace}
    return {
        "name": name,
        "backend": backend,
        "command": ["show.py"],
        "launcher": "plain",
        "code": str(code),
        "policies": {"grace_s": 2},
        **fields,
        "kubernetes": {**section, **fields.get("kubernetes", {})},
    }


def output(world: World, run: str) -> list[str]:
    return world.cli("logs", run, "--no-prefix").stdout.splitlines()


@pytest.mark.parametrize("backend", ["job", "jobset", "trainjob"])
def test_launch_s13_small_code_travels_by_config_map_and_the_command_runs_in_it(world, code, backend):
    done = world.run(job(world, code, backend=backend, nnodes=2))
    assert done.returncode == 0, done.stderr
    lines = output(world, world.only_run().name)
    assert sorted(lines) == ["/rankfall-run/code"] * 2 + ["['first']"] * 2
    none = world.cli("cp", f"{world.only_run().name}:out", str(code / "back"))
    assert none.returncode == 0
    assert "has no volume" in none.stderr


def test_launch_s52_s55_runs_jobs_and_users_never_share_a_directory_and_anybody_finds_it_again(
    world, shared, code, tmp_path, monkeypatch
):
    section = {"workspace": {"claim": CLAIM, "path": "/team"}}
    monkeypatch.setenv("LOGNAME", "ann")
    first = world.cli("submit", "-f", str(world.file(job(world, code, kubernetes=section, env={"WAIT": "1"}))))
    assert first.returncode == 0, first.stderr
    run = first.stdout.strip()
    place = shared / "ann" / "show" / run / "code"
    wait_until(lambda: output(world, run) == [f"/team/ann/show/{run}/code"], timeout=120)
    assert (place.parent / "code.json").exists()
    (code / "word").write_text("second")
    for user, name in (("ann", "other"), ("bob", "show")):
        monkeypatch.setenv("LOGNAME", user)
        spec = job(world, code, name=name, kubernetes=section)
        done = world.cli("run", "-f", str(world.file(spec)))
        assert done.returncode == 0, done.stderr
        assert "['second']" in done.stdout
        (folder,) = (shared / user / name).iterdir() if name == "other" else (shared / "bob" / "show").iterdir()
        assert (folder / "code" / "out").read_text() == "made"
    (place / "go").touch()
    assert world.cli("wait", run).returncode == 0
    assert output(world, run)[-1] == "['first']"
    # Another process of another user: the record tells which volume, and where on it.
    back = world.cli("cp", f"{run}:out", str(tmp_path / "back"))
    assert back.returncode == 0, back.stderr
    assert (tmp_path / "back").read_text() == "made"
    there = world.cli("cp", str(tmp_path / "back"), f"{run}:/team/ann/show/{run}/in/")
    assert there.returncode == 0, there.stderr
    assert (place.parent / "in" / "back").read_text() == "made"
    assert movers(world) == []


def test_launch_s54_a_run_whose_code_cannot_be_brought_says_so_and_starts_nothing(world, code):
    done = world.run(job(world, code, kubernetes={"workspace": {"claim": "none"}}))
    assert done.returncode == 69
    assert "none" in done.stderr
    assert not [name for name in world.objects() if name.startswith(("pod/", "job"))]
