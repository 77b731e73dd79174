from __future__ import annotations

import base64
import json
import threading
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankfall.model import Record
from rankfall_inside import records
from rankfall_inside import records as tinyjson

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(VALUES)
def test_tinyjson_says_what_json_says(value) -> None:
    assert json.loads(tinyjson.dumps(value)) == json.loads(
        json.dumps(value, ensure_ascii=False).encode("utf-8", "replace")
    ) or _has_surrogate(value)


def _has_surrogate(value) -> bool:
    return "\\ud" in json.dumps(value)


@given(st.text(alphabet=st.characters(categories=["Cs", "L"])))
def test_lone_surrogates_become_text_that_strict_readers_take(text: str) -> None:
    assert isinstance(msgspec.json.decode(tinyjson.dumps({"a": text}))["a"], str)


def test_other_types_and_no_numbers_are_refused_or_null() -> None:
    with pytest.raises(TypeError):
        tinyjson.dumps(object())
    assert tinyjson.dumps([float("nan"), float("inf")]) == "[null,null]"


@given(st.text(max_size=400_000), st.lists(st.text(max_size=2000), max_size=50))
def test_a_record_is_never_larger_than_its_bound(text: str, many: list[str]) -> None:
    error = {
        "types": ["X"] * 50,
        "message": text,
        "chain": many,
        "traceback": text * 4,
        "frames": [{"file": text[:1024], "line": 1}] * 200,
    }
    data = records.encode(records.new("error", writer="hook", fields={"error": error, "notes": many, "argv": many}))
    assert len(data) <= records.MAX_RECORD
    assert msgspec.json.decode(data, type=Record).kind == "error"


def test_errors_s15_a_huge_trace_keeps_head_and_tail_and_says_so() -> None:
    trace = "HEAD\n" + "x" * 50_000_000 + "\nTAIL"
    record = records.new("error", writer="hook", fields={"error": {"types": ["E"], "message": "m", "traceback": trace}})
    found = msgspec.json.decode(records.encode(record), type=Record)
    assert found.truncated
    assert found.error.traceback.startswith("HEAD")
    assert found.error.traceback.endswith("TAIL")


def test_the_line_of_the_log_channel_is_bounded_and_is_the_same_record() -> None:
    record = records.new(
        "error", writer="hook", fields={"error": {"types": ["E"], "message": "ü" * 20_000, "traceback": "t" * 90_000}}
    )
    line = records.line(record, "tok")
    assert len(line) <= 8192
    assert line.startswith(b"\x1erankfall/1 tok ")
    assert line.endswith(b"\n")
    found = msgspec.json.decode(base64.urlsafe_b64decode(line.split(b" ")[2]), type=Record)
    assert found.id == record["id"]


@given(
    st.text(max_size=4000), st.lists(st.text(max_size=2000), max_size=40), st.sampled_from(["error", "start", "stacks"])
)
def test_no_line_of_the_log_channel_is_longer_than_its_bound(text: str, many: list[str], kind: str) -> None:
    error = {
        "types": many,
        "message": text,
        "chain": many,
        "traceback": text,
        "frames": [{"file": text[:1024], "func": text[:256]}] * 9,
    }
    place = dict.fromkeys(
        ("run", "role", "node", "host", "pod", "pod_uid", "phase", "python", "boot_id", "instance"), text
    )
    exit_info = {"sender": text[:200], "reason": text[:200]}
    fields = dict(place, error=error, notes=many, argv=many, stacks=text * 9, exit=exit_info, rank=3)
    record = records.new(kind, writer="hook", fields=fields)
    before = records.encode(json.loads(json.dumps(record)))
    line = records.line(record, "tok")
    assert len(line) <= 8192
    found = msgspec.json.decode(base64.urlsafe_b64decode(line.split(b" ")[2]), type=Record)
    assert (found.id, found.kind, found.rank) == (record["id"], kind, 3)
    # The record itself goes into its file whole.
    assert records.encode(record) == before
    pieces = records.pieces(record)
    assert all(len(piece) <= 4096 and piece.startswith(b"part ") for piece in pieces)
    assert len(pieces) <= 16


def test_errors_s2_records_written_at_the_same_instant_do_not_overwrite_each_other(tmp_path: Path) -> None:
    barrier = threading.Barrier(16)

    def write() -> None:
        barrier.wait()
        assert records.write(
            records.new("error", writer="hook", fields={"attempt": 1, "role": "w/../x", "slot": 0}),
            str(tmp_path),
            sync=False,
        )

    threads = [threading.Thread(target=write) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    names = sorted(path.name for path in tmp_path.iterdir())
    assert len(names) == 16
    assert all(name.startswith("error-a1-w_.._x-0-") and name.endswith(".json") for name in names)


def test_a_folder_that_cannot_be_written_is_said_not_raised(tmp_path: Path) -> None:
    record = records.new("error", writer="hook", fields={})
    assert not records.write(record, str(tmp_path / "absent"), sync=True)
    assert not records.write(record, "", sync=True)


@pytest.mark.parametrize(
    ("argv", "safe"),
    [
        (["x", "--api-key", "abc"], ["x", "--api-key", "***"]),
        (["x", "--token=abc", "--lr", "1"], ["x", "--token=***", "--lr", "1"]),
        (["PASSWORD=abc", "cmd"], ["PASSWORD=***", "cmd"]),
        (["s3://user:pw@host/x"], ["s3://***@host/x"]),
        (["-c", "login('hf_abcdefghij0123456789abcd')"], ["-c", "login('***')"]),
        (["-c", "export HF_TOKEN=abc; run --lr 1"], ["-c", "export HF_TOKEN=***"]),
        (["tokenizer", "3"], ["tokenizer", "3"]),
    ],
)
def test_errors_s36_secrets_in_command_lines_are_masked(argv: list[str], safe: list[str]) -> None:
    assert records.safe_argv(argv) == safe
