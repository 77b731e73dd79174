"""Standstills: stacks of all ranks, and torch's flight recorder."""

from __future__ import annotations

import pickle

import pytest

from rankfall.evidence.readers.flight_recorder import dump_rank, flight_evidence, read_dump
from rankfall.evidence.readers.stacks import imports, stack_evidence, stand
from rankfall.model import Record
from support.cases import T0, S, left, rank
from support.patience import scaled

WAITING = """Thread 0x00007f0000000001 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 327 in wait

Current thread 0x00007f0000000002 (most recent call first):
  File "/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", line 4181 in {op}
  File "/venv/lib/python3.11/site-packages/torch/distributed/c10d_logger.py", line 83 in wrapper
  File "/app/train.py", line {line} in step
  File "/app/train.py", line 50 in <module>
"""
AWAY = """Current thread 0x00007f0000000002 (most recent call first):
  File "/app/train.py", line 33 in load
  File "/app/train.py", line 50 in <module>
"""


def stacks(texts):
    ranks = [rank(n, state="running") for n in range(len(texts))]
    records = [
        (f"stacks-{n}.json", Record(id=f"s{n}", kind="stacks", slot=n // 2, pid=1000 + n, stacks=text, at_ns=n))
        for n, text in enumerate(texts)
    ]
    found = stack_evidence(records, ranks=ranks, attempt=1)
    assert {e.rank for e in found} == (set(range(len(texts))) if len(texts) > 1 else set())
    return [(e.rank, e.slug) for e in found if e.role == "primary"]


def test_the_one_that_stands_elsewhere_is_named():
    texts = [WAITING.format(op="all_reduce", line=7)] * 3 + [AWAY]
    assert stacks(texts) == [(3, "rank_stuck")]


def test_different_collectives_are_a_mismatch_of_the_fewest():
    texts = [WAITING.format(op="all_reduce", line=7)] * 3 + [WAITING.format(op="broadcast", line=9)]
    assert stacks(texts) == [(3, "collective_mismatch")]


def test_everybody_in_one_place_names_nobody():
    assert stacks([WAITING.format(op="all_reduce", line=7)] * 4) == []


def test_everybody_outside_of_collectives_stands_still_together():
    assert stacks([AWAY] * 3) == [(0, "rank_stuck"), (1, "rank_stuck"), (2, "rank_stuck")]


IMPORTING = """Current thread 0x00007f0000000002 (most recent call first):
  File "/venv/lib/python3.11/site-packages/torch/__init__.py", line {line} in <module>
  File "<frozen importlib._bootstrap>", line 241 in _call_with_frames_removed
  File "<frozen importlib._bootstrap>", line 1176 in _find_and_load
  File "/app/train.py", line 3 in <module>
"""


def test_a_rank_inside_of_an_import_is_said_to_be_and_known_again_where_it_stands():
    texts = [WAITING.format(op="all_reduce", line=7)] * 2 + [IMPORTING.format(line=40)]
    assert stacks(texts) == [(2, "rank_stuck")]
    assert stand(2, texts[2]).stands == "is still importing at train.py:<module>:3"
    looks = [
        imports([Record(id="s", kind="stacks", slot=1, pid=7, stacks=text)])
        for text in (IMPORTING.format(line=40), IMPORTING.format(line=40), IMPORTING.format(line=41), AWAY, "")
    ]
    assert looks[0] == looks[1]
    assert looks[0].keys() == looks[2].keys() == {(1, 7)}
    assert looks[0] != looks[2]
    assert looks[3:] == [{}, {}]
    # A collective that a module runs while it is imported is no import that goes on.
    inside = WAITING.format(op="all_reduce", line=7) + IMPORTING.partition("\n")[2].format(line=1)
    assert imports([Record(id="s", kind="stacks", slot=1, pid=7, stacks=inside)]) == {}


def kernel_views(*main_threads):
    """Stacks records of ranks without the hook: only what the kernel says, the main thread second."""
    ranks = [rank(n, state="running") for n in range(len(main_threads))]
    texts = [
        f"\nKernel view:\n  thread {9 + n} (pt_gloo (x)) state=S cpu_s=0.00 wchan=futex_wait_queue syscall=281 0x4 0x7f 0x80\n"
        f"  thread {1000 + n} (python) {main}\n"
        for n, main in enumerate(main_threads)
    ]
    records = [
        (f"stacks-{n}.json", Record(id=f"s{n}", kind="stacks", slot=n // 2, pid=1000 + n, stacks=text, at_ns=n))
        for n, text in enumerate(texts)
    ]
    found = stack_evidence(records, ranks=ranks, attempt=1)
    assert {e.rank for e in found} in (set(), set(range(len(main_threads))))
    return [(e.rank, e.slug, e.trust) for e in found if e.role == "primary"]


ASLEEP = "state=S cpu_s=2.50 wchan=futex_wait_queue syscall=202 0x5581 0x189 0x0"
RESTING = "state=S cpu_s=2.10 wchan=hrtimer_nanosleep syscall=230 0x1 0x0 0x7ffd"
SPINNING = "state=R cpu_s=9.90 wchan=0 syscall=running"


@pytest.mark.parametrize("odd", [RESTING, SPINNING])
def test_without_stacks_the_one_main_thread_elsewhere_is_named(odd):
    assert kernel_views(ASLEEP, ASLEEP, odd, ASLEEP) == [(2, "rank_stuck", "wrapper")]


@pytest.mark.parametrize(
    "views",
    [
        (ASLEEP,) * 4,
        (ASLEEP, ASLEEP, RESTING, SPINNING),
        (ASLEEP, ASLEEP, RESTING),
        (SPINNING, SPINNING, SPINNING, ASLEEP),
        (ASLEEP, ASLEEP, ASLEEP, "state=S"),
    ],
)
def test_without_stacks_nobody_is_named_where_two_answers_are_as_good(views):
    assert kernel_views(*views) == []


def mixed(*views, others=(), at_ns=2 * S):
    """Primary evidence of ranks with a Python stack, or only the kernel's line of the main thread."""
    ranks = [rank(n, state="running", per_node=8, slot=0) for n in range(len(views))]
    texts = [
        view if "File" in view else f"Kernel view:\n  thread {1000 + n} (python) {view}\n"
        for n, view in enumerate(views)
    ]
    records = [
        (f"stacks-{n}.json", Record(id=f"s{n}", kind="stacks", slot=0, pid=1000 + n, stacks=text, at_ns=T0 + at_ns))
        for n, text in enumerate(texts)
    ]
    found = stack_evidence(records, ranks=[*ranks, *others], attempt=1)
    return [(e.rank, e.slug, e.line) for e in found if e.role == "primary"]


HALTED = "state=T cpu_s=0.03 wchan=do_signal_stop syscall=62 0x6557 0x13"


def test_a_stopped_rank_is_named_though_another_stands_elsewhere_too():
    waits = WAITING.format(op="all_reduce", line=7)
    ((number, slug, line),) = mixed(waits, AWAY, HALTED, waits)
    assert (number, slug) == (2, "rank_stuck")
    assert line == "rank 2 is stopped by a signal (state/system call T/62) while 3 others gave theirs"


@pytest.mark.parametrize("place", [AWAY, WAITING.format(op="all_reduce", line=7)])
def test_the_rank_without_a_stack_is_named_while_all_others_wait_in_one_place(place):
    ((number, _, line),) = mixed(place, place, place, RESTING)
    assert number == 3
    assert line.startswith("rank 3 gave no Python stack (state/system call S/230) while 3 others")


def test_a_missing_stack_says_nothing_where_others_differ_or_as_many_lack_one():
    waits = WAITING.format(op="all_reduce", line=7)
    assert [row[0] for row in mixed(waits, waits, AWAY, RESTING)] == [2]
    assert mixed(waits, waits, RESTING, RESTING) == []


EXITING = """Thread 0x00007f0000000001 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 982 in run

Current thread 0x00007f0000000002 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 1590 in _shutdown
"""


@pytest.mark.parametrize(
    ("view", "ends", "named"),
    [
        (EXITING, (0, 0), [0]),
        # A rank in its program may wait for one that left early; a failed rank is the reason itself.
        (WAITING.format(op="all_reduce", line=7), (0, 0), []),
        (AWAY, (0, 0), []),
        (EXITING, (0, 1), []),
        (EXITING, (), []),
    ],
)
def test_the_only_rank_that_still_exits_is_named(view, ends, named):
    others = [left(n, code, per_node=8, slot=0) for n, code in enumerate(ends, 1)]
    assert [row[0] for row in mixed(view, others=others)] == named


def test_one_stack_alone_names_nobody():
    assert stacks([AWAY]) == []
    assert stand(0, "no stack here") is None


def dump(number, calls, members="[0, 1, 2, 3]"):
    entries = [
        {
            "process_group": (group, "x"),
            "collective_seq_id": seq,
            "profiling_name": op,
            "input_sizes": [[4]],
            "state": state,
            "retired": state == "completed",
            "is_p2p": False,
        }
        for group, seq, op, state in calls
    ]
    data = pickle.dumps({"version": "2.10", "entries": entries, "pg_config": {"0": {"ranks": members}}})
    return read_dump(data, rank=number, name=f"nccl_trace_rank_{number}")


def test_the_smallest_last_number_lags():
    done, wait = ("0", 1, "nccl:all_reduce", "completed"), ("0", 2, "nccl:all_reduce", "scheduled")
    dumps = [dump(n, [done] if n == 2 else [done, wait]) for n in range(4)]
    assert [(e.rank, e.slug) for e in flight_evidence(dumps)] == [(2, "rank_stuck")]


def test_a_mismatch_names_the_odd_one():
    dumps = [dump(n, [("0", 1, "nccl:broadcast" if n == 1 else "nccl:all_reduce", "scheduled")]) for n in range(4)]
    assert [(e.rank, e.slug) for e in flight_evidence(dumps)] == [(1, "collective_mismatch")]


def test_the_rank_that_left_no_dump_is_a_suspect():
    dumps = [dump(n, [("0", 1, "nccl:all_reduce", "scheduled")]) for n in (0, 1, 3)]
    assert [(e.rank, e.slug) for e in flight_evidence(dumps)] == [(2, "rank_stuck")]


def test_errors_s30_the_innermost_blocked_group_holds_the_culprit():
    """Ranks 4-7 are one tensor group, blocked by 6; their data groups with 0-3 wait behind them."""
    dumps = []
    for n in range(8):
        calls = []
        if n >= 4:
            calls.append(("tp1", 1, "nccl:all_reduce", "completed"))
            if n != 6:
                calls.append(("tp1", 2, "nccl:all_reduce", "scheduled"))
        calls.append((f"dp{n % 4}", 1, "nccl:all_reduce", "completed"))
        if n < 4:
            calls.append((f"dp{n % 4}", 2, "nccl:all_reduce", "scheduled"))
        dumps.append(dump(n, calls, members="[]"))
    assert {(e.rank, e.slug) for e in flight_evidence(dumps)} == {(6, "rank_stuck")}


class Bomb:
    def __reduce__(self):
        return (print, ("boom",))


@pytest.mark.parametrize(
    "data", [pickle.dumps(Bomb()), b"", b"not a pickle", b"{", pickle.dumps([1]), pickle.dumps({"entries": 3})]
)
def test_a_hostile_dump_is_a_problem_and_runs_nothing(data, capsys):
    assert isinstance(read_dump(data, rank=0, name="d"), str)
    assert capsys.readouterr().out == ""


def test_errors_s15_a_maze_of_references_is_looked_at_in_part_only():
    maze: list[object] = [1]
    for _ in range(200):
        maze = [maze] * 50
    entry = {"profiling_name": maze, "process_group": (maze, "x"), "input_sizes": maze, "collective_seq_id": 1}
    found = read_dump(pickle.dumps({"entries": [entry]}), rank=0, name="d")
    assert len(found.kinds[0][1]) <= 200
    assert isinstance(read_dump(pickle.dumps({"entries": [entry] * 200_001}), rank=0, name="d"), str)
    assert isinstance(read_dump(pickle.dumps({"entries": [maze]}), rank=0, name="d"), str)


def test_members_may_be_numbers_or_torchs_text_of_them():
    found = [dump(n, [("0", 1, "nccl:all_reduce", "scheduled")], members=[0, 1, 2]) for n in (0, 1)]
    assert [(e.rank, e.slug) for e in flight_evidence(found)] == [(2, "rank_stuck")]


def test_dumps_are_known_by_torchs_names():
    assert dump_rank("nccl_trace_rank_12") == 12
    assert dump_rank("train.log") is None


@pytest.mark.full
@pytest.mark.torch
def test_real_dumps_of_torch_are_read(tmp_path):
    import subprocess  # noqa: PLC0415 - only this test starts a process
    import sys  # noqa: PLC0415

    code = """
import os, sys
# The limit of these tests is for readers; torch maps more.
import resource; resource.setrlimit(resource.RLIMIT_AS, (-1, -1))
import torch, torch.distributed as d, torch.multiprocessing as mp
from torch._C import _distributed_c10d as c
def f(r, port, folder):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
    d.init_process_group("gloo", rank=r, world_size=2)
    d.all_reduce(torch.ones(3))
    if r == 0:
        d.all_reduce(torch.ones(3), async_op=True)
    open(f"{folder}/nccl_trace_rank_{r}", "wb").write(c._dump_fr_trace())
    os._exit(0)
if __name__ == "__main__":
    import socket
    s = socket.socket(); s.bind(("127.0.0.1", 0)); port = str(s.getsockname()[1]); s.close()
    mp.spawn(f, args=(port, sys.argv[1]), nprocs=2)
"""
    script = tmp_path / "fr.py"
    script.write_text(code)
    subprocess.run(
        [sys.executable, str(script), str(tmp_path)],
        env={"TORCH_FR_BUFFER_SIZE": "100", "PATH": "/usr/bin:/bin"},
        check=True,
        capture_output=True,
        timeout=scaled(60),
    )
    dumps = [read_dump((tmp_path / f"nccl_trace_rank_{n}").read_bytes(), rank=n, name=str(n)) for n in range(2)]
    assert [d.count for d in dumps] == [2, 1]
    assert [(e.rank, e.slug) for e in flight_evidence(dumps)] == [(1, "rank_stuck")]
