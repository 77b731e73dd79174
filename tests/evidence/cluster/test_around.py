"""Events, nodes and the objects that make pods: what they mean at the slots and ranks of an attempt."""

from __future__ import annotations

import msgspec
import pytest

from rankfall.evidence.cluster.platform import ContextView
from rankfall.model import RankFacts, SlotFacts
from rankfall.model.node_health.records import ANNOTATION, NodeHealth, OpenCause, encode_health
from rankfall.rundir.cluster.context_facts import (
    ContextFact,
    EventFact,
    Unseen,
    event_fact,
    later_node,
    node_fact,
    work_fact,
)
from rankfall.rundir.cluster.journal import SnapshotWriter
from rankfall.rundir.cluster.marks import Stop
from rankfall.rundir.cluster.pod_facts import Condition, ContainerFact, PodFact, stamp_ns
from rankfall.rundir.layout import context_path
from rankfall.verdict.diagnose.cause_tables import DELETED_POD
from rankfall.verdict.signatures.catalogue import default_catalogue

MADE = "2026-11-21T16:00:00Z"
LATER = "2026-11-21T16:05:00Z"
MADE_NS, LATER_NS = stamp_ns(MADE), stamp_ns(LATER)
XID = "NVRM: Xid (PCI:0000:4e:00): 79, pid=4242, name=python, GPU has fallen off the bus."


def pod(slot: int = 1, **fields: object) -> PodFact:
    base = PodFact(
        seen_ns=LATER_NS, name=f"job-{slot}", uid=f"u{slot}", slot=slot, node=f"n{slot}", phase="Running", created=MADE
    )
    return msgspec.structs.replace(base, **fields)


def event(reason: str, message: str = "", *, about: str = "u1", kind: str = "Pod", **fields: object) -> EventFact:
    base = EventFact(
        seen_ns=LATER_NS, uid=f"e-{reason}-{about}", kind=kind, name="job-1", about=about, reason=reason, last=LATER
    )
    return msgspec.structs.replace(base, message=message, **fields)


def node(name: str = "n1", *, ready: str = "True", boot: str = "b1", taints: tuple = (), seen: int = LATER_NS, **meta):
    return node_fact(
        {
            "metadata": {"name": name, "uid": f"uid-{name}", **meta},
            "spec": {"taints": list(taints)},
            "status": {
                "nodeInfo": {"bootID": boot},
                "conditions": [
                    {
                        "type": "Ready",
                        "status": ready,
                        "reason": "NodeStatusUnknown",
                        "message": "Kubelet stopped posting node status.",
                        "lastTransitionTime": LATER,
                    }
                ],
            },
        },
        seen_ns=seen,
    )


STOP = Stop(at_ns=LATER_NS, reason="a request to stop")


class ObservedAttempt:
    def __init__(self, run) -> None:
        self.writer: SnapshotWriter[ContextFact] = SnapshotWriter(context_path(run, 1), ContextFact)
        self.view = ContextView(run, attempt=1, catalogue=default_catalogue())

    def found(self, *looks, pods=(), slots=(), ranks=(), before=(), stop=None):
        for look in looks:
            self.writer.add(look)
        self.view.poll()
        return self.view.evidence(
            pods or [pod()],
            slots or [SlotFacts(slot=1, node="n1", state="running")],
            ranks,
            before={one.uid: one for one in before},
            stop=stop,
        )


@pytest.fixture
def attempt(tmp_path):
    made = ObservedAttempt(tmp_path)
    yield made
    made.writer.close()


def starting(**fields: object) -> PodFact:
    return pod(phase="Pending", main=ContainerFact(state="waiting", reason="ContainerCreating"), **fields)


@pytest.mark.parametrize("reason", ["FailedMount", "FailedAttachVolume", "FailedMapVolume"])
def test_errors_k10_a_volume_that_does_not_mount_keeps_its_pod_from_starting(attempt, reason):
    (piece,) = attempt.found(event(reason, "timed out waiting", count=4), pods=[starting()])
    assert (piece.slug, piece.role, piece.source, piece.slot, piece.node) == (
        "volume_mount",
        "primary",
        "event",
        1,
        "n1",
    )
    assert piece.line == f"{reason}: timed out waiting (4 times)"
    assert (piece.at, piece.trust) == (LATER_NS, "platform")


