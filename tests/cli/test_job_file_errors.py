"""An error of a job file names file, line, key and the nearest name; the Python API raises SpecError for each wrong argument."""

from __future__ import annotations

import asyncio
from pathlib import Path, PurePosixPath
from typing import Any

import pytest

import rankfall
from rankfall import JobSpec, SyncClient
from rankfall.cli.app import run as main
from rankfall.client import complete
from rankfall.model import FailureRule, Policies, Role, SpecError, UsageError
from rankfall.strategy_registry import find_strategy

CASES = [
    ("command: train.py\n", 1, "$.command: Expected `array`, got `str`", "write a list, as: command: [train.py]"),
    ("command: [train.py]\nenv: {B: x, A: 1}\n", 2, "$.env.A: Expected `str`, got `int`", 'as: A: "..."'),
    ("command: [train.py]\nenv:\n  B: x\n\n  A: yes\n", 5, "$.env.A: Expected `str`, got `bool`", "in quotes"),
    ("command: [train.py]\nenv: {1: a}\n", 2, "$.env: a key: Expected `str`, got `int`", "write keys in quotes"),
    ("command: [train.py, 3]\n", 1, "$.command[1]: Expected `str`, got `int`", "in quotes"),
    ("comand: [train.py]\n", 1, "$.comand: is not a field", "did you mean command?"),
    ("command: [a]\npolicies:\n  max_restart: 3\n", 3, "$.policies.max_restart: is not a field", "mean max_restarts?"),
    (
        "roles:\n- name: a\n  command: [x]\n- {name: b,\n   nnode: 2}\n",
        5,
        "$.roles[1].nnode: is not a field",
        "did you mean nnodes?",
    ),
    (
        "command: [a]\nkubernetes:\n  resources:\n    gpu: 8\n",
        4,
        "$.kubernetes.resources.gpu: is not a field",
        "did you mean gpus?",
    ),
    ("command: [a]\nlauncher: torchrn\n", 2, "$.launcher: ", "did you mean torchrun? allowed values"),
    ("command: [a]\nnnodes: two\n", 2, "$.nnodes: Expected `int`, got `str`", "without quotes"),
    (
        "command: [a]\npolicies:\n  budgets:\n    network: 2\n    app: x\n",
        5,
        "$.policies.budgets.app: Expected `int`",
        "without quotes",
    ),
    ("command: [a]\ndeadlines: {total_s: 8h}\n", 2, "$.deadlines.total_s: Expected", "as: total_s: 28800"),
    ("command: [a]\nnnodes: '8'\n", 2, "$.nnodes: Expected `int`", "write a number without quotes, as: nnodes: 8"),
    ("command: [a]\nname: x\ncommand: [b]\n", 3, "'command' is there twice, first in line 1", "remove one"),
    (
        "env: {A: x}\nroles:\n- command: [a]\n  name: x\n  name: y\n",
        5,
        "'name' is there twice, first in line 4",
        "remove one",
    ),
    ("command: [a]\nname: A B\n", 2, "$.name: 'A B' is not a valid name", "as: a-b"),
    ("command: [a]\nnotify: [http://h/x]\n", 2, "$.notify: Expected `object`", "as: notify: {FIELD: VALUE}"),
    ("command: [nosuch.py]\n", 1, "$.command: script 'nosuch.py' does not exist", "give the path"),
    ("command: [a]\nenv:\n  a.b: x\n  a.b.c: 1\n", 4, "$.env.a.b.c: Expected `str`", "in quotes"),
]


