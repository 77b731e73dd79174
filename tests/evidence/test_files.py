"""Offline piles of files: what people copy out of a dead job."""

from __future__ import annotations

import bz2
import codecs
import gzip
import io
import json
import lzma
import os
import random
import struct

import msgspec
import pytest

from rankfall.evidence.files import bounded_read
from rankfall.evidence.files.bounded_read import Limits, as_utf8, wide_encoding
from rankfall.evidence.files.log_files import case_of_files
from rankfall.evidence.readers.torchrun import error_file_evidence
from rankfall.explain import explain_files, explain_stream
from rankfall.model import NotFound, UsageError
from rankfall.model.run_status import ReportDocument
from rankfall.render.report import render_html, render_markdown
from rankfall.rundir.streams.writer import compress
from rankfall.verdict.diagnose import diagnose
from rankfall.verdict.signatures.catalogue import default_catalogue

VALUE_ERROR = """[rank{r}]: Traceback (most recent call last):
[rank{r}]:   File "/app/train.py", line 8, in <module>
[rank{r}]:     step(batch)
[rank{r}]: ValueError: bad thing
"""
PEER = """[rank{r}]: Traceback (most recent call last):
[rank{r}]:   File "/app/train.py", line 7, in <module>
[rank{r}]:     dist.all_reduce(t)
[rank{r}]: RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:561] Connection closed by peer [127.0.0.1]:22188
"""


@pytest.fixture
def pile(tmp_path):
    (tmp_path / "a.log").write_text("step 1\n" + PEER.format(r=0) + PEER.format(r=1))
    (tmp_path / "b.log").write_text("step 1\n" + PEER.format(r=2) + VALUE_ERROR.format(r=3))
    return tmp_path


def test_one_file_a_node(pile):
    verdict = explain_files([pile]).verdict
    assert (verdict.rank, verdict.cause.slug, verdict.run, verdict.attempt) == (3, "user_code_exception", None, None)
    assert sorted(c.rank for c in verdict.consequences) == [0, 1, 2]
    assert verdict.decisive.where.endswith("b.log:9")


def test_a_report_beside_logs_is_no_log(pile):
    verdict = explain_files([pile]).verdict
    document = ReportDocument(made="2026-11-29T00:00:00Z", version="1", source="run-1")
    (pile / "report.html").write_text(render_html(document) + VALUE_ERROR.format(r=0))
    (pile / "report.md").write_text(render_markdown(document) + VALUE_ERROR.format(r=0))
    (pile / "why.json").write_text('{\n  "schema": "rankfall.verdict/1",\n  "x": 1\n}\n' + VALUE_ERROR.format(r=0))
    (pile / "run-1.tar.gz").write_bytes(gzip.compress(VALUE_ERROR.format(r=0).encode()))
    found = explain_files([pile]).verdict
    assert msgspec.structs.replace(found, missing=()) == verdict
    assert found.missing == (f"1 archive in {pile} was not read; name it: run-1.tar.gz",)
    with pytest.raises(UsageError, match=r"report\.html is a report of Rankfall, not a log"):
        explain_files([pile / "report.html"])


def test_compressed_files_are_read_once_each(pile):
    plain = explain_files([pile]).verdict
    for path in list(pile.iterdir()):
        raw = path.read_bytes()
        assert compress(path) is None
        if path.name == "a.log":
            # As a process leaves it that was killed in between.
            path.write_bytes(raw)
    found = explain_files([pile]).verdict
    assert (found.rank, found.cause, found.consequences) == (plain.rank, plain.cause, plain.consequences)
    assert found.decisive.where.endswith("b.log.zst:9")
    assert len(found.evidence) == len(plain.evidence)


def test_a_torn_compressed_file_is_missing_evidence(pile):
    path = pile / "b.log"
    assert compress(path) is None
    packed = pile / "b.log.zst"
    packed.write_bytes(packed.read_bytes()[:60])
    assert any("b.log.zst is damaged" in text for text in explain_files([pile]).verdict.missing)


def test_one_mixed_stream(pile):
    lines = [line for f in sorted(pile.iterdir()) for line in f.read_bytes().splitlines(keepends=True)]
    assert explain_stream(io.BytesIO(b"".join(lines))).verdict.rank == 3


def test_names_and_order_of_files_do_not_matter(pile):
    rng = random.Random(3)
    names = ["zz", "rank", "node-9", "0"]
    for trial in range(5):
        folder = pile / f"trial{trial}"
        folder.mkdir()
        for file in ("a.log", "b.log"):
            (folder / f"{rng.choice(names)}-{file}.txt").write_bytes((pile / file).read_bytes())
        assert explain_files([folder]).verdict.rank == 3


