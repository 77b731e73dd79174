"""Stacks that people took themselves, or that programs printed: faulthandler, py-spy's text and its JSON."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankfall.evidence.readers.stacks import NewestDump, kernel_state, main_frames, text_of_json
from rankfall.explain import explain_files

# As py-spy 0.4 prints it.
SPY = """Process {pid}: /usr/bin/python3 -u train.py
Python v3.11.7 (/usr/bin/python3.11)

Thread {pid} (idle): "MainThread"
{frames}
Thread 0x7F3C5 (idle): "Thread-1 (worker)"
    wait (threading.py:327)
    run (threading.py:982)
"""
WAITS = """    all_reduce (torch/distributed/distributed_c10d.py:2806)
    wrapper (torch/distributed/c10d_logger.py:81)
    step (train.py:40)
    <module> (train.py:60)"""
AWAY = """    read (data.py:12)
    step (train.py:31)
    <module> (train.py:60)"""
FAULT = """Timeout (0:00:05)!
Thread 0x00007f3c (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 327 in wait

Current thread 0x00007f3d (most recent call first):
{frames}
"""


def spy(number, frames):
    return SPY.format(pid=1000 + number, frames=frames)


def fault(*frames):
    return FAULT.format(frames="\n".join(f'  File "{file}", line {line} in {name}' for file, line, name in frames))


ALL_REDUCE = ("/x/site-packages/torch/distributed/distributed_c10d.py", 2806, "all_reduce")
STEP, READ = ("/app/train.py", 40, "step"), ("/app/data.py", 12, "read")


def newest(text: bytes, size: int = 1 << 20) -> str | None:
    seen = NewestDump()
    for start in range(0, len(text), size):
        seen.push(text[start : start + size])
    return seen.text()


def named(folder):
    verdict = explain_files([folder]).verdict
    return verdict.cause.slug, verdict.rank


def test_pyspys_text_is_read_by_its_main_thread():
    assert main_frames(spy(3, AWAY))[0] == ("data.py", "12", "read")
    nameless = "Thread 7 (active)\n    a (b.py:1)\nThread 8 (idle)\n    c (d.py:2)\n"
    assert main_frames(nameless) == [("b.py", "1", "a")]


def test_errors_s29_of_pyspys_files_the_rank_that_stands_elsewhere_is_named(tmp_path):
    for number in range(4):
        (tmp_path / f"rank-{number}.txt").write_text(spy(number, AWAY if number == 2 else WAITS))
    assert named(tmp_path) == ("rank_stuck", 2)


def test_pyspys_json_is_read(tmp_path):
    for number in range(3):
        place = ("read", "/app/data.py", 12) if number == 1 else ("all_reduce", ALL_REDUCE[0], 2806)
        frames = [
            {"name": name, "filename": file, "short_filename": file, "line": line, "locals": None}
            for name, file, line in (place, ("step", "/app/train.py", 40))
        ]
        threads = [{"pid": 7, "thread_id": 7, "thread_name": "MainThread", "active": True, "frames": frames}]
        (tmp_path / f"rank-{number}.json").write_text(json.dumps(threads))
    assert named(tmp_path) == ("rank_stuck", 1)


@pytest.mark.parametrize(
    "data", [b"", b"{}", b"[1]", b'[{"frames": 3}]', b"\xff", b'[{"frames": [{}], "thread_id": 1}]', b"[]"]
)
def test_any_other_json_is_none(data):
    assert text_of_json(data) is None


def test_errors_s29_dumps_in_logs_are_found_and_the_newest_counts(tmp_path):
    for number in range(3):
        early = fault(ALL_REDUCE, STEP)
        late = fault(READ, STEP) if number == 1 else early
        (tmp_path / f"rank-{number}.log").write_text(f"step 1\n{early}step 2\n{late}waiting\n")
    assert named(tmp_path) == ("rank_stuck", 1)


@pytest.mark.parametrize("size", [1 << 14, 1 << 20, 1 << 22])
@pytest.mark.parametrize("before", [b"step\n" * 700_000, b"x" * 3_000_000 + b"\n", b""])
def test_a_dump_near_the_end_of_a_long_log_is_found_and_an_early_one_is_not(before: bytes, size: int) -> None:
    dump = fault(READ, STEP).encode()
    found = newest(before + dump + b"waits\n" * 9_000, size)
    assert found is not None
    assert main_frames(found)[0][2] == "read"
    assert newest(before + dump + b"trains\n" * 9_500, size) is None
    # Of two dumps the newer one, also if the older lies before the part that is searched.
    both = newest(before + fault(ALL_REDUCE, STEP).encode() + b"step\n" * 300_000 + dump, size)
    assert both == newest(dump)


@pytest.mark.parametrize("all_threads", [True, False])
def test_a_real_dump_of_this_python_is_read(*, all_threads: bool) -> None:
    code = f"import faulthandler\ndef inner(): faulthandler.dump_traceback(all_threads={all_threads})\ninner()"
    text = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stderr
    found = newest(b"before\n" + text + b"after\n")
    assert found is not None
    assert main_frames(found)[0][2] == "inner"


def test_who_went_on_or_crashed_was_not_standing_still():
    text = fault(READ, STEP).encode()
    assert newest(text + b"step\n" * 100) is not None
    assert newest(text + b"step\n" * 20_000) is None
    assert newest(text + b"x" * 100_000) is None
    crash = text.replace(b"Timeout (0:00:05)!", b"Fatal Python error: Segmentation fault\n")
    assert newest(b"a\n" + crash) is None
    assert newest(b"nothing\n" * 10) is None


@given(st.integers(1, 60))
def test_parts_of_any_size_give_the_same(size):
    text = b"step 1\n" * 5 + fault(READ, STEP).encode() + b"waiting\n"
    assert newest(text, size) == newest(text)


@given(st.text(st.sampled_from(' \n\tFile"(),:x1Thread0Process')))
def test_any_text_is_read_or_not(text):
    main_frames(text)
    newest(text.encode())


@pytest.mark.parametrize(
    "text", ["\n" * 250_000, '  File "x", line 1 in ' + " " * 250_000 + "x\n", "    " + " (" * 100_000]
)
def test_errors_s15_hostile_stacks_cost_linear_time(text):
    main_frames("Current thread 0x1 (most recent call first):\n" + text)
    main_frames('Thread 1 (idle): "MainThread"\n    a (b:1)\n' + text)
    newest(b"Thread 0x1 (most recent call first):\n" + text.encode())


@pytest.mark.parametrize(
    "text",
    [
        "Thread 0x1 [" * 80_000,
        "Thread 0x" + "a" * 1_000_000,
        "Current thread 0x1:\n" * 50_000,
        'Thread 1 (idle): "' + '" ' * 500_000,
        "  thread 1 (" + ") state=S wchan=" * 60_000,
    ],
)
def test_i18_p4_one_endless_line_of_a_stack_costs_linear_time(text):
    main_frames(text)
    kernel_state(1, text)
    newest(b"Process 1: most recent call first\n" + text.encode())


def test_only_the_thread_that_faulthandler_calls_current_is_the_main_one():
    other = 'Thread 0x1 (most recent call first):\n  File "/a/t.py", line 1 in run\n\n'
    current = 'Current thread 0x2 (most recent call first):\n  File "/a/m.py", line 2 in main\n  File x\n  File "/a/n.py", line 3 in n\n\n'
    assert [name for _, _, name in main_frames(other + current + other)] == ["main", "n"]
    assert [name for _, _, name in main_frames(other + "Current thread 0x2:\n\n" + other)] == ["run"]
    long = other + "x" * 40_000
    assert main_frames(long) == main_frames(long)


@pytest.mark.parametrize("line", ['"' + "9" * 5000 + '"', "1e999", "[1]", "null", "true"])
def test_i18_p1_a_line_of_no_sense_in_a_stack_of_json_is_none(line):
    data = b'[{"thread_id": 1, "thread_name": "MainThread", "frames": [{"name": "f", "filename": "a.py", "line": %s}]}]'
    text = text_of_json(data % line.encode())
    assert text is None or text.endswith("(a.py:0)")
