"""The platform's reasons: each row makes evidence of the platform, and nothing else does."""

from __future__ import annotations

import msgspec
import pytest

from rankfall.evidence.cluster.reasons import Reason, end_evidence, row_of, rows, waiting_evidence
from rankfall.model import Case, SlotFacts
from rankfall.model.causes import catalogue
from rankfall.rundir.cluster.pod_facts import Condition, ContainerFact, PodFact
from rankfall.verdict.diagnose import diagnose

DAY = "2026-11-21T16:00:00Z"
DAY_NS = 1_795_276_800_000_000_000
SEEN = DAY_NS + 77


def pod(**fields: object) -> PodFact:
    base = PodFact(seen_ns=SEEN, name="job-3-x", uid="u", slot=3, node="n3", phase="Failed")
    return msgspec.structs.replace(base, **fields)


def ended(reason: str, *, code: int | None = 137) -> ContainerFact:
    return ContainerFact(state="terminated", exit_code=code, reason=reason, finished=DAY)


CONDITIONS = {
    "disruption": ("DisruptionTarget", "True"),
    "termination": ("TerminationTarget", "True"),
    "ready": ("Ready", "False"),
}
# What is about a node or a job; test_taken_away.py has those of nodes.
NOT_OF_PODS = {"event", "made", "work", "suspended", "taint", "node"}


def shown(row: Reason) -> PodFact:
    """A pod that bears this reason in its place."""
    if row.where == "pod":
        return pod(reason=row.reason, message="words")
    if row.where == "terminated":
        return pod(main=ended(row.reason))
    if row.where in CONDITIONS:
        kind, status = CONDITIONS[row.where]
        return pod(conditions=(Condition(type=kind, status=status, reason=row.reason, at=DAY),))
    if row.where == "waiting":
        return pod(phase="Pending", main=ContainerFact(state="waiting", reason=row.reason, message="words"))
    return pod(phase="Pending", conditions=(Condition(type="PodScheduled", status="False", reason=row.reason, at=DAY),))


OF_PODS = [row for row in rows() if row.where not in NOT_OF_PODS and not row.text]


@pytest.mark.parametrize("row", OF_PODS, ids=lambda row: f"{row.where}-{row.reason}")
def test_every_row_makes_evidence_of_the_platform(row):
    look = waiting_evidence if row.where in {"waiting", "scheduled"} else end_evidence
    (piece,) = look(shown(row), attempt=2)
    assert (piece.slug, piece.specificity, piece.role, piece.trust) == (
        row.slug,
        row.specificity,
        "primary",
        "platform",
    )
    assert (piece.source, piece.slot, piece.node, piece.attempt, piece.rank) == ("pod", 3, "n3", 2, None)
    assert piece.where == "pod/job-3-x"
    assert piece.line.startswith(row.reason)
    timed = row.where in {"terminated", "scheduled", *CONDITIONS}
    assert (piece.at, piece.uncertainty) == ((DAY_NS, 1.0) if timed else (SEEN, 5.0))
    assert row.slug in catalogue()
    # The other question is not answered by it.
    other = end_evidence if look is waiting_evidence else waiting_evidence
    assert other(shown(row), attempt=2) == []


@pytest.mark.parametrize(
    ("reason", "message"),
    [
        pytest.param("Preempting", "Preempted in order to admit critical pod", id="K2"),
        pytest.param("NodeShutdown", "Pod was rejected as the node is shutting down.", id="K5, before it began"),
        pytest.param("Terminated", "Pod was terminated in response to imminent node shutdown.", id="K5"),
    ],
)
def test_errors_k2_k5_what_a_kubelet_takes_away_itself_is_preempted_and_started_again(reason, message):
    taken = Condition(type="DisruptionTarget", status="True", reason="TerminationByKubelet", at=DAY)
    fact = pod(reason=reason, message=message, conditions=(taken,), main=ended("Error"))
    slot = SlotFacts(slot=3, node="n3", state="ended", signal=9, killed_by="foreign", ended_at=DAY_NS)
    case = Case(attempt=2, slots=(slot,), evidence=tuple(end_evidence(fact, attempt=2)))
    verdict = diagnose(case).verdict
    assert (verdict.cause.slug, verdict.cause.confidence, verdict.slot, verdict.node) == (
        "preempted",
        "proven",
        3,
        "n3",
    )
    assert (verdict.retry, verdict.node_action) == ("yes", "none")
    assert verdict.decisive is not None
    # "Terminated" alone is anybody's word; the condition beside it says who.
    assert verdict.decisive.line == ("TerminationByKubelet" if reason == "Terminated" else f"{reason}: {message}")


