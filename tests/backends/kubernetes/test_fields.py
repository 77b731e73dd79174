"""No field of a spec is ever dropped silently: it changes the manifests, or is refused, or stands in the list of who else keeps it.

Every field of every struct must have an example here, so a new field cannot be forgotten.
"""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from backends.kubernetes.made import BACKENDS, compiled, spec
from rankfall.model import JobSpec, Kubernetes, RankfallError, Resources

# Kept by whoever reads the spec, not by a manifest. Path -> who.
BY_THE_CLIENT = {
    "schema": "spec_from",
    "name": "the run's id, which the manifests bear",
    "backend": "chooses the compiler",
    "code": "the submission, which gives the compiler the files",
    "code_exclude": "the submission, as code",
    "log_dir": "whoever supervises or records the run",
    "notify.events": "nothing without notify.targets",
    "notify.link": "nothing without notify.targets",
    "kubernetes.annotate": "whoever supervises or records the run",
    "kubernetes.context": "the connection",
    "kubernetes.kubeconfig": "the connection",
}
BY_THE_SUPERVISOR = {
    "notify.targets",
    "policies.max_restarts",
    "policies.budgets",
    "policies.hang_timeout_s",
    "policies.settle_min_s",
    "policies.settle_quiet_s",
    "policies.settle_max_s",
    "policies.backoff_s",
    "policies.backoff_max_s",
    "success.policy",
    "success.fraction",
    "success.drain_s",
    "success.role",
    "deadlines.total_s",
    "deadlines.attempt_s",
    "deadlines.startup_s",
    "rules",
    # What begins suspended has no attempt, and so no object, before its resume.
    "suspend",
}
# A TrainJob has no time to live of its own; the other two do.
TTL = {"trainjob": {"ttl_s"}}
RANK0 = {"success": {"policy": "rank0"}}
ROLES = {"roles": [{"name": "ps"}, {"name": "worker"}]}
CONTEXT = {"env_from": {"A": {"secret": "s", "key": "k"}}}

