"""Images: archives that are the same for the same contents, programs that do what tests of jobs need, and torch lent from the host."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import signal
import stat
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from support.helpers import wait_until
from support.patience import scaled
from testbed import builds, images, oci, rootfs
from testbed.errors import BuildError, UnsupportedError

# A first build compiles Go's own library.
pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def cache(tmp_path, monkeypatch):
    folder = tmp_path / "cache"
    for module in (builds, images):
        monkeypatch.setattr(module, "cache_folder", lambda: folder)
    return folder


@dataclass
class Archive:
    """What an engine reads from an image's archive."""

    top: dict
    config: dict
    layer: tarfile.TarFile


@contextlib.contextmanager
def opened(path: Path) -> Iterator[Archive]:
    """Every digest and size is checked on the way."""
    with tarfile.open(path) as tar:

        def read(name: str) -> bytes:
            file = tar.extractfile(name)
            assert file is not None
            return file.read()

        def blob(entry: dict) -> bytes:
            content = read(f"blobs/{entry['digest'].replace(':', '/')}")
            assert entry["digest"] == f"sha256:{hashlib.sha256(content).hexdigest()}"
            assert entry["size"] == len(content)
            return content

        assert json.loads(read("oci-layout")) == {"imageLayoutVersion": "1.0.0"}
        (top,) = json.loads(read("index.json"))["manifests"]
        manifest = json.loads(blob(top))
        config = json.loads(blob(manifest["config"]))
        (entry,) = manifest["layers"]
        assert config["rootfs"]["diff_ids"] == [entry["digest"]]
        with tarfile.open(fileobj=io.BytesIO(blob(entry))) as layer:
            yield Archive(top, config, layer)


@pytest.fixture
def tree(tmp_path):
    root = tmp_path / "root"
    (root / "b").mkdir(parents=True, mode=0o750)
    (root / "b" / "program").write_text("#!x")
    (root / "b" / "program").chmod(0o4755)
    (root / "b" / "same").hardlink_to(root / "b" / "program")
    (root / "a").symlink_to("/b/program")
    os.mkfifo(root / "pipe")
    for path in (root / "b" / "program", root / "b"):
        os.utime(path, (5, 5.75))
    return root


def test_an_archive_holds_the_folder_and_what_a_container_starts_with(tmp_path, tree):
    image = oci.Image(name="rankfall.test/x:2", entrypoint=("/b/program", "-v"), env=("A=b",), workdir="/b")
    oci.pack(image, tree, tmp_path / "x.tar")
    with opened(tmp_path / "x.tar") as archive:
        assert archive.top["annotations"]["io.containerd.image.name"] == "rankfall.test/x:2"
        assert archive.top["platform"]["os"] == "linux"
        assert archive.config["config"] == {"Entrypoint": ["/b/program", "-v"], "Env": ["A=b"], "WorkingDir": "/b"}
        members = {one.name: one for one in archive.layer}
        assert sorted(members) == ["a", "b", "b/program", "b/same"]
        assert members["a"].linkname == "/b/program"
        assert (members["b"].mode, members["b"].mtime) == (0o750, 5)
        assert members["b/program"].mode == 0o4755
        assert members["b/same"].islnk()
        assert members["b/same"].linkname == "b/program"
        program = archive.layer.extractfile("b/program")
        assert program is not None
        assert program.read() == b"#!x"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["root", "x.tar"]


def test_the_same_folder_gives_the_same_bytes(tmp_path, tree):
    image = oci.Image(name="rankfall.test/x:1")
    for name in ("one.tar", "two.tar"):
        oci.pack(image, tree, tmp_path / name)
    assert (tmp_path / "one.tar").read_bytes() == (tmp_path / "two.tar").read_bytes()
    (tree / "b" / "more").touch()
    oci.pack(image, tree, tmp_path / "two.tar")
    assert (tmp_path / "one.tar").read_bytes() != (tmp_path / "two.tar").read_bytes()


def test_the_small_images_have_one_file_and_are_made_once(cache, monkeypatch):
    said: list[str] = []
    archives = images.ensure(["pause", "static"], say=said.append)
    assert said[-1] == "image static: done"
    for name, path in archives.items():
        with opened(path) as archive:
            assert [(one.name, stat.filemode(one.mode), one.mtime) for one in archive.layer] == [
                (name, "?rwxr-xr-x", 0)
            ]
            assert archive.top["annotations"]["io.containerd.image.name"] == images.NAMES[name]
            assert archive.config["config"]["Entrypoint"] == [f"/{name}"]
    monkeypatch.setattr(builds, "ensure", pytest.fail)
    assert images.ensure(["static", "pause"], say=pytest.fail) == archives
    assert images.prune() == []