def test_what_kept_a_pod_from_starting_is_nothing_once_it_has_started_or_got_past_it(attempt):
    assert attempt.found(event("FailedMount")) == []
    past = event("Pulling", last="2026-11-21T16:06:00Z")
    assert attempt.found(past, pods=[starting()]) == []
    unplaced = event("FailedScheduling", "0/2 nodes are available: 2 Insufficient cpu")
    assert attempt.found(unplaced, pods=[starting()]) == []
    (piece,) = attempt.found(pods=[pod(phase="Pending", node=None)])
    assert piece.slug == "unschedulable"


def test_what_kept_a_pod_that_was_stopped_while_it_waited_is_still_known(attempt):
    stopped = pod(phase="Failed", deleting=LATER, main=ContainerFact(state="terminated", exit_code=137))
    (piece,) = attempt.found(event("FailedMount"), pods=[stopped], before=[starting()])
    assert (piece.slug, piece.role) == ("volume_mount", "primary")


def test_a_volume_that_the_kubelet_no_longer_mounts_for_a_deleted_pod_is_no_cause(attempt):
    deleted = starting(deleting="2026-11-21T16:04:30Z", grace_s=30)
    assert attempt.found(event("FailedMount", "timed out waiting"), pods=[deleted], before=[starting()]) == []
    gone = 'MountVolume.SetUp failed for volume "kube-api-access-7x4kz" : object "ns"/"kube-root-ca.crt" not registered'
    assert attempt.found(event("FailedMount", gone), pods=[starting()]) == []
    earlier = event("FailedMount", "timed out waiting", first="2026-11-21T16:03:00Z")
    (piece,) = attempt.found(earlier, pods=[deleted], before=[starting()])
    assert piece.slug == "volume_mount"


def test_an_event_of_another_pod_is_nothing_here(attempt):
    assert attempt.found(event("FailedMount", about="stranger"), pods=[starting()]) == []


@pytest.mark.parametrize(
    ("message", "slug", "retry"),
    [
        ('pods "job-1" is forbidden: exceeded quota: q, requested: pods=1', "unschedulable", None),
        ('admission webhook "no.example" denied the request: never', "container_config", None),
        ('Internal error occurred: failed calling webhook "x": connection refused', "container_config", "yes"),
    ],
)
def test_errors_k6_k9_pods_that_cannot_be_made_are_missing_slots(attempt, message, slug, retry):
    slots = [SlotFacts(slot=n, state="expected") for n in (1, 2)]
    said = event("FailedCreate", f"Error creating: {message}", kind="Job", about="j", warning=True)
    (piece,) = attempt.found(said, slots=slots, pods=[pod(1)])
    assert (piece.slug, piece.slot, piece.role, piece.retry) == (slug, 2, "primary", retry)
    assert attempt.found(slots=slots, pods=[pod(1), pod(2)]) == []


@pytest.mark.parametrize(
    ("probe", "fields", "role"),
    [
        ("Liveness probe failed: ", {}, "primary"),
        ("Startup probe failed: command timed out", {}, "primary"),
        # Told to go only after that: by the controller, because it had fallen.
        ("Liveness probe failed: ", {"deleting": "2026-11-21T16:05:10Z", "grace_s": 8}, "primary"),
        ("Readiness probe failed: ", {}, "context"),
        # Told to go before: its last probes fail because it ends.
        ("Liveness probe failed: ", {"deleting": "2026-11-21T16:05:05Z", "grace_s": 8}, "context"),
        ("Liveness probe failed: ", {"conditions": (Condition(type="DisruptionTarget", status="True"),)}, "context"),
    ],
)
def test_errors_k15_a_container_that_is_not_started_again_is_stopped_without_a_word_of_its_probe(
    attempt, probe, fields, role
):
    stop = event("Killing", "Stopping container main")
    found = attempt.found(stop, event("Unhealthy", probe), pods=[pod(phase="Failed", **fields)])
    assert [(piece.slug, piece.role) for piece in found if piece.slug == "probe_killed"] == [("probe_killed", role)]


def test_errors_k15_a_probe_that_killed_a_container_is_its_cause_and_a_stop_is_not(attempt):
    ended = ContainerFact(state="terminated", exit_code=137, finished=LATER)
    killing = event("Killing", "Container main failed liveness probe, will be restarted")
    unhealthy = event("Unhealthy", "Liveness probe failed")
    assert {(p.slug, p.role) for p in attempt.found(killing, unhealthy, pods=[pod(main=ended)])} == {
        ("probe_killed", "primary"),
        ("probe_killed", "context"),
    }
    # A container that did not end was not killed; nor one that ended long after.
    assert [p.role for p in attempt.found(pods=[pod()])] == ["context"]
    late = msgspec.structs.replace(ended, finished="2026-11-21T17:00:00Z")
    assert [p.role for p in attempt.found(pods=[pod(main=late)])] == ["context"]


