"""What a wrapper counts when it prints, and that whoever stores its stdout finds the same: real wrappers, and any bytes."""

from __future__ import annotations

import base64
import json
import sys
from types import SimpleNamespace

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rankfall_inside import records
from rankfall_inside.delivery import exit_reports
from rankfall_inside.delivery.console import MOST, MOST_IN_MESSAGE, Console, Printed
from support.stored_log import Stored

from .conftest import TOKEN


@pytest.fixture
def scene(tmp_path):
    made = Stored(tmp_path / "home", token=TOKEN)
    yield made
    made.instances.close()


def loop() -> SimpleNamespace:
    return SimpleNamespace(watch_write=lambda *_: None, unwatch_write=lambda *_: None)


PREFIXES = [b"", b"[rank ?] ", b"[rank 0] ", b"[rank 12] "]
pieces = st.lists(
    st.tuples(
        st.integers(0, 3),
        st.lists(
            st.sampled_from([b"x", b"\n", b"\r", b"\r\n", b"[rank 1] ", b"[rank ?] ", b"\x1e", TOKEN.encode()])
        ).map(b"".join),
    ),
    max_size=20,
)


@given(pieces=pieces, drop_returns=st.booleans())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_what_is_counted_is_what_a_reader_stores(pieces, drop_returns, tmp_path_factory):
    """Whatever ranks print. ``drop_returns``: as containerd does with a carriage return before a line feed."""
    folder = tmp_path_factory.mktemp("printed")
    with (folder / "out").open("wb") as file:
        console = Console(file.fileno(), loop(), secret=TOKEN.encode())
        takes = [console.tee(f"{number}.out", lambda prefix=prefix: prefix) for number, prefix in enumerate(PREFIXES)]
        for number, data in pieces:
            takes[number](data)
        for number, prefix in enumerate(PREFIXES):
            console.finish(f"{number}.out", prefix)
    out = (folder / "out").read_bytes()
    scene = Stored(folder / "home", token=TOKEN)
    for line in out.split(b"\n")[:-1]:
        scene.push((line.removesuffix(b"\r") if drop_returns else line) + b"\n")
    scene.log.cursor.printed = {stream: (lines, size) for stream, (lines, size) in console.printed.counts().items()}
    assert scene.settle() is True
    assert scene.gaps() == []
    scene.instances.close()


def test_a_line_that_the_wrapper_cuts_is_counted_as_what_it_becomes(tmp_path):
    with (tmp_path / "out").open("wb") as file:
        console = Console(file.fileno(), loop())
        take = console.tee("0.out", lambda: b"[rank 0] ")
        take(b"x" * (3 << 20))
        take(b"y\nz\n" + b"w" * (2 << 20) + b"\n")
    out = (tmp_path / "out").read_bytes()
    lines = out.count(b"\n")
    assert console.printed.counts() == {"r0": [lines, len(out) - lines * len(b"[rank 0] ")]}


def test_many_streams_are_told_as_their_sum_and_the_message_keeps_its_size():
    printed = Printed()
    for rank in range(MOST):
        printed.add(b"[rank %d] " % rank, b"a\nbc")
    assert printed.counts()["r7"] == [2, 5]
    end = records.new("slot_end", writer="wrapper", fields={"exit": {"code": 3}, "printed": printed.counts()})
    last = json.loads(exit_reports.termination_message(None, end))
    assert (last["printed"], last["exit"]) == ({"all": [2 * MOST, 5 * MOST]}, {"code": 3})
    assert len(end["printed"]) == MOST > MOST_IN_MESSAGE
    printed.add(b"", b"d")
    assert printed.counts() == {"all": [2 * MOST + 1, 5 * MOST + 2]}


# -- real wrappers

COUNTS = r"""
import os, sys
rank = os.environ["RANK"]
for number in range(2000):
    os.write(1, b"number %06d\n" % number)
    if number % 100 == 0:
        os.write(2, b"on stderr\r\n")
os.write(1, b"no end")
"""


@pytest.fixture
def out(pod, scene):
    """Stdout of a wrapper of two ranks that print on both outputs, and of a slot that says something itself."""
    script = pod.script(COUNTS)
    words = ("sh", "-c", f"echo of no rank; RANK=0 {sys.executable} {script}; RANK=1 {sys.executable} {script}")
    done = pod.run(*words, RANKFALL_RUN=scene.run.id, RANKFALL_ATTEMPT="1", RANKFALL_SLOT="0")
    assert done.returncode == 0
    return done.stdout


def test_a_real_wrapper_counts_what_it_prints_and_all_of_it_is_stored(out, scene):
    assert scene.settle() is None
    scene.push(out)
    size = 2000 * 14 + 20 * 10 + 7
    assert scene.log.cursor.printed == {"slot": (1, 11), "r0": (2021, size), "r1": (2021, size)}
    scene.log.lose()
    assert len(scene.gaps()) == 1
    # That the end of the stream was not seen proves nothing any more.
    assert scene.settle() is True
    assert scene.gaps() == []
    assert scene.settle() is None


def test_what_is_missing_is_written_down_with_its_lines_and_bytes(out, scene):
    lines = out.splitlines(keepends=True)
    where = [number for number, line in enumerate(lines) if line.startswith(b"[rank 1] number")]
    missing = set(where[300:420])
    scene.push(b"".join(line for number, line in enumerate(lines) if number not in missing))
    scene.log.lose()
    assert scene.settle() is False
    assert scene.lost() == {"r1": (120, 120 * 14), None: (None, None)}
    (told,) = [gap for gap in scene.gaps() if gap.rank == 1]
    assert told.notes == (
        "120 lines of rank 1 are missing, 1680 bytes: its container printed them, but the log from the cluster does not contain them",
    )


def test_a_recorder_that_is_killed_before_it_compared_leaves_that_to_the_next(out, scene):
    scene.push(b"".join(out.splitlines(keepends=True)[5:]))
    scene.reopen()
    assert scene.settle() is False
    before = scene.lost()
    assert before
    scene.reopen()
    assert scene.settle() is None
    assert scene.lost() == before


def test_a_wrapper_of_before_that_counts_nothing_is_believed_as_before(out, scene):
    lines = [line for line in out.splitlines(keepends=True) if not line.startswith(b"\x1e")]
    scene.push(b"".join(lines[:50]))
    end = {"id": "e" * 8, "kind": "slot_end", "writer": "wrapper", "slot": 0, "exit": {"code": 0}}
    text = base64.urlsafe_b64encode(json.dumps(end).encode())
    scene.push(b"\x1erankfall/1 " + TOKEN.encode() + b" " + text + b"\n")
    scene.log.lose()
    assert scene.settle() is None
    assert list(scene.lost()) == [None]


def test_a_reader_of_before_passes_the_counts_over(out):
    class Before(msgspec.Struct):
        id: str
        kind: str

    (line,) = [line for line in out.splitlines() if line.startswith(b"\x1e")][-1:]
    text = base64.urlsafe_b64decode(line.rpartition(b" ")[2])
    assert b'"printed"' in text
    assert msgspec.json.decode(text, type=Before).kind == "slot_end"
