"""The plan is what would be started, and nothing more happens by making it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from rankfall.backends.local.backend import LocalBackend
from rankfall.backends.plan import Plan
from rankfall.model import JobSpec, Policies, SpecError
from rankfall.model.jobspec.secrets import masked, masked_words, pointer_of, secrets_of, without_pointer
from rankfall.rundir import RunDir


def plan_of(tmp_path: Path, *command: str, attempt: int = 1, **fields: Any) -> Plan:
    (tmp_path / "train.py").write_text("pass\n")
    spec = JobSpec(command=command or ("train.py",), **({"launcher": "plain", "cwd": str(tmp_path)} | fields))
    backend = LocalBackend()
    try:
        return backend.plan(spec, RunDir(tmp_path / "home" / "runs" / "job-abc123"), attempt)
    finally:
        backend.release()


def test_a_plan_creates_nothing(tmp_path: Path) -> None:
    plan_of(tmp_path, nnodes=2)
    assert [path.name for path in tmp_path.iterdir()] == ["train.py"]


def test_each_slot_is_a_wrapper_that_knows_who_it_is(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, "train.py", "--lr", "1", nnodes=2, nproc_per_node=3, role="trainer", attempt=4)
    assert [slot.node for slot in plan.slots] == ["node0", "node1"]
    second = plan.slots[1]
    assert second.argv[:3] == (sys.executable, "-I", "-S")
    assert second.argv[4] == "wrap"
    assert second.argv[second.argv.index("--") + 1 :] == (sys.executable, "train.py", "--lr", "1")
    assert second.argv[second.argv.index("--nproc") + 1] == "3"
    expected = {
        "RANKFALL_RUN": "job-abc123",
        "RANKFALL_ATTEMPT": "4",
        "RANKFALL_ROLE": "trainer",
        "RANKFALL_SLOT": "1",
        "RANKFALL_NODE": "node1",
        "RANKFALL_PLAIN_NNODES": "2",
        "RANKFALL_PLAIN_NODE_RANK": "1",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(plan.port),
        "TORCHELASTIC_RUN_ID": "job-abc123-a4",
    }
    assert expected.items() <= second.env.items()
    assert second.slot_dir.endswith("slots/attempt-4/trainer-1")
    assert second.stream_dir.endswith("logs/attempt-4/trainer-1/0")


def test_the_marks_of_the_user_reach_the_ranks(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, policies=Policies(retryable=("a.B", "c.D"), final=("e.F",)))
    assert plan.slots[0].env["RANKFALL_RETRYABLE"] == "a.B,c.D"
    assert plan.slots[0].env["RANKFALL_FINAL"] == "e.F"


def test_the_identity_of_an_outer_job_is_not_inherited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "SLURM_PROCID", "RANKFALL_RUN", "TORCHELASTIC_RUN_ID", "RANKFALL_HOME"):
        monkeypatch.setenv(name, "7")
    plan = plan_of(tmp_path, env={"SLURM_PROCID": "3"})
    assert {"RANK", "RANKFALL_RUN", "TORCHELASTIC_RUN_ID"} <= set(plan.removed)
    assert not {"SLURM_PROCID", "RANKFALL_HOME"} & set(plan.removed)


WORDS = ("--api-key=abc", "--token", "abc", "https://me:abc@host/x")


def test_secrets_are_masked_where_a_plan_is_shown_and_not_stored_twice(tmp_path: Path) -> None:
    plan = plan_of(
        tmp_path,
        "train.py",
        *WORDS,
        env={"HF_TOKEN": "abc", "LR": "1", "STORE": "s3://me:abc@host"},
    )
    shown = msgspec.json.encode(plan.document()).decode()
    assert "abc" not in shown.replace("job-abc123", "")
    assert '"LR":"1"' in shown
    assert plan.row()["env"] == {}
    assert "abc" not in repr(plan).replace("job-abc123", "")
    shown_words = [without_pointer(word) for word in plan.slots[0].argv[-4:]]
    assert shown_words == ["--api-key=***", "--token", "***", "https://me:***@host/x"]
    known = {pointer: found.text for pointer, found in secrets_of(JobSpec(command=("train.py", *WORDS))).items()}
    whole = [known.get(pointer_of(word) or "", word) for word in plan.slots[0].argv[-4:]]
    assert whole == ["--api-key=abc", "--token", "abc", "https://me:abc@host/x"]


def test_a_stored_plan_comes_back_with_the_specs_variables(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, nnodes=2, env={"A": "1"})
    spec = JobSpec(command=("train.py",), env={"A": "1"})
    stored = msgspec.json.decode(msgspec.json.encode(plan.row()))
    assert Plan.of_row(stored, spec) == plan


def test_masking_leaves_what_is_no_secret() -> None:
    assert masked({"PATH": "/bin", "MY_PASSWORD": "x"}) == {"PATH": "/bin", "MY_PASSWORD": "***"}
    assert masked_words(("--lr", "1", "--auth", "x", "--auth", "--next", "http://u@h")) == (
        "--lr",
        "1",
        "--auth",
        "***",
        "--auth",
        "--next",
        "http://u@h",
    )


@pytest.mark.parametrize(("cwd", "words"), [("absent", "is not a folder"), ("train.py", "is not a folder")])
def test_a_folder_that_is_none_is_refused(tmp_path: Path, cwd: str, words: str) -> None:
    with pytest.raises(SpecError, match=words):
        plan_of(tmp_path, cwd=str(tmp_path / cwd))


@pytest.mark.torch
def test_torchrun_gets_the_same_rendezvous_in_every_slot(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, "-x.mod", "--lr", "1", launcher="torchrun", module=True, nnodes=2, nproc_per_node=2)
    job = plan.slots[1].argv[plan.slots[1].argv.index("--") + 1 :]
    assert job[:3] == (sys.executable, "-m", "torch.distributed.run")
    assert job[-4:] == ("-m", "-x.mod", "--lr", "1")
    flags = dict(zip(job[3:-4:2], job[4:-4:2], strict=True))
    assert flags["--node-rank"] == "1"
    assert flags["--master-port"] == str(plan.port)
    assert flags["--rdzv-id"] == "job-abc123-a1"
    assert flags["--max-restarts"] == "0"
    assert plan.rdzv == "static"


@pytest.mark.torch
def test_a_range_of_nodes_means_c10d_with_all_slots(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, launcher="auto", nnodes=1, nnodes_max=3)
    assert plan.rdzv == "c10d"
    assert len(plan.slots) == 3
    assert all("1:3" in slot.argv for slot in plan.slots)


def test_sources_name_what_observe_opens(tmp_path: Path) -> None:
    sources = LocalBackend().sources(plan_of(tmp_path, nnodes=2))
    assert [(one.kind, one.slot) for one in sources] == [
        ("records", None),
        ("slot_dir", 0),
        ("streams", 0),
        ("slot_dir", 1),
        ("streams", 1),
    ]


def test_a_job_without_strategy_has_its_backends_own(tmp_path: Path) -> None:
    class Strict(LocalBackend):
        strategy = "first-listed"

    run_dir = RunDir(tmp_path / "home" / "runs" / "job-abc123")
    (tmp_path / "train.py").write_text("pass\n")
    spec = JobSpec(command=("train.py",), launcher="plain", cwd=str(tmp_path))
    for backend, named, wanted in (
        (LocalBackend(), None, "causal"),
        (Strict(), None, "first-listed"),
        (Strict(), "earliest", "earliest"),
    ):
        plan = backend.plan(msgspec.structs.replace(spec, strategy=named), run_dir, 1)
        backend.release()
        assert Plan.of_row(plan.row(), spec).strategy == wanted
        assert {slot.env["RANKFALL_STRATEGY"] for slot in plan.slots} == {wanted}
