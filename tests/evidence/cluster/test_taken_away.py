"""Every way in which a platform takes a pod: from the objects, as its controllers write them, to the verdict and the decision.

Sources of the texts: Kueue's ``pkg/controller/jobs/pod`` and ``jobframework``; Kubernetes' scheduler, eviction API, taint and device taint managers, pod garbage
collector and kubelet; Volcano's evictor; aws-node-termination-handler, Karpenter, its provider of Azure, the cluster autoscaler and the providers' own pages.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest

from rankfall.evidence.cluster.reasons import rows
from rankfall.model import Evidence, JobSpec, Policies
from rankfall.rundir.cluster.context_facts import TROUBLE, event_fact, work_fact
from rankfall.rundir.cluster.pod_facts import stamp_ns
from rankfall.verdict.decide import PastAttempt, decide
from rankfall.verdict.diagnose import diagnose
from support.cases import case, left, piece
from support.platform_world import MADE, NOTICED, OVER, SEEN, TAKEN, Object, World, condition, spec


def target(reason: str, message: str) -> Object:
    return {"conditions": [condition("DisruptionTarget", reason, message)]}


def kueue(reason: str, message: str) -> Object:
    return {"conditions": [condition("TerminationTarget", reason, message)]}


def taint(key: str, *, effect: str = "NoSchedule", value: str = "") -> Object:
    return {"key": key, "value": value, "effect": effect} | ({"timeAdded": NOTICED} if effect == "NoExecute" else {})


@dataclass(frozen=True)
class Row:
    """One way.

    Attributes:
        key: place and reason in the table.
        words: of the platform, in the decisive line.
        status: of the pod.
        taints, node: of its node when the platform announces it; ``away``: the node is silent afterwards.
        code: of its container; None = its end was never reported.
    """

    key: tuple[str, str]
    words: str
    status: Object = field(default_factory=dict)
    taints: tuple[Object, ...] = ()
    node: tuple[Object, ...] = ()
    away: bool = False
    slug: str = "preempted"
    code: int | None = 137
    event: Object | None = None


GC = target("DeletionByPodGC", "PodGC: node no longer exists")
LOST = target("DeletionByTaintManager", "Taint manager: deleting due to NoExecute taint")


def _notice(key: str, **more: Any) -> Row:
    """A node that is silent after its platform had said that it takes it."""
    return Row(("taint", key), key, LOST, taints=(taint(key, **more),), away=True, code=None)


def _scheduled(kind: str, reason: str, message: str) -> Row:
    return Row(
        ("node", kind), message, LOST, node=(condition(kind, reason, message, at=NOTICED),), away=True, code=None
    )


WAYS = (
    Row(
        ("termination", "*"),
        "WorkloadEvictedDueToPreempted: Preempted to accommodate a higher priority Workload",
        kueue("WorkloadEvictedDueToPreempted", "Preempted to accommodate a higher priority Workload"),
    ),
    Row(("termination", "*"), "NoMatchingWorkload", kueue("NoMatchingWorkload", "missing workload")),
    Row(("termination", "*"), "WorkloadDeleted", kueue("WorkloadDeleted", "Workload is deleted"), code=143),
    Row(("termination", "*"), "NotAdmitted", kueue("NotAdmitted", "Not admitted by cluster queue")),
    Row(("termination", "*"), "WorkloadEvicted", kueue("WorkloadEvicted", "")),
    *(
        Row(("termination", "*"), reason, kueue(f"WorkloadEvictedDueTo{reason}", "words"))
        for reason in (
            *("AdmissionCheck", "ClusterQueueStopped", "LocalQueueStopped", "FlavorMigration", "Deactivated"),
            *("EvictedOnManagerCluster", "DeactivatedDueToRequeuingLimitExceeded"),
        )
    ),
    Row(
        ("termination", "WorkloadEvictedDueToPodsReadyTimeout"),
        "PodsReadyTimeout",
        kueue("WorkloadEvictedDueToPodsReadyTimeout", "Workload evicted due to a PodsReady timeout"),
    ),
    Row(
        ("termination", "WorkloadEvictedDueToNodeFailures"),
        "NodeFailures",
        kueue("WorkloadEvictedDueToNodeFailures", "Workload was evicted as there was no replacement for a failed node"),
    ),
    Row(
        ("disruption", "PreemptionByScheduler"),
        "preempting to accommodate",
        target("PreemptionByScheduler", "default-scheduler: preempting to accommodate a higher priority pod"),
        code=143,
    ),
    Row(
        ("disruption", "EvictionByEvictionAPI"),
        "Eviction API",
        target("EvictionByEvictionAPI", "Eviction API: evicting"),
        code=143,
    ),
    Row(
        ("disruption", "DeletionByDeviceTaintManager"),
        "Device Taint manager",
        target("DeletionByDeviceTaintManager", "Device Taint manager: deleting due to NoExecute taint"),
    ),
    Row(
        ("disruption", "TerminationByKubelet"),
        "imminent node shutdown",
        target("TerminationByKubelet", "Pod was terminated in response to imminent node shutdown.")
        | {"reason": "Terminated", "message": "Pod was terminated in response to imminent node shutdown."},
    ),
    Row(("disruption", "*"), "EvictionByAnother", target("EvictionByAnother", "its own words")),
    Row(
        ("disruption", "DeletionByTaintManager"),
        "example.com/repair",
        LOST,
        taints=(taint("example.com/repair", effect="NoExecute"),),
        code=143,
    ),
    Row(
        ("pod", "Evicted"),
        "The node was low on resource: memory",
        {"reason": "Evicted", "message": "The node was low on resource: memory. Threshold quantity: 100Mi."}
        | target("TerminationByKubelet", "The node was low on resource: memory."),
        slug="pod_evicted",
    ),
    Row(("pod", "Preempting"), "critical pod", {"reason": "Preempting", "message": "Preempted to admit critical pod"}),
    Row(
        ("pod", "NodeShutdown"),
        "shutting down",
        {"reason": "NodeShutdown", "message": "Pod was rejected as the node is shutting down."},
        code=None,
    ),
    Row(
        ("pod", "Terminated"),
        "imminent node shutdown",
        {"reason": "Terminated", "message": "Pod was terminated in response to imminent node shutdown."},
    ),
    Row(
        ("ready", "Evict"),
        "because of reclaim",
        {"conditions": [condition("Ready", "Evict", "Pod is evicted, because of reclaim", status="False")]},
    ),
    Row(
        ("event", "Evict"),
        "because of preempt",
        event={"reason": "Evict", "message": "Pod is evicted, because of preempt"},
    ),
    Row(("event", "Preempted"), "on node", event={"reason": "Preempted", "message": "Preempted by pod u9 on node n1"}),
    Row(
        ("event", "Evicted"),
        "low on resource",
        event={"reason": "Evicted", "message": "The node was low on resource: memory."},
        slug="pod_evicted",
    ),
    _notice("aws-node-termination-handler/spot-itn", value="3d8d5f5c"),
    _notice("aws-node-termination-handler/scheduled-maintenance"),
    _notice("aws-node-termination-handler/asg-lifecycle-termination"),
    _notice("cloud.google.com/impending-node-termination"),
    _notice("cloudprovider.azure.microsoft.com/draining", value="spot-eviction"),
    _notice("karpenter.sh/disrupted"),
    _notice("karpenter.sh/disruption", value="disrupting"),
    _notice("ToBeDeletedByClusterAutoscaler", value="1795277100"),
    # The object of the node went first.
    Row(
        ("taint", "ToBeDeletedByClusterAutoscaler"),
        "ToBeDeleted",
        GC,
        taints=(taint("ToBeDeletedByClusterAutoscaler"),),
        code=None,
    ),
    # A handler whose taint evicts by itself.
    Row(
        ("taint", "aws-node-termination-handler/spot-itn"),
        "spot-itn",
        LOST,
        taints=(taint("aws-node-termination-handler/spot-itn", effect="NoExecute"),),
        code=143,
    ),
    _scheduled("PreemptionScheduled", "SpotEvictionIncoming", "Preempt Scheduled: Sat, 01 Aug 2026 05:41:02 GMT."),
    _scheduled("PreemptScheduled", "PreemptScheduled", "Preempt Scheduled: Mon, 02 Mar 2026 19:01:45 GMT"),
    _scheduled("TerminateScheduled", "TerminateScheduled", "Terminate Scheduled: Mon, 02 Mar 2026 19:01:45 GMT"),
    _scheduled("RedeployScheduled", "RedeployScheduled", "Redeploy Scheduled: Mon, 02 Mar 2026 19:01:45 GMT"),
    _scheduled("VMEventScheduled", "VMEventScheduled", "Preempt Scheduled: Mon, 02 Mar 2026 19:01:45 GMT"),
    _scheduled("InstanceExpired", "InstanceToBeTerminated", "instance is going to be terminated"),
    Row(
        ("node", "Ready"),
        "node is shutting down",
        LOST,
        node=(condition("Ready", "KubeletNotReady", "node is shutting down", status="False", at=NOTICED),),
        away=True,
        code=None,
    ),
)
# Of rows with the same key there are several.
TAKES = {"preempted", "pod_evicted"}


def happen(world: World, row: Row) -> None:
    """What befalls slot 1; slot 0 loses its peer."""
    world.pod(0, {}, code=1, gone=False)
    world.pod(1, row.status, code=row.code)
    if row.event is not None:
        about = {"kind": "Pod", "name": "job-1-x", "uid": "u1"}
        said = row.event | {"metadata": {"uid": "e"}, "involvedObject": about, "lastTimestamp": TAKEN}
        world.context.add(event_fact(said, seen_ns=SEEN))
    if row.taints or row.node:
        silent = condition("Ready", "NodeStatusUnknown", "Kubelet stopped posting node status.", status="Unknown")
        lost = (taint("node.kubernetes.io/unreachable", effect="NoExecute"),)
        last = (TAKEN, (*row.taints, *lost), (*row.node, silent)) if row.away else (TAKEN, row.taints, row.node)
        world.node(1, (MADE, (), ()), (NOTICED, row.taints, row.node), last)


@pytest.mark.parametrize("row", WAYS, ids=lambda row: f"{'-'.join(row.key)}-{row.words[:24]}")
def test_i32_a_pod_that_the_platform_takes_is_not_the_jobs_failure(world, row):
    happen(world, row)
    found = world.diagnosis()
    verdict = found.verdict
    assert (verdict.cause.slug, verdict.cause.confidence, verdict.slot, verdict.rank) == (row.slug, "proven", 1, None)
    assert verdict.node_action == "none"
    assert verdict.decisive is not None
    assert row.words in verdict.decisive.line
    # Nothing of the job is charged.
    decision = decide(found, spec=spec(), history=(), other_nodes=True)
    assert decision.action == ("retry" if row.slug == "preempted" else "retry_elsewhere")
    assert (decision.rule, decision.budget, decision.left) == ("taken_away", None, 1)


def test_i32_each_row_of_the_table_has_a_way():
    named = {row.key for row in WAYS}
    # The end of a Workload's own time; a lost node without a notice; who suspended a job: each has a test below.
    others = {
        ("termination", "WorkloadEvictedDueToDeactivatedDueToMaximumExecutionTimeExceeded"),
        ("disruption", "DeletionByPodGC"),
        ("suspended", "kueue*"),
    }
    marks = {"disruption", "termination", "ready", "suspended", "taint", "node"}
    wanted = {(row.where, row.reason) for row in rows() if row.where in marks or row.slug in TAKES}
    assert wanted == named | others


def test_i32_a_notice_of_a_node_is_stored_where_it_is_a_condition():
    assert {row.reason for row in rows() if row.where == "node"} <= TROUBLE.keys()


@pytest.mark.parametrize("row", [row for row in WAYS if row.away], ids=lambda row: row.key[1])
def test_i32_a_node_that_is_lost_before_its_platform_gives_it_up_is_lost(world, row):
    """An autoscaler also removes nodes that have died: its mark comes after the silence."""
    world.pod(0, {}, code=1, gone=False)
    world.pod(1, LOST, code=None)
    silent = condition("Ready", "NodeStatusUnknown", "Kubelet stopped posting node status.", status="Unknown")
    after = tuple(one | {"lastTransitionTime": OVER} for one in row.node)
    both = (*after, silent) if row.key != ("node", "Ready") else (silent,)
    world.node(1, (MADE, (), ()), (TAKEN, (), (silent,)), (OVER, row.taints, both))
    verdict = world.diagnosis().verdict
    assert (verdict.cause.slug, verdict.retry, verdict.node_action) == ("node_lost", "elsewhere", "suspect")


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("VMEventScheduled", "Freeze Scheduled: Mon, 02 Mar 2026 19:01:45 GMT"),
        ("VMEventScheduled", "Reboot Scheduled: Mon, 02 Mar 2026 19:01:45 GMT"),
        ("remediator.kubernetes.azure.com/unschedulable", ""),
        ("aws-node-termination-handler/rebalance-recommendation", ""),
        ("DeletionCandidateOfClusterAutoscaler", ""),
        ("node.kubernetes.io/unschedulable", ""),
    ],
)
def test_i32_marks_that_take_no_node_away_leave_a_lost_one_lost(world, kind, message):
    taints = () if message else (taint(kind),)
    marks = (condition(kind, kind, message, at=NOTICED),) if message else ()
    happen(world, Row(("", ""), "", LOST, taints=taints, node=marks, away=True, code=None))
    assert world.diagnosis().verdict.cause.slug == "node_lost"


def test_i32_a_node_that_is_gone_without_a_notice_is_lost(world):
    happen(world, Row(("", ""), "", GC, code=None))
    found = world.diagnosis()
    assert (found.verdict.cause.slug, found.verdict.node_action) == ("node_lost", "suspect")
    # It counts in the job's budget, as before.
    assert decide(found, spec=spec(), history=(), other_nodes=True).budget == "total"


def test_i32_a_pod_group_that_kueue_takes_whole_is_one_fact_of_all(world):
    for slot in (0, 1):
        world.pod(slot, kueue("WorkloadEvictedDueToPreempted", "Preempted to accommodate another"), code=137)
    verdict = world.diagnosis().verdict
    assert (verdict.cause.slug, verdict.cause.confidence) == ("preempted", "proven")
    assert verdict.node_action == "none"


def test_i32_a_pod_that_had_ended_when_it_was_removed_keeps_its_own_end(world):
    """Kueue marks finished pods too when their Workload is deleted."""
    world.pod(0, {}, code=143, gone=False)
    world.pod(1, kueue("WorkloadDeleted", "Workload is deleted"), code=3, finished=NOTICED)
    verdict = world.diagnosis().verdict
    assert (verdict.cause.slug, verdict.slot) == ("user_exit", 1)


def test_i32_the_workloads_own_time_limit_is_no_preemption(world):
    reason = "WorkloadEvictedDueToDeactivatedDueToMaximumExecutionTimeExceeded"
    happen(world, Row(("", ""), "", kueue(reason, "The workload is deactivated due to exceeding the maximum")))
    verdict = world.diagnosis().verdict
    assert (verdict.cause.slug, verdict.retry, verdict.node_action) == ("deadline_exceeded", "no", "none")


@pytest.mark.parametrize(("manager", "slug"), [("kueue", "preempted"), ("kubectl-patch", "external_signal")])
def test_i32_a_job_that_kueue_suspends_is_preempted_and_one_that_a_person_suspends_is_not(world, manager, slug):
    for slot in (0, 1):
        world.pod(slot, {}, code=143)
    fields = [{"manager": manager, "time": TAKEN, "fieldsV1": {"f:spec": {"f:suspend": {}}}}]
    item = {
        "metadata": {"name": "job", "uid": "j", "managedFields": fields},
        "spec": {"suspend": True},
        "status": {"conditions": [condition("Suspended", "JobSuspended", "Job suspended")]},
    }
    world.context.add(work_fact(item, kind="Job", seen_ns=SEEN))
    verdict = world.diagnosis().verdict
    assert (verdict.cause.slug, verdict.node_action) == (slug, "none")
    if slug == "preempted":
        assert verdict.decisive is not None
        assert verdict.decisive.line == "Job job is suspended, last by kueue"


@pytest.mark.parametrize(
    "message",
    [
        "Pod ephemeral local storage usage exceeds the total limit of containers 1Gi. ",
        'Container main exceeded its local ephemeral storage limit "1Gi". ',
        'Usage of EmptyDir volume "scratch" exceeds the limit "1Mi". ',
    ],
)
def test_i32_a_pod_over_its_own_limit_is_evicted_for_the_jobs_sake_and_counts(world, message):
    happen(world, Row(("", ""), "", {"reason": "Evicted", "message": message}))
    found = world.diagnosis()
    assert (found.verdict.cause.slug, found.verdict.retry) == ("pod_evicted", "once")
    assert decide(found, spec=spec(), history=(), other_nodes=True).budget == "total"


def raised(seconds: float, *, slot: int) -> Evidence:
    """A rank's own exception, so long after the pod of slot 1 was marked."""
    base = piece("user_code_exception", 2 * slot, line="KeyError: 'token_type_ids'", source="record")
    at = (stamp_ns(TAKEN) or 0) + round(seconds * 1e9)
    return msgspec.structs.replace(base, at=at, slot=slot, node=f"n{slot}")


