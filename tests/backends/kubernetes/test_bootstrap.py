"""The first lines of a container, run by real shells: with a Python, with one that is too old or broken, and with none."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from backends.kubernetes.made import compiled, container, expand, spec
from rankfall.backends.kubernetes.manifests.container_command import BOOTSTRAP, BUNDLE_PATH
from support.patience import scaled
from testbed import bed, packages

SHELLS = {"sh": ["sh"], "dash": ["dash"], "bash": ["bash", "--posix"], "busybox": ["busybox", "sh"]}
WORDS = ["wrap", "--console", "--launcher", "plain", "--nproc", "1", "--wait-for", "a.b", "--"]


# Busybox is one of the programs that the test bed installs.
@pytest.fixture(params=[pytest.param(name, marks=pytest.mark.cluster if name == "busybox" else ()) for name in SHELLS])
def shell(request):
    words = SHELLS[request.param]
    if shutil.which(words[0]) is None:
        reason = bed.unsupported()
        if reason:
            pytest.skip(f"no {words[0]} on this machine, and {reason}")
        packages.ensure(say=print)
    return [str(shutil.which(words[0])), *words[1:]]


@pytest.fixture
def image(tmp_path):
    """A PATH with nothing on it but what a test puts there, and a bundle that says how it was started."""
    path = tmp_path / "bin"
    path.mkdir()
    for tool in ("env", "printf"):
        (path / tool).symlink_to(str(shutil.which(tool)))
    with zipfile.ZipFile(tmp_path / "inside.pyz", "w") as bundle:
        bundle.writestr("__main__.py", "import sys\nprint('wrapper', sys.argv[1:])\n")
    return tmp_path


def program(path: Path, text: str) -> None:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


def start(shell, image, *words, launcher="plain", nproc=1, **env):
    text = BOOTSTRAP.replace(BUNDLE_PATH, str(image / "inside.pyz"))
    own = ["wrap", "--console", "--launcher", launcher, "--nproc", str(nproc), "--wait-for", "a.b", "--"]
    return subprocess.run(
        [*shell, "-c", text, "rankfall", *own, *words],
        env={"PATH": str(image / "bin"), "RANKFALL_SLOT": "3", "RANKFALL_PLAIN_NNODES": "5", **env},
        capture_output=True,
        text=True,
        timeout=scaled(30),
        check=False,
    )


def test_a_python_becomes_the_wrapper_with_all_words(shell, image):
    (image / "bin" / "python3").symlink_to(sys.executable)
    done = start(shell, image, "python3", "a b", "$(X)", "it's", "")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"wrapper {[*WORDS, 'python3', 'a b', '$(X)', chr(105) + 't' + chr(39) + 's', '']}\n"


def test_the_jobs_own_python_comes_first(shell, image):
    program(image / "bin" / "python3", "echo wrong; exit 0")
    done = start(shell, image, "true", RANKFALL_PYTHON=sys.executable)
    assert done.stdout.startswith("wrapper ")


@pytest.mark.parametrize(
    "python",
    [
        # Python 3.7 answers the question for 3.8 with 1; Python 2 does not know -I; a broken one says anything.
        "exit 1",
        "echo 'Unknown option: -I' >&2; exit 2",
        "echo nonsense; kill -KILL $$",
    ],
)
def test_a_python_that_is_too_old_or_broken_is_passed_over(shell, image, python):
    program(image / "bin" / "python3", python)
    (image / "bin" / "python").symlink_to(sys.executable)
    assert start(shell, image, "true").stdout.startswith("wrapper ")


def test_without_python_the_command_runs_plainly_and_says_so(shell, image):
    program(image / "bin" / "train", 'printf "%s|" "$@"; exit 7')
    done = start(shell, image, "train", "a b", "", "x\ny", launcher="exec")
    assert done.returncode == 7
    assert done.stdout == "a b||x\ny|"
    assert "the command starts directly" in done.stderr


def test_without_python_one_rank_of_a_slot_still_knows_its_place(shell, image):
    ours = {"RANKFALL_ROLE": "worker", "RANKFALL_TOKEN": "t", "RANKFALL_TORCHRUN": "[]"}
    done = start(shell, image, "env", **ours)
    got = dict(line.split("=", 1) for line in done.stdout.splitlines() if "=" in line)
    assert {name: got[name] for name in ("RANK", "GROUP_RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")} == {
        "RANK": "3",
        "GROUP_RANK": "3",
        "LOCAL_RANK": "0",
        "WORLD_SIZE": "5",
        "LOCAL_WORLD_SIZE": "1",
    }
    assert "RANKFALL_TOKEN" not in got
    assert "RANKFALL_TORCHRUN" not in got


def test_without_python_a_rank_of_a_later_role_knows_its_place_too(shell, image):
    role = {"RANKFALL_INDEX": "1", "RANKFALL_FIRST_NODE": "2", "RANKFALL_FIRST_RANK": "8"}
    done = start(shell, image, "env", RANKFALL_WORLD_SIZE="10", RANKFALL_ROLE_SIZE="2", **role)
    got = dict(line.split("=", 1) for line in done.stdout.splitlines() if "=" in line)
    names = ("RANK", "GROUP_RANK", "ROLE_RANK", "WORLD_SIZE", "GROUP_WORLD_SIZE", "ROLE_WORLD_SIZE")
    assert [got[name] for name in names] == ["9", "3", "1", "10", "5", "2"]


def test_without_python_a_place_that_nobody_can_work_out_is_not_guessed(shell, image):
    done = start(shell, image, "env", "--node-rank", "$(RANKFALL_PLAIN_NODE_RANK)", launcher="exec")
    assert (done.returncode, done.stdout) == (211, "")
    assert "must compute the ranks of this slot" in done.stderr


@pytest.mark.parametrize("launcher", ["plain", "auto"])
def test_without_python_several_ranks_are_not_made_one(shell, image, launcher):
    done = start(shell, image, "env", launcher=launcher, nproc=2)
    assert (done.returncode, done.stdout) == (211, "")
    assert "2 ranks cannot be started" in done.stderr


def test_inside_require_without_python_ends_with_the_code_of_the_platform(shell, image):
    done = start(shell, image, "env", RANKFALL_INSIDE="require")
    assert (done.returncode, done.stdout) == (211, "")
    assert "inside: require" in done.stderr


def test_a_missing_command_gives_the_shells_own_code(shell, image):
    assert start(shell, image, "no-such-program", launcher="exec").returncode == 127


def test_the_container_gets_this_text_through_kubernetes():
    words = container(compiled(spec()))["command"]
    assert words[:2] == ["sh", "-c"]
    assert expand(words[2], {"RANKFALL_SLOT": "0"}) == BOOTSTRAP
    assert words[3] == "rankfall"


def test_with_inside_off_the_command_is_the_jobs_own():
    made = compiled(spec(command=["train", "x"], inside="off"))
    assert container(made)["command"] == ["train", "x"]
    assert [item["kind"] for item in made.objects] == ["Job", "Service"]
    assert "volumeMounts" not in container(made)
