"""What reading costs: linear in bytes whatever the text is, the same findings wherever it is cut, and a bound for everything that is kept.

Work is counted, not timed: lines that are taken apart, patterns that are tried, entries that are kept.
"""

from __future__ import annotations

from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankfall.evidence.files.log_files import case_of_files
from rankfall.evidence.readers import findings, stream_reader, torchrun, tracebacks
from rankfall.evidence.readers import scan as scanning
from rankfall.evidence.readers.scan import KEEP_FIRST, ChunkScanner, scan
from rankfall.evidence.readers.stream_reader import StreamTail
from rankfall.evidence.readers.text import repeats
from rankfall.evidence.readers.tracebacks import MAX_CHAIN, MAX_MESSAGE, TracebackReader, find_tracebacks
from rankfall.rundir import reader_guard
from rankfall.rundir.lines.query import ErrorLines
from rankfall.verdict.signatures.catalogue import default_catalogue
from rankfall.verdict.signatures.matcher import Matcher

HEAD = b"Traceback (most recent call last):\n"
FRAME = b'  File "/app/train.py", line 7, in step\n    loss.backward()\n'
CHAINED = b"\nDuring handling of the above exception, another exception occurred:\n\n"
OOM = b"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"


def feed_all(text, *sizes):
    """Findings of a text in chunks of these sizes in turns, and statements of a launcher; of each kind the last one only as it is in the end."""
    scanner = ChunkScanner(default_catalogue())
    found, last, reported, at, turn = [], {}, [], 0, 0
    while at < len(text):
        size = sizes[turn % len(sizes)]
        one, statements = scanner.push(text[at : at + size], final=False)
        at, turn = at + size, turn + 1
        found += [row for row in one if not row[0].last]
        last |= {row[0].kind: row for row in one if row[0].last}
        reported += [(r.kind, r.pid, r.rank, r.code, byte, line) for r, byte, line in statements]
    one, statements = scanner.push(b"", final=True)
    found += [row for row in one if not row[0].last]
    last |= {row[0].kind: row for row in one if row[0].last}
    reported += [(r.kind, r.pid, r.rank, r.code, byte, line) for r, byte, line in statements]
    return found, last, sorted(set(reported), key=str)


class Count:
    """Counts calls of a function and passes them on."""

    def __init__(self, function):
        self.function, self.calls = function, 0

    def __call__(self, *args, **more):
        self.calls += 1
        return self.function(*args, **more)

    def __get__(self, instance, owner):
        return partial(self, instance)


@pytest.fixture
def prefixes(monkeypatch):
    counted = Count(tracebacks.parse_prefix)
    monkeypatch.setattr(tracebacks, "parse_prefix", counted)
    return counted


def interleaved(ranks):
    lines = [*(HEAD + FRAME * 3).splitlines(keepends=True), b"RuntimeError: rank failed\n"]
    return b"".join(b"[rank%d]: " % rank + line for line in lines for rank in range(ranks))


@pytest.mark.parametrize("size", [1 << 20, 4096])
def test_i18_p3_each_line_is_read_once_however_many_ranks_speak_at_once(prefixes, size):
    text = interleaved(1024)
    found, _, _ = feed_all(text, size)
    ranks = {finding.prefix.rank for finding, _, _ in found}
    assert ranks == set(range(1024))
    assert prefixes.calls <= text.count(b"\n") + len(text) // size + 2


