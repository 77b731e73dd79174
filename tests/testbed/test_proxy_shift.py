"""One node's clock is wrong: its stamps are shifted wherever it made them, and nobody else's are."""

from __future__ import annotations

import json
from datetime import datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.proxy_world import END
from testbed.proxy import Match, ShiftTimes
from testbed.proxy.shift import LogShift, shift_text

# hypothesis wants bounds without a zone.
FIRST, LAST = datetime(2000, 1, 1), datetime(2100, 1, 1)  # noqa: DTZ001
LOG = "/api/v1/namespaces/ns/pods/p1/log"


@pytest.mark.parametrize(
    ("stamp", "seconds", "shifted"),
    [
        ("2026-01-02T03:04:05Z", 90, "2026-01-02T03:05:35Z"),
        ("2026-01-02T03:04:05.123456789Z", 90, "2026-01-02T03:05:35.123456789Z"),
        ("2026-01-02T03:04:05.100000000Z", 0.95, "2026-01-02T03:04:06.050000000Z"),
        ("2026-01-01T00:00:00.000001Z", -1, "2025-12-31T23:59:59.000001Z"),
        ("2026-01-01T00:00:00.5+02:00", -3600, "2025-12-31T23:00:00.5+02:00"),
        ("2024-02-28T23:59:59Z", 2, "2024-02-29T00:00:01Z"),
        ("1970-01-01T00:00:00Z", 90, "1970-01-01T00:00:00Z"),
        ("yesterday", 90, "yesterday"),
    ],
)
def test_a_stamp_keeps_its_digits_and_its_zone(stamp, seconds, shifted):
    assert shift_text(stamp, seconds) == shifted


@given(
    st.lists(st.tuples(st.datetimes(FIRST, LAST), st.text("ab 2026-T:Z.\t", max_size=60))),
    st.integers(-100_000, 100_000),
    st.lists(st.integers(1, 50)),
)
def test_log_lines_are_shifted_wherever_chunks_split_them(lines, seconds, sizes):
    def text(moved: int) -> bytes:
        stamped = [
            f"{(when + timedelta(seconds=moved)).isoformat(timespec='microseconds')}000Z {words}\n"
            for when, words in lines
        ]
        return "".join(stamped).encode()

    shift, data, got = LogShift(seconds), text(0), b""
    for size in sizes:
        got += shift.push(data[:size])
        data = data[size:]
    got += shift.push(data) + shift.end()
    assert got == text(seconds)


def test_a_log_line_is_passed_on_before_its_end_has_come():
    shift = LogShift(1)
    assert shift.push(b"2026-01-02T03:04") == b""
    assert shift.push(b":05.0Z progress") == b"2026-01-02T03:04:06.0Z progress"
    assert shift.push(b" 50 %") == b" 50 %"
    assert (
        shift.push(b"\nno stamp at the start of this line, which is long")
        == b"\nno stamp at the start of this line, which is long"
    )


def test_logs_of_the_nodes_pods_alone_and_since_is_asked_with_the_wrong_clock(world):
    world.proxy.nodes(lambda namespace, pod: {"ns/p1": "n1", "ns/p2": "n2"}.get(f"{namespace}/{pod}"))
    world.proxy.add("clock", ShiftTimes(node="n1", seconds=90))
    for pod, stamp in (("p1", b"2026-01-02T03:05:35.5Z"), ("p2", b"2026-01-02T03:04:05.5Z")):
        path = f"/api/v1/namespaces/ns/pods/{pod}/log"
        stream = world.upstream.streams(path)
        answer = world.open(
            f"{path}?follow=true&timestamps=true&sinceTime=2026-01-02T03%3A05%3A00Z",
            headers={"Accept-Encoding": "gzip"},
        )
        for piece in (b"2026-01-02T03:", b"04:05.5Z one\n2026-01-02T03:04:05.5Z", b" two\n", END):
            stream.chunks.put(piece)
        assert answer.read() == stamp + b" one\n" + stamp + b" two\n"
    first, second = world.upstream.seen
    assert "sinceTime=2026-01-02T03%3A03%3A30Z" in first.target
    assert first.headers["accept-encoding"] == ["identity"]
    assert "sinceTime=2026-01-02T03%3A05%3A00Z" in second.target
    assert second.headers["accept-encoding"] == ["gzip"]
    assert [record.rules for record in world.proxy.log()] == [("clock",), ()]


def test_a_log_without_stamps_is_left_alone(world):
    world.proxy.pods({"ns/p1": "n1"})
    world.proxy.add("clock", ShiftTimes(node="n1", seconds=90))
    stream = world.upstream.streams(LOG)
    stream.chunks.put(b"2026-01-02T03:04:05Z the job's own words\n")
    stream.chunks.put(END)
    assert world.open(LOG).read() == b"2026-01-02T03:04:05Z the job's own words\n"