def test_errors_k13_words_of_a_controller_are_context_and_never_a_cause(attempt):
    said = event(
        "BackoffLimitExceeded", "Job has reached the specified backoff limit", kind="Job", about="j", warning=True
    )
    work = work_fact(
        {
            "metadata": {"name": "job", "uid": "j"},
            "spec": {},
            "status": {"conditions": [{"type": "Failed", "status": "True", "reason": "BackoffLimitExceeded"}]},
        },
        kind="Job",
        seen_ns=LATER_NS,
    )
    found = attempt.found(said, work)
    assert {(p.slug, p.role) for p in found} == {("controller_verdict", "context")}


def test_errors_k11_a_deadline_is_a_cause(attempt):
    work = work_fact(
        {
            "metadata": {"name": "job", "uid": "j"},
            "status": {
                "conditions": [
                    {"type": "Failed", "status": "True", "reason": "DeadlineExceeded", "lastTransitionTime": LATER}
                ]
            },
        },
        kind="Job",
        seen_ns=LATER_NS,
    )
    (piece,) = attempt.found(work)
    assert (piece.slug, piece.role, piece.at) == ("deadline_exceeded", "primary", LATER_NS)


def test_errors_k12_who_suspended_and_that_somebody_deletes_is_told_unless_it_was_rankfall(attempt):
    item = {
        "metadata": {
            "name": "job",
            "uid": "j",
            "managedFields": [
                {"manager": "kubectl-create", "time": MADE, "fieldsV1": {"f:spec": {"f:suspend": {}}}},
                {"manager": "kubectl-patch", "time": LATER, "fieldsV1": {"f:spec": {"f:suspend": {}}}},
            ],
        },
        "spec": {"suspend": True},
    }
    work = work_fact(item, kind="Job", seen_ns=LATER_NS)
    (piece,) = attempt.found(work)
    assert (piece.slug, piece.role, piece.line) == (
        "cancelled",
        "context",
        "Job job is suspended, last by kubectl-patch",
    )
    assert attempt.found(stop=STOP) == []
    (piece,) = attempt.found(msgspec.structs.replace(work, deleting=LATER))
    assert piece.line == "Job job is being deleted by a request"


def test_the_training_operators_event_holds_the_only_exit_code_that_is_left(attempt):
    said = event("ExitedWithCode", "Pod: ns.job-1 exited with code 139", kind="PyTorchJob", about="j")
    (piece,) = attempt.found(said, slots=[SlotFacts(slot=1, state="lost")])
    assert (piece.slug, piece.role, piece.signal, piece.slot) == ("segfault", "primary", 11, 1)
    (piece,) = attempt.found(slots=[SlotFacts(slot=1, state="ended", signal=11)])
    assert piece.role == "context"
    (piece,) = attempt.found(msgspec.structs.replace(said, message="Pod: ns.job-1 exited with code 3"))
    assert (piece.slug, piece.exit_code) == ("user_exit", 3)


# -- nodes


def test_errors_k4_a_node_that_is_away_is_the_cause_only_of_its_own_slots_silence(attempt):
    away = node(ready="Unknown")
    (piece,) = attempt.found(away, slots=[SlotFacts(slot=1, node="n1", state="lost")])
    assert (piece.slug, piece.role, piece.slot, piece.node) == ("node_lost", "primary", 1, "n1")
    assert "Kubelet stopped posting" in piece.line
    (piece,) = attempt.found(slots=[SlotFacts(slot=1, node="n1", state="ended", exit_code=1)])
    assert piece.role == "context"


def deaf(**fields: object) -> PodFact:
    """A pod of a node without power, as the API shows it (recorded on the test bed): asked to go, and still Running and ready."""
    conditions = (Condition(type="Ready", status="False", at="2026-11-21T16:05:13Z"),)
    main = ContainerFact(state="running", ready=True, started=MADE)
    return pod(**{"main": main, "deleting": LATER, "grace_s": 8, "conditions": conditions, **fields})


def failed_rank(slot: int = 0) -> RankFacts:
    return RankFacts(rank=0, slot=slot, state="ended", exit_code=1, ended_at=LATER_NS)