def test_the_table_holds_the_disruptions_of_the_platform_and_any_other():
    assert {row.reason for row in rows() if row.where == "disruption"} == {
        "*",
        "DeletionByDeviceTaintManager",
        "PreemptionByScheduler",
        "DeletionByTaintManager",
        "EvictionByEvictionAPI",
        "DeletionByPodGC",
        "TerminationByKubelet",
    }


@pytest.mark.parametrize(
    ("main", "slugs"),
    [
        # A person's NoExecute taint: the node lives, and ends what it was told to end.
        (
            ContainerFact(state="terminated", exit_code=143, reason="Error", finished="2026-11-21T16:00:09Z"),
            {"preempted"},
        ),
        (ContainerFact(state="terminated", exit_code=137, reason="ContainerStatusUnknown", finished=DAY), set()),
        # It came back long after it was given up.
        (ContainerFact(state="terminated", exit_code=143, reason="Error", finished="2026-11-21T16:10:00Z"), set()),
        (ContainerFact(state="running"), set()),
        (None, set()),
    ],
)
def test_a_node_that_ends_what_a_taint_drives_away_and_says_so_is_not_lost(main, slugs):
    taint = Condition(
        type="DisruptionTarget", status="True", reason="DeletionByTaintManager", at="2026-11-21T16:00:00Z"
    )
    found = end_evidence(pod(main=main, grace_s=8, conditions=(taint,)), attempt=1)
    assert {piece.slug for piece in found} - {"user_exit", "killed_unknown"} == {"node_lost", *slugs}
    best = max(found, key=lambda piece: piece.specificity)
    assert best.slug == ("preempted" if slugs else "node_lost")


@pytest.mark.parametrize(
    ("message", "slug", "retry"),
    [
        ("failed to pull image: dial tcp 10.0.0.1:443: i/o timeout", "image_pull", "yes"),
        ("toomanyrequests: You have reached your pull rate limit", "image_pull", "yes"),
        ("pull access denied, repository does not exist or may require authorization", "image_pull", None),
    ],
)
def test_errors_k8_the_text_of_a_pull_says_whether_it_may_come_right(message, slug, retry):
    made = pod(phase="Pending", main=ContainerFact(state="waiting", reason="ErrImagePull", message=message))
    (piece,) = waiting_evidence(made, attempt=1)
    assert (piece.slug, piece.retry) == (slug, retry)


@pytest.mark.parametrize(
    ("message", "slug", "retry"),
    [
        ('exec: "trian": executable file not found in $PATH', "command_not_found", None),
        ("error running hook #0: nvidia-container-cli: initialization error", "container_config", "elsewhere"),
        ("something else", "container_config", None),
    ],
)
def test_errors_k9_a_start_that_failed_is_told_by_the_words_of_the_runtime(message, slug, retry):
    end = ContainerFact(state="terminated", exit_code=128, reason="StartError", message=message, finished=DAY)
    (piece,) = end_evidence(pod(main=end), attempt=1)
    assert (piece.slug, piece.retry) == (slug, retry)
    assert message in piece.line


def test_the_patterns_of_the_table_are_followed_by_a_row_for_any_text():
    for row in rows():
        some = row.where == "node" or (row.where, row.reason) in {("event", "BackOff"), ("event", "Evict")}
        if row.text and not some and row.reason != "Killing":
            assert row_of(row.where, row.reason, "words") is not None, row


@pytest.mark.parametrize("where", ["waiting", "terminated", "pod", "ready", "scheduled"])
@pytest.mark.parametrize("reason", ["Error", "Completed", "CrashLoopBackOff", "PodInitializing", "Xid 79", ""])
def test_a_reason_that_is_not_in_the_table_makes_nothing(where, reason):
    made = shown(Reason(where=where, reason=reason, slug="unknown", specificity=1))
    assert end_evidence(made, attempt=1) == waiting_evidence(made, attempt=1) == []


