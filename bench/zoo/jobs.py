"""Runs one job of a launcher with one fault, and keeps what it printed."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
import uuid
from pathlib import Path
from typing import Final

from bench.common import ROOT
from bench.zoo.launchers import Launcher

PROGRAMS: Final = Path(__file__).parent / "programs"
WORLD: Final = 3
# The rank that the fault strikes.
STRUCK: Final = 1
# A job takes 5 to 30 s; what hangs is ended.
SECONDS: Final = 100.0
_CELL: Final = "ZOO_CELL"


def cache() -> Path:
    """Where the virtual environments are."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rankfall" / "zoo"


def installed(launcher: Launcher) -> Path:
    """The folder of programs of the launcher's virtual environment, which is made where it is not there.

    Raises:
        subprocess.CalledProcessError: a package cannot be installed; uv has printed why.
    """
    folder = cache() / "-".join(name.split("[")[0] for name in launcher.packages)
    if not (folder / "whole").exists():
        uv = str(ROOT / "scripts" / "uv")
        python = str(ROOT / ".venv" / "bin" / "python")
        subprocess.run((uv, "venv", "--quiet", "--clear", "--python", python, str(folder)), check=True)
        subprocess.run(
            (uv, "pip", "install", "--quiet", "--python", str(folder / "bin" / "python"), *launcher.packages),
            check=True,
        )
        (folder / "whole").touch()
    return folder / "bin"


def run(launcher: Launcher, fault: str, *, folder: Path, log: Path) -> int | None:
    """Run one job to its end.

    Args:
        launcher: starts the ranks.
        fault: its name.
        folder: the job's working directory.
        log: receives stdout and stderr of the launcher, as `2>&1 | tee` keeps them.

    Returns:
        The exit status of the launcher; None where it was ended after SECONDS.
    """
    binaries = installed(launcher)
    ports = _free_ports(WORLD)
    values = {"bin": str(binaries), "world": str(WORLD), "program": launcher.program}
    values |= {"port" if number == 0 else f"port{number}": str(port) for number, port in enumerate(ports)}
    cell = uuid.uuid4().hex
    for program in PROGRAMS.glob("*.py"):
        (folder / program.name).write_bytes(program.read_bytes())
    env = {name: value for name, value in os.environ.items() if not name.startswith(("RANKFALL", "PYTHON"))}
    env |= {"PATH": f"{binaries}:{env.get('PATH', '')}", "PYTHONPATH": str(folder), "OMP_NUM_THREADS": "1", _CELL: cell}
    env |= {"ZOO_RANK": str(STRUCK), "ZOO_FAULT": fault, "ZOO_WORLD": str(WORLD), "ZOO_FOLDER": str(folder)}
    env |= {"ZOO_PORT": str(ports[0]), **launcher.env}
    with log.open("wb") as out:
        job = subprocess.Popen(
            [word.format_map(values) for word in launcher.command],
            cwd=folder,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            return job.wait(SECONDS)
        except subprocess.TimeoutExpired:
            return None
        finally:
            _end(cell)
            job.wait()


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()


def _end(cell: str) -> None:
    """End every process of the job: launchers leave daemons, and ranks in sessions of their own."""
    wanted = f"{_CELL}={cell}".encode()
    for _ in range(50):
        found = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit() and _has(entry, wanted)]
        for pid in found:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        if not found:
            return
        time.sleep(0.1)


def _has(entry: Path, wanted: bytes) -> bool:
    try:
        return wanted in (entry / "environ").read_bytes().split(b"\0")
    except OSError:
        return False
