"""Exceptions that were raised while that of a lost peer was handled, as records and as text."""

from __future__ import annotations

import io

import pytest

from rankfall.evidence.builders import of_error
from rankfall.evidence.files.log_files import case_of_stream
from rankfall.evidence.readers.classify import exception_meaning
from rankfall.explain import explain_files
from rankfall.model import ErrorInfo, Record
from rankfall.verdict.signatures.catalogue import default_catalogue

RESET = ("ConnectionResetError", "[Errno 104] Connection reset by peer")
GLOO = ("RuntimeError", "[/x/third_party/gloo/gloo/transport/tcp/pair.cc:545] Connection closed by peer [10.0.0.1]:1")
FULL = ("OSError", "[Errno 28] No space left on device")
OWN = ("ValueError", "bucket size 0")
WAIT = (
    "RuntimeError",
    "[/x/third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 12000ms for recv operation to complete",
)
MISS = ("KeyError", "'group 3'")


@pytest.mark.parametrize(
    ("chain", "slug", "handled"),
    [
        ((FULL, RESET), "disk_full", True),
        ((FULL, OWN, GLOO), "disk_full", True),
        ((FULL, OWN), "disk_full", False),
        ((FULL,), "disk_full", False),
        # The raised exception is the lost peer's own.
        ((RESET, OWN), "peer_lost", False),
        # As in a `finally` that calls a collective.
        ((WAIT, OWN), "user_code_exception", True),
        ((WAIT, FULL), "disk_full", True),
        # A program that goes on may call a collective while it handles these.
        ((WAIT, MISS), "collective_timeout", False),
        ((WAIT, ("StopIteration", "")), "collective_timeout", False),
        ((WAIT, ("TimeoutError", "")), "collective_timeout", False),
        ((WAIT,), "collective_timeout", False),
    ],
)
def test_a_record_keeps_whether_its_exception_handled_a_lost_peer(chain, slug, handled):
    error = ErrorInfo(
        types=tuple(kind for kind, _ in chain), message=chain[0][1], chain=tuple(text for _, text in chain)
    )
    piece = of_error(Record(id="r", kind="error", error=error), name="r.json", catalogue=default_catalogue(), rank=0)
    assert (piece.slug, piece.lost_peer) == (slug, handled)


def test_a_record_gives_the_exception_that_its_clean_up_follows():
    text = """Traceback (most recent call last):
  File "/app/train.py", line 4, in main
ValueError: bad shape

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "/app/train.py", line 9, in main
  File "/app/tracker.py", line 3, in finish
OSError: [Errno 28] No space left on device
"""
    full = "[Errno 28] No space left on device"
    error = ErrorInfo(types=("OSError", "ValueError"), message=full, chain=(full, "bad shape"), traceback=text)
    piece = of_error(Record(id="r", kind="error", error=error), name="r.json", catalogue=default_catalogue(), rank=0)
    assert (piece.slug, piece.line) == ("user_code_exception", "ValueError: bad shape")


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


TRAINS = """  File "/app/train.py", line 122, in main
    loss.backward()
  File "/opt/lib/python3.11/site-packages/torch/_tensor.py", line 623, in backward
    torch.autograd.backward(
  File "/opt/lib/python3.11/site-packages/torch/autograd/__init__.py", line 395, in backward
    _engine_run_backward(
"""
BARRIER = """  File "/app/train.py", line 80, in step
    dist.barrier()
  File "/opt/lib/python3.11/site-packages/torch/distributed/c10d_logger.py", line 83, in wrapper
    return func(*args, **kwargs)
  File "/opt/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", line 6614, in barrier
    work.wait()
"""
HEAD, ENDED = "Traceback (most recent call last):\n", ": ".join(WAIT) + "\n"
FIRST = f"""{HEAD}  File "/app/train.py", line 79, in step
    batch = batches[i]
IndexError: list index out of range

During handling of the above exception, another exception occurred:

"""


def _verdict(tmp_path, **ranks):
    text = "".join(f"[{name}]: {line}\n" for name, own in ranks.items() for line in own.splitlines())
    path = tmp_path / "job.log"
    path.write_text(text)
    return explain_files([path]).verdict


def test_a_rank_that_raised_and_waited_in_its_finally_failed_first(tmp_path):
    trains = HEAD + TRAINS + ENDED
    verdict = _verdict(tmp_path, rank0=trains, rank1=trains, rank2=FIRST + HEAD + BARRIER + ENDED, rank3=trains)
    assert (verdict.rank, verdict.cause.slug, verdict.retry) == (2, "user_code_exception", "no")
    # Of a chain the exception that gives the cause is displayed, at its own line.
    assert verdict.decisive is not None
    assert verdict.decisive.line == "[rank2]: IndexError: list index out of range"
    lines = (tmp_path / "job.log").read_text().splitlines()
    assert lines[int(verdict.decisive.where.rpartition(":")[2]) - 1] == verdict.decisive.line


def test_a_rank_in_a_barrier_while_the_others_reduce_gradients_called_another_collective(tmp_path):
    trains = HEAD + TRAINS + ENDED
    verdict = _verdict(tmp_path, rank0=trains, rank1=trains, rank2=HEAD + BARRIER + ENDED, rank3=trains)
    assert (verdict.rank, verdict.cause.slug) == (2, "collective_mismatch")
    same = _verdict(tmp_path, rank0=trains, rank1=trains, rank2=trains, rank3=trains)
    assert (same.rank, same.cause.slug) == (None, "collective_timeout")


def test_the_reason_before_an_exception_of_a_library_without_one_is_the_cause(tmp_path):
    path = tmp_path / "job.log"
    reason = (
        "ERROR: Unexpected bus error encountered in worker. This might be caused by insufficient shared memory (shm)."
    )
    raised = f"""{HEAD}  File "/opt/lib/python3.6/site-packages/torch/multiprocessing/reductions.py", line 333, in reduce_storage
    fd, size = storage._share_fd_()
RuntimeError: unable to write to file </tor
"""
    path.write_text(f"{reason}\n{raised}")
    assert explain_files([path]).verdict.cause.slug == "shm_exhausted"
    path.write_text(raised)
    assert explain_files([path]).verdict.cause.slug == "unknown"
