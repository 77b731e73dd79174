"""The end of a log that its kubelet put into the pod's status: text of the job, used where the log itself was not read."""

from __future__ import annotations

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankfall.evidence.cluster.pod_evidence import LastWords
from rankfall.model import Case, Evidence, Record, SlotFacts
from rankfall.rundir.cluster.marks import OWNER_NAME, Identity
from rankfall.rundir.cluster.pod_facts import ContainerFact, PodFact
from rankfall.rundir.streams.writer import StreamAppender
from rankfall.verdict.diagnose import diagnose
from rankfall.verdict.signatures.catalogue import default_catalogue

DAY = "2026-11-21T16:00:00Z"
TRACE = (
    'ry.py", line 12, in step',
    "[rank3]: Traceback (most recent call last):",
    '[rank3]:   File "/job/train.py", line 9, in <module>',
    "[rank3]:     main()",
    "[rank3]: KeyError: 'token_type_ids'",
    "",
)
MESSAGE = "\n".join(TRACE)
END = Record(id="0123456789abcdef", kind="slot_end", writer="wrapper", slot=1)
RECORD = msgspec.json.encode(END).decode()


def pod(message: str = MESSAGE, *, log: str = "lost", reason: str = "Error", **fields: object) -> PodFact:
    end = ContainerFact(state="terminated", exit_code=1, reason=reason, message=message, finished=DAY)
    base = PodFact(seen_ns=1, name="job-1-x", uid="u", slot=1, node="n1", phase="Failed", log=log, main=end)
    return msgspec.structs.replace(base, **fields)


def heard(run, *facts: PodFact) -> list[Evidence]:
    return LastWords(run, attempt=1, catalogue=default_catalogue()).new(facts)


def store(run, *lines: str, name: str = "r3.out", number: int = 0, uid: str = "u") -> None:
    folder = run / "logs" / "attempt-1" / "worker-1" / "0"
    folder.mkdir(parents=True)
    (folder / OWNER_NAME).write_bytes(msgspec.json.encode(Identity(uid=uid, number=number)))
    file = StreamAppender(folder / name)
    file.write("".join(f"{line}\n" for line in lines).encode(), None)
    file.close()


def test_i32_the_end_of_a_log_that_nobody_followed_names_the_rank(tmp_path):
    (piece,) = heard(tmp_path, pod())
    assert (piece.slug, piece.rank, piece.slot, piece.node) == ("user_code_exception", 3, 1, "n1")
    assert (piece.source, piece.trust, piece.where) == ("log", "job", "pod/job-1-x: termination message")
    slot = SlotFacts(slot=1, node="n1", state="ended", exit_code=1)
    verdict = diagnose(Case(attempt=1, ended=True, slots=(slot,), evidence=(piece,))).verdict
    assert (verdict.cause.slug, verdict.rank, verdict.node_action) == ("user_code_exception", 3, "none")
    # The text of a job proves nothing.
    assert verdict.cause.confidence != "proven"


@pytest.mark.parametrize("log", ["open", "complete", "none"])
def test_i32_of_a_log_that_was_read_it_is_never_used(tmp_path, log):
    assert heard(tmp_path, pod(log=log)) == []


def test_i32_each_message_is_used_once_and_that_of_the_start_before_too(tmp_path):
    words = LastWords(tmp_path, attempt=1, catalogue=default_catalogue())
    last = ContainerFact(state="terminated", exit_code=1, message="RuntimeError: CUDA out of memory.", finished=DAY)
    main = msgspec.structs.replace(pod().main, restarts=1)
    fact = pod(main=main, last=last)
    assert {piece.stream for piece in words.new([fact])} == {"pod/job-1-x/0", "pod/job-1-x/1"}
    assert words.new([fact]) == []


def test_i32_lines_that_were_stored_before_the_log_was_lost_are_not_used_again(tmp_path):
    # As stored: without the prefix that the name of the stream stands for.
    store(tmp_path, *(line.removeprefix("[rank3]: ") for line in TRACE[1:5]))
    assert heard(tmp_path, pod()) == []
    more = f"{MESSAGE}[rank1]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB\n"
    assert [(piece.slug, piece.rank) for piece in heard(tmp_path, pod(more))] == [("gpu_oom", 1)]


def test_i32_lines_of_another_start_of_the_container_are_another_matter(tmp_path):
    store(tmp_path, *TRACE[1:5], number=4)
    assert len(heard(tmp_path, pod())) == 1


def test_i32_records_in_a_message_are_no_text(tmp_path):
    assert heard(tmp_path, pod(f"{RECORD}\n")) == []
    assert heard(tmp_path, pod("\x1erankfall/1 token eyJLZXlFcnJvciI6IDF9\n")) == []
    assert [piece.slug for piece in heard(tmp_path, pod(f"{MESSAGE}{RECORD}\n"))] == ["user_code_exception"]
    # What only looks like one.
    assert [piece.slug for piece in heard(tmp_path, pod(f"{json.dumps({'a': 1})}\n{MESSAGE}"))] == [
        "user_code_exception"
    ]


@pytest.mark.parametrize("reason", ["StartError", "ContainerCannotRun"])
def test_i32_the_words_of_a_runtime_are_not_the_jobs(tmp_path, reason):
    assert heard(tmp_path, pod(reason=reason)) == []


def test_i32_a_rank_that_the_manifest_alone_tells_is_that_of_the_text(tmp_path):
    plain = MESSAGE.replace("[rank3]: ", "")
    assert [piece.rank for piece in heard(tmp_path, pod(plain, ranks={0: 5}))] == [5]
    assert [piece.rank for piece in heard(tmp_path, pod(plain, ranks={0: 4, 1: 5}))] == [None]
    # torchrun's prefix holds a local rank, which text of any process may.
    (piece,) = heard(tmp_path, pod(plain.replace("Traceback", "[default1]:Traceback")))
    assert (piece.rank, piece.local_rank) == (None, None)


@given(text=st.text(max_size=4096))
def test_i32_no_text_breaks_the_reader(tmp_path_factory, text):
    run = tmp_path_factory.getbasetemp()
    assert all(piece.trust == "job" and piece.source == "log" for piece in heard(run, pod(text)))
