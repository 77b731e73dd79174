"""Shared by the provoking programs: each case makes a real program print its own words, under a header that names the case."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path

CASES: dict[str, tuple[str, Callable[[], None]]] = {}


def case(slug: str) -> Callable[[Callable[[], None]], Callable[[], None]]:
    """Register a case that must be recognised as ``slug``."""

    def register(function: Callable[[], None]) -> Callable[[], None]:
        CASES[function.__name__] = (slug, function)
        return function

    return register


def run(
    command: Sequence[str],
    *,
    env: dict[str, str] | None = None,
    timeout: float = 60,
) -> int:
    """Run a command, print what it prints."""
    done = subprocess.run(
        list(command),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=(os.environ | env) if env else None,
        timeout=timeout,
        check=False,
    )
    say(done.stdout.decode("utf-8", "replace"))
    return done.returncode


def python(source: str, *arguments: str, env: dict[str, str] | None = None) -> int:
    """Run Python source in a new interpreter, print what it prints."""
    return run([sys.executable, "-c", source, *arguments], env=env)


def say(text: str) -> None:
    sys.stdout.write(text if text.endswith("\n") else text + "\n")
    sys.stdout.flush()


def main() -> None:
    """Run all cases, or those named on the command line, in a folder of their own."""
    os.dup2(1, 2)
    wanted = sys.argv[1:] or list(CASES)
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        Path(folder).chmod(0o755)
        for name in wanted:
            slug, function = CASES[name]
            say(f"### {name} {slug}")
            try:
                function()
            except BaseException:  # noqa: BLE001 - every way to fail is what these programs are for
                say("".join(traceback.format_exc()))
