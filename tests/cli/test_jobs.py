from __future__ import annotations

from pathlib import Path

import pytest

from rankfall.cli.jobs import Flags, make_spec, name_from
from rankfall.model import UsageError


def test_flags_become_a_spec() -> None:
    spec = make_spec(
        Flags(
            command=("train.py", "--lr", "1e-3"),
            nnodes="2:4",
            nproc_per_node=8,
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