def signal(seconds: float, *, slot: int) -> Evidence:
    """The wrapper's record of SIGTERM."""
    at = (stamp_ns(TAKEN) or 0) + round(seconds * 1e9)
    base = piece("external_signal", None, role="secondary", source="recorder", trust="wrapper")
    return msgspec.structs.replace(base, at=at, slot=slot, node=f"n{slot}", uncertainty=0.01)


EVICTED = Row(("", ""), "", target("EvictionByEvictionAPI", "Eviction API: evicting"), code=143)


@pytest.mark.parametrize(
    ("seconds", "slot", "sigterm", "slug"),
    [
        # It came first.
        (-30.0, 1, 0.5, "user_code_exception"),
        (-30.0, 0, None, "user_code_exception"),
        # At once: by clocks of whole seconds nobody knows, but no eviction raises a KeyError.
        (0.2, 1, 0.5, "user_code_exception"),
        (0.2, 1, None, "user_code_exception"),
        (0.7, 0, 5.0, "user_code_exception"),
        # An answer to SIGTERM, whatever it raises.
        (0.7, 1, 0.5, "preempted"),
        (20.0, 1, 0.5, "preempted"),
        # Long after the eviction.
        (20.0, 0, None, "preempted"),
    ],
)
def test_i32_evicted_while_a_rank_raises(world, seconds, slot, sigterm, slug):
    happen(world, EVICTED)
    more = [raised(seconds, slot=slot), *([] if sigterm is None else [signal(sigterm, slot=slot)])]
    found = world.diagnosis(*more)
    assert found.verdict.cause.slug == slug
    decision = decide(found, spec=spec(), history=(), other_nodes=True)
    assert decision.action == ("stop" if slug == "user_code_exception" else "retry")


