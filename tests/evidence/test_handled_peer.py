"""Exceptions that were raised while that of a lost peer was handled, as records and as text."""

from __future__ import annotations

import io

import pytest

from rankfall.evidence.builders import of_error
from rankfall.evidence.files.log_files import case_of_stream
from rankfall.evidence.readers.classify import exception_meaning
from rankfall.model import ErrorInfo, Record
from rankfall.verdict.signatures.catalogue import default_catalogue

RESET = ("ConnectionResetError", "[Errno 104] Connection reset by peer")
GLOO = ("RuntimeError", "[/x/third_party/gloo/gloo/transport/tcp/pair.cc:545] Connection closed by peer [10.0.0.1]:1")
FULL = ("OSError", "[Errno 28] No space left on device")
OWN = ("ValueError", "bucket size 0")


@pytest.mark.parametrize(
    ("chain", "slug", "handled"),
    [
        ((FULL, RESET), "disk_full", True),
        ((FULL, OWN, GLOO), "disk_full", True),
        ((FULL, OWN), "disk_full", False),
        ((FULL,), "disk_full", False),
        # The raised exception is the lost peer's own.
        ((RESET, OWN), "peer_lost", False),
    ],
)
def test_a_record_keeps_whether_its_exception_handled_a_lost_peer(chain, slug, handled):
    error = ErrorInfo(
        types=tuple(kind for kind, _ in chain), message=chain[0][1], chain=tuple(text for _, text in chain)
    )
    piece = of_error(Record(id="r", kind="error", error=error), name="r.json", catalogue=default_catalogue(), rank=0)
    assert (piece.slug, piece.lost_peer) == (slug, handled)


def test_a_text_keeps_it_of_the_last_of_two_exceptions():
    text = """Traceback (most recent call last):
  File "/app/train.py", line 4, in step
ConnectionResetError: [Errno 104] Connection reset by peer

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "/app/train.py", line 9, in save
OSError: [Errno 28] No space left on device
"""
    (piece,) = [
        e for e in case_of_stream(io.BytesIO(text.encode()), name="rank-0.log").evidence if e.slug == "disk_full"
    ]
    assert piece.lost_peer
    alone = text[text.rindex("Traceback") :]
    (piece,) = [
        e for e in case_of_stream(io.BytesIO(alone.encode()), name="rank-0.log").evidence if e.slug == "disk_full"
    ]
    assert not piece.lost_peer


_TRACE = '\nOriginal Traceback (most recent call last):\n  File "x.py", line 3, in f\n    raise ValueError("bad")\n'
_WORKER = "Caught {} in DataLoader worker process 0."


@pytest.mark.parametrize(
    ("chain", "slug", "lines"),
    [
        # The cause is that of a chained exception.
        ([("RuntimeError", "no checkpoint"), ("OSError", "[Errno 28] No space left on device")], "disk_full", [0, 1]),
        # The raised one of the job's own code needs no other.
        ([("KeyError", "'a'"), ("ValueError", "bad")], "user_code_exception", [0]),
        ([("RuntimeError", "bad configuration"), ("KeyError", "'a'")], "user_code_exception", [0]),
        # A group tells nothing; its most specific member counts.
        ([("ExceptionGroup", "unhandled errors (2)"), ("E", "odd"), ("E", "even")], "user_code_exception", [0, 1]),
        (
            [
                ("BaseExceptionGroup", "unhandled errors (2)"),
                ("E", "odd"),
                ("OSError", "[Errno 28] No space left on device"),
            ],
            "disk_full",
            [0, 2],
        ),
        ([("ExceptionGroup", "alone")], "user_code_exception", [0]),
    ],
)
def test_the_text_of_a_chain_has_the_exception_that_decides(chain, slug, lines):
    found = exception_meaning(default_catalogue(), chain)
    assert found.slug == slug
    assert found.text.split("\n") == [f"{chain[i][0]}: {chain[i][1]}" for i in lines]


@pytest.mark.parametrize(
    ("last", "slug"),
    [
        ("ValueError: sample 41: expected 3 channels", "user_code_exception"),
        ("OSError: [Errno 28] No space left on device", "disk_full"),
    ],
)
def test_the_exception_that_a_data_worker_quotes_is_in_the_text(last, slug):
    kind = last.partition(":")[0]
    found = exception_meaning(default_catalogue(), [(kind, _WORKER.format(kind) + _TRACE + last + "\n")])
    assert (found.slug, found.text) == (slug, f"{kind}: {_WORKER.format(kind)}\n{last}")


def test_a_data_workers_message_without_its_traceback_stays():
    for text in (_WORKER.format("ValueError"), _WORKER.format("ValueError") + _TRACE, _TRACE):
        assert exception_meaning(default_catalogue(), [("ValueError", text)]).text == f"ValueError: {text}"