# Path -> (fields before, fields after). What a field only modifies stands in both.
EXAMPLES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "schema": ({}, {"schema": "rankfall.job/1"}),
    "name": ({}, {"name": "other"}),
    "backend": ({}, {}),
    "command": ({}, {"command": ["other.py"]}),
    "module": ({}, {"module": True}),
    "launcher": ({}, {"launcher": "exec"}),
    "nnodes": ({}, {"nnodes": 2}),
    "nnodes_max": ({}, {"nnodes_max": 3}),
    "nproc_per_node": ({}, {"nproc_per_node": 2}),
    "role": ({}, {"role": "trainer"}),
    "roles": ({}, {"roles": [{"name": "ps"}, {"name": "worker"}]}),
    "cwd": ({}, {"cwd": "/code"}),
    "code": ({}, {"code": "src"}),
    "code_exclude": ({"code": "src"}, {"code": "src", "code_exclude": ["*.pt"]}),
    "python": ({}, {"python": "/venv/bin/python"}),
    "env": ({}, {"env": {"A": "1"}}),
    "inside": ({}, {"inside": "off"}),
    "rdzv": ({}, {"rdzv": "c10d"}),
    "policies.max_restarts": ({}, {"policies": {"max_restarts": 5}}),
    "policies.budgets": ({}, {"policies": {"budgets": {"memory": 0}}}),
    "policies.retryable": ({}, {"policies": {"retryable": ["x.Error"]}}),
    "policies.final": ({}, {"policies": {"final": ["x.Error"]}}),
    "policies.hang_timeout_s": ({}, {"policies": {"hang_timeout_s": 60}}),
    "policies.settle_min_s": ({}, {"policies": {"settle_min_s": 1}}),
    "policies.settle_quiet_s": ({}, {"policies": {"settle_quiet_s": 1}}),
    "policies.settle_max_s": ({}, {"policies": {"settle_max_s": 60}}),
    "policies.grace_s": ({}, {"policies": {"grace_s": 60}}),
    "policies.backoff_s": ({}, {"policies": {"backoff_s": 5}}),
    "policies.backoff_max_s": ({}, {"policies": {"backoff_max_s": 90}}),
    "success.policy": ({}, RANK0),
    "success.fraction": (
        {"success": {"policy": "fraction", "fraction": 0.5}, "nnodes": 4},
        {"success": {"policy": "fraction", "fraction": 1.0}, "nnodes": 4},
    ),
    "success.role": (ROLES, {**ROLES, "success": {"role": "ps"}}),
    "success.drain_s": (RANK0, {"success": {"policy": "rank0", "drain_s": 90}}),
    "deadlines.total_s": ({}, {"deadlines": {"total_s": 60}}),
    "deadlines.attempt_s": ({}, {"deadlines": {"attempt_s": 60}}),
    "deadlines.startup_s": ({}, {"deadlines": {"startup_s": 60}}),
    "rules": ({}, {"rules": [{"exit_codes": [3], "action": "fail"}]}),
    "suspend": ({}, {"suspend": True}),
    "ttl_s": ({}, {"ttl_s": 60}),
    "unattended": ({"unattended": False}, {"unattended": True}),
    "restart_scope": (
        {"launcher": "exec", "policies": {"max_restarts": 2}},
        {"launcher": "exec", "policies": {"max_restarts": 2}, "restart_scope": "replica"},
    ),
    "strategy": ({}, {"strategy": "earliest"}),
    "log_dir": ({}, {"log_dir": "/logs"}),
    "notify.targets": ({}, {"notify": {"targets": [{"email": "team@example.org"}]}}),
    "notify.events": ({}, {"notify": {"events": ["hang"]}}),
    "notify.link": ({}, {"notify": {"link": "https://logs.example.org/{run}"}}),
    "record_store": ({}, {"record_store": "s3://team/records"}),
    "error_file": ({}, {"error_file": "/out/error-*.pb"}),
}
SECTION: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "image": ({}, {"image": "other:2"}),
    "image_pull_policy": ({}, {"image_pull_policy": "Never"}),
    "image_pull_secrets": ({}, {"image_pull_secrets": ["pull"]}),
    "namespace": ({}, {"namespace": "team"}),
    "context": ({}, {"context": "other"}),
    "kubeconfig": ({}, {"kubeconfig": "/other"}),
    "service_account": ({}, {"service_account": "trainer"}),
    "priority_class": ({}, {"priority_class": "high"}),
    "queue": ({}, {"queue": "gpus"}),
    "env_from": ({}, CONTEXT),
    "resources.gpus": ({}, {"resources": {"gpus": 1}}),
    "resources.gpu_resource": ({"resources": {"gpus": 1}}, {"resources": {"gpus": 1, "gpu_resource": "amd.com/gpu"}}),
    "resources.requests": ({}, {"resources": {"requests": {"cpu": "1"}}}),
    "resources.limits": ({}, {"resources": {"limits": {"cpu": "1"}}}),
    "volumes": ({}, {"volumes": [{"name": "data", "emptyDir": {}}]}),
    "volume_mounts": ({}, {"volume_mounts": [{"name": "data", "mountPath": "/data"}]}),
    "tolerations": ({}, {"tolerations": [{"key": "gpu"}]}),
    "node_selector": ({}, {"node_selector": {"gpu": "h100"}}),
    "affinity": ({}, {"affinity": {"podAffinity": {}}}),
    "labels": ({}, {"labels": {"team": "a"}}),
    "annotations": ({}, {"annotations": {"eth": "1"}}),
    "exclude_nodes": ({}, {"exclude_nodes": ["n1"]}),
    "pod": ({}, {"pod": {"spec": {"hostIPC": True}}}),
    "container": ({}, {"container": "trainer"}),
    "runtime": ({}, {"runtime": "torch-distributed"}),
    "runtime_kind": ({}, {"runtime_kind": "TrainingRuntime"}),
    "master_port": ({}, {"master_port": 1234}),
    "workspace": ({}, {"workspace": {"claim": "team"}}),
    "log_store": (
        {"workspace": {"claim": "team"}},
        {"workspace": {"claim": "team"}, "log_store": "volume:/workspace/logs"},
    ),
    "annotate": ({}, {"annotate": True}),
}
PATHS = [*EXAMPLES, *(f"kubernetes.{name}" for name in SECTION)]