@pytest.mark.parametrize("state", ["lost", "running"])
def test_i19_p3_a_silent_node_is_the_cause_at_its_slot_though_its_pod_was_asked_to_go_before_that_was_noticed(
    attempt, state
):
    pieces = attempt.found(
        pods=[pod(0, node="n0"), deaf()],
        slots=[SlotFacts(slot=0, node="n0", state="running"), SlotFacts(slot=1, node="n1", state=state)],
        ranks=[failed_rank()],
    )
    (piece,) = [one for one in pieces if one.slug == "node_lost"]
    assert (piece.role, piece.slot, piece.node, piece.trust) == ("primary", 1, "n1", "platform")
    # The node fell before it was noticed: at most the node controller's patience and the interval of heartbeats.
    noticed = stamp_ns("2026-11-21T16:05:13Z")
    reach = piece.uncertainty * 1e9
    assert piece.at - reach <= noticed - 60 * 10**9
    assert noticed <= piece.at + reach <= noticed + 2 * 10**9


def test_i19_p3_the_node_object_says_the_same_where_it_may_be_read(attempt):
    away = node(ready="Unknown")
    early = "2026-11-21T16:04:50Z"
    pieces = attempt.found(away, pods=[deaf(deleting=early)], slots=[SlotFacts(slot=1, node="n1", state="lost")])
    assert [(one.slug, one.role, one.source) for one in pieces] == [
        ("node_lost", "primary", "node"),
        ("node_lost", "primary", "pod"),
    ]
    # The kubelet reports again, and so do the conditions of its pods.
    back = node(ready="True", seen=LATER_NS + 20)
    well = msgspec.structs.replace(deaf(deleting=early), conditions=(Condition(type="Ready", status="True"),))
    assert attempt.found(
        later_node(away, back), pods=[well], slots=[SlotFacts(slot=1, node="n1", state="running")]
    ) == [msgspec.structs.replace(pieces[0], role="context", at=LATER_NS, uncertainty=1.0)]


@pytest.mark.parametrize(
    ("fact", "ranks"),
    [
        (deaf(), []),
        (deaf(phase="Failed"), [failed_rank()]),
        (msgspec.structs.replace(deaf(), main=ContainerFact(state="terminated", exit_code=1)), [failed_rank()]),
        (
            msgspec.structs.replace(
                deaf(), conditions=(Condition(type="Ready", status="False", reason="ContainersNotReady"),)
            ),
            [failed_rank()],
        ),
    ],
    ids=["nothing-failed", "over", "reported", "kubelet-says-so"],
)
def test_i19_p3_a_pod_of_a_node_that_reports_or_of_a_job_that_runs_on_is_no_lost_node(attempt, fact, ranks):
    slots = [SlotFacts(slot=0, node="n0", state="running"), SlotFacts(slot=1, node="n1", state="running")]
    assert attempt.found(pods=[pod(0, node="n0"), fact], slots=slots, ranks=ranks) == []


def test_a_node_that_was_away_before_the_pod_was_made_is_nothing(attempt):
    back = later_node(node(ready="Unknown", seen=MADE_NS - 10), node(seen=MADE_NS - 5))
    assert attempt.found(back, slots=[SlotFacts(slot=1, node="n1", state="lost")]) == []


def test_errors_g15_a_node_that_booted_anew_took_its_slots_along(attempt):
    again = later_node(node(boot="b1", seen=MADE_NS), node(boot="b2"))
    assert [boot.id for boot in again.boots] == ["b1", "b2"]
    unknown = ContainerFact(state="terminated", exit_code=255, reason="Unknown")
    (piece,) = attempt.found(again, pods=[pod(main=unknown)], slots=[SlotFacts(slot=1, state="ended", exit_code=255)])
    assert (piece.slug, piece.role) == ("node_lost", "primary")
    assert "b1 became b2" in piece.line
    (piece,) = attempt.found(slots=[SlotFacts(slot=1, state="ended", exit_code=1, recorder=True)])
    assert piece.role == "context"


def test_what_was_wrong_with_a_node_stays_known_after_it_is_well(attempt):
    taint = {"key": "node.kubernetes.io/unreachable", "effect": "NoExecute", "timeAdded": LATER}
    bad = node(ready="Unknown", taints=(taint,))
    well = later_node(bad, node(seen=LATER_NS + 5))
    assert {(s.type, s.over_ns) for s in well.spells} == {("Ready", LATER_NS + 5), ("taint", LATER_NS + 5)}
    worse = later_node(bad, node(ready="Unknown", taints=(taint,), seen=LATER_NS + 7))
    assert {s.seen_ns for s in worse.spells} == {LATER_NS}
    assert later_node(bad, msgspec.structs.replace(bad, gone=True)).gone
    assert attempt.found(well)