def test_a_file_named_by_its_rank_gives_bare_lines_that_rank(tmp_path):
    for number in range(2):
        text = (VALUE_ERROR if number else PEER).format(r=0).replace("[rank0]: ", "")
        (tmp_path / f"rank-{number}.log").write_text(text)
    verdict = explain_files([tmp_path]).verdict
    assert (verdict.rank, verdict.cause.slug) == (1, "user_code_exception")


def elastic(folder, local, *, attempt=0, stderr="", error=None):
    place = folder / "none_abc" / f"attempt_{attempt}" / str(local)
    place.mkdir(parents=True)
    (place / "stderr.log").write_text(stderr)
    if error is not None:
        (place / "error.json").write_bytes(error)


def record(text, stamp="1790000000"):
    stack = f'Traceback (most recent call last):\n  File "t.py", line 3, in main\n    x()\n{text}\n'
    return json.dumps({"message": {"message": text, "extraInfo": {"py_callstack": stack, "timestamp": stamp}}}).encode()


def test_torchruns_log_folder_with_error_files(tmp_path):
    elastic(tmp_path, 0, stderr=PEER.format(r=2), error=record("RuntimeError: Connection closed by peer [1.2.3.4]:5"))
    elastic(tmp_path, 1, stderr=VALUE_ERROR.format(r=3), error=record("ValueError: bad thing"))
    verdict = explain_files([tmp_path]).verdict
    assert (verdict.rank, verdict.local_rank, verdict.cause.slug) == (3, 1, "user_code_exception")


def test_errors_s23_only_the_last_attempt_of_a_log_folder_counts(tmp_path):
    elastic(tmp_path, 0, attempt=0, stderr=VALUE_ERROR.format(r=0), error=record("ValueError: old"))
    elastic(tmp_path, 0, attempt=1, error=record("KeyError: 'new'"))
    elastic(tmp_path, 1, attempt=1, stderr=PEER.format(r=1))
    verdict = explain_files([tmp_path]).verdict
    assert "new" in verdict.decisive.line


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b'["a list"]',
        b'{"no": "message"}',
        b'{"message": 3}',
        b'{"message": {"message": ["x"]}}',
        b"\xff\xfe",
        b" " * ((1 << 20) + 1),
    ],
)
def test_errors_s14_a_damaged_error_file_is_a_problem_and_no_crash(data, tmp_path):
    elastic(tmp_path, 0, error=data)
    elastic(tmp_path, 1, error=record("ValueError: bad thing"))
    diagnosis = explain_files([tmp_path])
    assert diagnosis.verdict.cause.slug == "user_code_exception"
    assert any("error.json" in text for text in diagnosis.verdict.missing)


@pytest.mark.parametrize("stamp", ["", "0", "soon", None, "1e999"])
def test_errors_s13_an_error_file_without_a_time_has_none(stamp):
    piece = error_file_evidence(record("ValueError: x", stamp), name="e", stream="e", catalogue=default_catalogue())
    assert piece.at is None


def test_errors_s8_the_old_form_of_an_error_file_is_read():
    data = json.dumps(
        {"message": "RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB", "timestamp": 1790000000}
    )
    piece = error_file_evidence(data.encode(), name="e", stream="e", catalogue=default_catalogue())
    assert (piece.slug, piece.at) == ("gpu_oom", 1_790_000_000 * 10**9)


def test_the_block_of_torchrun_alone_names_the_rank_that_fell_itself(tmp_path):
    block = b"""W1121 09:41:49.153000 7 torch/distributed/elastic/multiprocessing/api.py:1028] Sending process 7458 closing signal SIGTERM
  rank      : 2 (local_rank: 0)
  exitcode  : -15 (pid: 7458)  (SIGTERM)
  rank      : 3 (local_rank: 1)
  exitcode  : -9 (pid: 7460)  (SIGKILL)
"""
    verdict = explain_stream(io.BytesIO(block)).verdict
    assert (verdict.rank, verdict.cause.slug) == (3, "killed_unknown")
    assert [c.rank for c in verdict.consequences] == [2]


def test_the_rank_of_a_row_of_torchrun_is_not_the_number_of_the_node_before_it():
    worker = b"(worker1, rank=1, pid=22249, ip=10.31.0.9) "
    rows = b"  rank      : 5 (local_rank: 1)\n", b"  exitcode  : 3 (pid: 22640)\n"
    verdict = explain_stream(io.BytesIO(b"".join(worker + row for row in rows))).verdict
    assert (verdict.rank, verdict.cause.slug, len(verdict.consequences)) == (5, "user_exit", 0)


def test_a_missing_path_says_what_to_do(tmp_path):
    with pytest.raises(NotFound, match="does not exist"):
        explain_files([tmp_path / "nothing"])


def test_an_empty_folder_is_unknown_with_what_is_missing(tmp_path):
    verdict = explain_files([tmp_path]).verdict
    assert verdict.cause.slug == "unknown"
    assert verdict.missing


