"""What a start loads, counted instead of timed: the slow parts come only with the verb that needs them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Collection
from importlib.util import find_spec
from pathlib import Path

import pytest

import rankfall_inside
from support.patience import scaled

SHOW = "import sys; from rankfall.cli.app import run; [run(words) for words in {words!r}]; print(chr(0), *sorted(sys.modules), file=sys.stderr)"


# What measures coverage in subprocesses loads modules of its own.
BARE = {name: value for name, value in os.environ.items() if not name.startswith("COV")}
# What a job on this machine has no use for. asyncio alone takes as long as a third of the rest.
ELSEWHERE = {"aiohttp", "yaml", "asyncio", "ssl", "http", "logging", "difflib", "jinja2", "obstore"}
CLUSTER = ("rankfall.kube", "rankfall.backends.kubernetes", "rankfall.loki", "rankfall.nodes")
# A whole run, supervised by a process of its own, which ends with what it has loaded.
SUPERVISED = """
import sys
from pathlib import Path
from rankfall.client import complete, create_run
from rankfall.model import JobSpec
from rankfall.supervisor.__main__ import main

spec = complete(JobSpec(command=(sys.executable, "-c", "print(1)"), nnodes=2, launcher="plain"))
code = main([str(create_run(spec, home=Path(sys.argv[1])).path)])
print(chr(0), *sorted(sys.modules), file=sys.stderr)
sys.exit(code)
"""


def shown(program: str, *words: str, **env: str) -> set[str]:
    """Modules that a program names at its end."""
    command = [sys.executable, "-c", program, *words]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=scaled(50), env=BARE | env)
    return set(done.stderr.rpartition("\0")[2].split())


def loaded(*words: str, **env: str) -> set[str]:
    return loaded_by([list(words)], **env)


def loaded_by(commands: list[list[str]], **env: str) -> set[str]:
    return shown(SHOW.format(words=commands), **env)


def loads_none(modules: set[str], names: Collection[str], *, below: Collection[str] = ()) -> None:
    """None of ``names`` was loaded and nothing of the packages ``below``; each of them exists, for a stale name would forbid nothing."""
    for name in (*names, *below):
        assert find_spec(name) is not None, name
    assert not modules & set(names)
    assert not {name for name in modules if name.startswith(tuple(below))}


def test_help_loads_nothing_but_the_option_parser() -> None:
    modules = loaded("--help")
    ours = {name for name in modules if name.startswith("rankfall")}
    assert ours == {"rankfall", "rankfall.cli", "rankfall.cli.app", "rankfall.cli.console", "rankfall.render", "rankfall.render.formatting"}  # fmt: skip
    loads_none(modules, {"msgspec", "tempfile", "yaml", "re2", "sqlite3", "asyncio", "torch", "hypothesis"})


@pytest.mark.parametrize("verb", ["ps", "status", "logs"])
def test_reading_verbs_load_no_signatures_and_no_supervisor(verb: str) -> None:
    modules = loaded(verb, "--help")
    foreign = {"re2", "yaml", "asyncio", "torch"}
    loads_none(
        modules,
        {*foreign, "rankfall.verdict.signatures"},
        below=("rankfall.evidence", "rankfall.collect", "rankfall.supervisor"),
    )


def test_importing_rankfall_is_free() -> None:
    done = subprocess.run(
        [sys.executable, "-c", "import rankfall, rankfall.cli, sys; print(*sys.modules)"],
        capture_output=True,
        text=True,
        check=True,
        timeout=scaled(30),
        env=BARE,
    )
    loads_none(set(done.stdout.split()), {"msgspec", "click", "sqlite3", "rankfall.model", "asyncio"})


def test_documents_load_no_renderer_before_a_notebook_shows_them() -> None:
    program = "import sys, rankfall.model.verdict; print(chr(0), *sys.modules, file=sys.stderr)"
    loads_none(shown(program), {"sqlite3", "asyncio"}, below=("rankfall.render", "rankfall.rundir"))


@pytest.mark.timeout(120)
def test_a_run_on_this_machine_loads_nothing_of_clusters(tmp_path: Path) -> None:
    """Whoever starts, supervises, watches or asks."""
    home = {"RANKFALL_HOME": str(tmp_path / "home")}
    words = ("--launcher", "plain", "--", sys.executable, "-c", "print(1)")
    own = loaded("run", *words, **home)
    assert "rankfall.supervisor.attended.driver" in own
    loads_none(own, ELSEWHERE, below=CLUSTER)
    alone = shown(SUPERVISED, str(tmp_path / "home"))
    assert "rankfall.backends.local.backend" in alone
    loads_none(alone, ELSEWHERE, below=CLUSTER)
    reading = loaded_by([["ps"], ["status"], ["logs"], ["why"]], **home)
    assert "rankfall.explain" in reading
    loads_none(reading, ELSEWHERE, below=CLUSTER)


def test_recording_loads_no_client_before_it_asks_the_cluster() -> None:
    modules = shown("import sys, rankfall.supervisor.unattended.driver; print(chr(0), *sys.modules, file=sys.stderr)")
    assert "rankfall.supervisor.unattended.monitor" in modules
    loads_none(modules, {*ELSEWHERE, "rankfall.kube.client", "rankfall.backends.kubernetes"})


def test_the_wrapper_of_a_slot_loads_little() -> None:
    """It is started for each slot of each attempt, and once more for each start of a slot alone."""
    # As it is started: without the site's own additions.
    program = "import sys; sys.path.insert(0, sys.argv[1]); import rankfall_inside.__main__, rankfall_inside.wrapper.slot_files, rankfall_inside.wrapper.wrapper"
    command = [
        sys.executable,
        "-I",
        "-S",
        "-c",
        f"{program}; print(*sys.modules)",
        str(Path(rankfall_inside.__file__).parent.parent),
    ]
    modules = set(
        subprocess.run(command, capture_output=True, text=True, check=True, timeout=scaled(50)).stdout.split()
    )
    assert "rankfall_inside.wrapper.wrapper" in modules
    heavy = {
        "json",
        "typing",
        "subprocess",
        "socket",
        "asyncio",
        "tempfile",
        "traceback",
        "zipfile",
        "datetime",
        "uuid",
    }
    loads_none(modules, heavy)
    assert not {name for name in modules if name.split(".")[0] == "rankfall"}


def test_ctrl_c_while_modules_load_shows_no_traceback() -> None:
    code = """
import sys
class Interrupting:
    def find_spec(self, name, path=None, target=None):
        if name == "rankfall.cli.app":
            raise KeyboardInterrupt
sys.meta_path.insert(0, Interrupting())
from rankfall.cli import main
main()
"""
    done = subprocess.run([sys.executable, "-c", code, "run", "train.py"], capture_output=True, text=True, check=False)
    assert done.returncode == 130
    assert done.stderr == "interrupted\n"