def test_i32_p5_conditions_and_holds_of_nvsentinel_are_context_with_its_name(attempt):
    item = {
        "metadata": {"name": "n1", "labels": {"dgxc.nvidia.com/nvsentinel-state": "draining"}},
        "spec": {"unschedulable": True},
        "status": {
            "conditions": [
                {"type": "GpuXidError", "status": "True", "reason": "GpuXidErrorIsNotHealthy", "message": "[79] GPU 3 - RecommendedAction: RESTART_BM", "lastTransitionTime": LATER},
                {"type": "GpuMemWatch", "status": "False", "reason": "GpuMemWatchIsHealthy", "lastTransitionTime": LATER},
            ]
        },
    }  # fmt: skip
    found = attempt.found(node_fact(item, seen_ns=LATER_NS))
    assert {(piece.slug, piece.role, piece.source, piece.trust) for piece in found} == {
        ("gpu_app_xid", "context", "node", "platform"),
        ("preempted", "context", "node", "platform"),
    }
    lines = sorted(piece.line for piece in found)
    assert lines == [
        "NVSentinel holds node n1: draining",
        "node n1: GpuXidError (of NVSentinel) is True: GpuXidErrorIsNotHealthy [79] GPU 3 - RecommendedAction: RESTART_BM",
    ]
    assert any((piece.detail or "").endswith("by=NVSentinel") for piece in found)


def test_a_taint_that_somebody_set_to_empty_a_node_is_no_lost_node(attempt):
    taint = {"key": "maintenance", "effect": "NoExecute", "timeAdded": LATER}
    gone = Condition(type="DisruptionTarget", status="True", reason="DeletionByTaintManager", at=LATER)
    (piece,) = attempt.found(node(taints=(taint,)), pods=[pod(conditions=(gone,))])
    assert (piece.slug, piece.role, piece.specificity) == ("preempted", "primary", 86)
    (piece,) = attempt.found(pods=[pod()])
    assert piece.role == "context"


def health(*times: int, text: str = XID, code: str = "xid/79") -> dict[str, str]:
    cause = OpenCause(code=code, device="gpu 0000:4e:00", first_at=times[0], last_at=times[-1], text=text)
    return {ANNOTATION: encode_health(NodeHealth(state="quarantined", causes=(cause,)))}


FELL = LATER_NS + 3_000_000_000


def rank(number: int, **fields: object) -> RankFacts:
    base = RankFacts(rank=number, slot=1, node="n1", state="ended", exit_code=1, ended_at=FELL)
    return msgspec.structs.replace(base, **fields)


def test_health_s31_an_xid_three_seconds_before_the_fall_names_node_gpu_and_time(attempt):
    (piece,) = attempt.found(node(annotations=health(LATER_NS)), ranks=[rank(5), rank(4, killed_by="agent", signal=15)])
    assert (piece.slug, piece.role, piece.rank, piece.node) == ("gpu_fallen_off_bus", "primary", 5, "n1")
    assert piece.gpu == "0000:4e:00"
    assert piece.line.startswith("xid/79 on gpu 0000:4e:00, 3.0 s before rank 5 failed: NVRM: Xid")


def test_i19_p5_a_fault_before_rankfalls_own_stop_is_not_said_to_come_before_a_fall(attempt):
    slot = SlotFacts(slot=1, node="n1", state="ended", signal=15, killed_by="wrapper", ended_at=FELL)
    stopped = rank(5, exit_code=None, signal=15, killed_by="wrapper")
    (piece,) = attempt.found(node(annotations=health(LATER_NS)), slots=[slot], ranks=[stopped])
    assert piece.line.startswith("xid/79 on gpu 0000:4e:00, 3.0 s before slot 1 was stopped by Rankfall: NVRM: Xid")


def test_of_two_ranks_that_fell_on_the_node_none_is_named(attempt):
    (piece,) = attempt.found(node(annotations=health(LATER_NS)), ranks=[rank(4), rank(5)])
    assert (piece.rank, piece.slot) == (None, 1)


@pytest.mark.parametrize("off", [-121, 31])
def test_a_fault_out_of_the_window_is_no_evidence(attempt, off):
    far = node(annotations=health(FELL + off * 1_000_000_000))
    assert attempt.found(far, ranks=[rank(5)]) == []


