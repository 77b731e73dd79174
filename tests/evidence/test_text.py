"""Prefixes, tracebacks and reports in text."""

from __future__ import annotations

import subprocess
import sys

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankfall.evidence.builders import of_error
from rankfall.evidence.readers.prefixes import parse_prefix
from rankfall.evidence.readers.scan import ChunkScanner, scan
from rankfall.evidence.readers.text import decode, normalise
from rankfall.evidence.readers.torchrun import read_reports
from rankfall.evidence.readers.tracebacks import TracebackReader, find_tracebacks
from rankfall.model import Record
from rankfall.verdict.signatures.catalogue import default_catalogue


def real_traceback(code: str) -> bytes:
    """What this Python prints when the code fails."""
    return subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).stderr


CHAINED = """
def inner():
    raise ConnectionResetError("peer went away")
try:
    inner()
except ConnectionResetError as error:
    raise RuntimeError("step failed") from error
"""


@pytest.mark.parametrize(
    ("line", "rank", "local"),
    [
        (b"[rank3]: Traceback", 3, None),
        (b"[rank 12] loss 1.0", 12, None),
        (b"[default1]:loss 1.0", None, 1),
        (b"[trainer0]:[rank3]: Traceback", 3, 0),
        (b"[1,7]<stderr>:oops", 7, None),
        (b"5: Traceback", 5, None),
        (b"\x1b[31m[rank2]: red", 2, None),
        (b"2026-11-21 09:00:00,123 [rank2]: stamped", 2, None),
        (b"[pod/job-0-1/node] [rank4]: x", 4, None),
        (b"plain text with rank 3 in it", None, None),
        (b"12:30 is a time", None, None),
    ],
)
def test_a_prefix_tells_the_rank_only_where_it_is_one(line, rank, local):
    prefix = parse_prefix(line)
    assert (prefix.rank, prefix.local_rank) == (rank, local)


@given(st.binary(max_size=300))
def test_any_line_has_a_prefix_within_itself(line):
    assert 0 <= parse_prefix(line).length <= len(line)


def test_a_chain_is_read_with_the_raised_one_first():
    (found,) = find_tracebacks(real_traceback(CHAINED))
    assert found.chain == (("RuntimeError", "step failed"), ("ConnectionResetError", "peer went away"))
    assert found.frame == "<string>:<module>"


def test_interleaved_ranks_are_separated_by_their_prefixes():
    lines = real_traceback(CHAINED).splitlines()
    other = real_traceback("raise ValueError('mine')").splitlines()
    mixed = b""
    for number in range(max(len(lines), len(other))):
        for rank, text in ((0, lines), (5, other)):
            if number < len(text):
                mixed += b"[rank%d]: %s\n" % (rank, text[number])
    found = {t.prefix.rank: t.chain[0] for t in find_tracebacks(mixed)}
    assert found == {0: ("RuntimeError", "step failed"), 5: ("ValueError", "mine")}


def test_a_broken_off_traceback_waits_for_its_end():
    text = real_traceback(CHAINED)
    cut = text.rfind(b"RuntimeError: step")
    reader = TracebackReader()
    assert reader.push(text[:cut], at=0, line=0, final=False).closed == []
    assert reader.oldest == 0
    (found,) = reader.push(text[cut:], at=cut, line=text.count(b"\n", 0, cut), final=True).closed
    assert found.found == next(iter(find_tracebacks(text)))


def test_what_python_ignored_is_noise():
    text = real_traceback("import atexit\natexit.register(lambda: 1/0)")
    found = scan(text, default_catalogue()).found
    assert {f.meaning.role for f in found} == {"context"}


def test_source_lines_of_a_traceback_are_no_messages():
    text = real_traceback('def f():\n    raise ValueError("CUDA out of memory. Tried to allocate" and "x")\nf()')
    assert [f.meaning.slug for f in scan(text, default_catalogue()).found] == ["user_code_exception"]


@given(st.lists(st.binary(max_size=80).map(lambda b: b.replace(b"\n", b"")), max_size=30), st.integers(0, 2400))
def test_scanning_never_raises_and_never_points_outside(lines, at):
    text = b"\n".join(lines)
    text = text[:at] + b"\nTraceback (most recent call last):\n" + text[at:]
    result = scan(text, default_catalogue())
    assert all(0 <= f.start <= f.end <= len(text) for f in result.found)


@given(st.integers(1, 2000))
def test_a_traceback_is_found_once_however_the_text_is_cut(size):
    text = b"step 1\n" + TRACE + b"step 2\n" + TRACE.replace(b"step failed", b"again")
    found = [one.meaning.text.partition("\n")[0] for one, _, _ in in_chunks(text, size)]
    assert found == ["RuntimeError: step failed", "RuntimeError: again"]


def in_chunks(text, size):
    scanner = ChunkScanner(default_catalogue())
    parts = [text[begin : begin + size] for begin in range(0, len(text), size)]
    return [one for part in (*parts, b"") for one in scanner.push(part, final=not part)[0]]


TRACE = real_traceback(CHAINED)

