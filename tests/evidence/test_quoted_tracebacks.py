"""Tracebacks inside one line: loggers that write JSON, Python's repr, and JSON in JSON."""

from __future__ import annotations

import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankfall.evidence.readers.prefixes import parse_prefix
from rankfall.evidence.readers.tracebacks import TracebackReader, find_tracebacks

TRACEBACK = (
    "Traceback (most recent call last):\n"
    '  File "/app/train.py", line 88, in <module>\n    main()\n'
    '  File "/app/data.py", line 61, in load\n    return table["it\'s"]\n'
    'KeyError: "it\'s"'
)


@pytest.mark.parametrize(
    "line",
    [
        json.dumps({"level": "ERROR", "rank": 3, "msg": f"worker failed\n{TRACEBACK}\n"}),
        json.dumps({"exc_info": TRACEBACK, "time": "2026-01-01T10:00:00Z", "labels": {"rank": "3"}}),
        json.dumps({"log": json.dumps({"rank": 3, "exc_info": TRACEBACK}), "rank": 3}),
        json.dumps({"message": "x" * 3000 + TRACEBACK, "global_rank": 3}),
        f"[rank3]: error: {TRACEBACK!r}",
        f"[rank3]: {{'traceback': {TRACEBACK!r}, 'step': 7}}",
        "[rank3]: " + TRACEBACK.replace("\n", "\\n"),
    ],
)
def test_i23_p3_a_traceback_in_one_line_is_read_with_its_rank_and_place(line, why):
    (found,) = find_tracebacks(f"step 1\n{line}\nstep 2\n".encode())
    assert found.chain[0][0] == "KeyError"
    assert found.chain[0][1].startswith('"it\'s"')
    assert found.places == ("/app/data.py:61 in load", "/app/train.py:88 in <module>")
    assert found.finals[0].number == 2
    verdict = why(f"step 1\n{line}\nstep 2\n")
    assert (verdict.cause.slug, verdict.rank) == ("user_code_exception", 3)
    assert verdict.decisive is not None
    assert verdict.decisive.line.startswith("KeyError")
    assert verdict.decisive.where.endswith("job.log:2")


def test_i23_p3_a_quoted_traceback_that_is_cut_is_an_ordinary_line():
    line = json.dumps({"rank": 3, "msg": TRACEBACK})
    cut = line[: line.index("KeyError")]
    assert list(find_tracebacks(cut.encode())) == []


def test_i23_p3_a_quoted_traceback_ends_no_other_one(tmp_path):
    """Two troubles: rank 1's lines are interleaved with a logger's JSON."""
    first, *rest = TRACEBACK.split("\n")
    quoted = json.dumps({"rank": 0, "msg": TRACEBACK.replace("KeyError", "IndexError")})
    text = "\n".join([f"[rank1]: {first}", quoted, *(f"[rank1]: {line}" for line in rest), ""])
    found = {item.prefix.rank: item.chain[0][0] for item in find_tracebacks(text.encode())}
    assert found == {0: "IndexError", 1: "KeyError"}


@pytest.mark.parametrize("cut", range(0, 400, 37))
def test_i23_p3_borders_of_chunks_change_nothing(cut):
    line = json.dumps({"rank": 3, "msg": TRACEBACK}).encode() + b"\n"
    data = b"step 1\n" * (cut % 5) + line + b"step 2\n"
    whole = [item.chain for item in find_tracebacks(data)]
    reader, parts = TracebackReader(), []
    border = data.find(b"\n", min(cut, len(data) - 2)) + 1
    for piece, final in ((data[:border], False), (data[border:], True)):
        at = 0 if not final else border
        closed = reader.push(piece, at=at, line=data.count(b"\n", 0, at), final=final).closed
        parts += [item.found.chain for item in closed if item.found is not None]
    assert parts == whole


@given(st.text(max_size=30), st.integers(0, 999_999))
def test_i23_p1_a_rank_is_read_only_from_a_key_of_the_object(message, rank):
    assert parse_prefix(json.dumps({"m": message, "rank": rank}).encode()).rank == rank
    quoted = json.dumps({"m": message + ' {"rank": 7}'})
    assert parse_prefix(quoted.encode()).rank is None