def test_the_same_reason_in_another_place_makes_nothing():
    made = shown(Reason(where="pod", reason="OOMKilled", slug="host_oom", specificity=1))
    assert end_evidence(made, attempt=1) == []


@pytest.mark.parametrize(
    ("code", "role"), [(137, "primary"), (1, "context"), (None, "context"), (143, None), (0, None)]
)
def test_errors_m5_m7_the_label_of_a_kill_for_memory_proves_only_a_sigkill(code, role):
    found = end_evidence(pod(main=ended("OOMKilled", code=code)), attempt=1)
    assert [piece.role for piece in found] == ([] if role is None else [role])


def test_a_disruption_that_is_not_true_says_nothing():
    for status in ("False", "Unknown"):
        condition = Condition(type="DisruptionTarget", status=status, reason="PreemptionByScheduler")
        assert end_evidence(pod(conditions=(condition,)), attempt=1) == []


def test_a_pod_waits_only_while_it_is_pending():
    waiting = ContainerFact(state="waiting", reason="ImagePullBackOff")
    assert waiting_evidence(pod(phase="Pending", main=waiting), attempt=1)
    assert waiting_evidence(pod(phase="Running", main=waiting), attempt=1) == []


def test_the_same_thing_seen_twice_is_one_piece_and_of_another_pod_another():
    one = pod(reason="Evicted")
    again, other = msgspec.structs.replace(one, seen_ns=99), msgspec.structs.replace(one, uid="v")
    ids = [end_evidence(fact, attempt=1)[0].id for fact in (one, again, other)]
    assert ids[0] == ids[1] != ids[2]


def test_long_messages_are_cut():
    (piece,) = end_evidence(pod(reason="Evicted", message="x" * 4096), attempt=1)
    assert len(piece.line) == 1000


# As kubelets of 1.34 wrote it on the test bed: no conditions, no container statuses.
REFUSED = {
    "reason": "OutOfrankfall.test/place",
    "message": "Pod was rejected: Node didn't have enough resource: rankfall.test/place, requested: 1, used: 1, capacity: 1",
    "accepted": DAY,
}


@pytest.mark.parametrize(
    ("reason", "message"),
    [
        (REFUSED["reason"], REFUSED["message"]),
        (
            "OutOfnvidia.com/gpu",
            "Pod Node didn't have enough resource: nvidia.com/gpu, requested: 8, used: 8, capacity: 8",
        ),
        ("UnexpectedAdmissionError", "Pod was rejected: Allocate failed due to no healthy devices present"),
        ("TopologyAffinityError", "Pod was rejected: Resources cannot be allocated with Topology locality"),
        ("NodeAffinity", "Pod was rejected: Predicate NodeAffinity failed"),
        ("SomethingNewer", "Pod was rejected: for a reason that this table does not know"),
    ],
)
def test_i19_p2_a_pod_that_its_kubelet_refuses_never_ran_and_is_tried_elsewhere(reason, message):
    fact = pod(reason=reason, message=message, accepted=DAY)
    (piece,) = end_evidence(fact, attempt=1)
    assert (piece.slug, piece.at, piece.uncertainty, piece.stamped) == ("admission_rejected", DAY_NS, 1.0, "node")
    case = Case(attempt=1, slots=(SlotFacts(slot=3, node="n3", state="lost"),), evidence=(piece,))
    verdict = diagnose(case).verdict
    assert (verdict.cause.slug, verdict.cause.confidence, verdict.slot, verdict.node) == (
        "admission_rejected",
        "proven",
        3,
        "n3",
    )
    assert (verdict.retry, verdict.node_action) == ("elsewhere", "suspect")
    assert verdict.decisive is not None
    assert verdict.decisive.line == f"{reason}: {message}"


def test_i19_p2_what_ran_before_is_not_said_to_have_been_refused_in_words_that_nobody_knows():
    assert end_evidence(pod(reason="New", message="Pod was rejected: x", main=ended("Error")), attempt=1) == []
