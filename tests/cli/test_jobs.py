from __future__ import annotations

from pathlib import Path

import pytest

from rankfall.cli.job_options import Flags, make_spec, name_from
from rankfall.model import SpecError, UsageError


def test_flags_become_a_spec() -> None:
    spec = make_spec(
        Flags(
            command=("train.py", "--lr", "1e-3"),
            nnodes="2:4",
            nproc_per_node="8",
            max_restarts=1,
            env=("A=1",),
            hang_timeout="never",
            retryable=("my.Error",),
            budget=("network=2",),
        )
    )
    assert spec.command == ("train.py", "--lr", "1e-3")
    assert (spec.name, spec.nnodes, spec.nnodes_max, spec.nproc_per_node) == ("train", 2, 4, 8)
    assert spec.env == {"A": "1"}
    assert spec.policies.hang_timeout_s is None
    assert (spec.policies.max_restarts, spec.policies.retryable) == (1, ("my.Error",))
    assert spec.policies.budgets == {"network": 2}


def test_flags_beat_the_file_and_leave_the_rest_of_it(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(
        "command: [old.py]\nname: big\nnnodes: 8\nenv: {A: '0', B: '2'}\npolicies: {grace_s: 3, max_restarts: 9}\n"
    )
    spec = make_spec(Flags(file=path, command=("new.py",), nnodes="2", env=("A=1",), max_restarts=0))
    assert (spec.command, spec.name, spec.nnodes) == (("new.py",), "big", 2)
    assert spec.env == {"A": "1", "B": "2"}
    assert (spec.policies.grace_s, spec.policies.max_restarts) == (3, 0)


@pytest.mark.parametrize(
    ("command", "name"),
    [
        (["train.py"], "train"),
        (["python", "-u", "/a/b/My_Script.py", "x.py"], "my-script"),
        (["torchrun"], "torchrun"),
        (["___"], "job"),
        ([], "job"),
        (["x" * 99], "x" * 30),
        ("text", "job"),
    ],
)
def test_a_run_is_named_after_its_script(command: object, name: str) -> None:
    assert name_from(command) == name or command == "text"


def test_nothing_to_run_says_what_can_be_given() -> None:
    with pytest.raises(UsageError, match=r"rankfall run train\.py"):
        make_spec(Flags())


def test_flags_of_success_deadlines_and_clusters_stand_in_their_sections(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(
        "command: [t.py]\nbackend: jobset\nsuccess: {drain_s: 5}\nrules: [{exit_codes: [3], action: restart, budget: app}]\n"
        "policies: {budgets: {app: 1}}\nkubernetes: {image: 'old:1', resources: {gpus: 1, requests: {cpu: '1'}}}\n"
    )
    spec = make_spec(
        Flags(
            file=path,
            backend="job",
            image="new:2",
            namespace="team",
            context="prod",
            gpus=8,
            cpu="16",
            memory="64Gi",
            queue="gold",
            exclude_node=("n1", "n2"),
            success="80%",
            deadline="8h",
            startup_deadline="10m",
            suspend=True,
            ttl="1d",
            unattended=True,
            budget=("app=4",),
        )
    )
    section = spec.kubernetes
    assert (spec.backend, section.image, section.namespace, section.context) == ("job", "new:2", "team", "prod")
    assert (section.queue, section.exclude_nodes) == ("gold", ("n1", "n2"))
    assert section.resources.gpus == 8
    assert section.resources.requests == {"cpu": "16", "memory": "64Gi"}
    assert section.resources.limits == {"memory": "64Gi"}
    assert (spec.success.policy, spec.success.fraction, spec.success.drain_s) == ("fraction", 0.8, 5)
    assert (spec.deadlines.total_s, spec.deadlines.startup_s) == (8 * 3600, 600)
    assert (spec.suspend, spec.ttl_s, spec.unattended) == (True, 86400, True)
    assert spec.policies.budgets == {"app": 4}


def test_a_deadline_can_be_taken_away_from_the_file(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text("command: [t.py]\ndeadlines: {total_s: 60, attempt_s: 9}\n")
    spec = make_spec(Flags(file=path, deadline="never"))
    assert (spec.deadlines.total_s, spec.deadlines.attempt_s) == (None, 9)


@pytest.mark.parametrize(
    ("text", "flags", "where"),
    [
        ("kubernetes: many", {"image": "a"}, "$.kubernetes"),
        ("kubernetes: {resources: 3}", {"gpus": 1}, "$.kubernetes.resources"),
        ("success: done", {"success": "rank0"}, "$.success"),
        ("policies: [1]", {"max_restarts": 1}, "$.policies"),
        ("rules: 3", {"budget": ("network=1",)}, "$.rules"),
    ],
)
def test_a_section_of_a_wrong_type_is_named_and_not_written_over(text, flags, where, tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(f"command: [t.py]\n{text}\n")
    with pytest.raises(SpecError) as caught:
        make_spec(Flags(file=path, **flags))
    assert caught.value.path == where