def test_binary_files_say_nothing_and_break_nothing(tmp_path):
    (tmp_path / "x.log").write_bytes(os.urandom(300_000) + b"\0" * 100_000)
    assert explain_files([tmp_path]).verdict.cause.slug == "unknown"


def test_a_flood_costs_no_more_evidence_than_a_few_lines(tmp_path):
    (tmp_path / "f.log").write_text(VALUE_ERROR.format(r=0) * 5000)
    case = case_of_files([tmp_path])
    assert len(case.evidence) <= 8
    assert diagnose(case).verdict.rank == 0


def test_a_line_without_end_is_read_in_pieces(tmp_path):
    (tmp_path / "f.log").write_bytes(b"x" * (9 << 20) + b"\n" + VALUE_ERROR.format(r=4).encode())
    assert explain_files([tmp_path]).verdict.rank == 4


@pytest.mark.parametrize(
    "name", ["{n}.log", "worker-{n}.txt", "slurm-99_{n}.out", "proc{n}.stderr.log", "train.{n}.log.gz"]
)
def test_i23_p2_files_that_differ_in_a_number_are_those_of_ranks(tmp_path, name):
    for number in range(3):
        text = VALUE_ERROR.replace("[rank{r}]: ", "") if number == 1 else "step 1\n"
        data = text.encode()
        (tmp_path / name.format(n=number)).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    assert explain_files([tmp_path]).verdict.rank == 1


@pytest.mark.parametrize(
    ("names", "text"),
    [
        (["node0.log", "node1.log"], ""),
        (["5.log", "7.log"], ""),
        (["1.log"], ""),
        (
            ["0.log", "1.log"],
            "[default0]:step 1\nE0501 10:00:00.2 4100 torch/distributed/elastic/agent/server/api.py:874] x\n",
        ),
    ],
)
def test_i23_p2_other_numbers_in_names_give_no_rank(tmp_path, names, text):
    error = VALUE_ERROR.replace("[rank{r}]: ", "[default1]:" if text else "")
    for name in names:
        (tmp_path / name).write_text(text + error)
    assert explain_files([tmp_path]).verdict.rank is None


@pytest.mark.parametrize(
    ("others", "rank"),
    [("job-worker-0: step 1\n", 1), ("", None), ("job-master-0: step 1\n", None), ("worker-0: LOCAL_RANK=3\n", None)],
)
def test_i23_p1_a_worker_is_a_rank_where_each_has_one(tmp_path, others, rank):
    lines = VALUE_ERROR.replace("[rank{r}]: ", "job-worker-1: ")
    (tmp_path / "job.log").write_text(f"{others}{lines}")
    assert explain_files([tmp_path / "job.log"]).verdict.rank == rank


