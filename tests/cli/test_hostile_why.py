"""``rankfall why`` as a real process over each hostile input: it ends, with an answer or a clear message, within its time and memory.

Time is CPU time of the process, memory the most that it held. An input may cost two seconds a MiB; a file counts as 4 KiB at least, which is what it
takes on a disk, and what is read of a bomb counts as it is unpacked.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import threading
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from rankfall.cli import console
from rankfall.cli.target import CopiedInput
from support.hostile_inputs import INPUTS, Hostile, Kind, of_kind
from support.patience import scaled

MIB = 1 << 20
START_S = 4.0
SECONDS_A_MIB = 2.0
MOST_MIB = 300
# Of one input in a run of CI, and how many share a process there.
SMALL = 96 << 10
TOGETHER = 16
# Trees whose honest file may be left out: another file is more likely to say something.
NOT_READ = {"files-100k", "attempts-1k", "ranks-2k", "names-control", "names-not-utf8", "names-long", "names-flags"}
NOT_READ |= {"names-ranks", "hard-links", "files-error-json", "zstd-bomb-errors", "replaced", "truncated"}


# The command, which says at its end how much memory it held at most: that is the process's own peak, where the kernel's number for its parent
# (ru_maxrss) holds that of the test as well. Its address space ends far above that.
_MAIN = """
import atexit, resource, sys
resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))
def peak():
    with open("/proc/self/status") as status:
        kib = next(line.split()[1] for line in status if line.startswith("VmHWM"))
    print("\\nMiB", int(kib) / 1024, file=sys.stderr)
