"""Starts real wrappers: one slot in a temporary directory, its records decoded by the reading side's own struct."""

from __future__ import annotations

import base64
import os
import shutil
import signal
import struct
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from rankfall.backends.payload import unpack
from rankfall.model import Record
from rankfall_inside import procfs
from support.helpers import wait_until
from support.patience import scaled

TOKEN = "0123456789abcdef"  # noqa: S105 - opens nothing
HEAD = b"\x1erankfall/1 " + TOKEN.encode() + b" "
ROW = struct.Struct("<QQqQB7x")


def channel(out: bytes, *, progress: bool = False) -> list[Record]:
    """The records among the lines of a wrapper's stdout, in their order; those of progress, which come by the clock, only when asked for."""
    lines = [line for line in out.split(b"\n") if line.startswith(HEAD)]
    assert all(len(line) < 8192 for line in lines)
    found = [msgspec.json.decode(base64.urlsafe_b64decode(line[len(HEAD) :]), type=Record) for line in lines]
    return [record for record in found if progress or record.kind != "progress"]


def text_lines(out: bytes) -> list[bytes]:
    """The lines of a wrapper's stdout that are no records."""
    return [line for line in out.split(b"\n") if line and not line.startswith(HEAD)]


class Slot:
    """One slot. ``home`` is the unpacked bundle; ``env`` goes to the wrapper."""

    def __init__(self, base: Path, home: Path) -> None:
        self.base = base
        self.home = home
        self.dir = base / "slot"
        self.record_dir = base / "records"
        self.stream_dir = base / "logs" / "0"
        kept = {
            k: v
            for k, v in os.environ.items()
            if not k.startswith(("RANKFALL_", "TORCHELASTIC_")) and k != "PYTHONPATH"
        }
        self.env = kept | {
            "RANKFALL_RUN": "demo-abc123",
            "RANKFALL_ATTEMPT": "2",
            "RANKFALL_ROLE": "worker",
            "RANKFALL_SLOT": "1",
            "RANKFALL_SLOT_DIR": str(self.dir),
            "RANKFALL_RECORD_DIR": str(self.record_dir),
            "RANKFALL_NODE": "n1",
            "RANKFALL_TOKEN": TOKEN,
        }
        self.pod = False
        # What the wrapper is started by, such as unshare.
        self.outer: tuple[str, ...] = ()
        self.started: list[subprocess.Popen[bytes]] = []

    def script(self, text: str, name: str = "train.py") -> str:
        path = self.base / name
        path.write_text(text)
        return str(path)

    def start(
        self,
        *command: str,
        options: tuple[str, ...] = (),
        python: str = sys.executable,
        stdout: int = subprocess.PIPE,
        **env: str,
    ) -> subprocess.Popen[bytes]:
        """Start a wrapper; in a pod it has no stream directory, and nothing but its stdout leaves it."""
        where = ["--console"] if self.pod else ["--stream-dir", str(self.stream_dir)]
        argv = [*self.outer, python, str(self.home), "wrap", *where, *options, "--", *command]
        process = subprocess.Popen(
            argv,
            env=self.env | env,
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        self.started.append(process)
        return process

    def run(
        self, *command: str, options: tuple[str, ...] = (), python: str = sys.executable, **env: str
    ) -> subprocess.CompletedProcess[bytes]:
        process = self.start(*command, options=options, python=python, **env)
        out, err = process.communicate(timeout=scaled(50))
        return subprocess.CompletedProcess(command, process.returncode, out, err)

    def rank(
        self, text: str, *, python: str = sys.executable, args: tuple[str, ...] = (), **env: str
    ) -> subprocess.CompletedProcess[bytes]:
        """Run a script as the only rank of the slot."""
        identity = {"RANK": "3", "LOCAL_RANK": "1", "WORLD_SIZE": "4"}
        return self.run(python, *args, self.script(text), **(identity | env))

    def records(self, kind: str | None = None) -> list[Record]:
        paths = sorted(path for path in self.record_dir.glob("*.json"))
        found = [msgspec.json.decode(path.read_bytes(), type=Record) for path in paths]
        return [record for record in found if kind in (None, record.kind)]

    def one(self, kind: str) -> Record:
        found = self.records(kind)
        assert len(found) == 1, found
        return found[0]

    def stream(self, name: str) -> bytes:
        path = self.stream_dir / f"{name}.log"
        return path.read_bytes() if path.exists() else b""

    def index(self, name: str) -> list[tuple[int, ...]]:
        data = (self.stream_dir / f"{name}.idx").read_bytes()
        assert data[:8] == b"RFIDX1\0\0"
        assert (len(data) - 8) % ROW.size == 0
        return list(ROW.iter_unpack(data[8:]))

    def control(self, line: str) -> None:
        wait_until((self.dir / "ctl").exists, timeout=10, what="the wrapper's control pipe")
        with (self.dir / "ctl").open("w") as pipe:
            pipe.write(line + "\n")

    def wait_text(self, name: str, text: bytes) -> None:
        wait_until(lambda: text in self.stream(name), timeout=20, what=f"{text!r} in {name}")


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpack(tmp_path_factory.mktemp("home"))


@pytest.fixture
def slot(tmp_path: Path, home: Path):
    one = Slot(tmp_path, home)
    yield one
    for process in one.started:
        # What a failed test left behind: the wrapper's descendants, then the wrapper.
        if process.poll() is None:
            for child in procfs.descendants(process.pid):
                os.kill(child.pid, signal.SIGKILL)
            process.kill()
        process.communicate()


@pytest.fixture
def pod(slot: Slot) -> Slot:
    """A slot as in a pod: without stream directory, with the log channel."""
    slot.pod = True
    return slot


@pytest.fixture(scope="session")
def find_python():
    """Finds a real interpreter by version: on PATH, or among pyenv's. Where there is none, its tests skip."""

    def find(version: str) -> str:
        root = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"
        candidates = [
            shutil.which(f"python{version}"),
            *(str(p / "bin" / "python") for p in sorted(root.glob(f"{version}.*") if os.access(root, os.R_OK) else ())),
        ]
        for candidate in candidates:
            if candidate and subprocess.run([candidate, "-c", ""], capture_output=True, check=False).returncode == 0:
                return candidate
        missing = f"no Python {version} found: put python{version} on PATH or install it with pyenv"
        pytest.skip(missing)

    return find
