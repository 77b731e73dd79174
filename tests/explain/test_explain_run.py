"""``why RUN``: the stored verdict, or one made anew from the directory."""

from __future__ import annotations

import json
import time

import pytest

from rankfall.explain import explain_run
from rankfall.model import JobSpec, NotFound
from rankfall.rundir import RunDir


@pytest.fixture
def run(tmp_path):
    """A run whose one rank left an error record and an end, and no verdict yet."""
    made = RunDir.create(JobSpec(command=("train.py",)), home=tmp_path)
    made.records_dir.mkdir(parents=True, exist_ok=True)
    base = {"run": made.id, "attempt": 1, "slot": 0, "role": "worker", "pid": 5, "at_ns": time.time_ns()}
    rows = [
        {"id": "a", "kind": "start", "rank": 0, "ordinal": 0, "writer": "hook"},
        {"id": "b", "kind": "error", "rank": 0, "error": {"types": ["KeyError"], "chain": ["'x'"]}},
        {"id": "c", "kind": "end", "rank": 0, "exit": {"code": 1, "how": "wait"}},
        {"id": "d", "kind": "slot_end", "exit": {"code": 1}},
    ]
    for row in rows:
        (made.records_dir / f"{row['kind']}-{row['id']}.json").write_text(json.dumps(base | row))
    with made.lease() as writer:
        writer.begin_attempt(1, at=time.time_ns(), plan={})
    return made


def test_a_run_without_a_stored_verdict_is_diagnosed_from_its_directory(run):
    verdict = explain_run(run).verdict
    assert (verdict.rank, verdict.cause.slug, verdict.run) == (0, "user_code_exception", run.id)


def test_a_stored_verdict_is_the_answer_until_a_fresh_one_is_asked_for(run):
    first = explain_run(run)
    with run.lease() as writer:
        writer.add_verdict(1, first)
    (run.records_dir / "error-b.json").unlink()
    assert explain_run(run).verdict.cause.slug == "user_code_exception"
    assert explain_run(run, fresh=True).verdict.cause.slug == "user_exit"


def test_an_attempt_that_never_was_is_named(run):
    with pytest.raises(NotFound, match="no attempt 7") as found:
        explain_run(run, attempt=7)
    assert found.value.hint == "it has one attempt"
    with run.lease() as writer:
        writer.begin_attempt(2, at=1, plan={})
    with pytest.raises(NotFound, match="no attempt 7") as found:
        explain_run(run, attempt=7)
    assert found.value.hint == "it has attempts 1-2"


@pytest.mark.parametrize(
    ("how", "state"), [("succeeded", "succeeded"), ("suspended", "suspended"), ("resized", "restarting")]
)
def test_an_attempt_that_did_not_fall_is_not_said_to_have_fallen(run, how, state):
    with run.lease() as writer:
        writer.end_attempt(1, at=time.time_ns(), state=how)
    verdict = explain_run(run).verdict
    assert (verdict.state, verdict.rank, verdict.consequences) == (state, None, ())
