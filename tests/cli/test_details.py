"""What a verdict is shown with: the step of the rank that failed, and the lines before the decisive one."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from rankfall.cli.run_output import details_of, details_of_files
from rankfall.model import Cause, Decisive, JobSpec, RankFacts, Verdict
from rankfall.render.escape import Redactor
from rankfall.rundir import RunDir


def verdict(where: str = "a.log:5", source: str = "log") -> Verdict:
    return Verdict(
        attempt=1, state="failed", cause=Cause.of("gpu_oom", confidence="proven"), rank=1, slot=0,
        decisive=Decisive(source=source, where=where, line="boom"),  # type: ignore[arg-type]
    )  # fmt: skip


@pytest.mark.parametrize(
    ("ranks", "step"),
    [
        ([RankFacts(rank=1, state="ended", exit_code=1, step=7)], 7),
        ([RankFacts(rank=1, state="ended", signal=9, step=0)], 0),
        ([RankFacts(rank=0, state="ended", exit_code=1, step=7)], None),
        # It was started again alone, and what it does now says nothing of the failure.
        ([RankFacts(rank=1, state="running", step=9)], None),
        ([RankFacts(rank=1, state="ended", exit_code=0, step=9)], None),
        # Of several rounds the newest.
        ([RankFacts(rank=1, round=n, state="ended", exit_code=1, step=step) for n, step in ((0, 3), (1, 8))], 8),
    ],
)
def test_the_step_is_that_of_the_failed_rank(tmp_path: Path, ranks: list[RankFacts], step: int | None) -> None:
    run = RunDir.create(JobSpec(command=("train.py",)), home=tmp_path)
    with run.lease() as writer:
        writer.put_ranks(1, ranks)
    assert details_of(run, verdict()).step == step


@pytest.mark.parametrize(
    ("where", "before"),
    [
        ("a.log:5", ("two", "three", "four")),
        ("a.log:2", ("one",)),
        ("a.log:1", ()),
        ("a.log:99", ()),
        ("gone.log:5", ()),
        ("a.log", ()),
        ("a.log:x", ()),
    ],
)
def test_up_to_three_lines_before_the_decisive_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str, before: tuple[str, ...]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.log").write_text("one\ntwo\nthree\nfour\nboom\nsix\n")
    assert details_of_files(verdict(where)).before == before


def test_only_lines_of_logs_have_lines_before_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.log").write_text("one\nboom\n")
    assert details_of_files(verdict("a.log:2", source="record")).before == ()


def test_a_line_without_an_end_is_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.log").write_bytes(b"x" * (5 << 20) + b"\n\xff\nboom\n")
    long, odd = details_of_files(verdict("a.log:3")).before
    assert (set(long), len(long) < 5000, odd) == ({"x"}, True, "\\xff")


def test_i23_the_frames_of_a_printed_traceback_are_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    lines = ["step 1", "[rank1]: Traceback (most recent call last):"]
    lines += [f'[rank1]:   File "/app/train.py", line {number}, in step' for number in (3, 4, 5, 6)]
    lines += [f'[rank1]:   File "/opt/lib/python3.11/site-packages/torch/x.py", line {n}, in f' for n in range(9)]
    Path("a.log").write_text("\n".join([*lines, "[rank1]: KeyError: 1", "step 2"]))
    found = verdict(f"a.log:{len(lines) + 1}")
    found = msgspec.structs.replace(
        found, decisive=msgspec.structs.replace(found.decisive, line="[rank1]: KeyError: 1")
    )
    assert details_of_files(found).frames == tuple(f"/app/train.py:{number} in step" for number in (6, 5, 4))
    assert details_of_files(verdict("a.log:1")).frames == ()


def test_a_key_that_begins_before_the_shown_lines_is_masked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    key = ["-----BEGIN OPENSSH PRIVATE KEY-----", *(f"b3BlbnNzaC1rZXktdjE{number}" for number in range(5)), "c2hvcnQ="]
    Path("a.log").write_text("\n".join([*key, "boom", ""]))
    shown = details_of_files(verdict("a.log:8"), redact=Redactor()).before
    assert len(shown) == 3
    assert not any(one in "".join(shown) for one in ("b3Blbn", "c2hvcnQ"))