def test_a_health_record_that_cannot_be_believed_tells_nothing(attempt):
    assert node(annotations={ANNOTATION: "{"}).health is None
    assert attempt.found(node(annotations=health(LATER_NS, text="words of anybody")), ranks=[rank(5)]) == []


@pytest.mark.parametrize(
    ("made", "main", "role"),
    [
        ("16:04:50", {"started": "16:04:52"}, "primary"),
        ("16:05:01", {"started": "16:05:02"}, "primary"),
        ("16:05:05", {"started": "16:05:07"}, "context"),
        # The node's clock is 90 s slow, so its fault seems to come before the pod.
        ("16:06:20", {"started": "16:04:52"}, "primary"),
        ("16:05:05", {"started": "16:05:20", "restarts": 1}, "primary"),
    ],
)
def test_i19_p5_a_fault_that_is_older_than_the_pod_is_no_cause_of_its_failure(attempt, made, main, role):
    said = event("GpuFault", XID, kind="Node", about="n1")
    looks = (node(annotations=health(LATER_NS)), msgspec.structs.replace(said, name="n1"))
    ran = ContainerFact(state="terminated", **(main | {"started": f"2026-11-21T{main['started']}Z"}))
    pods = [pod(created=f"2026-11-21T{made}Z", main=ran)]
    pieces = attempt.found(*looks, pods=pods, ranks=[rank(5, ended_at=LATER_NS + 30_000_000_000)])
    faults = [(piece.slug, piece.role) for piece in pieces if piece.slug == "gpu_fallen_off_bus"]
    assert faults == [("gpu_fallen_off_bus", role)] * 2


def test_a_system_oom_of_the_node_is_the_end_of_the_rank_that_was_killed_then(attempt):
    said = event("SystemOOM", "System OOM encountered, victim process: python, pid: 4", kind="Node", about="n1")
    said = msgspec.structs.replace(said, name="n1")
    killed = rank(5, exit_code=None, signal=9, killed_by="foreign")
    (piece,) = attempt.found(node(), said, ranks=[killed])
    assert (piece.slug, piece.role, piece.rank) == ("node_oom", "primary", 5)
    (piece,) = attempt.found(ranks=[rank(5)])
    assert piece.role == "context"


# -- facts and what is missing


def test_an_event_of_the_new_api_is_read_as_one_of_the_old():
    fact = event_fact(
        {
            "metadata": {"uid": "e", "creationTimestamp": MADE},
            "involvedObject": {"kind": "Pod", "name": "p", "uid": "u", "fieldPath": "spec.containers{main}"},
            "reason": "Unhealthy",
            "eventTime": "2026-11-21T16:00:01.000001Z",
            "series": {"count": 7, "lastObservedTime": LATER},
            "reportingComponent": "kubelet",
            "type": "Warning",
        },
        seen_ns=1,
    )
    assert (fact.container, fact.count, fact.last, fact.by) == ("main", 7, LATER, "kubelet")
    assert event_fact({}, seen_ns=1).reason == ""


def test_what_may_not_be_read_is_missing_until_it_may(attempt):
    attempt.writer.add(Unseen(seen_ns=LATER_NS, uid="unseen/nodes", text="the states of the nodes: no right"))
    attempt.view.poll()
    assert attempt.view.missing([pod()]) == ["the states of the nodes: no right"]
    attempt.writer.add(
        Unseen(seen_ns=LATER_NS, uid="unseen/nodes", text="the states of the nodes: no right", over=True)
    )
    attempt.view.poll()
    assert attempt.view.missing([pod()]) == []


def test_events_of_more_than_an_hour_ago_are_said_to_be_gone(attempt):
    attempt.writer.add(node(seen=MADE_NS + 4000 * 1_000_000_000))
    attempt.view.poll()
    (text,) = attempt.view.missing([pod()])
    assert "Kubernetes stores Events for an hour" in text
    assert attempt.view.problems == []


GONE = {"gone": True, "main": ContainerFact(state="running", started=MADE)}