@pytest.mark.parametrize(("suffix", "pack"), [(".gz", gzip.compress), (".bz2", bz2.compress), (".xz", lzma.compress)])
def test_i23_p8_compressed_logs_are_read_and_damage_is_named(tmp_path, suffix, pack):
    text = VALUE_ERROR.format(r=4).encode()
    path = tmp_path / f"job.log{suffix}"
    path.write_bytes(pack(b"step 1\n" * 1000) + pack(text))
    assert explain_files([path]).verdict.rank == 4
    noise = random.Random(1).randbytes(1_000_000).hex().encode()
    whole = pack(text + noise)
    path.write_bytes(whole[:-100])
    verdict = explain_files([path]).verdict
    assert verdict.rank == 4
    assert any("cut off" in one for one in verdict.missing)
    path.write_bytes(whole[: len(whole) // 2] + b"\xff" * 500 + whole[len(whole) // 2 + 500 :])
    assert any("damaged" in one for one in explain_files([path, tmp_path]).verdict.missing)


def test_i23_p6_a_rank_whose_file_has_no_complaint_is_the_one_that_hangs(tmp_path):
    late = "RuntimeError: [/gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 1800000ms for recv operation to complete\n"
    for number in range(4):
        (tmp_path / f"{number}.log").write_text("step 1\nstep 2\n" + (late if number != 2 else "loading shard 7\n"))
    verdict = explain_files([tmp_path]).verdict
    assert (verdict.cause.slug, verdict.cause.confidence, verdict.rank) == ("rank_stuck", "suspected", 2)
    # Without the file of a rank nothing is known of it.
    (tmp_path / "0.log").unlink()
    assert explain_files([tmp_path]).verdict.rank is None


def test_i23_p6_an_exception_in_one_file_beats_a_silent_one(tmp_path):
    """Two troubles: rank 1 raised, ranks 0 and 3 timed out, rank 2 printed nothing."""
    late = "RuntimeError: [/gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 1800000ms for recv operation to complete\n"
    texts = [late, VALUE_ERROR.replace("[rank{r}]: ", ""), "step 2\n", late]
    for number, text in enumerate(texts):
        (tmp_path / f"{number}.log").write_text(f"step 1\n{text}")
    assert explain_files([tmp_path]).verdict.rank == 1


def test_an_empty_log_of_a_rank_shows_that_there_is_such_a_rank(tmp_path):
    waited = "RuntimeError: [/x/gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 12000ms for recv operation\n"
    for rank in (0, 1, 3):
        (tmp_path / f"rank_{rank}.log").write_text(f"[rank{rank}]: {waited}")
    verdict = explain_files([tmp_path]).verdict
    assert (verdict.cause.slug, verdict.rank) == ("collective_timeout", None)
    (tmp_path / "rank_2.log").touch()
    verdict = explain_files([tmp_path]).verdict
    assert (verdict.cause.slug, verdict.rank) == ("rank_stuck", 2)


TRACED = (
    "step 1 loss 2.5\r\n\r\nStufe 2 von Größe 中文 \U0001f600\r\nTraceback (most recent call last):\r\n"
    '  File "/app/train.py", line 40, in step\r\n    x = batch["input_ids"]\r\nKeyError: \'input_ids\'\r\n'
)
WIDE = {
    "UTF-16 LE": codecs.BOM_UTF16_LE + TRACED.encode("utf-16-le"),
    "UTF-16 BE": codecs.BOM_UTF16_BE + TRACED.encode("utf-16-be"),
    "UTF-16 LE without a mark": TRACED.encode("utf-16-le"),
    "UTF-16 BE without a mark": TRACED.encode("utf-16-be"),
    "UTF-32 LE": codecs.BOM_UTF32_LE + TRACED.encode("utf-32-le"),
    "UTF-32 BE": codecs.BOM_UTF32_BE + TRACED.encode("utf-32-be"),
    "a torn end": codecs.BOM_UTF16_LE + TRACED.encode("utf-16-le") + b"\x3d",
    "half a pair": codecs.BOM_UTF16_LE + TRACED.encode("utf-16-le") + b"\x3d\xd8\n\0",
}


@pytest.mark.parametrize("name", WIDE)
def test_wide_encodings_are_read_as_text(name, tmp_path):
    path = tmp_path / "train.log"
    for data, suffix in ((WIDE[name], ""), (gzip.compress(WIDE[name]), ".gz")):
        named = path.with_suffix(f".log{suffix}")
        named.write_bytes(data)
        verdict = explain_files([named]).verdict
        assert verdict.decisive is not None
        assert verdict.decisive.where.endswith(f"{named.name}:7")
        assert verdict.decisive.line == "KeyError: 'input_ids'"
    for size in (1, 7, 4096):
        pieces = iter([WIDE[name][at : at + size] for at in range(0, len(WIDE[name]), size)])
        text = b"".join(as_utf8(pieces)).decode()
        assert text.startswith(TRACED.removesuffix("\n"))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff",
        b"\0" * 64,
        b"step 1\n\0\0\0\0\0\0\0\0step 2\n" * 9,
        bytes(range(256)) * 8,
        struct.pack("<32h", *range(32)),
        b"a\0b\0",
        "step 1 Größe\n".encode("latin-1") * 200,
        "日本語のログ\n".encode() * 99,
    ],
)
def test_other_bytes_stay_as_they_are(data):
    assert wide_encoding(data) is None
    assert b"".join(as_utf8(iter([data[:5], b"", data[5:]]))) == data


def test_a_damage_behind_a_wide_text_comes_after_it():
    def torn():
        yield WIDE["UTF-16 LE"][:100]
        raise OSError("torn")

    read = []
    with pytest.raises(OSError, match="torn"):
        read.extend(as_utf8(torn()))
    assert b"".join(read).decode().startswith("step 1 loss 2.5\r\n")


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be", "utf-32-le"])
@pytest.mark.parametrize("tail", [64 << 10, (64 << 10) + 1])
def test_of_a_giant_of_wide_characters_the_beginning_and_the_end_count(encoding, tail, tmp_path, monkeypatch):
    monkeypatch.setattr(bounded_read, "TAIL", tail)
    monkeypatch.setattr(bounded_read, "CHUNK", (16 << 10) + 1)
    path = tmp_path / "train.log"
    text = "\ufeffworld_size=8\n" + "step loss 2.5\n" * 60_000 + TRACED
    path.write_bytes(text.encode(encoding))
    case = case_of_files([path], limits=Limits(size=256 << 10))
    assert [piece.line for piece in case.evidence if piece.whole] == ["KeyError: 'input_ids'"]
    assert len(case.ranks) == 8
    assert any("between its beginning and its end were not read" in text for text in case.missing)
