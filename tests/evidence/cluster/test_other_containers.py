"""Containers beside the training container: what keeps it from its start, and what ends beside it."""

from __future__ import annotations

import pytest

from rankfall.rundir.cluster.context_facts import event_fact, work_fact
from rankfall.rundir.cluster.pod_facts import pod_fact
from rankfall.verdict.decide import decide
from support.platform_world import MADE, OVER, SEEN, SOURCE, TAKEN, spec

FETCH = {"initContainers": [{"name": "fetch"}]}


def ended(name, code, reason="Error", message=""):
    end = {"exitCode": code, "reason": reason, "startedAt": MADE, "finishedAt": TAKEN, "message": message}
    return {"name": name, "restartCount": 0, "containerID": f"c-{name}", "state": {"terminated": end}}


def init(*statuses, phase="Failed"):
    waits = {"name": "main", "state": {"waiting": {"reason": "PodInitializing"}}}
    return {"phase": phase, "initContainerStatuses": list(statuses), "containerStatuses": [waits]}


def event(reason, message, *, uid="u1", number=1):
    about = {"kind": "Pod", "name": "job-1-x", "uid": uid}
    said = {"reason": reason, "message": message, "type": "Warning", "metadata": {"uid": f"e{number}"}}
    return event_fact(said | {"involvedObject": about, "lastTimestamp": TAKEN}, seen_ns=SEEN)


@pytest.mark.parametrize(
    ("status", "slug", "words"),
    [
        (ended("fetch", 1, message="Traceback\nConnectionError: no route\n"), "container_config", "fetch: Error: exit code 1: ConnectionError"),
        (ended("fetch", 137, "OOMKilled"), "host_oom", "init container fetch: OOMKilled: exit code 137"),
        (ended("fetch", 127), "container_config", "init container fetch: Error: exit code 127"),
    ],
)  # fmt: skip
def test_a_failed_init_container_is_the_reason_and_no_unknown_killer(world, status, slug, words):
    world.pod(0, {}, code=0, gone=False)
    world.pod(1, init(status), code=None, gone=False, more=FETCH, begins=False)
    found = world.diagnosis()
    assert (found.verdict.cause.slug, found.verdict.cause.confidence, found.verdict.slot) == (slug, "proven", 1)
    assert words in found.verdict.decisive.line
    assert found.verdict.rank is None


def test_an_init_container_that_fails_again_and_again_is_what_a_pod_waits_for():
    crashes = {
        "name": "fetch",
        "restartCount": 2,
        "containerID": "c",
        "state": {"waiting": {"reason": "CrashLoopBackOff"}},
    }
    crashes["lastState"] = ended("fetch", 3)["state"]
    pod = {"metadata": {"name": "p", "uid": "u"}, "spec": FETCH, "status": init(crashes, phase="Pending")}
    fact = pod_fact(pod, source=SOURCE, seen_ns=SEEN)
    assert [(one.name, one.init, one.end.exit_code) for one in fact.failed_others] == [("fetch", True, 3)]
    from rankfall.evidence.cluster.reasons import end_evidence, waiting_evidence  # noqa: PLC0415

    assert [piece.slug for piece in waiting_evidence(fact, attempt=1)] == ["container_config"]
    assert end_evidence(fact, attempt=1) == []


def test_a_sidecar_that_ran_out_of_memory_is_told_beside_the_ranks_own_exception(world):
    side = ended("dataserver", 137, "OOMKilled")
    main = {
        "name": "main",
        "containerID": "c1",
        "state": {"terminated": {"exitCode": 3, "reason": "Error", "finishedAt": OVER}},
    }
    world.pod(0, {}, code=0, gone=False)
    world.pod(1, {"phase": "Failed", "containerStatuses": [main, side]}, code=3, gone=False)
    verdict = world.diagnosis().verdict
    assert verdict.cause.slug == "user_exit"
    assert "container dataserver: OOMKilled: exit code 137" in [proof.line for proof in verdict.evidence]


def test_a_native_sidecar_is_no_init_container():
    native = {"initContainers": [{"name": "mesh", "restartPolicy": "Always"}]}
    pod = {"metadata": {"name": "p", "uid": "u"}, "spec": native, "status": init(ended("mesh", 2))}
    assert [one.init for one in pod_fact(pod, source=SOURCE, seen_ns=SEEN).failed_others] == [False]


def test_a_hook_of_the_start_that_fails_ends_the_container(world):
    world.pod(0, {}, code=0, gone=False)
    world.pod(1, {}, code=137, gone=False, finished=TAKEN)
    world.context.add(event("FailedPostStartHook", "PostStartHook failed"))
    verdict = world.diagnosis().verdict
    assert (verdict.cause.slug, verdict.slot) == ("container_config", 1)
    assert "PostStartHook" in verdict.decisive.line


def test_a_pod_that_was_deleted_while_nobody_watched_was_not_killed_by_an_unknown_sender(world):
    world.pod(0, {}, code=0, gone=False)
    world.pod(1, {}, code=None)
    world.context.add(event("Killing", "Stopping container main"))
    found = world.diagnosis()
    assert (found.verdict.cause.slug, found.verdict.cause.confidence, found.verdict.slot) == (
        "external_signal",
        "likely",
        1,
    )
    assert "its end was not recorded" in found.verdict.decisive.line
    assert decide(found, spec=spec(), history=(), other_nodes=True).action == "retry"


def test_of_a_deleted_job_the_pods_that_are_gone_are_no_preemption(world):
    world.pod(0, {}, code=None)
    world.pod(1, {}, code=None)
    job = {"kind": "Job", "metadata": {"name": "job", "uid": "j", "deletionTimestamp": OVER}, "spec": {}}
    world.context.add(work_fact(job, kind="Job", seen_ns=SEEN))
    assert world.diagnosis().verdict.cause.slug != "external_signal"


def test_another_slots_own_failure_comes_before_a_pod_that_was_deleted_unseen(world):
    world.pod(0, {}, code=3, gone=False)
    world.pod(1, {}, code=None)
    assert (world.diagnosis().verdict.cause.slug, world.diagnosis().verdict.slot) == ("user_exit", 0)
