from __future__ import annotations

import json

import pytest

from rankfall.cli.console import Output, document
from rankfall.cli.run_output import as_data, stamp
from rankfall.render.line_selection import DefaultLineFilter
from rankfall.rundir.lines import Line


def line(text: bytes, *, rank: int | None = 1, stream: str = "s") -> Line:
    return Line(at=1, rank=rank, slot=0, role="worker", attempt=1, stream=stream, offset=0, out=True, data=text)


def shown(*texts: bytes, rank: int | None = 1) -> list[bytes]:
    choose = DefaultLineFilter(lambda line: line.rank == 0)
    return [text for text in texts if choose(line(text, rank=rank))]


def test_lines_of_chosen_ranks_are_shown_whole() -> None:
    assert shown(b"loss 0.3", b"", rank=0) == [b"loss 0.3", b""]


def test_of_other_ranks_only_failures_are_shown_tracebacks_to_their_end() -> None:
    block = [
        b"Traceback (most recent call last):",
        b'  File "x.py", line 1, in <module>',
        b"    boom()",
        b"",
        b"my.pkg.Odd",
        b"",
    ]
    assert shown(b"loss 0.3", *block, b"loss 0.2") == block[:5]


def test_chained_exceptions_stay_together() -> None:
    block = [
        b"Traceback (most recent call last):",
        b"  first",
        b"KeyError: 1",
        b"During handling of the above exception, another exception occurred:",
        b"",
        b"Traceback (most recent call last):",
        b"  second",
        b"SomethingOdd",
    ]
    assert shown(*block, b"fine") == block


@pytest.mark.parametrize(
    "text",
    [
        b"RuntimeError: NCCL error",
        b"[rank1]: torch.OutOfMemoryError: CUDA out of memory",
        b"Fatal Python error: Segmentation fault",
        b"terminate called after throwing an instance of 'std::bad_alloc'",
        b"train.py FAILED",
        b"OSError: [Errno 28] No space left on device",
    ],
)
@pytest.mark.parametrize("rank", [1, None])
def test_a_line_that_tells_of_a_failure_is_shown(text: bytes, rank: int | None) -> None:
    assert shown(text, rank=rank) == [text]


def test_of_a_traceback_of_no_rank_only_its_words_are_shown() -> None:
    block = [b"Traceback (most recent call last):", b'  File "x.py", line 1, in f', b"ImportError: no module"]
    assert shown(*block, rank=None) == [b"ImportError: no module"]


def test_torchruns_own_end_is_not_shown() -> None:
    block = [
        b"Traceback (most recent call last):",
        b'  File "torch/distributed/run.py", line 1129, in run',
        b"    raise ChildFailedError(",
        b"torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ",
    ]
    assert shown(*block, b"loss 0.3", rank=None) == []


@pytest.mark.parametrize("text", [b"error rate: 0.3", b"epoch 3: loss 0.2", b"killed time", b"", b"  indented"])
def test_an_ordinary_line_of_another_rank_is_not(text: bytes) -> None:
    assert shown(text) == []


def test_a_block_that_never_ends_is_bounded() -> None:
    assert len(shown(b"Traceback (most recent call last):", *[b"  x"] * 5000)) < 1000


def test_streams_do_not_disturb_each_other() -> None:
    choose = DefaultLineFilter(lambda _: False)
    assert choose(line(b"Traceback (most recent call last):", stream="a"))
    assert not choose(line(b"loss 0.3", stream="b"))
    assert choose(line(b"  in the block", stream="a"))


def test_stamps_have_nanoseconds_and_unknown_ones_the_same_width() -> None:
    assert stamp(1_790_000_000_123_456_789) == "2026-09-21T14:13:20.123456789Z"
    assert len(stamp(None)) == len(stamp(0))


def test_a_line_as_json_keeps_bytes_that_are_no_text() -> None:
    data = json.loads(json.dumps(as_data(line(b"a\xff\x1b"))))
    assert data["text"] == "a\\xff\x1b"


@pytest.mark.parametrize("form", [Output.JSON, Output.YAML])
def test_documents_are_ascii_whatever_the_job_printed(form: Output) -> None:
    text = document({"line": "\u202e\x1b]0;x\x07\x7f\u2028\ud800é"}, form)
    assert text.isascii()
    assert not [char for char in text if ord(char) < 0x20 and char != "\n"]
    assert "\x7f" not in text
