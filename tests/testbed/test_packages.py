"""Programs from Debian's archive, on machines that lack some: told by PATH and by an apt-get that only pretends."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from testbed import packages
from testbed.errors import UnsupportedError

TOOLS = ("sh", "unshare", "mount", "cat", "ls", "env", "setpriv", "mkdir", "chmod")


class Machine:
    """A machine whose programs are those of one folder."""

    def __init__(self, folder: Path) -> None:
        self.bin = folder / "bin"
        self.cni = folder / "cni"
        self.bin.mkdir()
        self.cni.mkdir()
        for tool in TOOLS:
            (self.bin / tool).symlink_to(str(shutil.which(tool)))

    def add(self, *names: str) -> None:
        for name in names:
            self.write(self.bin / name, "")

    def write(self, path: Path, body: str) -> None:
        path.write_text(f"#!/bin/sh\n{body}\n")
        path.chmod(0o755)


@pytest.fixture
def machine(tmp_path, monkeypatch):
    made = Machine(tmp_path)
    monkeypatch.setenv("PATH", str(made.bin))
    monkeypatch.setattr(packages, "cache_folder", lambda: tmp_path / "cache")
    monkeypatch.setattr(packages, "_FOLDERS", ())
    table = {"containerd": ("containerd", "ctr"), "runc": ("runc",), "plugins": (f"{made.cni}/bridge",)}
    monkeypatch.setattr(packages, "PACKAGES", table)
    return made


def services() -> list[Path]:
    return sorted(Path("/run/systemd").glob("*"))


def test_nothing_is_done_where_nothing_is_missing(machine):
    machine.add("containerd", "ctr", "runc")
    machine.write(machine.cni / "bridge", "")
    assert packages.missing() == []
    packages.ensure(say=pytest.fail)


def test_one_missing_program_makes_its_package_missing(machine):
    machine.add("containerd", "runc")
    assert packages.missing() == ["containerd", "plugins"]


def test_without_root_the_message_is_the_command_to_type(machine, monkeypatch):
    machine.add("containerd", "ctr", "apt-get")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(UnsupportedError) as caught:
        packages.ensure(say=pytest.fail)
    expected = "run: sudo apt-get install --yes --quiet --no-install-recommends runc plugins"
    assert caught.value.hint == expected
    assert "runc, plugins" in str(caught.value)


def test_without_apt_the_message_names_the_packages(machine):
    with pytest.raises(UnsupportedError, match="no apt-get: containerd, runc, plugins"):
        packages.ensure(say=pytest.fail)


@pytest.mark.root
def test_installs_quietly_and_with_no_service_manager_in_sight(machine, tmp_path):
    notes = tmp_path / "notes"
    machine.add("containerd", "ctr")
    machine.write(
        machine.bin / "apt-get",
        f"""
echo "$@ / $DEBIAN_FRONTEND / $(ls -A /run/systemd 2>/dev/null)" >> {notes}
[ "$1" = install ] || exit 0
echo > {machine.bin}/runc; chmod +x {machine.bin}/runc
echo > {machine.cni}/bridge; chmod +x {machine.cni}/bridge""",
    )
    before = services()
    said: list[str] = []
    packages.ensure(say=said.append)
    assert notes.read_text().splitlines() == [
        "update --quiet / noninteractive / ",
        "install --yes --quiet --no-install-recommends runc plugins / noninteractive / ",
    ]
    assert said[0] == "installing runc, plugins"
    # Hidden from those commands alone.
    assert before == services()


@pytest.mark.root
def test_a_failing_apt_is_quoted(machine):
    machine.write(machine.bin / "apt-get", "echo 'E: Unable to locate package'; exit 100")
    with pytest.raises(Exception, match=r"(?s)could not install containerd, runc, plugins.*Unable to locate"):
        packages.ensure(say=lambda _: None)


@pytest.mark.root
def test_an_apt_that_did_not_help_is_told(machine):
    machine.add("apt-get")
    with pytest.raises(UnsupportedError, match="still not found"):
        packages.ensure(say=lambda _: None)