@pytest.mark.parametrize(
    ("others", "changed", "role"),
    [
        ((), {}, "primary"),
        # Its kubelet stopped it, before the node was silent.
        ((("Killing", "Stopping container main", MADE),), {}, "context"),
        # Its node came back, and its kubelet removed it.
        ((("Killing", "Stopping container main", "2026-11-21T16:09:00Z"),), {}, "primary"),
        ((), {"main": ContainerFact(state="terminated", exit_code=1, finished=MADE)}, "context"),
        ((), {"gone": False}, "context"),
    ],
)
def test_the_event_of_a_silent_node_is_the_reason_of_a_pod_that_never_came_back(attempt, others, changed, role):
    silent = event("NodeNotReady", "Node is not ready", by="node-controller")
    rest = [event(reason, text, uid=f"e-{at}", last=at, by="kubelet") for reason, text, at in others]
    lost = SlotFacts(slot=1, node="n1", state="lost")
    pieces = attempt.found(silent, *rest, pods=[pod(**(GONE | changed))], slots=[lost])
    (piece,) = [piece for piece in pieces if piece.line.startswith("NodeNotReady")]
    assert (piece.slug, piece.role, piece.node) == ("node_lost", role, "n1")
    # The controller waits before it reports.
    assert (piece.at < LATER_NS) == (role == "primary")


def test_events_of_a_deleted_namesake_are_not_this_jobs(attempt):
    job = {"metadata": {"name": "bert", "uid": "new"}}
    events = [
        event("BackoffLimitExceeded", "limit", kind="Job", about=uid, name="bert", warning=True)
        for uid in ("old", "new")
    ]
    other = event("Failed", "of another kind", kind="JobSet", about="s", name="bert", warning=True)
    pieces = attempt.found(*events, other, work_fact(job, kind="Job", seen_ns=1))
    assert sorted(piece.line for piece in pieces if piece.slug == "controller_verdict") == [
        "BackoffLimitExceeded: limit",
        "Failed: of another kind",
    ]


def test_a_pod_that_its_controller_deleted_is_a_consequence_of_the_one_deleted_before(attempt):
    """Both were deleted in one second, so that no time tells them apart."""
    pods = [pod(1, **GONE, deleting=LATER), pod(2, **GONE, deleting=LATER)]
    lost = [SlotFacts(slot=number, node=f"n{number}", state="lost") for number in (1, 2)]
    said = event("SuccessfulDelete", "Deleted pod: job-2", kind="Job", about="j", name="bert")
    pieces = attempt.found(said, pods=pods, slots=lost)
    found = {piece.slot: (piece.slug, piece.role, piece.line) for piece in pieces if piece.fingerprint == DELETED_POD}
    assert found == {
        1: ("external_signal", "secondary", "pod job-1 was deleted while it ran; its end was not recorded"),
        2: (
            "peer_teardown",
            "secondary",
            "pod job-2 was deleted while it ran, by its job's controller; its end was not recorded",
        ),
    }
    stopped = attempt.found(pods=pods, slots=lost, stop=STOP)
    assert [piece.slot for piece in stopped if piece.fingerprint == DELETED_POD] == [2]


SOON = "2026-11-21T16:05:01Z"
FAILED = Condition(type="FailureTarget", status="True", reason="BackoffLimitExceeded", at=LATER)
BEFORE = event("Killing", "Stopping container main", last="2026-11-21T16:04:59Z", by="kubelet")
SAME = event("Killing", "Stopping container main", last=LATER, by="kubelet")
AFTER = event("Killing", "Stopping container main", last="2026-11-21T16:05:02Z", by="kubelet")
UNSENT = event("Started", "Started container main", last=MADE, by="kubelet")
TAKEN = event("SuccessfulDelete", "Deleted pod: job-2", kind="Job", about="j", name="bert", last=SOON)


