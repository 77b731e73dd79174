"""Marks and what they say; objects of others are hostile or broken and break nothing."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.kubernetes.launch_stories import TOKEN, manifest, old, workload
from rankfall.backends.kubernetes.lifecycle import ownership
from rankfall.kube.resources import JOBS, SERVICES

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
KEYS = ["labels", "annotations", "ownerReferences", "managedFields", "creationTimestamp", "deletionTimestamp", "uid"]


@given(meta=st.dictionaries(st.sampled_from(KEYS), JSON), status=JSON, spec=JSON)
def test_any_object_has_a_standing(meta, status, spec):
    found = {"kind": "Job", "metadata": meta, "status": status, "spec": spec}
    state = ownership.standing(found, workload(), token=TOKEN)
    assert state == ("deleting" if meta.get("deletionTimestamp") else "foreign")
    assert "\n" not in ownership.described(found)
    assert ownership.suspended(found) in {True, False}


@given(request=st.sampled_from([TOKEN, "another"]), ended=st.booleans())
def test_the_token_goes_before_the_end(request, ended):
    found = old(request=request)
    if ended:
        found["status"] = {"conditions": [{"type": "Failed", "status": "True"}]}
    state = ownership.standing(found, workload(), token=TOKEN)
    assert state == ("same" if request == TOKEN else "finished" if ended else "alive")


@pytest.mark.parametrize(
    ("kind", "condition", "status", "ended"),
    [
        ("Job", "Complete", "True", True),
        ("Job", "FailureTarget", "True", False),
        ("Job", "Failed", "False", False),
        ("JobSet", "Completed", "True", True),
        ("JobSet", "Complete", "True", False),
        ("TrainJob", "Complete", "True", True),
        ("TrainJob", "Suspended", "True", False),
        ("Pod", "Failed", "True", False),
    ],
)
def test_what_has_ended(kind, condition, status, ended):
    item = {"kind": kind, "status": {"conditions": [{"type": condition, "status": status}]}}
    assert bool(ownership.finished(item)) is ended


def test_marking_leaves_the_manifest_alone():
    before = manifest("Service")
    made = ownership.marked(before, token=TOKEN, owner="alice", reference={"uid": "u"})
    assert before == manifest("Service")
    assert made["metadata"]["ownerReferences"] == [{"uid": "u"}]
    assert ownership.token_of(made) == TOKEN


def test_kinds_are_known_by_version_and_name():
    assert ownership.resource_of(workload()) == JOBS
    assert ownership.resource_of(manifest("Service")) == SERVICES
    with pytest.raises(ValueError, match="no attempt has a Pod of v1"):
        ownership.resource_of({"apiVersion": "v1", "kind": "Pod"})


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(-5, "0 s"), (0.4, "0 s"), (119, "119 s"), (120, "2 min"), (7199, "119 min"), (7200, "2 h"), (200_000, "2 days")],
)
def test_spans(seconds, words):
    assert ownership.span(seconds) == words


def test_an_age_that_cannot_be_read_is_unknown():
    assert ownership.age("yesterday") == "unknown time"
    assert ownership.age("2020-01-01T00:00:00") == "unknown time"