def test_an_image_that_does_not_exist(cache):
    with pytest.raises(BuildError, match=r"(?s)no image python27.*choose of: pause, static, python"):
        images.ensure(["pause", "python27"], say=pytest.fail)
    assert not cache.exists()


@pytest.fixture(scope="module")
def programs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("programs")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(builds, "cache_folder", lambda: folder)
        return builds.ensure(["programs"], say=lambda _: None)


def test_pause_reaps_what_is_left_to_it_and_ends_when_told(programs):
    # The shell's child becomes pause's own.
    process = subprocess.Popen(["sh", "-c", f"sleep 0.1 & exec {programs['pause']}"])
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    try:
        wait_until(
            lambda: Path(f"/proc/{process.pid}/exe").resolve() == programs["pause"], timeout=10, what="pause to start"
        )
        wait_until(lambda: not children.read_text(), timeout=10, what="its child to be reaped")
        assert process.poll() is None
    finally:
        process.terminate()
    assert process.wait(scaled(10)) == 0


def test_static_prints_its_place_and_ends_as_asked(programs):
    command = [programs["static"], "-lines", "3", "-interval", "1ms", "-text", "hi", "-exit", "7"]
    env = {"RANK": "3", "JOB_COMPLETION_INDEX": "1", "HOSTNAME": "h", "SECRET": "x"}
    done = subprocess.run(command, capture_output=True, text=True, env=env, check=False)
    assert done.stdout == "".join(f"line={number} HOSTNAME=h RANK=3 JOB_COMPLETION_INDEX=1 hi\n" for number in range(3))
    assert (done.stderr, done.returncode) == ("", 7)
    done = subprocess.run([programs["static"], "-stderr"], capture_output=True, text=True, env=env, check=True)
    assert (done.stdout, done.stderr) == ("", "line=0 HOSTNAME=h RANK=3 JOB_COMPLETION_INDEX=1\n")