T, LATER = "2026-01-02T03:04:05Z", "2026-01-02T03:05:35Z"


def pod(node: str, stamp: str) -> dict:
    return {
        "metadata": {"name": f"p-{node}", "creationTimestamp": T},
        "spec": {"nodeName": node},
        "status": {
            "startTime": stamp,
            "conditions": [
                {"type": "Ready", "lastTransitionTime": stamp},
                {"type": "PodScheduled", "lastTransitionTime": T},
            ],
            "containerStatuses": [
                {
                    "state": {"running": {"startedAt": stamp}},
                    "lastState": {"terminated": {"startedAt": stamp, "finishedAt": stamp, "exitCode": 1}},
                },
                {"state": {"terminated": {"startedAt": "1970-01-01T00:00:00Z", "finishedAt": stamp}}},
            ],
            "initContainerStatuses": [{"state": {"terminated": {"startedAt": stamp, "finishedAt": stamp}}}],
        },
    }


def test_pod_lists_single_pods_and_watches_are_shifted_on_that_node(world):
    world.proxy.add("clock", ShiftTimes(node="n1", seconds=90), Match(method="GET"))
    world.upstream.answers("/api/v1/pods", {"kind": "PodList", "items": [pod("n1", T), pod("n2", T)]})
    world.upstream.answers("/api/v1/namespaces/ns/pods/p1", {"kind": "Pod"} | pod("n1", T))
    accept = {"Accept": "application/vnd.kubernetes.protobuf, application/json"}
    assert world.get("/api/v1/pods", headers=accept).json()["items"] == [pod("n1", LATER), pod("n2", T)]
    assert world.get("/api/v1/namespaces/ns/pods/p1").json() == {"kind": "Pod"} | pod("n1", LATER)
    assert world.upstream.seen[0].headers["accept"] == ["application/json"]
    stream = world.upstream.streams("/api/v1/namespaces/ns/pods", kind="application/json")
    answer = world.open("/api/v1/namespaces/ns/pods?watch=true")
    events = [{"type": "MODIFIED", "object": {"kind": "Pod"} | pod(node, T)} for node in ("n1", "n2", "n1")]
    text = b"".join(json.dumps(event).encode() + b"\n" for event in events)
    stream.chunks.put(text[:1500])
    first = json.loads(answer.readline())
    assert first["object"] == {"kind": "Pod"} | pod("n1", LATER)
    stream.chunks.put(text[1500:])
    stream.chunks.put(END)
    rest = [json.loads(line)["object"] for line in answer.read().splitlines()]
    assert rest == [{"kind": "Pod"} | pod("n2", T), {"kind": "Pod"} | pod("n1", LATER)]


def test_leases_heartbeats_and_events_of_that_node(world):
    world.proxy.add("clock", ShiftTimes(node="n1", seconds=-5))
    micro, earlier = "2026-01-02T03:04:05.000001Z", "2026-01-02T03:04:00.000001Z"

    def things(node: str, stamp: str, second: str) -> dict[str, dict]:
        return {
            f"/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/{node}": {
                "kind": "Lease",
                "metadata": {"name": node},
                "spec": {"renewTime": stamp, "acquireTime": stamp},
            },
            f"/api/v1/nodes/{node}": {
                "kind": "Node",
                "metadata": {"name": node, "creationTimestamp": T},
                "status": {
                    "conditions": [
                        {"status": "True", "lastHeartbeatTime": second, "lastTransitionTime": second},
                        {"status": "Unknown", "lastHeartbeatTime": T, "lastTransitionTime": T},
                    ]
                },
            },
            f"/api/v1/namespaces/ns/events/{node}": {
                "kind": "Event",
                "source": {"host": node},
                "firstTimestamp": second,
                "lastTimestamp": second,
                "eventTime": None,
            },
        }

    for node in ("n1", "n2"):
        for path, body in things(node, micro, T).items():
            world.upstream.answers(path, body)
    for path, body in (things("n1", earlier, "2026-01-02T03:04:00Z") | things("n2", micro, T)).items():
        assert world.get(path).json() == body


def test_what_is_no_object_of_a_node_is_not_touched(world):
    world.proxy.add("clock", ShiftTimes(node="n1", seconds=90))
    text = b'{ "kind":  "ConfigMap",\n "startTime": "2026-01-02T03:04:05Z" }'
    world.upstream.routes["/api/v1/namespaces/ns/configmaps/c"] = lambda handler: handler.reply(text)
    assert world.get("/api/v1/namespaces/ns/configmaps/c").body == text
    world.upstream.routes["/api/v1/pods"] = lambda handler: handler.reply(b"not json", kind="text/plain")
    assert world.get("/api/v1/pods").body == b"not json"
    world.upstream.answers("/api/v1/nodes", {"kind": "Status", "code": 403}, status=403)
    assert world.get("/api/v1/nodes").json() == {"kind": "Status", "code": 403}
