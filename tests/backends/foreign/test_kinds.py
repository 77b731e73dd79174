"""What an object of each kind says of its pods, and nothing that it does not prove."""

from __future__ import annotations

from typing import Any

import pytest

from rankfall.backends.foreign.objects import foreign_of, state_of
from rankfall.backends.foreign.targets import spec_of
from rankfall.model import SpecError, spec_from
from rankfall.model.foreign import PodMarks

UID = "8c0ffee0-0000-4000-8000-000000000001"
MADE = "2026-11-21T19:00:00Z"


def item(name: str = "x", **spec: Any) -> dict[str, Any]:
    meta = {"name": name, "namespace": "here", "uid": UID, "creationTimestamp": MADE}
    return {"metadata": meta, "spec": spec}


def template(*command: str, names: tuple[str, ...] = ("main",), **meta: Any) -> dict[str, Any]:
    return {"metadata": meta, "spec": {"containers": [{"name": name, "command": list(command)} for name in names]}}


def test_a_job_is_found_by_its_own_selector_and_says_whether_it_retries():
    found = foreign_of("job", item(completions=4, parallelism=4, completionMode="Indexed", template=template("x")))
    assert (found.selector, found.slots, found.ends_as_one) == (
        f"batch.kubernetes.io/controller-uid={UID}",
        {"worker": 4},
        False,
    )
    own = foreign_of(
        "job", item(backoffLimit=0, selector={"matchLabels": {"a": "b", "c": "d"}}, template=template("x"))
    )
    assert (own.selector, own.slots, own.ends_as_one, own.marks.index) == ("a=b,c=d", {"worker": 1}, True, "")


def jobset(**fields: Any) -> dict[str, Any]:
    def job(count: int, *command: str, **meta: Any) -> dict[str, Any]:
        own = template(*command, names=("side", "node"), **meta)
        return {"spec": {"completions": count, "parallelism": count, "backoffLimit": 0, "template": own}}

    default = {"annotations": {"kubectl.kubernetes.io/default-container": "node"}}
    jobs = [
        {"name": "launcher", "replicas": 1, "template": job(1, "sleep")},
        {"name": "node", "replicas": 2, "template": job(3, "sh", "-c", "torchrun train.py", **default)},
    ]
    return item(replicatedJobs=jobs, failurePolicy={"maxRestarts": 3}) | fields


def test_a_jobset_has_roles_and_several_jobs_a_role():
    found = foreign_of("jobset", jobset())
    assert (found.slots, found.launcher, found.restarts, found.ends_as_one) == (
        {"launcher": 1, "node": 6},
        "torchrun",
        3,
        True,
    )
    assert found.marks.containers == {"launcher": "side", "node": "node"}
    labels = {
        "jobset.sigs.k8s.io/replicatedjob-name": "node",
        "jobset.sigs.k8s.io/job-index": "1",
        "batch.kubernetes.io/job-completion-index": "2",
        "jobset.sigs.k8s.io/jobset-uid": UID,
    }
    assert found.marks.place(labels, {}) == ("node", 5)
    assert found.marks.mine(labels, MADE)
    assert not found.marks.mine(labels | {"jobset.sigs.k8s.io/jobset-uid": "other"}, MADE)
    assert not found.marks.mine(labels, "2026-11-21T18:59:59Z")
    spec = spec_of(found)
    assert [(part.name, part.base, part.count, part.in_world) for part in spec.parts] == [
        ("launcher", 0, 1, True),
        ("node", 1, 6, True),
    ]
    assert (spec.unattended, spec.command, spec.env, spec.policies.max_restarts) == (True, (), {}, 3)


def test_a_trainjob_is_its_jobset_or_what_its_own_text_says():
    found = foreign_of("trainjob", item("t"), inner=jobset())
    assert (found.name, found.selector, found.slots) == (
        "t",
        "jobset.sigs.k8s.io/jobset-name=x",
        {"launcher": 1, "node": 6},
    )
    alone = foreign_of("trainjob", item("t", trainer={"numNodes": 2}))
    assert (alone.selector, alone.slots) == ("jobset.sigs.k8s.io/jobset-name=t", {"node": 2})


@pytest.mark.parametrize(
    ("kind", "field", "container"),
    [
        ("pytorchjob", "pytorchReplicaSpecs", "pytorch"),
        ("tfjob", "tfReplicaSpecs", "tensorflow"),
        ("mpijob", "mpiReplicaSpecs", "first"),
    ],
)
def test_jobs_of_the_training_operator_are_found_by_replica_type_and_number(kind, field, container):
    own = template("torchrun", names=("first", "pytorch", "tensorflow"))
    replicas = {"Master": {"template": own, "restartPolicy": "Never"}, "Worker": {"replicas": 2, "template": own}}
    found = foreign_of(kind, item(**{field: replicas}))
    assert (found.selector, found.slots) == ("training.kubeflow.org/job-name=x", {"master": 1, "worker": 2})
    assert (found.marks.containers["worker"], found.ends_as_one) == (container, False)
    labels = {"training.kubeflow.org/replica-type": "worker", "training.kubeflow.org/replica-index": "1"}
    assert found.marks.place(labels, {}) == ("worker", 1)
    assert found.marks.place({}, {}) == (None, None)
    assert found.marks.place({"training.kubeflow.org/replica-type": "master"}, {}) == ("master", 0)
    assert found.marks.place({"training.kubeflow.org/replica-type": "worker"}, {}) == ("worker", None)


def condition(kind: str, **fields: Any) -> dict[str, Any]:
    return {"type": kind, "status": "True", "reason": "R", "message": "M", "lastTransitionTime": MADE} | fields


@pytest.mark.parametrize(
    ("conditions", "spec", "phase"),
    [
        ([condition("Running")], {}, "going"),
        ([condition("Succeeded")], {}, "succeeded"),
        ([condition("Succeeded"), condition("Failed")], {}, "failed"),
        ([condition("Failed", status="False")], {"runPolicy": {"suspend": True}}, "suspended"),
        (None, {}, "going"),
    ],
)
def test_the_state_of_a_job_of_the_training_operator_is_its_condition(conditions, spec, phase):
    found = state_of("pytorchjob", {"spec": spec, "status": {"conditions": conditions}}, inner=None)
    assert found.phase == phase
    assert not found.deleting


def test_a_pods_state_is_its_phase():
    going = state_of("pod", {"metadata": {"deletionTimestamp": MADE}, "status": {"phase": "Running"}}, inner=None)
    assert (going.phase, going.deleting) == ("going", True)
    assert state_of("pod", {"status": {"phase": "Failed", "reason": "Evicted"}}, inner=None).reason == "Evicted"
    assert (
        state_of("job", {"kind": "Job", "status": {"conditions": [condition("Complete")]}}, inner=None).phase
        == "succeeded"
    )


def test_pods_without_marks_are_of_the_one_role_and_have_no_place():
    assert PodMarks(sizes={"pod": 1}).place({}, {}) == ("pod", None)
    assert PodMarks(sizes={"pod": 2}, index="i").place({"i": "x"}, {}) == ("pod", None)


def test_a_long_name_is_cut_and_told_apart_by_the_uid():
    found = foreign_of("pod", item("a" * 61 + "." + "b" * 150))
    assert found.directory == f"pod-{'a' * 61}-8c0ffe"
    assert found.fields == f"metadata.name={found.name}"


def test_no_job_of_ours_is_foreign():
    with pytest.raises(SpecError, match="did not start"):
        spec_from({"command": ["x"], "backend": "foreign"})