@pytest.mark.parametrize(
    ("how", "code", "last"),
    [("default", None, ""), ("trap", 143, "static: got SIGTERM, leaving\n"), ("ignore", -signal.SIGKILL, "")],
)
def test_static_answers_sigterm_as_asked(programs, how, code, last):
    process = subprocess.Popen(
        [programs["static"], "-sleep", "-1s", "-term", how], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stderr is not None
    with process.stdout, process.stderr:
        process.stdout.readline()
        process.terminate()
        if how == "ignore":
            wait_until(lambda: _pending(process.pid) == 0, timeout=10, what="the signal to be taken")
            assert process.poll() is None
            process.kill()
        assert process.wait(scaled(10)) == (-signal.SIGTERM if code is None else code)
        assert process.stderr.read() == last


def _pending(pid: int) -> int:
    fields = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return int(fields["ShdPnd"], 16)


def test_static_refuses_another_answer(programs):
    done = subprocess.run([programs["static"], "-term", "dance"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert "default, ignore or trap" in done.stderr


class Apt:
    """A machine whose apt and debootstrap only pretend."""

    def __init__(self, folder: Path, monkeypatch) -> None:
        self.folder = folder / "bin"
        self.folder.mkdir()
        self.notes = folder / "notes"
        monkeypatch.setenv("PATH", f"{self.folder}{os.pathsep}{os.environ['PATH']}")
        self.targets("http://one.test/debian/ bookworm main")
        self.write("apt-config", """echo "PROXY='http://proxy.test:3128'" """)
        release = {"ID": "debian", "VERSION_CODENAME": "bookworm"}
        monkeypatch.setattr("platform.freedesktop_os_release", lambda: release)
        monkeypatch.delenv("http_proxy", raising=False)

    def targets(self, *lines: str) -> None:
        self.write("apt-get", "\n".join(f"echo '{line}'" for line in lines))

    def write(self, name: str, body: str) -> None:
        (self.folder / name).write_text(f"#!/bin/sh\n{body}\n")
        (self.folder / name).chmod(0o755)


@pytest.fixture
def apt(tmp_path, monkeypatch):
    return Apt(tmp_path, monkeypatch)


def test_the_mirror_is_the_one_of_apts_main_archive(apt):
    apt.targets(
        "http://other.test/tools/ bookworm stable",
        "http://one.test/debian-security/ bookworm-security main",
        "http://one.test/debian/ bookworm-updates main",
        "http://one.test/debian/ bookworm main",
        "http://two.test/debian/ bookworm main",
    )
    assert rootfs.mirror() == "http://one.test/debian"


def test_no_mirror_is_told(apt, monkeypatch):
    apt.targets("http://one.test/ubuntu/ noble main")
    with pytest.raises(UnsupportedError, match="no mirror of Debian"):
        rootfs.mirror()
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(UnsupportedError, match="has no apt"):
        rootfs.mirror()


@pytest.mark.root
def test_a_debian_image_is_cleaned_of_what_this_machine_left_in_it(apt, cache):
    apt.write(
        "debootstrap",
        f"""echo "$@ / $http_proxy" > {apt.notes}
for root; do case "$root" in /*) break;; esac; done
mkdir -p $root/etc/apt $root/usr/bin $root/usr/share/doc/x $root/var/log/apt $root/tmp $root/mnt
echo deb > $root/etc/apt/sources.list; echo host > $root/etc/hostname; ln -s /run/x $root/etc/resolv.conf
echo py > $root/usr/bin/python3; echo log > $root/var/log/apt/x; echo c > $root/usr/share/doc/x/copyright
ln -s /etc $root/tmp/link
mount -t tmpfs none $root/mnt""",
    )
    path = images.ensure(["python39"], say=lambda _: None)["python39"]
    with opened(path) as archive:
        files = sorted(one.name for one in archive.layer if not one.isdir())
        assert files == ["usr/bin/python3"]
        assert archive.top["annotations"]["io.containerd.image.name"] == "rankfall.test/python:3.9"
    words = apt.notes.read_text().split()
    assert words[:2] == ["--variant=minbase", "--include=python3"]
    assert words[3] == "bullseye"
    assert words[-3:] == ["http://one.test/debian", "/", "http://proxy.test:3128"]
    # What debootstrap mounts is gone with it.
    assert str(cache) not in Path("/proc/mounts").read_text()
    assert [one.name for one in path.parent.iterdir()] == ["image.tar"]


@pytest.mark.root
def test_a_failing_debootstrap_is_quoted_and_leaves_nothing(apt, cache):
    apt.write("debootstrap", "echo 'E: Failed getting release file http://one.test'; exit 1")
    with pytest.raises(BuildError, match=r"(?s)image python could not be made.*Failed getting release.*the network"):
        images.ensure(["python"], say=lambda _: None)
    assert not [one for one in (cache / "images").iterdir() if one.is_dir()]


def test_without_root_no_debian_image(apt, cache, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(UnsupportedError, match="needs root"):
        images.ensure(["python"], say=lambda _: None)


def test_a_venv_on_the_systems_own_python_needs_the_images_version(monkeypatch):
    pytest.importorskip("torch")
    monkeypatch.setattr(sys, "base_prefix", "/usr")
    monkeypatch.setattr(sys, "version_info", (3, 11, 2))
    assert images.torch_mounts() == (Path(sys.prefix),)
    monkeypatch.setattr(sys, "version_info", (3, 12, 1))
    with pytest.raises(UnsupportedError, match=r"Python 3\.12"):
        images.torch_mounts()


@pytest.mark.root
@pytest.mark.torch
@pytest.mark.full
def test_with_the_lent_folders_and_a_bare_system_torch_runs(tmp_path):
    # Nothing of the host is there but the system's own folders and what is lent.
    system = [path for name in ("usr", "bin", "lib", "lib64", "dev") if (path := Path("/", name)).exists()]
    script = ["set -e"]
    for place in (*system, *images.torch_mounts()):
        script += [f"mkdir -p $0{place}", f"mount --rbind {place} $0{place}"]
    script.append('exec chroot $0 "$@"')
    command = ["unshare", "--mount", "--propagation", "private", "sh", "-c", "\n".join(script), str(tmp_path / "root")]
    program = "import torch.distributed as d, os; print(d.is_gloo_available(), os.path.exists('/proc'))"
    done = subprocess.run([*command, images.torch_python(), "-c", program], capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == ("True False\n", 0), done.stderr
    assert str(tmp_path) not in Path("/proc/mounts").read_text()
