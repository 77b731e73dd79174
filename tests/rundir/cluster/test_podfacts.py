"""What a look at a pod says: nothing the API may send raises, everything is bounded, and what was seen stays."""

from __future__ import annotations

import copy
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankfall.kube.object_fields import COMPLETION_INDEX, MAX_TEXT, MAX_WORD
from rankfall.rundir.cluster.pod_facts import PodFact, later, pod_fact, stamp_ns
from rankfall.rundir.cluster.pod_source import PodSource
from support.kubemodel import NS

DAY = "2026-11-21T16:00:00Z"

POD: dict[str, Any] = {
    "metadata": {
        "name": "job-1-abcde",
        "uid": "u-1",
        "creationTimestamp": DAY,
        "deletionTimestamp": DAY,
        "labels": {COMPLETION_INDEX: "1", "rankfall.dev/attempt": "2"},
        "annotations": {COMPLETION_INDEX: "1"},
    },
    "spec": {"nodeName": "n1"},
    "status": {
        "phase": "Failed",
        "reason": "Evicted",
        "message": "The node was low on resource: memory.",
        "conditions": [
            {"type": "DisruptionTarget", "status": "True", "reason": "TerminationByKubelet", "lastTransitionTime": DAY},
            {"type": "Initialized", "status": "True"},
            {"type": "example.com/odd", "status": "True"},
        ],
        "initContainerStatuses": [
            {"name": "fetch", "state": {"terminated": {"exitCode": 3, "reason": "Error"}}},
            {"name": "mesh", "state": {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}},
        ],
        "containerStatuses": [
            {
                "name": "main",
                "restartCount": 1,
                "ready": False,
                "containerID": "containerd://b",
                "state": {
                    "terminated": {
                        "exitCode": 137,
                        "signal": 0,
                        "reason": "OOMKilled",
                        "message": "{}",
                        "startedAt": DAY,
                        "finishedAt": DAY,
                        "containerID": "containerd://b",
                    }
                },
                "lastState": {"terminated": {"exitCode": 1, "containerID": "containerd://a"}},
            },
            {"name": "side", "state": {"waiting": {"reason": "ContainerCreating"}}},
        ],
    },
}


SOURCE = PodSource(context="c", namespace="n", selector="a=b", container="main", token="", bases={"worker": 0})


def fact(pod: dict[str, Any] = POD, *, gone: bool = False) -> PodFact:
    return pod_fact(pod, source=SOURCE, seen_ns=1, gone=gone)


def test_what_a_pod_says():
    found = fact()
    assert (found.name, found.uid, found.slot, found.attempt, found.node) == ("job-1-abcde", "u-1", 1, 2, "n1")
    assert (found.phase, found.reason, found.created, found.deleting) == ("Failed", "Evicted", DAY, DAY)
    assert [one.type for one in found.conditions] == ["DisruptionTarget", "example.com/odd"]
    assert found.main is not None
    assert (found.main.state, found.main.restarts, found.main.exit_code, found.main.signal) == (
        "terminated",
        1,
        137,
        None,
    )
    assert found.last is not None
    assert (found.last.restarts, found.last.exit_code, found.last.id) == (0, 1, "containerd://a")
    assert found.others == ("fetch: Error: exit code 3", "mesh: ImagePullBackOff: no such image")
    assert found.over


def paths(data: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    found = [at]
    if isinstance(data, dict):
        found += [path for key in data for path in paths(data[key], (*at, key))]
    elif isinstance(data, list):
        found += [path for key, item in enumerate(data) for path in paths(item, (*at, key))]
    return found


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
anything = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(), st.floats(), texts, st.sampled_from(["9" * 30, "x" * 9000, "-1"])
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(texts, inner, max_size=4)),
    max_leaves=8,
)


@given(where=st.lists(st.sampled_from(paths(POD)[1:]), min_size=1, max_size=3), what=anything)
def test_any_json_in_place_of_any_part_never_raises_and_can_be_written_down(where, what):
    pod = copy.deepcopy(POD)
    for path in where:
        place: Any = pod
        try:
            for key in path[:-1]:
                place = place[key]
            place[path[-1]] = what
        except (KeyError, IndexError, TypeError):
            # Another part was put in the place of what held it.
            continue
    found = fact(pod)
    assert msgspec.json.decode(msgspec.json.encode(found), type=PodFact) == found
    assert found.slot is None or 0 <= found.slot < 1 << 31
    for one in (found.main, found.last):
        assert one is None or stamp_ns(one.finished) is None or one.finished is not None


