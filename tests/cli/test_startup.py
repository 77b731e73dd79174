"""What a start loads, counted instead of timed: the slow parts come only with the verb that needs them."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

SHOW = "import sys; from rankfall.cli.guard import run; run({words!r}); print(chr(0), *sorted(sys.modules), file=sys.stderr)"


# What measures coverage in subprocesses loads modules of its own.
BARE = {name: value for name, value in os.environ.items() if not name.startswith("COV")}


def loaded(*words: str) -> set[str]:
    done = subprocess.run(
        [sys.executable, "-c", SHOW.format(words=list(words))],
        capture_output=True,
        text=True,
        check=True,
        timeout=30,
        env=BARE,
    )
    return set(done.stderr.rpartition("\0")[2].split())


def test_help_loads_nothing_but_the_option_parser() -> None:
    modules = loaded("--help")
    ours = {name for name in modules if name.startswith("rankfall")}
    assert ours == {"rankfall", "rankfall.cli", "rankfall.cli.app", "rankfall.cli.emit", "rankfall.cli.guard",
                    "rankfall.report", "rankfall.report.paint"}  # fmt: skip
    assert not modules & {"yaml", "re2", "sqlite3", "asyncio", "typer", "rich", "pydantic", "torch", "hypothesis"}


@pytest.mark.parametrize("verb", ["ps", "status", "logs"])
def test_reading_verbs_load_no_signatures_and_no_supervisor(verb: str) -> None:
    modules = loaded(verb, "--help")
    assert not modules & {"re2", "yaml", "asyncio", "torch", "rankfall.signatures", "rankfall.supervise.loop"}
    assert not {name for name in modules if name.startswith(("rankfall.observe", "rankfall.supervise"))}


def test_importing_rankfall_is_free() -> None:
    done = subprocess.run(
        [sys.executable, "-c", "import rankfall, rankfall.cli, sys; print(*sys.modules)"],
        capture_output=True,
        text=True,
        check=True,
        timeout=30,
        env=BARE,
    )
    assert not set(done.stdout.split()) & {"msgspec", "click", "sqlite3", "rankfall.model", "asyncio"}