@pytest.mark.parametrize("size", [1 << 20, 4096, 100])
def test_i18_p3_heads_alone_cost_next_to_nothing(prefixes, size):
    text = HEAD * 3000
    found, _, _ = feed_all(text, size)
    assert not found
    assert prefixes.calls <= 2 * (len(text) // size + len(text) // 35 // tracebacks.MAX_LINES + 3)


def test_i18_p3_a_broken_off_traceback_is_not_read_again_with_each_chunk(prefixes):
    text = HEAD + b"".join(b'  File "/a/f%d.py", line 7, in step\n    x = %d\n' % (n, n) for n in range(900))
    feed_all(text, 200)
    assert prefixes.calls <= text.count(b"\n") + 2


def test_i18_p6_a_repeated_line_is_understood_once(monkeypatch):
    counted = Count(Matcher.match_line)
    monkeypatch.setattr(Matcher, "match_line", counted)
    findings.line_meanings.cache_clear()
    text = b"step 1\n" + OOM * 50_000 + b"step 2\n"
    found, last, _ = feed_all(text, len(text))
    assert counted.calls == 1
    assert [line for _, _, line in found] == [2, 3, 4, 5]
    ((_, byte, line),) = last.values()
    assert (byte, line) == (7 + 49_999 * len(OOM), 50_001)


def test_i18_p6_of_many_different_lines_a_few_are_kept():
    text = b"".join(b"RuntimeError: CUDA error: number %d is wrong\n" % n for n in range(3000))
    found, last, _ = feed_all(text, 1 << 16)
    assert len(found) + len(last) <= 2 * (KEEP_FIRST + 1)
    assert max(line for _, _, line in last.values()) == 3000


def test_i18_p6_kinds_of_findings_are_bounded(monkeypatch):
    monkeypatch.setattr(scanning, "MAX_KINDS", 10)
    text = b"".join(HEAD + FRAME + b"Error%s: x\nok\n" % bytes([97 + n % 26, 97 + n // 26]) for n in range(500))
    found, last, _ = feed_all(text, len(text))
    assert len(found) <= 11 * KEEP_FIRST
    assert set(last) == {("more:user_code_exception", None)}
    assert last["more:user_code_exception", None][2] == 500 * 5 - 1


def test_i18_p6_the_place_of_a_finding_is_not_counted_from_the_beginning_for_each(monkeypatch):
    class Counted(bytes):
        looked = 0

        def count(self, what, begin=0, end=None):
            Counted.looked += (len(self) if end is None else end) - begin
            return super().count(what, begin, len(self) if end is None else end)

    text = Counted(b"".join(b"[rank%d]: " % n + OOM for n in range(2000)))
    found, _ = ChunkScanner(default_catalogue()).push(text, final=True)
    assert [line for _, _, line in found] == list(range(1, 2001))
    assert Counted.looked <= 2 * len(text)


def test_i18_p6_the_index_of_a_stream_is_read_once_a_piece(monkeypatch, tmp_path):
    path = tmp_path / "0.out.log"
    path.write_bytes(b"".join(b"[rank%d]: " % n + OOM for n in range(500)))
    rows = b"".join(stream_reader._ROW.pack(n * 80, n, 1_000 + n, 0, 0) for n in range(400))
    path.with_suffix("").with_suffix(".out.idx").write_bytes(stream_reader._HEAD + rows)
    counted = Count(stream_reader.Index._new_rows)
    monkeypatch.setattr(stream_reader.Index, "_new_rows", counted)
    tail = StreamTail(path, default_catalogue())
    found, _, _ = tail.poll(final=True)
    assert len(found) == 500
    assert counted.calls <= 2 + path.stat().st_size // reader_guard.MIN_PIECE
    stamps = [1_000 + min(one.byte // 80, 399) for one in found]
    assert [one.when for one in found] == [(at, at) for at in stamps]


PIECES = st.sampled_from(
    [
        HEAD,
        FRAME,
        OOM,
        CHAINED,
        b"ValueError: bad\n",
        b"KeyError: 'x'\n",
        b"\n",
        b"step 7 loss 0.1\n",
        b"frame #0: x\n",
        b"Exception ignored in: <f>\n",
        b"Exception in thread StatsThr:\n"
        + HEAD
        + b'  File "/opt/site-packages/wandb/a.py", line 3, in run\nOSError: [Errno 5] x\n',
        b"torch.distributed.DistBackendError: NCCL error in: x\n",
        b"W0101 1 torch/distributed/elastic/multiprocessing/api.py:9] Sending process 7 closing signal SIGTERM\n",
        b"  rank      : 2 (local_rank: 0)\n  exitcode  : -9 (pid: 7458)\n",
        b"RuntimeError: CUDA error: an illegal memory access was encountered\n",
        b"\x00\xff\r\n",
    ]
)
SPEAKERS = st.sampled_from([b"", b"[rank0]: ", b"[rank1]: ", b"[default3]:", b"node1 | ", b"\x1b[31m"])
TEXTS = st.lists(st.tuples(SPEAKERS, PIECES, st.integers(1, 12)), max_size=30).map(
    lambda rows: b"".join(
        b"".join(speaker + line for line in piece.splitlines(keepends=True)) * count for speaker, piece, count in rows
    )
)


@given(TEXTS, st.lists(st.integers(1, 300), min_size=1, max_size=5))
def test_i18_p3_the_same_is_found_wherever_a_text_is_cut(text, sizes):
    assert feed_all(text, *sizes) == feed_all(text, len(text) + 1)


@given(TEXTS)
def test_every_finding_stands_where_it_says(text):
    scanner = ChunkScanner(default_catalogue())
    for finding, byte, line in scanner.push(text, final=True)[0]:
        assert line == text.count(b"\n", 0, byte) + 1
        assert byte == finding.start
        assert byte == 0 or text[byte - 1 : byte] == b"\n"
    assert scanner.consumed == len(text)
    assert not scanner.waiting


@given(st.binary(min_size=1, max_size=12), st.integers(1, 300), st.integers(0, 400), st.binary(max_size=5))
def test_copies_are_counted_up_to_the_bound(unit, copies, most, rest):
    data = unit * copies + rest
    count = repeats(data, 0, len(unit), most=most)
    assert count <= most
    assert data.startswith(unit * (count + 1))
    assert count == most or not data.startswith(unit * (count + 2))


def test_i18_p3_open_tracebacks_are_bounded(monkeypatch):
    monkeypatch.setattr(tracebacks, "MAX_OPEN", 4)
    text = b"".join(b"[rank%d]: " % rank + HEAD for rank in range(10))
    reader = TracebackReader()
    assert len(reader.push(text, at=0, line=0, final=False).closed) == 6
    assert len(reader.push(b"", at=len(text), line=10, final=True).closed) == 4
    assert reader.oldest is None


def test_i18_p3_a_speaker_that_stays_silent_is_not_waited_for(prefixes):
    text = b"[rank3]: " + HEAD + b"step\n" * 50 + b"[rank1] x\n" * (3 * tracebacks.MAX_SILENT)
    reader = TracebackReader()
    (closed,) = reader.push(text, at=0, line=0, final=False).closed
    assert closed.found is None
    many = b"[rank3]: " + HEAD + b"".join(b"step %d\n" % n for n in range(3 * tracebacks.MAX_SILENT))
    prefixes.calls = 0
    assert len(reader.push(many, at=len(text), line=text.count(b"\n"), final=False).closed) == 1
    assert prefixes.calls <= tracebacks.MAX_SILENT + 2


def test_i18_p3_the_reach_and_the_text_of_open_tracebacks_are_bounded(monkeypatch):
    monkeypatch.setattr(tracebacks, "MAX_REACH", 1000)
    far = b"[rank3]: " + HEAD + b"[rank3]: KeyError: 1\n" + b"x" * 2000 + b"\n" + b"y\n"
    (closed,) = TracebackReader().push(far, at=0, line=0, final=False).closed
    assert closed.found.chain == (("KeyError", "1"),)
    monkeypatch.setattr(tracebacks, "MAX_REACH", 1 << 30)
    monkeypatch.setattr(tracebacks, "MAX_TEXT", 5000)
    texts = b"".join(
        b"[rank%d]: " % rank + line for rank in range(4) for line in (HEAD, b"KeyError: " + b"x" * 3000 + b"\n")
    )
    assert [item.found.prefix.rank for item in TracebackReader().push(texts, at=0, line=0, final=False).closed] == [
        0,
        1,
    ]


def test_i18_p3_a_chain_keeps_its_first_and_its_last_exceptions():
    text = b"".join(HEAD + b"Error%d: x\n" % n + CHAINED for n in range(300))
    (found,) = find_tracebacks(text)
    assert len(found.chain) == MAX_CHAIN
    assert (found.chain[0][0], found.chain[-1][0]) == ("Error299", "Error0")
    (long,) = find_tracebacks(
        HEAD + b"E" * 9000 + b": " + b"x" * 9000 + b"\n" + CHAINED + HEAD + b"KeyError: " + b"y" * 9000
    )
    assert len(long.chain[0][1]) == MAX_MESSAGE
    (endless,) = find_tracebacks(HEAD + FRAME * 5 + b"KeyError: 1\n" + (CHAINED + HEAD + FRAME) * 1000)
    assert endless.chain == (("KeyError", "1"),)


def test_lines_of_what_was_no_traceback_are_lines_like_any_other():
    text = (
        HEAD
        + b'  File "a.py", line 1, in f\n    # CUDA out of memory\n    Xid (PCI:0000:3b:00): 79, GPU has fallen off\n'
    )
    scanner = ChunkScanner(default_catalogue())
    assert scanner.push(text, final=False)[0] == []
    assert scanner.waiting
    assert scanner.consumed == 0
    whole = scan(text + b"!!\n", default_catalogue()).found
    late = scanner.push(b"!!\n", final=False)[0]
    assert [one.line for one, _, _ in late] == [one.line for one in whole]
    assert not scanner.waiting


def test_i18_p1_numbers_that_are_none_are_passed_over():
    line = b"api.py:900] Sending process %s closing signal SIGTERM\n"
    assert list(torchrun.read_reports(line % (b"9" * 5000))) == []
    assert [one.pid for one in torchrun.read_reports(line % b"9" + line % (b"9" * 5000) + line % b"8")] == [9, 8]


def test_i18_p6_statements_of_a_launcher_are_bounded(monkeypatch):
    monkeypatch.setattr(torchrun, "_MAX", 20)
    line = b"api.py:900] Sending process %d closing signal SIGTERM\n"
    reader = torchrun.ReportReader()
    found = [one for n in range(30) for one in reader.push(line % n, speaks=True)]
    assert len(found) == 20
    again = [one for _ in range(30) for one in reader.push(line % 3, speaks=True)]
    assert len(again) == torchrun._MAX_REPEATS - 1


def test_i18_p6_a_line_full_of_marks_is_gone_back_over_once():
    class Counted(bytes):
        looked = 0

        def rfind(self, what, begin=0, end=None):
            found = super().rfind(what, begin, len(self) if end is None else end)
            Counted.looked += (len(self) if end is None else end) - max(begin, found)
            return found

    text = Counted(b"fine\n" + b"ERROR CUDA error: " * 20_000 + b"\nfine\nERROR\n")
    picked = ErrorLines(default_catalogue()).pick(text)
    assert picked == {5, len(text) - 6}
    assert Counted.looked <= 4 * len(text)


XID = b"NVRM: Xid (PCI:0000:3b:00): 79, pid=1, GPU has fallen off the bus.\n"


def flood(count):
    return b"".join(b"ValueError: bad thing number %d of many\n" % n for n in range(count))


def test_i18_p6_a_flood_of_different_lines_is_passed_over_and_named(monkeypatch):
    monkeypatch.setattr(scanning, "FLOOD", 50)
    monkeypatch.setattr(scanning, "TAIL", 1000)
    counted = Count(Matcher.match_line)
    monkeypatch.setattr(Matcher, "match_line", counted)
    scanner = ChunkScanner(default_catalogue())
    text = flood(2000) + XID + flood(2000) + b"ValueError: the end\n"
    found, _ = scanner.push(text, final=True)
    # A line of an exception is matched as a line and as an exception.
    assert counted.calls < 2 * 200
    assert scanner.flooded == (
        "lines with 'Error: ', 'ValueError', 'ValueError:' were skipped after 50 of them without new information"
    )
    # A word that is no flood is looked for all the same, and so is everything at the end of a chunk.
    slugs = [finding.meaning.slug for finding, _, _ in found]
    assert "gpu_fell_off" in slugs or any("Xid" in finding.line for finding, _, _ in found)
    (newest,) = [finding for finding, _, _ in found if finding.last]
    assert newest.line == "ValueError: the end"
    assert [line for _, _, line in found] == [text.count(b"\n", 0, byte) + 1 for _, byte, _ in found]


def test_i18_p6_lines_that_say_something_new_are_no_flood(monkeypatch):
    monkeypatch.setattr(scanning, "FLOOD", 50)
    scanner = ChunkScanner(default_catalogue())
    text = b"".join(b"[rank%d]: " % rank + OOM for rank in range(500))
    found, _ = scanner.push(text, final=True)
    assert len(found) == 500
    assert scanner.flooded is None
    quiet = ChunkScanner(default_catalogue())
    quiet.push(b"api.py:900] Sending process 1 closing signal SIGTERM\n" * 5 + flood(20), final=True)
    assert quiet.flooded is None


def test_i18_p6_a_flood_stands_among_the_problems_of_a_case(monkeypatch, tmp_path):
    monkeypatch.setattr(scanning, "FLOOD", 50)
    (tmp_path / "job.log").write_bytes(flood(300))
    assert any("'ValueError' were skipped" in one for one in case_of_files([tmp_path]).missing)
    tail = StreamTail(tmp_path / "job.log", default_catalogue())
    tail.poll(final=True)
    assert "were skipped" in (tail.flooded or "")


def test_i18_p6_automata_without_some_words_are_few():
    matcher = default_catalogue().matcher("line")
    data = b"x\nValueError: y\nKeyError: z\n"
    assert matcher.candidate(data, 0, without=frozenset({b"ValueError", b"ValueError:", b"Error: "})) == (
        16,
        27,
        b"KeyError",
    )
    for number in range(20):
        matcher.candidate(data, 0, without=frozenset({b"%d" % number}))
    assert len(matcher._fewer) <= 8