@pytest.mark.parametrize(("text", "line", "message", "hint"), CASES)
def test_the_place_of_an_error_is_named(  # noqa: PLR0917
    folder: Path, text: str, line: int, message: str, hint: str, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:  # fmt: skip
    monkeypatch.chdir(folder)
    Path("job.yaml").write_text(text)
    assert main(["run", "--dry-run", "-f", "job.yaml"]) == 2
    err = capsys.readouterr().err
    assert err.startswith(f"rankfall: job.yaml:{line}: {message}")
    assert hint in err


def test_a_list_without_its_end_names_the_line_where_it_begins(folder: Path, capsys: Any) -> None:
    path = folder / "job.yaml"
    path.write_text("name: x\ncommand: [train.py\nenv: {A: b}\n")
    assert main(["run", "-f", str(path)]) == 2
    assert "while parsing a flow sequence that begins in line 2" in capsys.readouterr().err


def test_a_flag_is_not_the_files_fault(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.chdir(folder)
    Path("job.yaml").write_text("command: [train.py]\nlauncher: plain\n")
    assert main(["run", "--dry-run", "-f", "job.yaml", "--launcher", "plan"]) == 2
    assert capsys.readouterr().err.startswith("rankfall: $.launcher: ")


def test_a_wrong_secret_is_not_printed(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.chdir(folder)
    for text in ("command: [a]\nenv: {DB_PASSWORD: 73519284}\n", "command: --token=hf_abcdefghijklmnopqrst\n"):
        Path("job.yaml").write_text(text)
        assert main(["run", "--dry-run", "-f", "job.yaml"]) == 2
        err = capsys.readouterr().err
        assert "73519284" not in err
        assert "hf_abc" not in err


@pytest.mark.parametrize(
    ("make", "path", "hint"),
    [
        (lambda: JobSpec(nodes=2), "$.nodes", "did you mean nnodes?"),  # type: ignore[call-arg]
        (lambda: JobSpec(nproc=2), "$.nproc", "did you mean nproc_per_node?"),  # type: ignore[call-arg]
        (lambda: JobSpec(script="a.py"), "$.script", "did you mean command?"),  # type: ignore[call-arg]
        (lambda: JobSpec(max_restarts=1), "$.max_restarts", "policies.max_restarts"),  # type: ignore[call-arg]
        (lambda: JobSpec("train.py"), "$", "FIELD=VALUE"),  # type: ignore[misc]
        (lambda: Policies(max_restart=1), "$.max_restart", "did you mean max_restarts?"),  # type: ignore[call-arg]
        (lambda: Role(nnodes=1), "$", None),  # type: ignore[call-arg]
        (lambda: FailureRule(action="fail", code=3), "$.code", None),  # type: ignore[call-arg]
        (lambda: complete(JobSpec(command="train.py")), "$.command", "as: command: [train.py]"),  # type: ignore[arg-type]
        (lambda: complete(JobSpec(command=("a",), nnodes="2")), "$.nnodes", "number"),  # type: ignore[arg-type]
        (lambda: complete(JobSpec(command=("a",), env={"A": 1})), "$.env.A", "quotes"),  # type: ignore[dict-item]
        (lambda: complete(JobSpec(command=("a",), cwd=PurePosixPath("/x"))), "$.cwd", "str(path)"),  # type: ignore[arg-type]
        (lambda: complete({"command": ["a"]}), "$", "JobSpec"),  # type: ignore[arg-type]
        (lambda: complete(None), "$", "JobSpec"),  # type: ignore[arg-type]
    ],
)  # fmt: skip
def test_a_wrong_argument_is_an_error_of_the_spec(make: Any, path: str, hint: str | None) -> None:
    with pytest.raises(SpecError) as found:
        make()
    assert found.value.path == path
    assert hint is None or hint in (found.value.hint or "")


def test_a_list_is_a_command_too(folder: Path) -> None:
    spec = complete(JobSpec(command=["train.py"], policies={"max_restarts": 1}))  # type: ignore[arg-type]
    assert spec.command == ("train.py",)
    assert spec.policies == Policies(max_restarts=1)


def test_the_sync_client_says_what_to_do_inside_a_running_loop(home: Path) -> None:
    client = SyncClient()

    async def inside() -> None:
        for call in (client.runs, lambda: client.submit(JobSpec(command=("a",)))):
            with pytest.raises(UsageError, match="inside an event loop") as found:
                call()
            assert "await" in (found.value.hint or "")
        assert await asyncio.to_thread(client.runs) == []

    asyncio.run(inside())


def test_public_names_are_listed_and_wrong_arguments_refused_at_once(tmp_path: Path) -> None:
    assert {"Client", "SyncClient", "JobSpec", "register_strategy"} <= set(dir(rankfall))
    assert SyncClient(home=str(tmp_path / "home")).runs() == []
    with pytest.raises(UsageError, match="not a function"):
        rankfall.register_strategy("mine", 3)  # type: ignore[arg-type]
    with pytest.raises(SpecError):
        find_strategy("mine")
