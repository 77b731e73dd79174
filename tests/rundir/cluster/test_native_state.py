"""Where a workload stands: by its conditions alone, whatever its counters say and in whatever order it is seen."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankfall.rundir.cluster.workload_state import (
    NativeState,
    dated,
    native_state,
    of_restart,
    same_start,
    with_job_of_set,
)

GOOD = {"Job": "Complete", "JobSet": "Completed", "TrainJob": "Complete"}
AT = "2026-11-21T19:00:00Z"


def condition(kind: str, status: str = "True", *, at: str = AT, **fields: str) -> dict[str, str]:
    return {"type": kind, "status": status, "lastTransitionTime": at, **fields}


def workload(kind: str, *conditions: dict[str, str], suspend: bool = False, **status: Any) -> dict[str, Any]:
    return {
        "kind": kind,
        "metadata": {"uid": "u"},
        "spec": {"suspend": suspend},
        "status": {"conditions": list(conditions), **status},
    }


@pytest.mark.parametrize("kind", GOOD)
def test_only_the_terminal_condition_ends_it(kind):
    inner = workload("JobSet") if kind == "TrainJob" else None
    assert native_state(workload(kind, failed=3, restarts=0), inner=inner).phase == "going"
    done = native_state(workload(kind, condition(GOOD[kind])), inner=inner)
    assert (done.phase, done.over, done.at) == ("succeeded", True, AT)
    fell = native_state(workload(kind, condition("Failed", reason="BackoffLimitExceeded", message="no")), inner=inner)
    assert (fell.phase, fell.over, fell.reason, fell.message) == ("failed", True, "BackoffLimitExceeded", "no")
    assert not native_state(workload(kind, condition(GOOD[kind], "False")), inner=inner).over


@pytest.mark.parametrize("early", ["FailureTarget", "SuccessCriteriaMet"])
def test_what_only_announces_an_end_is_none(early):
    assert native_state(workload("Job", condition(early))).phase == "going"


def test_a_start_is_told_by_restarts_and_by_the_end_of_a_suspension():
    first = native_state(workload("JobSet"))
    again = native_state(workload("JobSet", restarts=1))
    resumed = native_state(workload("JobSet", condition("Suspended", "False")))
    assert (first.start, again.start, again.restarts, resumed.start) == ("0/", "1/", 1, f"0/{AT}")
    held = native_state(workload("JobSet", condition("Suspended"), suspend=True))
    asked = native_state(workload("Job", suspend=True))
    assert {(held.phase, held.start), (asked.phase, asked.start)} == {("suspended", "")}


def test_i32_a_start_is_told_by_the_executions_of_its_set_where_it_counts_them():
    first = native_state(workload("JobSet", restarts=1, executionAttempts=2))
    assert (first.start, first.restarts, first.execution) == ("1:2/", 1, 2)
    # A suspension later, which its condition does not show yet.
    assert not same_start(first.start, native_state(workload("JobSet", restarts=1, executionAttempts=3)).start)
    settled = native_state(workload("JobSet", condition("Suspended", "False"), restarts=1, executionAttempts=2))
    assert same_start(first.start, settled.start)
    assert dated(first.start)
    # A controller that was upgraded meanwhile, or whose gate is off.
    assert same_start(first.start, "1/")
    assert not same_start(first.start, "2:2/")
    assert native_state(workload("Job", executionAttempts="x")).start == "0/"


def test_a_condition_that_is_behind_a_release_is_no_suspension():
    released = native_state(workload("Job", condition("Suspended")))
    assert (released.phase, released.start) == ("going", "0/")
    settled = native_state(workload("Job", condition("Suspended", "False")))
    assert same_start(released.start, settled.start)
    assert (dated(released.start), dated(settled.start)) == (False, True)
    resumed = native_state(workload("Job", condition("Suspended", "False", at="2026-11-21T20:00:00Z")))
    assert not same_start(settled.start, resumed.start)
    assert not same_start(settled.start, native_state(workload("Job", restarts=1)).start)


def test_of_a_trainjob_its_set_tells_restarts_and_suspension():
    job = workload("TrainJob")
    assert native_state(job).start == ""
    assert native_state(job, inner=workload("JobSet", restarts=2)).start == "2/"
    assert native_state(job, inner=workload("JobSet", suspend=True)).phase == "suspended"


def test_the_job_that_failed_says_why_its_set_did():
    state = native_state(workload("JobSet", condition("Failed", reason="FailedJobs", message="first failed job: x")))
    end = condition("Failed", reason="DeadlineExceeded", message="too long")
    labels = {"labels": {"jobset.sigs.k8s.io/restart-attempt": "0"}}
    job = workload("Job", end) | {"metadata": labels}
    told = with_job_of_set(state, [workload("Job"), job])
    assert (told.reason, told.message) == ("DeadlineExceeded", "first failed job: x; too long")
    assert with_job_of_set(state, []) == state
    older = msgspec.structs.replace(state, restarts=1)
    assert with_job_of_set(older, [job]) == older


def test_a_selector_of_one_start_and_of_all():
    assert of_restart("a=b", 2) == "a=b,jobset.sigs.k8s.io/restart-attempt=2"
    assert of_restart("a=b,jobset.sigs.k8s.io/restart-attempt=2", 3) == "a=b,jobset.sigs.k8s.io/restart-attempt=3"
    assert of_restart("a=b,jobset.sigs.k8s.io/restart-attempt=2", None) == "a=b"


@given(
    kind=st.sampled_from(sorted(GOOD)),
    junk=st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
        max_leaves=8,
    ),
    place=st.sampled_from(["spec", "status", "metadata", "conditions"]),
)
def test_what_cannot_be_read_is_never_an_end(kind, junk, place):
    item: dict[str, Any] = workload(kind)
    if place == "conditions":
        item["status"]["conditions"] = junk
    else:
        item[place] = junk
    assert not native_state(item, inner=item).over


@given(
    kind=st.sampled_from(sorted(GOOD)),
    # Everything that a controller writes on the way, in any order, and any number of times.
    story=st.lists(
        st.tuples(
            st.sampled_from(["FailureTarget", "SuccessCriteriaMet", "Suspended", "StartupPolicyInProgress"]),
            st.sampled_from(["True", "False", "Unknown"]),
            st.integers(0, 4),
            st.integers(0, 4),
            st.booleans(),
        ),
        max_size=12,
    ),
    end=st.sampled_from(["succeeded", "failed"]),
)
def test_launch_s11_no_order_of_events_shows_an_end_before_the_end(kind, story, end):
    conditions: dict[str, dict[str, str]] = {}
    for name, status, failed, restarts, suspend in story:
        conditions[name] = condition(name, status)
        seen = workload(kind, *conditions.values(), suspend=suspend, failed=failed, restarts=restarts)
        assert not native_state(seen, inner=seen).over
    last = condition(GOOD[kind] if end == "succeeded" else "Failed")
    for order in ([last, *conditions.values()], [*conditions.values(), last]):
        state: NativeState = native_state(workload(kind, *order), inner=None)
        assert state.phase == end
