"""The library of ``clock.c``: what it does to a process that loads it stands there. Imports nothing of a cluster: jobs on this machine use it too."""

from __future__ import annotations

import subprocess
from pathlib import Path

from testbed.errors import TestbedError

_SOURCE = Path(__file__).with_name("clock.c")


def compile_clock(folder: Path) -> Path:
    """Compile it into ``folder/clock.so``.

    Raises:
        TestbedError: the compiler failed.
    """
    library = folder / "clock.so"
    command = ("cc", "-shared", "-fPIC", "-O1", "-o", str(library), str(_SOURCE))
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise TestbedError(f"the library that shifts a clock cannot be compiled: {done.stderr.strip()}")
    return library
