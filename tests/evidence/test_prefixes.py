"""Prefixes of launchers, collectors and loggers: ranks of lines, and speakers of tracebacks."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankfall.evidence.readers import prefixes
from rankfall.evidence.readers.prefixes import learn, parse_prefix
from rankfall.evidence.readers.text import fold
from rankfall.evidence.readers.tracebacks import TracebackReader, find_tracebacks
from rankfall.explain import explain_files

TRACEBACK = """Traceback (most recent call last):
  File "/w/train.py", line 12, in <module>
    main()
  File "/w/train.py", line 8, in main
    print(data["labels"])
KeyError: 'labels'
"""
# Prefix of rank 3, global rank, local rank.
STYLES = [
    ("[rank3]: ", 3, None),
    ("[rank 3, late] ", 3, None),
    ("[Rank 3] ", 3, None),
    ("[rank: 3] ", 3, None),
    ("[RANK 3] ", 3, None),
    ("[GLOBAL_RANK 3] ", 3, None),
    ("[rank=3] ", 3, None),
    ("[rank 3/8] ", 3, None),
    ("(rank 3) ", 3, None),
    ("<rank 3> ", 3, None),
    ("rank3: ", 3, None),
    ("Rank 3: ", 3, None),
    ("R3| ", 3, None),
    ("rank 3 | ", 3, None),
    ("[default3]:", None, 3),
    ("[local_rank 3] ", None, 3),
    ("[trainer1|3]:", 3, 1),
    ("[3]: ", 3, None),
    ("[3] ", 3, None),
    ("3: ", 3, None),
    ("  3: ", 3, None),
    ("host:3: ", 3, None),
    ("[node1:3] ", 3, None),
    ("[1,3]<stderr>:", 3, None),
    ("[3]<stderr>:", 3, None),
    ("[1,mpirank:3,algo-1]<stderr>:", 3, None),
    ("amrex::Abort::3::", 3, None),
    ("MPICH ERROR [Rank 3] ", 3, None),
    ("Rank 3 [Thu Jun 10 21:32:13 2021] [c3-0c1s4n2] ", 3, None),
    ("FATAL from PE     3:  ", 3, None),
    ("job/0 [default1]:[rank3]:", 3, 1),
    ("[pod/j-worker-0/main] [default1]:[rank3]: ", 3, 1),
    ("[2022-06-09T09:32:31.405187Z] 8de2ca81 [rank=3] || ", 3, None),
    ("7: [rank3]: ", 3, None),
    ("(VllmWorker rank=3 pid=42) ERROR 01-01 [x.py:1] ", 3, None),
    ("2026-01-01 10:00:03,123 ERROR mod [rank 3] ", 3, None),
    ("[2026-01-01 10:00:03] CRITICAL [olmo.util:158, rank=3] ", 3, None),
    ("2026-01-01 10:00:03,123 __main__ 3/4 ERROR :: ", 3, None),
    ("[2026-01-01 00:00:00][mod][ERROR] - [rank=3] ", 3, None),
    ("\x1b[31m[rank3]: ", 3, None),
    ("%% anything @ node 7 %% ", None, None),
]


@pytest.mark.parametrize(("prefix", "rank", "local"), STYLES)
def test_i23_p1_a_traceback_keeps_its_speaker_under_any_prefix(tmp_path, prefix, rank, local):
    other = prefix.replace("3", "0")
    lines = [f"{other}step 1", f"{prefix}step 1"]
    for line in TRACEBACK.splitlines():
        lines += [prefix + line, f"{other}step 2 loss 0.5"] if rank is not None else [prefix + line]
    (tmp_path / "job.log").write_text("\n".join(lines) + "\n")
    verdict = explain_files([tmp_path / "job.log"]).verdict
    assert (verdict.cause.slug, verdict.rank) == ("user_code_exception", rank)
    assert verdict.local_rank == local or rank is not None
    (found,) = find_tracebacks((tmp_path / "job.log").read_bytes())
    assert (found.prefix.rank, found.prefix.local_rank, found.frames) == (rank, local, 2)


def test_i23_p1_times_in_a_prefix_may_differ_from_line_to_line():
    heads = [f"2026-01-01T10:00:{second:02}.{second:06}Z stderr F app rank=5 | " for second in range(6)]
    text = "\n".join(head + line for head, line in zip(heads, TRACEBACK.splitlines(), strict=True))
    (found,) = find_tracebacks(text.encode())
    assert (found.prefix.rank, found.chain) == (5, (("KeyError", "'labels'"),))


def test_i23_p1_a_logger_prints_its_words_before_the_head_alone():
    (found,) = find_tracebacks(f"2026-01-01 10:00:03 ERROR [rank 2] {TRACEBACK}".encode())
    assert (found.prefix.rank, found.frames) == (2, 2)


@pytest.mark.parametrize(
    "line",
    [
        b"[1]   1234 killed     python train.py",
        b"[1]+  Killed                  python train.py",
        b"Rank 3 is ready",
        b"12:30 is a time",
        b"[ 12.345678] kernel line",
        b"ratio 3: 4",
        b"loss: 3",
        b"    12:30",
    ],
)
def test_i23_p1_ordinary_text_has_no_rank(line):
    assert parse_prefix(line).rank is None


@pytest.mark.parametrize(
    ("line", "node", "rank"),
    [
        (b"srun: error: gpu-17: task 6: Out Of Memory", "gpu-17", 6),
        (b"srun: error: gpu-17: tasks 4-7: Killed", "gpu-17", None),
        (b"host-1:2016:2235 [5] NCCL INFO x", None, None),
    ],
)
def test_i23_p2_srun_names_node_and_task(line, node, rank):
    assert (parse_prefix(line).hosts, parse_prefix(line).rank) == (node, rank)


@pytest.mark.parametrize(
    ("first", "pattern"),
    [tag[1:] for tag in prefixes._TAGS],
    ids=[f"{n}-{tag[0]}" for n, tag in enumerate(prefixes._TAGS)],
)
@given(data=st.data())
def test_the_first_characters_of_a_tag_are_all_that_it_can_begin_with(first, pattern, data):
    text = data.draw(st.from_regex(pattern.compiled))
    assert text[0] in first or not pattern.match(text).end()


@given(st.binary(max_size=300))
def test_i23_p1_any_bytes_before_a_head_are_a_prefix_of_their_length(before):
    assert learn(before).length == len(before)
    assert len(fold(before)) == len(before)
    assert fold(fold(before)) == fold(before)
    assert 0 <= parse_prefix(before).length <= len(before)


@pytest.mark.parametrize(
    "line",
    [
        "srun: error: gpu-17: task 6: Out Of Memory",
        "slurmstepd: error: Detected 1 oom_kill event in StepId=77.0.",
        "train.py: error: unrecognized arguments: --foo",
        "ERROR: something else",
        "Killed",
        "node01.cluster.local: task 3: Killed",
    ],
)
def test_i23_p2_a_line_of_a_launcher_or_logger_ends_no_traceback(line):
    cut = TRACEBACK.rpartition("KeyError")[0] + line + "\n"
    assert list(find_tracebacks(cut.encode())) == []


@pytest.mark.parametrize(
    "line",
    [
        "socket.timeout: timed out",
        "re.error: bad escape",
        "subprocess.CalledProcessError: Command 'x'",
        "grpc._channel._InactiveRpcError: <x>",
        "_queue.Empty",
        "MyFault: x",
        "KeyboardInterrupt",
    ],
)
def test_i23_p2_each_kind_of_exception_ends_a_traceback(line):
    whole = TRACEBACK.rpartition("KeyError")[0] + line + "\n"
    (found,) = find_tracebacks(whole.encode())
    assert found.finals[0].text == line


@pytest.mark.parametrize("cut", ["before the announcement", "before the head", "nowhere"])
def test_i23_p2_a_started_process_is_known_wherever_the_text_is_cut(cut):
    announcement = b"-- Process 2 terminated with the following error:\n"
    data = b"x\n" + announcement + TRACEBACK.encode()
    at = {"before the announcement": 2, "before the head": 2 + len(announcement), "nowhere": 0}[cut]
    reader = TracebackReader()
    closed = [*reader.push(data[:at], at=0, line=0, final=False).closed]
    closed += reader.push(data[at:], at=at, line=data[:at].count(b"\n"), final=True).closed
    assert [(one.found.prefix.local_rank, one.found.frames) for one in closed if one.found] == [(2, 2)]


@pytest.mark.parametrize("word", ["WARNING", "ERROR", "Caught", "data.loader", "main"])
def test_a_word_before_an_exception_is_no_node(word):
    known = parse_prefix(f"[rank2]: {word}: OSError: [Errno 5] Input/output error".encode())
    assert (known.rank, known.host) == (2, None)


def test_a_name_with_a_number_before_an_exception_is_a_node():
    assert parse_prefix(b"gpu-17: OSError: [Errno 5] Input/output error").host == "gpu-17"