def test_i32_removals_repeat_without_an_end_and_leave_the_budget_to_the_jobs_own_failures(world):
    happen(world, EVICTED)
    found = world.diagnosis()
    cause = found.verdict.cause
    past = tuple(
        PastAttempt(
            attempt=number,
            fingerprint=found.fingerprint,
            slug=cause.slug,
            family=cause.family,
            action="retry",
            rule="taken_away",
        )
        for number in range(1, 9)
    )
    assert decide(found, spec=spec(), history=past).action == "retry"
    own = diagnose(case([left(0, 1), left(1, 1)], [piece("address_in_use", 0)]))
    one = JobSpec(command=("train.py",), policies=Policies(max_restarts=1))
    assert (decide(own, spec=one, history=past).action, decide(own, spec=one, history=past).left) == ("retry", 0)
    # Zero restarts are none at all.
    none = decide(found, spec=JobSpec(command=("train.py",), policies=Policies(max_restarts=0)), history=())
    assert (none.action, none.rule) == ("stop", "restarts_spent")
    # Who sets a number for it gets it.
    limited = decide(found, spec=spec(budgets={"preempted": 8}), history=past)
    assert (limited.action, limited.rule, limited.budget) == ("stop", "cause_budget", "preempted")
    # One slot that restarts alone is counted by Kubernetes too.
    assert decide(found, spec=spec(), history=(), slot=1).budget == "total"