@pytest.mark.parametrize(
    ("line", "rank", "local"),
    [
        (b'{"local_rank": 2, "m": "x"}', None, 2),
        (b'{"m": "x", "world_rank": "12"}', 12, None),
        (b'{"rank": 1, "local_rank": 0}', 1, 0),
        (b'{"ranks": 8, "m": "x"}', None, None),
        (b"{rank: 3}", None, None),
        (b"rank=3 level=error msg=x", 3, None),
    ],
)
def test_i23_p1_keys_of_structured_logs(line, rank, local):
    found = parse_prefix(line)
    assert (found.rank, found.local_rank) == (rank, local)


@pytest.mark.parametrize("unit", [b"\\", b"\\\\n", b'\\"', b"'", b"\\nTraceback (most recent call last):\\n"])
def test_i23_p3_hostile_quotes_cost_linear_time(unit):
    line = b"Traceback (most recent call last):\\n" + unit * (1_000_000 // len(unit)) + b"\n"
    began = time.process_time()
    list(find_tracebacks(line * 2))
    assert time.process_time() - began < 5


HEAD = "Traceback (most recent call last):"
GROUP = f"""  + Exception Group {HEAD}
  |   File "/w/train.py", line 9, in main
  |     run()
  | ExceptionGroup: two samples failed (2 sub-exceptions)
  +-+---------------- 1 ----------------
    | {HEAD}
    |   File "/w/train.py", line 3, in first
    |     raise ValueError(text)
    | ValueError: bad sample 7
    +---------------- 2 ----------------
    | {HEAD}
    |   File "/w/train.py", line 6, in second
    |     write(part)
    |     ~~~~~^^^^^^
    | {{last}}
    +------------------------------------
"""


@pytest.mark.parametrize("prefix", ["", "[rank3]: ", "(RayTrainWorker pid=7) "])
@pytest.mark.parametrize(
    ("last", "slug"),
    [("OSError: [Errno 28] No space left on device", "disk_full"), ("KeyError: 'x'", "user_code_exception")],
)
def test_the_exceptions_of_a_group_are_read_with_their_places(why, prefix, last, slug):
    text = "".join(f"{prefix}{line}\n" for line in GROUP.format(last=last).splitlines())
    verdict = why(text + "step 4 loss 0.5\n")
    assert (verdict.cause.slug, verdict.rank) == (slug, 3 if "rank" in prefix else None)
    found = [one.chain[-1] for one in find_tracebacks(text.encode())]
    assert found == [
        ("ExceptionGroup", "two samples failed (2 sub-exceptions)"),
        ("ValueError", "bad sample 7"),
        (last.partition(": ")[0], last.partition(": ")[2]),
    ]


@pytest.mark.parametrize("gap", ["", "  ", "\t\t"])
def test_blanks_between_a_prefix_and_a_traceback_are_no_part_of_it(gap):
    lines = (HEAD, '  File "/w/t.py", line 3, in f', "    g()", "KeyError: 'x'")
    text = "".join(f"[rank3]:{gap}{line}\n" for line in lines)
    (found,) = find_tracebacks(text.encode())
    assert (found.chain, found.frames, found.prefix.rank) == ((("KeyError", "'x'"),), 1, 3)


def test_the_exception_of_a_data_worker_is_displayed_with_the_one_that_quotes_it(why):
    # Also where the first line gives the cause by its type alone.
    missing = "FileNotFoundError: [Errno 2] No such file or directory: '/data/x'"
    text = f"""Traceback (most recent call last):
  File "/opt/lib/python3.10/site-packages/torch/_utils.py", line 694, in reraise
    raise exception
FileNotFoundError: Caught FileNotFoundError in DataLoader worker process 0.
Original Traceback (most recent call last):
  File "/app/data.py", line 9, in __getitem__
    return open(self.rows[i])
{missing}
"""
    verdict = why(text)
    assert verdict.cause.slug == "dataset_missing"
    assert (
        verdict.decisive.line
        == f"FileNotFoundError: Caught FileNotFoundError in DataLoader worker process 0.\n{missing}"
    )