BLOCK = b"""W1121 09:41:49.153000 7452 torch/distributed/elastic/multiprocessing/api.py:1028] Sending process 7458 closing signal SIGTERM
E1121 09:41:49.169000 7452 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: 1) local_rank: 1 (pid: 7460) of binary: python
Failures:
[1]:
  time      : 2026-11-21_09:41:49
  host      : localhost
  rank      : 2 (local_rank: 0)
  exitcode  : -15 (pid: 7458)  (SIGTERM)
  error_file: <N/A>
  traceback : Signal 15 (SIGTERM) received by PID 7458
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-11-21_09:41:49
  host      : localhost
  rank      : 3 (local_rank: 1)
  exitcode  : 1 (pid: 7460)
"""


def test_torchruns_report_is_read_as_ends_and_own_stops():
    reports = list(read_reports(BLOCK))
    assert [r.pid for r in reports if r.kind == "stopped"] == [7458]
    rows = {r.rank: (r.local_rank, r.code, r.pid) for r in reports if r.kind == "exit" and r.rank is not None}
    assert rows == {2: (0, -15, 7458), 3: (1, 1, 7460)}


def test_the_same_fault_elsewhere_reads_the_same():
    one = normalise("rank 3 at /a/b/train.py: 0x7f12 lost 10.0.0.1 port 29500")
    two = normalise("rank 11 at /x/train.py: 0x9911 lost 10.0.0.7 port 31234")
    assert one == two


@pytest.mark.parametrize("above", ["", "work/main/.venv/lib/python3.11/site-packages/", "opt/a.b/" * 30])
def test_errors_s14_what_the_launcher_logs_of_a_damaged_error_file_is_no_cause(above):
    # Its logger cuts the path at the first entry of sys.path that fits: / where that is the working folder.
    logged = f"E1123 00:43:54.519000 10 {above}torch/distributed/elastic/multiprocessing/errors/__init__.py:132] "
    lines = (
        "Failed to parse reply file: /run/attempt_0/0/error.json",
        "json.decoder.JSONDecodeError: Expecting value: line 1 column 1 (char 0)",
    )
    data = "".join(f"{logged}{line}\n" for line in lines).encode()
    found = scan(data, default_catalogue()).found
    assert [(one.meaning.slug, one.meaning.role) for one in found] == [("controller_verdict", "context")]
    (bare,) = scan(f"{lines[1]}\n".encode(), default_catalogue()).found
    assert (bare.meaning.slug, bare.meaning.role) == ("bad_sample", "primary")


@given(st.binary(max_size=5000))
def test_decoding_is_bounded_and_never_fails(data):
    assert len(decode(data, limit=100)) <= 104


MISSING_COMMAND = "import subprocess; subprocess.run(['nvcc-nine', '--version'], check=True)"


def test_a_command_that_does_not_exist_is_no_missing_data():
    """In a traceback's text and in the hook's record; a missing file that Python opened is still data."""
    catalogue = default_catalogue()
    (found,) = scan(real_traceback(MISSING_COMMAND), catalogue).found
    assert found.meaning.slug == "command_not_found"
    (found,) = scan(real_traceback("open('train-nine.bin')"), catalogue).found
    assert found.meaning.slug == "dataset_missing"
    frames = [{"file": "/w/t.py", "func": "main", "user": True, "line": 1}]
    frames.append({"file": "/usr/lib/python3.12/subprocess.py", "func": "Popen._execute_child", "line": 1955})
    error = {"types": ["FileNotFoundError"], "message": "[Errno 2] No such file or directory: 'nvcc-nine'"}
    for shown, slug in ((frames, "command_not_found"), (frames[:1], "dataset_missing")):
        record = msgspec.convert({"id": "a" * 32, "kind": "error", "error": error | {"frames": shown}}, Record)
        assert of_error(record, name="e.json", catalogue=catalogue, rank=1).slug == slug


def test_a_file_that_the_code_creates_is_no_missing_data_in_a_record_either():
    message = "[Errno 2] No such file or directory: 'logs/a.txt'"
    error = {"types": ["FileNotFoundError"], "message": message}
    for mode, slug in (("w", "user_code_exception"), ("r", "dataset_missing")):
        frame = f'  File "/w/t.py", line 3, in f\n    open("logs/a.txt", "{mode}")\n'
        text = f"Traceback (most recent call last):\n{frame}FileNotFoundError: {message}\n"
        record = msgspec.convert({"id": "a" * 32, "kind": "error", "error": error | {"traceback": text}}, Record)
        assert of_error(record, name="e.json", catalogue=default_catalogue(), rank=1).slug == slug


@pytest.mark.parametrize("words", ["raise ValueError('all_reduce failed') from error", "{}['group']"])
def test_any_exception_raised_while_a_lost_peer_is_handled_is_its_consequence(words):
    code = "try:\n    {}\nexcept Exception as error:\n    {}"
    lost = "raise ConnectionResetError(104, 'Connection reset by peer')"
    (found,) = scan(real_traceback(code.format(lost, words)), default_catalogue()).found
    assert found.meaning.slug == "peer_lost"
    # Of another error that was caught it is not.
    (found,) = scan(real_traceback(code.format("import none_such_nine", words)), default_catalogue()).found
    assert found.meaning.slug == "user_code_exception"