atexit.register(peak)
sys.argv[0] = "rankfall"
from rankfall.cli import main
sys.exit(main())
"""


class Done(NamedTuple):
    code: int
    out: str
    err: str
    cpu: float
    mib: float

    @property
    def verdict(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.out)
        return found


def why(home: Path, *paths: Path | str, stdin: bytes | int = subprocess.DEVNULL) -> Done:
    """One real process, without a tracer."""
    env = {name: value for name, value in os.environ.items() if name != "COVERAGE_OF_RANKFALL"}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [sys.executable, "-c", _MAIN, "why", *map(str, paths), "-o", "json"],
        env=env | {"RANKFALL_HOME": str(home)},
        capture_output=True,
        timeout=scaled(55),
        check=False,
        **({"input": stdin} if isinstance(stdin, bytes) else {"stdin": stdin}),
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    err, _, mib = done.stderr.decode(errors="replace").rpartition("\nMiB ")
    return Done(done.returncode, done.stdout.decode(), err, cpu, float(mib))


# What stalls takes minutes; the bound itself is held by the tests of make test-all, which run when nothing else does, and by make fuzz-readers.
MARGIN = 10


def check(done: Done, size: int, *, margin: int = MARGIN) -> None:
    assert "Traceback (most recent call last)" not in done.err
    assert done.code in {0, 2, 66}, done.err
    assert done.mib <= MOST_MIB
    assert done.cpu <= margin * (START_S + SECONDS_A_MIB * size / MIB)
    if done.code:
        assert done.err.startswith("rankfall: ")
        assert "  next: " in done.err
    else:
        assert done.verdict["schema"] == "rankfall.verdict/1"
        done.out.encode()


def on_disk(folder: Path) -> int:
    """Bytes that a tree takes on its disk, whatever its depth and its holes."""
    found = subprocess.run(["du", "-sk", str(folder)], capture_output=True, check=False)
    return int(found.stdout.split()[0]) << 10


def groups(count: int, *kinds: Kind) -> list[list[Hostile]]:
    """Inputs of one kind each, so many together."""
    found = []
    for kind in kinds:
        inputs = of_kind(kind)
        found += [inputs[at : at + count] for at in range(0, len(inputs), count)]
    return found


def named(group: list[Hostile]) -> str:
    return f"{group[0].name}..{group[-1].name}"


FILES = of_kind(Kind.TEXT, Kind.ERROR_FILE, Kind.DUMP)
# The gate takes every so manieth: each reader and each kind of tree is among them.
EVERY = 10
TREES = [
    pytest.param(
        one,
        marks=[pytest.mark.full] * (one.full or number % EVERY > 0) + [pytest.mark.root] * one.root,
        id=one.name,
    )
    for number, one in enumerate(of_kind(Kind.TREE))
]


def covering(found: list[list[Hostile]]) -> list[object]:
    """Groups of inputs, of which the gate takes the first of every five."""
    return [
        pytest.param(one, marks=[pytest.mark.full] * (number % 5 > 0), id=named(one))
        for number, one in enumerate(found)
    ]


@pytest.mark.parametrize("group", covering(groups(TOGETHER, Kind.TEXT, Kind.ERROR_FILE, Kind.DUMP)))
def test_i18_hostile_files_cost_little_and_break_nothing(group, tmp_path):
    with ExitStack() as stack:
        folders = [stack.enter_context(one.laid(tmp_path / one.name, SMALL)) for one in group]
        done = why(tmp_path / "home", *folders)
    check(done, len(group) * SMALL)
    assert done.code == 0 or group[0].kind is Kind.DUMP


@pytest.mark.full
@pytest.mark.parametrize("one", FILES, ids=lambda one: one.name)
def test_i18_each_hostile_file_alone(one, tmp_path):
    with one.laid(tmp_path / one.name) as folder:
        done = why(tmp_path / "home", folder)
        check(done, max(MIB, (folder / one.file).stat().st_size), margin=1)


@pytest.mark.parametrize("one", TREES)
def test_i18_hostile_trees_cost_little_and_break_nothing(one, tmp_path):
    size = one.size if one.full or one.size == MIB else one.size // 4
    with one.laid(tmp_path / "tree", size) as folder:
        done = why(tmp_path / "home", folder)
        disk = on_disk(folder)
    # Of a bomb so much is unpacked.
    check(done, disk + (20 * MIB if one.name.startswith("zstd") else 0) * (40 if one.name == "zstd-many" else 1))
    assert done.code == 0
    if one.name not in NOT_READ:
        assert done.verdict["rank"] == 5, done.verdict["missing"]


@pytest.mark.parametrize("group", covering(groups(37, Kind.TEXT)))
def test_i18_hostile_text_from_a_pipe(group, tmp_path):
    data = b"\n".join(one.data(SMALL // 2) for one in group)
    done = why(tmp_path / "home", "-", stdin=data)
    check(done, len(data))
    assert done.code == 0


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("links-out", "4 links out of"),
        ("link-pagemap", "1 links out of"),
        ("nested-1500", "more than 64 levels below"),
        ("zstd-bomb-1g", "between its beginning and its end were not read: it unpacks to more than"),
        ("zstd-window", "a.log.zst is damaged"),
        ("fifo", "1 pipes, sockets and devices"),
    ],
)
def test_i18_what_was_left_out_is_said(name, said, tmp_path):
    with INPUTS[name].laid(tmp_path / "tree") as folder:
        done = why(tmp_path / "home", folder)
    assert any(said in text for text in done.verdict["missing"]), done.verdict["missing"]
    assert "secret outside" not in done.out


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("/dev/zero", 2),
        ("/proc/self/pagemap", 0),
        ("/proc/self/status", 0),
        ("x" * 5000, 66),
        ("a/" * 3000, 66),
        ("/dev/stdin", 2),
    ],
)
def test_i18_what_a_person_names_ends_too(path, code, tmp_path):
    done = why(tmp_path / "home", path)
    check(done, 16 * MIB)
    assert done.code == code


def test_i18_a_named_pipe_without_a_writer_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    assert why(tmp_path / "home", tmp_path / "pipe").code == 0


def test_a_named_link_is_followed_and_so_is_the_pipe_of_a_shell(tmp_path):
    with INPUTS["fifo"].laid(tmp_path / "tree") as folder:
        (tmp_path / "link").symlink_to(folder / "honest.log")
        (tmp_path / "folder").symlink_to(folder)
        assert why(tmp_path / "home", tmp_path / "link").verdict["rank"] == 5
        assert why(tmp_path / "home", tmp_path / "folder").verdict["rank"] == 5
        with (folder / "honest.log").open("rb") as file:
            pipe = subprocess.Popen(["cat"], stdin=file, stdout=subprocess.PIPE)
            assert pipe.stdout is not None
            assert why(tmp_path / "home", "/dev/stdin", stdin=pipe.stdout.fileno()).verdict["rank"] == 5
            pipe.stdout.close()
            pipe.wait()


def test_i23_p8_a_pipe_or_file_with_text_is_explained_without_an_argument(tmp_path):
    text = b"[rank5]: Traceback (most recent call last):\n[rank5]: KeyError: 1\n"
    (tmp_path / "log").write_bytes(text)
    done = why(tmp_path / "home", stdin=text)
    assert (done.code, done.verdict["rank"], "explaining standard input" in done.err) == (0, 5, True)
    with (tmp_path / "log").open("rb") as file:
        assert why(tmp_path / "home", stdin=file.fileno()).verdict["rank"] == 5


def test_a_pipe_that_does_not_end_says_that_its_end_is_awaited(tmp_path, monkeypatch):
    said, heard = [], threading.Event()
    monkeypatch.setattr(console, "_SLOW_S", 0.0)
    monkeypatch.setattr(console, "say", lambda text: (said.append(text), heard.set()))

    class Endless:
        def read(self, size):
            assert heard.wait(scaled(10))
            return b""

    assert CopiedInput(Endless(), tmp_path / "-").read(1) == b""
    assert said == ["still reading standard input to its end; Ctrl-C stops without a verdict"]


@pytest.mark.parametrize("kind", ["null", "empty", "open"])
def test_i23_p8_without_text_the_newest_run_is_explained(tmp_path, kind):
    (tmp_path / "log").write_bytes(b"")
    ends = os.pipe()
    if kind != "open":
        os.close(ends[1])
    stdin = {"null": subprocess.DEVNULL, "empty": ends[0], "open": ends[0]}[kind]
    done = why(tmp_path / "home", stdin=stdin)
    assert (done.code, "there is no run yet" in done.err) == (66, True)
    for end in ends[: 2 if kind == "open" else 1]:
        os.close(end)