def fields_of(kind: type[msgspec.Struct], before: str = "") -> list[str]:
    """All paths of a struct, down to what is no struct of ours; an env source is one thing."""
    found = []
    for field in msgspec.structs.fields(kind):
        name = f"{before}{field.encode_name}"
        if isinstance(field.type, type) and issubclass(field.type, msgspec.Struct):
            found += fields_of(field.type, f"{name}.")
        else:
            found.append(name)
    return found


def example(path: str) -> tuple[dict[str, Any], dict[str, Any]]:
    if not path.startswith("kubernetes."):
        return EXAMPLES[path]
    before, after = SECTION[path.removeprefix("kubernetes.")]
    return {"kubernetes": before}, {"kubernetes": after}


def outcome(fields: dict[str, Any], *, backend: str, unattended: bool, runtime: str | None) -> str:
    """The manifests as text, or the refusal."""
    section = {"runtime": runtime} if runtime else {}
    whole = {"unattended": unattended, **fields, "kubernetes": {**section, **fields.get("kubernetes", {})}}
    if unattended and (runtime or backend == "job"):
        # Restarts are a runtime's own there, and a Job starts no whole gang again.
        whole["policies"] = {"max_restarts": 0, **fields.get("policies", {})}
    try:
        job = spec(backend=backend, **whole)
        made = compiled(job)
    except RankfallError as error:
        return f"refused: {error}"
    return json.dumps([made.objects, made.release])


def test_every_field_has_an_example():
    assert sorted(fields_of(JobSpec)) == sorted(PATHS)
    assert {f"resources.{name}" for name in Resources.__struct_fields__} <= set(SECTION)
    assert {name.partition(".")[0] for name in SECTION} == set(Kubernetes.__struct_fields__)


@pytest.mark.parametrize("unattended", [False, True])
@pytest.mark.parametrize(
    ("backend", "runtime"), [*((name, None) for name in BACKENDS), ("trainjob", "torch-distributed")]
)
@pytest.mark.parametrize("path", [path for path in PATHS if path not in BY_THE_CLIENT])
def test_no_field_is_dropped_silently(path, backend, runtime, unattended):
    if path == "kubernetes.runtime" and runtime is not None:
        pytest.skip("this case has a runtime already")
    before, after = (
        outcome(fields, backend=backend, unattended=unattended, runtime=runtime) for fields in example(path)
    )
    if before == after and before.startswith("refused"):
        # What these two modify is refused there itself.
        assert path in {"success.fraction", "success.drain_s", "success.role"}
        # Several roles are refused on a runtime that is somebody else's, and without a supervisor as Jobs.
        assert "$.success.policy" in before or "$.roles" in before
        return
    if path == "policies.budgets" and unattended and (runtime or backend == "job"):
        return  # nothing is restarted there, which keeps every budget
    kept = path in BY_THE_SUPERVISOR | TTL.get(backend, set())
    assert (before != after) or (kept and not unattended)


@pytest.mark.parametrize("backend", BACKENDS)
def test_what_the_supervisor_keeps_changes_nothing_it_would_have_to_fight(backend):
    plain = outcome({}, backend=backend, unattended=False, runtime=None)
    kept = BY_THE_SUPERVISOR | TTL.get(backend, set())
    for path in sorted(kept - {"success.fraction", "success.drain_s", "success.role"}):
        assert outcome(example(path)[1], backend=backend, unattended=False, runtime=None) == plain