def test_texts_and_lists_are_bounded():
    pod = copy.deepcopy(POD)
    long = "x" * 100_000
    pod["metadata"]["name"] = long
    pod["status"]["message"] = long
    odd = [{"type": f"t{n}", "status": "True", "message": long} for n in range(100)]
    pod["status"]["conditions"] = odd + POD["status"]["conditions"]
    waiting = {"waiting": {"reason": long, "message": long}}
    pod["status"]["initContainerStatuses"] = [{"name": f"c{n}", "state": waiting} for n in range(100)]
    found = fact(pod)
    assert len(found.name) == MAX_WORD
    assert len(found.message or "") == MAX_TEXT
    assert len(found.conditions) == len(found.others) == 16
    assert found.condition("DisruptionTarget") is not None
    assert all(len(text) <= MAX_TEXT for text in found.others)
    assert len(msgspec.json.encode(found)) < 1 << 18


@pytest.mark.parametrize(
    ("text", "ns"),
    [
        ("2026-11-21T16:00:00Z", 1_795_276_800 * NS),
        ("2026-11-21T18:00:00.900+02:00", 1_795_276_800 * NS),
        ("1970-01-01T00:00:00Z", 0),
        ("0001-01-01T00:00:00Z", -62_135_596_800 * NS),
        ("2026-11-21T16:00:00", None),
        ("2026-11-21", None),
        ("soon", None),
        ("", None),
        (None, None),
    ],
)
def test_stamps(text, ns):
    assert stamp_ns(text) == ns


def test_errors_a_container_that_waits_to_be_started_again_is_the_last_one():
    pod = copy.deepcopy(POD)
    status = pod["status"]["containerStatuses"][0]
    status["state"] = {"waiting": {"reason": "CrashLoopBackOff"}}
    status["lastState"] = {"terminated": {"exitCode": 1, "containerID": "containerd://b"}}
    found = fact(pod)
    assert found.last is not None
    assert found.main is not None
    assert (found.main.restarts, found.last.restarts) == (1, 1)
    # A container that is made anew has no id yet: the last one is the one before.
    del status["containerID"]
    assert fact(pod).last is not None
    assert fact(pod).last.restarts == 0  # type: ignore[union-attr]


def running(restarts: int) -> dict[str, Any]:
    pod = copy.deepcopy(POD)
    pod["status"]["phase"] = "Running"
    pod["status"]["containerStatuses"] = [
        {"name": "main", "restartCount": restarts, "state": {"running": {"startedAt": DAY}}}
    ]
    return pod


def test_looks_that_overtake_each_other_do_not_take_a_container_back():
    ended, before, after = fact(), fact(running(1)), fact(running(2))
    assert later(ended, before).main == ended.main
    assert later(after, ended).main == after.main
    assert later(ended, after).main == after.main
    assert later(before, ended) == ended


def test_the_last_words_of_a_pod_take_nothing_back():
    ended = fact()
    name_only = {"metadata": {"name": "job-1-abcde", "uid": "u-1"}}
    for last in (fact(running(1), gone=True), fact(name_only, gone=True)):
        found = later(ended, last)
        assert found == msgspec.structs.replace(ended, gone=True)
    # And they may be the first to tell of its end.
    assert later(fact(running(1)), fact(gone=True)).main == ended.main


@pytest.mark.parametrize("gone", [False, True])
def test_a_kubelets_last_deletion_leaves_the_time_of_the_request(gone):
    def asked(at: str, grace_s: int, pod: dict[str, Any], **more: bool) -> PodFact:
        made = copy.deepcopy(pod)
        made["metadata"] |= {"deletionTimestamp": at, "deletionGracePeriodSeconds": grace_s}
        return fact(made, **more)

    first = asked("2026-11-20T23:59:40Z", 30, running(1))
    again = asked("2026-11-22T00:00:00Z", 0, POD, gone=gone)
    assert again.finally_deleted
    found = later(first, again)
    assert (found.deleting, found.grace_s, found.gone) == (first.deleting, 30, gone)
    # A user who no longer waits for the end replaces it.
    forced = later(first, asked("2026-11-20T23:59:50Z", 0, running(1), gone=gone))
    assert (forced.deleting, forced.grace_s) == ("2026-11-20T23:59:50Z", 0)


def test_a_look_that_says_less_leaves_what_was_seen():
    emptied = {"metadata": POD["metadata"], "status": {"phase": "Failed", "reason": "Evicted"}}
    found = later(fact(running(1)), fact(emptied))
    assert (found.node, found.phase, found.main.state if found.main else None) == ("n1", "Failed", "running")
