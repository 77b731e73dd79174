"""The cases of the conformance suite as a table: one job file each, what its ranks do, and what must come of it on every backend.

A case runs on all backends, or says where it is refused, and with which words. Its documents must be equal everywhere; what they must say
at least stands here, so that backends cannot agree on something wrong.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

BACKENDS = ("local", "slurm", "job", "jobset", "trainjob")
CLUSTER = BACKENDS[2:]
Story = Mapping[str, Mapping[str, str]]
Drive = Literal["run", "suspended_start", "suspend_resume", "resize", "cancel", "plan"]

FAST = {"grace_s": 3, "backoff_s": 0.1, "settle_quiet_s": 1.0, "max_restarts": 1}


@dataclass(frozen=True, kw_only=True)
class Case:
    """One row of the table.

    Attributes:
        name: of the test.
        feature: as the page calls it.
        seen_in: scenarios of the acceptance lists that it shows.
        story: attempt -> rank -> what it does (``conformance.program``); ``*`` = any.
        fields: of the job file, over those of all cases; ``policies`` are merged, None leaves one out.
        drive: what its user does.
        code: exit code of ``rankfall run`` or ``wait``.
        state: of the run at its end.
        attempts: how many there are.
        causes: of each attempt that has a verdict: slug and rank.
        counts: succeeded, failed, stopped slots of the last attempt.
        restarts: by cause.
        why: words that the decision or the reason of the end has.
        refused: backend -> words of the refusal.
        absent: backend -> why it has no such thing.
    """

    name: str
    feature: str
    seen_in: str = ""
    story: Story = field(default_factory=lambda: {"*": {"*": "end"}})
    fields: Mapping[str, Any] = field(default_factory=dict)
    drive: Drive = "run"
    code: int = 0
    state: str = "succeeded"
    attempts: int = 1
    causes: Mapping[str, tuple[str, int | None]] = field(default_factory=dict)
    counts: tuple[int, int, int] = (2, 0, 0)
    restarts: Mapping[str, int] = field(default_factory=dict)
    why: str = ""
    refused: Mapping[str, str] = field(default_factory=dict)
    absent: Mapping[str, str] = field(default_factory=dict)


CASES: tuple[Case, ...] = (
    Case(name="success", feature="all ranks end with 0", seen_in="job-api 8, 28"),
    Case(
        name="a_rank_raises",
        feature="a rank raises: it is named, the others are victims, the run ends with its code",
        seen_in="job-api 16, 28",
        story={"*": {"3": "raise", "*": "stay"}},
        code=1,
        state="failed",
        causes={"1": ("user_code_exception", 3)},
        counts=(0, 1, 1),
    ),
    Case(
        name="a_rank_is_killed",
        feature="a rank dies of a signal: the gang is started again",
        seen_in="job-api 28; launch-logs 19",
        story={"1": {"2": "kill:SIGKILL", "*": "stay"}, "2": {"*": "end"}},
        attempts=2,
        causes={"1": ("killed_unknown", 2)},
        restarts={"killed_unknown": 1},
    ),
    Case(
        name="a_rule_retries_an_exit_code",
        feature="a rule for an exit code, with a budget of its own",
        seen_in="job-api 2, 25",
        story={"1": {"1": "exit:9", "*": "stay"}, "2": {"*": "end"}},
        fields={
            "rules": [{"exit_codes": [9], "action": "restart", "budget": "infra"}],
            "policies": {"budgets": {"infra": 1}},
        },
        attempts=2,
        causes={"1": ("user_exit", 1)},
        restarts={"user_exit": 1},
    ),
    Case(
        name="a_budget_is_spent",
        feature="a budget that is spent ends the run, and is named with its count",
        seen_in="job-api 3, 13, 19",
        story={"*": {"1": "exit:9", "*": "stay"}},
        fields={
            "rules": [{"exit_codes": [9], "action": "restart", "budget": "infra"}],
            "policies": {"budgets": {"infra": 1}, "max_restarts": 5},
        },
        code=9,
        state="failed",
        attempts=2,
        causes={"1": ("user_exit", 1), "2": ("user_exit", 1)},
        counts=(0, 1, 1),
        restarts={"user_exit": 1},
        why="budget infra exhausted (1/1)",
    ),
    Case(
        name="rank_0_is_enough",
        feature="success policy `rank0`: the others have `drain_s` and are stopped, none of them failed",
        seen_in="job-api 4",
        story={"*": {"0": "end", "*": "stay"}},
        fields={"success": {"policy": "rank0", "drain_s": 0.5}, "nproc_per_node": 1},
        counts=(1, 0, 1),
    ),
    Case(
        name="a_fraction_is_enough",
        feature="success policy `fraction`: the slot that hangs is stopped after success",
        seen_in="job-api 5",
        story={"*": {"2": "stay", "*": "end"}},
        fields={"success": {"policy": "fraction", "fraction": 0.6, "drain_s": 0.5}, "nnodes": 3, "nproc_per_node": 1},
        counts=(2, 0, 1),
    ),
    Case(
        name="begins_suspended",
        feature="suspended from the start: nothing runs before `resume`, which begins attempt 1",
        seen_in="job-api 9",
        fields={"suspend": True},
        drive="suspended_start",
    ),
    Case(
        name="suspend_and_resume",
        feature="suspend and resume: everything stops, a new attempt follows, no budget is used",
        seen_in="job-api 10",
        story={"1": {"*": "stay"}, "2": {"*": "end"}},
        fields={"policies": {"max_restarts": 0}},
        drive="suspend_resume",
        attempts=2,
    ),
    Case(
        name="cancel",
        feature="cancel: everything is gone, exit code 130",
        seen_in="launch-logs S42",
        story={"*": {"*": "stay"}},
        drive="cancel",
        code=130,
        state="cancelled",
        causes={"1": ("cancelled", None)},
        counts=(0, 0, 2),
    ),
    Case(
        name="the_attempt_takes_too_long",
        feature="deadline of an attempt: blames no rank",
        seen_in="job-api 29",
        story={"*": {"*": "stay"}},
        fields={"deadlines": {"attempt_s": 12}, "policies": {"max_restarts": 0}},
        code=69,
        state="failed",
        causes={"1": ("deadline_exceeded", None)},
        counts=(0, 0, 2),
    ),
    Case(
        name="a_rank_hangs",
        feature="a hang: the stacks of all ranks are asked for, the run ends",
        story={"*": {"*": "stay"}},
        fields={"policies": {"max_restarts": 0, "hang_timeout_s": 3}},
        code=69,
        state="failed",
        causes={"1": ("rank_stuck", None)},
        counts=(0, 0, 2),
    ),
    Case(
        name="another_size",
        feature="`resize` of a job of fixed size: a new attempt of that size, no budget is used",
        seen_in="job-api 7",
        story={"1": {"*": "stay"}, "2": {"*": "end"}},
        fields={"policies": {"max_restarts": 0}, "nproc_per_node": 1},
        drive="resize",
        attempts=2,
        counts=(3, 0, 0),
    ),
    Case(
        name="several_roles",
        feature="several roles: the job is done when one of them is, and the other is stopped",
        seen_in="job-api 11",
        story={"*": {"slot 0": "stay", "*": "end"}},
        fields={
            "roles": [
                {"name": "ps", "nnodes": 1, "launcher": "exec"},
                {"name": "worker", "nnodes": 2, "nproc_per_node": 1},
            ],
            "success": {"policy": "all", "role": "worker", "drain_s": 0.5},
            "nnodes": None,
            "nproc_per_node": None,
        },
        counts=(2, 0, 1),
    ),
    Case(
        name="a_rank_of_one_role_falls",
        feature="a rank of the second role falls: it is named with its role",
        seen_in="job-api 11, 16",
        story={"*": {"1": "raise", "*": "stay"}},
        fields={
            "roles": [
                {"name": "ps", "nnodes": 1, "launcher": "exec"},
                {"name": "worker", "nnodes": 2, "nproc_per_node": 1},
            ],
            "nnodes": None,
            "nproc_per_node": None,
        },
        code=1,
        state="failed",
        causes={"1": ("user_code_exception", 1)},
        counts=(0, 1, 2),
    ),
    Case(
        name="one_replica_alone",
        feature="`restart_scope: replica`: the slot that fell is started again alone, within its budget",
        seen_in="seed 003, restart scope",
        story={"*": {"slot 1": "exit:9", "*": "stay"}},
        fields={
            "launcher": "exec",
            "nproc_per_node": 1,
            "restart_scope": "replica",
            "rules": [{"exit_codes": [9], "action": "restart"}],
        },
        code=9,
        state="failed",
        causes={"1": ("user_exit", None)},
        counts=(0, 1, 1),
        restarts={"user_exit": 1},
        why="exhausted (1/1)",
        refused={"jobset": "needs JobSet 0.12", "trainjob": "one replica alone cannot be restarted"},
    ),
    Case(
        name="elastic",
        feature="nodes `MIN:MAX`",
        seen_in="job-api 7, 27",
        fields={"nnodes": 1, "nnodes_max": 2, "launcher": "torchrun"},
        drive="plan",
        refused={
            "slurm": "MIN:MAX nodes are not supported",
            "jobset": "needs JobSet 0.12",
            "trainjob": "MIN:MAX nodes are not supported",
        },
    ),
    Case(
        name="rank_0_and_elastic",
        feature="success policy `rank0` with nodes `MIN:MAX`, where the slot of rank 0 may leave",
        seen_in="job-api 27 (7.4 no. 10)",
        fields={"nnodes": 1, "nnodes_max": 2, "launcher": "torchrun", "success": {"policy": "rank0"}},
        drive="plan",
        refused=dict.fromkeys(BACKENDS, "the slot of rank 0 may leave"),
    ),
    Case(
        name="a_queue",
        feature="`kubernetes.queue`: left to Kueue, with its label",
        fields={"kubernetes": {"queue": "gpus"}},
        drive="plan",
        absent={"local": "there is no queue", "slurm": "the allocation has been through its queue"},
    ),
    Case(
        name="excluded_nodes",
        feature="`kubernetes.exclude_nodes`",
        seen_in="job-api 26",
        fields={"kubernetes": {"exclude_nodes": ["n9"]}},
        drive="plan",
        absent={"local": "there is one machine", "slurm": "sbatch has --exclude"},
    ),
    Case(
        name="without_a_supervisor",
        feature="`unattended`: the platform's own rules run the job, whoever watches records it",
        seen_in="job-api 13, 14",
        fields={"unattended": True, "policies": {"max_restarts": 0}},
        refused={one: f"the {one} backend has no platform that would run the job alone" for one in ("local", "slurm")},
    ),
    Case(
        name="a_supervisors_field_without_one",
        feature="`unattended` with a field that needs a supervisor",
        seen_in="job-api 27",
        fields={"unattended": True, "policies": {"max_restarts": 0}, "deadlines": {"total_s": 100}},
        drive="plan",
        refused={
            **{one: f"the {one} backend has no platform that would run the job alone" for one in ("local", "slurm")},
            **dict.fromkeys(CLUSTER, "$.deadlines.total_s: needs a supervisor"),
        },
    ),
    Case(
        name="an_image_does_not_exist",
        feature="an image that cannot be pulled is named at the startup deadline, with the pod's reason",
        seen_in="job-api 30; launch-logs 9",
        fields={
            "deadlines": {"startup_s": 8},
            "kubernetes": {"image": "rankfall.test/nothing:1"},
            "policies": {"max_restarts": 0},
        },
        code=69,
        state="failed",
        causes={"1": ("image_pull", None)},
        counts=(0, 2, 0),
        absent={"local": "it has no images", "slurm": "it has no images"},
    ),
)
