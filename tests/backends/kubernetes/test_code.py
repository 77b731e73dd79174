"""Code in pods: with the recorder where it is small, on the workspace's volume where there is one, refused where neither works."""

from __future__ import annotations

import base64
import os
import random
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from backends.kubernetes.made import BACKENDS, compiled, container, spec, template
from rankfall.backends.kubernetes.copy.workspace import pinned, place_of_run, volume_of
from rankfall.backends.kubernetes.manifests import code as codes
from rankfall.backends.kubernetes.manifests.container_command import BOOTSTRAP
from rankfall.backends.payload import build_zip
from rankfall.model import Refused, SpecError, UsageError, spec_from
from rankfall_inside.transfer.pack import digest_of as codes_digest
from rankfall_inside.transfer.tree import Tree, scan
from support.carry_world import picture
from support.patience import scaled

WORKSPACE = {"workspace": {"claim": "team", "path": "/work"}}


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    source = tmp_path / "source"
    (source / "sub dir").mkdir(parents=True)
    (source / "train.py").write_text("print(open('word').read())\n")
    (source / "word").write_text("here")
    (source / "sub dir" / "run.sh").write_text("#!/bin/sh\npwd\n")
    (source / "sub dir" / "run.sh").chmod(0o755)
    return scan(os.fsencode(source))


def config_map(made: Any) -> dict[str, bytes]:
    (found,) = (one for one in made.objects if one["kind"] == "ConfigMap")
    return {name: base64.b64decode(text) for name, text in found["binaryData"].items()}


def words(made: Any) -> list[str]:
    return container(made)["command"]


@pytest.mark.parametrize("backend", BACKENDS)
def test_small_code_travels_with_the_recorder_and_the_command_runs_in_it(backend: str, tree: Tree) -> None:
    made = compiled(spec(backend=backend, code="src"), code=tree)
    assert set(config_map(made)) == {"inside.pyz", "code.pack"}
    command = words(made)
    assert command[command.index("--chdir") + 1] == "/rankfall-run/code"
    assert len(command[command.index("--code") + 1]) == 64
    (volume,) = (one for one in template(made)["spec"]["volumes"] if one["name"] == "rankfall-inside")
    assert [item["key"] for item in volume["configMap"]["items"]] == ["inside.pyz", "code.pack"]
    assert "workingDir" not in container(made)
    assert "sha256" in str(made.masked_objects())
    assert re.fullmatch(
        r"code: 3 files, 45 bytes, \d+ packed, in the config map; pods unpack it to /rankfall-run/code", made.notes[-1]
    )


def test_a_folder_in_the_code(tree: Tree) -> None:
    command = words(compiled(spec(code="src", cwd="sub dir"), code=tree))
    assert command[command.index("--chdir") + 1] == "/rankfall-run/code/sub dir"
    for cwd in ("/abs", "../x", "a//b"):
        with pytest.raises(SpecError, match="below the code's folder"):
            spec(code="src", cwd=cwd)


