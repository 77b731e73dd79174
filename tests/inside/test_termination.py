"""The termination message: what is left of a container when its log is gone."""

from __future__ import annotations

import json
import sys

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from rankfall.model import Record
from rankfall_inside import records
from rankfall_inside.delivery import exit_reports

from .conftest import channel

TEXT = st.text(max_size=3000)
JSON = st.recursive(
    st.none() | st.integers() | TEXT,
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(TEXT, inner, max_size=5),
)
ERROR = st.fixed_dictionaries(
    {"types": st.lists(TEXT, max_size=40), "message": st.text(max_size=20_000)},
    optional={
        "frames": st.lists(
            st.fixed_dictionaries({"file": TEXT, "line": st.integers(0, 9999), "func": TEXT, "user": st.booleans()}),
            max_size=30,
        ),
        "thread": TEXT,
        "raised_ns": st.integers(0, 2**62),
        "exit_code": st.integers(0, 255),
    },
)


def end_record(**more):
    fields = {"run": "demo-abc123", "exit": {"code": 1, "how": "wait"}, "notes": ["n" * 5000] * 30} | more
    return records.new("slot_end", writer="wrapper", fields=fields)


@given(ERROR, TEXT)
def test_it_is_within_its_bound_and_every_line_is_a_record(error, node) -> None:
    record = records.new("error", writer="hook", fields={"error": error, "rank": 3, "node": node})
    text = exit_reports.termination_message(record, end_record(node=node))
    assert len(text) <= 4096
    first, last = [msgspec.json.decode(line, type=Record) for line in text.splitlines()]
    assert (first.id, first.kind, first.rank, first.truncated) == (record["id"], "error", 3, True)
    assert last.kind == "slot_end"


@given(st.dictionaries(st.sampled_from(["types", "message", "frames", "raised_ns"]), JSON), JSON)
def test_whatever_a_job_records_leaves_valid_json(error, rank) -> None:
    record = {"id": "a" * 32, "kind": "error", "writer": "hook", "rank": rank, "error": error}
    lines = exit_reports.termination_message(record, end_record()).splitlines()
    assert [json.loads(line)["kind"] for line in lines] == ["error", "slot_end"]


def test_errors_s35_the_first_error_and_the_end_are_in_the_message_with_frames_of_the_users_code(pod) -> None:
    log = pod.base / "termination-log"
    log.write_text("older text" * 100)
    text = """
import json, os
def train():
    json.loads('{')
train()
"""
    script = pod.script(text)
    command = f"RANK=5 LOCAL_RANK=1 {sys.executable} {script}; exit 4"
    done = pod.run("sh", "-c", command, RANKFALL_TERMINATION_LOG=str(log))
    assert done.returncode == 4
    first, last = [msgspec.json.decode(line, type=Record) for line in log.read_bytes().splitlines()]
    sent = {record.id for record in channel(done.stdout)}
    assert {first.id, last.id} <= sent
    assert (first.kind, first.rank, first.local_rank) == ("error", 5, 1)
    assert first.error.types[0] == "json.decoder.JSONDecodeError"
    assert [(frame.func, frame.line) for frame in first.error.frames] == [("<module>", 5), ("train", 4)]
    assert (last.kind, last.exit.code) == ("slot_end", 4)


def test_errors_s36_secrets_are_masked_in_it(pod) -> None:
    log = pod.base / "termination-log"
    log.touch()
    pod.rank(
        "raise ValueError('could not log in with hunter22hunter22 and token=abcdefgh12345')",
        RANKFALL_TERMINATION_LOG=str(log),
        MY_PASSWORD="hunter22hunter22",  # noqa: S106 - the secret that must not show
    )
    assert "could not log in with ***" in log.read_text()
    assert "hunter22" not in log.read_text()
    assert "abcdefgh" not in log.read_text()


def test_it_is_never_created_where_the_kubelet_has_made_none(pod) -> None:
    path = pod.base / "absent"
    assert pod.run("true", RANKFALL_TERMINATION_LOG=str(path)).returncode == 0
    assert not path.exists()
    assert pod.run("true", RANKFALL_TERMINATION_LOG=str(pod.base)).returncode == 0


def test_a_slot_without_error_leaves_its_end_alone(pod) -> None:
    log = pod.base / "termination-log"
    log.touch()
    assert pod.run("true", RANKFALL_TERMINATION_LOG=str(log)).returncode == 0
    (line,) = log.read_bytes().splitlines()
    assert msgspec.json.decode(line, type=Record).kind == "slot_end"