@pytest.mark.parametrize(
    ("around", "end", "deleting", "expected"),
    [
        ([TAKEN], (9, "2026-11-21T16:05:04Z"), None, True),
        ([TAKEN], (15, SOON), None, True),
        # Its own end, of which the controller's cache did not know.
        ([TAKEN], (9, SOON), None, False),
        ([TAKEN], (15, LATER), None, False),
        ([TAKEN], (11, "2026-11-21T16:05:04Z"), None, False),
        # Without the Event: its deletion was requested after its job had failed.
        ([], (9, "2026-11-21T16:05:04Z"), "2026-11-21T16:05:02Z", True),
        # In one second with it, but the other one, which was deleted in that second too, is gone already.
        ([], (9, "2026-11-21T16:05:04Z"), SOON, True),
        ([], (9, "2026-11-21T16:05:04Z"), None, False),
        # Likewise; only the kubelet's Event gives the time of the other deletion, before that second or in it.
        ([BEFORE], (9, "2026-11-21T16:05:04Z"), SOON, True),
        ([SAME], (9, "2026-11-21T16:05:04Z"), SOON, True),
        # Its kubelet sent that Event late, or not yet.
        ([AFTER], (9, "2026-11-21T16:05:04Z"), SOON, True),
        ([UNSENT], (9, "2026-11-21T16:05:04Z"), SOON, True),
    ],
)
def test_i19_a_pod_that_its_controller_killed_is_no_cause(attempt, around, end, deleting, expected):
    """Somebody deleted another pod, whose end nobody recorded; the job failed by it."""
    signal, ended = end
    work = work_fact({"metadata": {"name": "bert", "uid": "j"}}, kind="Job", seen_ns=1)
    work = msgspec.structs.replace(work, conditions=(FAILED,))
    main = ContainerFact(state="terminated", exit_code=128 + signal, started=MADE, finished=ended)
    killed = pod(2, main=main, phase="Failed", deleting=deleting, grace_s=1)
    slots = [
        SlotFacts(slot=1, node="n1", state="lost"),
        SlotFacts(slot=2, node="n2", state="ended", signal=signal, killed_by="foreign", ended_at=stamp_ns(ended)),
    ]
    taken = pod(1, **GONE, deleting=None if around and around[0].by == "kubelet" else LATER)
    pieces = attempt.found(work, *around, pods=[taken, killed], slots=slots)
    found = {piece.slot: (piece.slug, piece.line) for piece in pieces if piece.fingerprint == DELETED_POD}
    assert found.pop(1) == ("external_signal", "pod job-1 was deleted while it ran; its end was not recorded")
    consequence = ("peer_teardown", "pod job-2 was deleted while it ran, by its job's controller")
    assert found == ({2: consequence} if expected else {})


@pytest.mark.parametrize(
    ("around", "signal", "ended", "expected"),
    [
        ([TAKEN], 9, "2026-11-21T16:05:04Z", True),
        ([TAKEN], 9, SOON, False),
        # Events are kept for an hour only.
        ([], 9, "2026-11-21T16:05:04Z", True),
        ([], 9, SOON, False),
        ([], 15, LATER, False),
        ([], 11, "2026-11-21T16:05:04Z", False),
    ],
)
def test_a_kubelets_last_deletion_does_not_hide_that_the_controller_asked_for_it(
    attempt, around, signal, ended, expected
):
    """After the end of a deleted pod its kubelet deletes it again, without a grace period."""
    work = work_fact({"metadata": {"name": "bert", "uid": "j"}}, kind="Job", seen_ns=1)
    work = msgspec.structs.replace(work, conditions=(FAILED,))
    main = ContainerFact(state="terminated", exit_code=128 + signal, started=MADE, finished=ended)
    killed = pod(2, main=main, phase="Failed", deleting="2026-11-21T16:05:05Z", grace_s=0)
    slots = [
        SlotFacts(slot=1, node="n1", state="lost"),
        SlotFacts(slot=2, node="n2", state="ended", signal=signal, killed_by="foreign", ended_at=stamp_ns(ended)),
    ]
    pieces = attempt.found(work, *around, BEFORE, pods=[pod(1, **GONE), killed], slots=slots)
    found = {piece.slot: piece.slug for piece in pieces if piece.fingerprint == DELETED_POD}
    assert found == {1: "external_signal"} | ({2: "peer_teardown"} if expected else {})


@pytest.mark.parametrize(
    ("at", "after", "expected"),
    [
        ("2026-11-21T16:04:58Z", (2,), True),
        # In the second of the end that made Kubernetes stop the others, or later, it may be a part of the stop.
        (SOON, (2,), False),
        # Rankfall's own stop deletes pods, and has another clock than the server.
        ("2026-11-21T16:04:58Z", (), False),
        (None, (2,), False),
    ],
)
def test_i19_a_deletion_before_the_stop_of_kubernetes_is_its_cause(attempt, at, after, expected):
    """The only recorded end is that of the pod that the controller killed, so the stop counts from it."""
    killing = [event("Killing", "Stopping container main", last=at, by="kubelet")] if at else []
    stop = Stop(at_ns=stamp_ns(SOON) + 1_000_000, reason="Kubernetes ends the other slots", after=after)
    slots = [
        SlotFacts(slot=1, node="n1", state="lost"),
        SlotFacts(slot=2, node="n2", state="ended", signal=9, killed_by="foreign", ended_at=stamp_ns(SOON)),
    ]
    pieces = attempt.found(*killing, pods=[pod(1, **GONE)], slots=slots, stop=stop)
    found = [(piece.slot, piece.slug, piece.at) for piece in pieces if piece.fingerprint == DELETED_POD]
    assert found == ([(1, "external_signal", stamp_ns(at))] if expected else [])