def test_seed_s52_each_run_has_its_own_folder_on_the_volume(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    places = set()
    for user, name, run in (
        ("ann", "one", "one-000001"),
        ("ann", "one", "one-000002"),
        ("ann", "two", "two-000001"),
        ("bob", "one", "one-000003"),
    ):
        monkeypatch.setenv("LOGNAME", user)
        job = pinned(spec(code="src", name=name, kubernetes=WORKSPACE))
        # Somebody else, later: the record tells.
        monkeypatch.setenv("LOGNAME", "carl")
        command = words(compiled(job, code=tree, run=run))
        place = command[command.index("--chdir") + 1]
        assert place == f"/work/{user}/{name}/{run}/code"
        assert pinned(job) == job
        places.add(place)
    assert len(places) == 4


def test_an_account_without_a_name_has_a_folder_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody() -> str:
        raise KeyError("uid not found")

    monkeypatch.setattr(codes.getpass, "getuser", nobody)
    assert codes.user_name() == f"uid-{os.getuid()}"
    monkeypatch.setattr(codes.getpass, "getuser", lambda: "../a b")
    assert codes.user_name() == "a-b"


def test_code_on_a_workspace_is_in_no_config_map(tree: Tree) -> None:
    job = spec(code="src", kubernetes={"workspace": {"claim": "team", "folder": "f"}})
    made = compiled(job, code=tree)
    assert set(config_map(made)) == {"inside.pyz"}
    assert made.notes[-1].endswith(
        "copied to claim team before the start; its path in pods: /workspace/f/job-0a1b2c/code"
    )
    pod = template(made)["spec"]
    assert {"name": "rankfall-workspace", "persistentVolumeClaim": {"claimName": "team"}} in pod["volumes"]
    assert {"name": "rankfall-workspace", "mountPath": "/workspace"} in container(made)["volumeMounts"]
    plain = compiled(
        spec(code="src", inside="off", kubernetes={"workspace": {"claim": "team", "folder": "f"}}), code=tree
    )
    assert container(plain)["workingDir"] == "/workspace/f/job-0a1b2c/code"


def test_launch_s51_a_volume_of_the_claim_that_is_declared_is_reused() -> None:
    declared = {"name": "mine", "persistentVolumeClaim": {"claimName": "team"}}
    made = compiled(spec(kubernetes={**WORKSPACE, "volumes": [declared]}))
    pod = template(made)["spec"]
    assert [one["name"] for one in pod["volumes"] if "persistentVolumeClaim" in one] == ["mine"]
    assert {"name": "mine", "mountPath": "/work"} in container(made)["volumeMounts"]
    mount = {"name": "mine", "mountPath": "/work"}
    again = compiled(spec(kubernetes={**WORKSPACE, "volumes": [declared], "volume_mounts": [mount]}))
    assert [one for one in container(again)["volumeMounts"] if one["mountPath"] == "/work"] == [mount]
    read = {"name": "mine", "persistentVolumeClaim": {"claimName": "team", "readOnly": True}}
    other = template(compiled(spec(kubernetes={**WORKSPACE, "volumes": [read]})))["spec"]
    assert len([one for one in other["volumes"] if "persistentVolumeClaim" in one]) == 2


@pytest.mark.parametrize(
    ("section", "words_"),
    [
        ({"workspace": {"claim": "a b"}}, "no name of a PersistentVolumeClaim"),
        ({"workspace": {"claim": "c", "path": "work"}}, "no absolute path"),
        ({"workspace": {"claim": "c", "path": "/a/../b"}}, "no absolute path"),
        ({"workspace": {"claim": "c", "path": "/rankfall/x"}}, "Rankfall's own place"),
        ({"workspace": {"claim": "c", "folder": "../x"}}, "no path below the volume"),
        ({"workspace": {"claim": "c", "image": " "}}, "is no image"),
        (
            {
                **WORKSPACE,
                "volumes": [{"name": "x", "emptyDir": {}}],
                "volume_mounts": [{"name": "x", "mountPath": "/work"}],
            },
            "where kubernetes.workspace is mounted",
        ),
    ],
)
def test_a_workspace_that_makes_no_sense_is_refused(section: dict[str, Any], words_: str) -> None:
    with pytest.raises(SpecError, match=words_):
        spec(kubernetes=section)


def test_code_that_nobody_could_unpack_or_that_is_too_large_is_refused_with_sizes(tmp_path: Path, tree: Tree) -> None:
    with pytest.raises(Refused, match="inside: off"):
        compiled(spec(code="src", inside="off"), code=tree)
    (tmp_path / "noise").write_bytes(random.Random(1).randbytes(codes.MOST_PACKED + 1))
    with pytest.raises(Refused, match=r"717301 bytes: \d+ packed, but only 716800 fit") as caught:
        compiled(spec(code="src"), code=_named(tmp_path / "noise", 500))
    assert "kubernetes.workspace" in str(caught.value)
    tree.entries[1].size = 40 << 20
    with pytest.raises(Refused, match="more than 32 MiB"):
        compiled(spec(code="src"), code=tree)


def _named(file: Path, more: int) -> Tree:
    (file.parent / "big").mkdir()
    (file.parent / "big" / "more").write_bytes(b"x" * more)
    file.rename(file.parent / "big" / "noise")
    return scan(os.fsencode(file.parent / "big"))


def _start(tmp_path: Path, *words_: str, python: str | None = None) -> subprocess.CompletedProcess[str]:
    """The container's own start, with the folders of a pod put elsewhere."""
    env = {
        "PATH": os.environ["PATH"] if python is None else python,
        "RANKFALL_SLOT_DIR": str(tmp_path / "slot"),
        "RANKFALL_RECORD_DIR": str(tmp_path / "slot" / "records"),
        "RANKFALL_RUN": "r",
        "RANKFALL_ATTEMPT": "1",
        "RANKFALL_ROLE": "worker",
        "RANKFALL_SLOT": "0",
        "RANKFALL_PYTHON": sys.executable if python is None else "",
    }
    text = BOOTSTRAP.replace("/rankfall/", f"{tmp_path}/rankfall/")
    return subprocess.run(
        ("/bin/sh", "-c", text, "rankfall", "wrap", "--console", *words_),
        env=env,
        capture_output=True,
        text=True,
        timeout=scaled(50),
        check=False,
    )


def test_launch_s13_the_command_runs_in_its_code_and_never_in_half_of_it(tmp_path: Path, tree: Tree) -> None:
    packed = config_map(compiled(spec(code="src"), code=tree))["code.pack"]
    digest = codes_digest(packed)
    (tmp_path / "rankfall").mkdir()
    (tmp_path / "slot").mkdir()
    (tmp_path / "rankfall" / "inside.pyz").write_bytes(build_zip())
    (tmp_path / "rankfall" / "code.pack").write_bytes(packed)
    place = str(tmp_path / "slot" / "code")
    done = _start(tmp_path, "--code", digest, "--chdir", place, "--", sys.executable, "train.py")
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "here"), done.stderr
    assert picture(Path(place)) == picture(Path(os.fsdecode(tree.places[0])))
    (tmp_path / "rankfall" / "code.pack").write_bytes(packed[:-1])
    torn = _start(tmp_path, "--code", digest, "--chdir", place, "--", sys.executable, "train.py")
    assert torn.returncode == 218
    assert "nothing is started" in torn.stderr
    assert torn.stdout == ""
    lost = _start(tmp_path, "--chdir", str(tmp_path / "none"), "--", sys.executable, "train.py")
    assert lost.returncode == 218


def test_without_python_code_is_never_left_out_silently(tmp_path: Path) -> None:
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in ("sh", "pwd"):
        (tools / name).symlink_to(f"/bin/{name}")
    done = _start(tmp_path, "--code", "abc", "--chdir", "/tmp", "--", "pwd", python=str(tools))
    assert done.returncode == 211
    assert "one must unpack the job's code" in done.stderr
    there = _start(tmp_path, "--chdir", str(tools), "--", "pwd", python=str(tools))
    assert (there.returncode, there.stdout.strip()) == (0, str(tools))
    none = _start(tmp_path, "--chdir", str(tmp_path / "none"), "--", "pwd", python=str(tools))
    assert none.returncode == 211


def test_the_pod_that_copies_may_do_what_the_jobs_pods_may() -> None:
    section = {
        **WORKSPACE,
        "image_pull_secrets": ["reg"],
        "image_pull_policy": "Never",
        "tolerations": [{"key": "gpu", "operator": "Exists"}],
        "service_account": "trainer",
        "pod": {
            "spec": {
                "securityContext": {"runAsUser": 1000, "fsGroup": 1000},
                "containers": [{"name": "main", "securityContext": {"runAsNonRoot": True}}],
            }
        },
    }
    job = spec(kubernetes=section)
    assert job.kubernetes.workspace is not None
    volume = volume_of(job.kubernetes, job.kubernetes.workspace, image="registry/train:1")
    assert codes.copy_pod_image(job) == volume.image == "registry/train:1"
    assert volume.pod == {
        "imagePullSecrets": [{"name": "reg"}],
        "tolerations": [{"key": "gpu", "operator": "Exists"}],
        "serviceAccountName": "trainer",
        "securityContext": {"runAsUser": 1000, "fsGroup": 1000},
    }
    assert volume.container == {"imagePullPolicy": "Never", "securityContext": {"runAsNonRoot": True}}


def test_the_image_of_the_pod_that_copies_is_the_jobs_a_roles_or_asked_for(tree: Tree) -> None:
    def made(**section: Any) -> Any:
        return spec_from(
            {"backend": "trainjob", "command": ["x"], "code": "src", "kubernetes": {**WORKSPACE, **section}}
        )

    own = made(workspace={"claim": "team", "image": "own"}, image="jobs")
    assert codes.copy_pod_image(own) == "own"
    roles = [{"name": "a", "command": ["x"]}, {"name": "b", "command": ["x"], "kubernetes": {"image": "roles"}}]
    assert codes.copy_pod_image(spec_from({"backend": "job", "roles": roles, "kubernetes": WORKSPACE})) == "roles"
    platform = made(runtime="torch-distributed")
    with pytest.raises(Refused, match=r"workspace.image: is missing"):
        compiled(platform, code=tree)
    with pytest.raises(UsageError, match="names no image"):
        place_of_run(platform, "x-000001", say=print)
    volume = volume_of(own.kubernetes, own.kubernetes.workspace, image="own")
    assert volume.container == {}
