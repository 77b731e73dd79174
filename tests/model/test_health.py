"""The record of a node: what is written is read again, and whatever else stands in the annotation is refused."""

from __future__ import annotations

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankfall.model.errors import EvidenceLost
from rankfall.model.node_health.records import (
    MAX_ANNOTATION,
    MAX_CAUSES,
    MAX_SEEN,
    NodeFault,
    NodeHealth,
    OpenCause,
    Seen,
    decode_health,
    encode_health,
    printable,
)

MOMENT = 1_795_000_000_000_000_000
FULL = OpenCause(
    code="kernel/node_stuck.soft_lockup",
    device="gpu 0000:4e:00",
    first_at=MOMENT,
    last_at=MOMENT,
    due_at=MOMENT,
    boot="b-1",
    seq=12,
    seen=(Seen("kmsg:b-1:12", MOMENT, "pod-uid"),),
    text="NVRM: Xid (PCI:0000:4e:00): 79, GPU has fallen off the bus.",
)


def test_a_record_is_read_as_it_was_written():
    health = NodeHealth(
        state="quarantined",
        since=MOMENT,
        held="budget",
        causes=(FULL,),
        boot="b-1",
        tainted=True,
        quarantines=(MOMENT,),
    )
    assert decode_health(encode_health(health)) == health
    assert decode_health(encode_health(NodeHealth())) == NodeHealth()


@given(st.builds(NodeHealth))
def test_any_record_fits_and_comes_back(health):
    text = encode_health(health)
    assert len(text.encode()) <= MAX_ANNOTATION
    assert decode_health(text) == health


def test_a_record_that_is_too_large_loses_old_observations_and_no_cause():
    long = "\U0001f4a5" * 128
    seen = tuple(Seen(long, MOMENT + n, long) for n in range(MAX_SEEN))
    causes = tuple(
        msgspec.structs.replace(FULL, device=f"{long[:100]}{n}", seen=seen, text="é" * 256) for n in range(MAX_CAUSES)
    )
    again = decode_health(encode_health(NodeHealth(causes=causes)))
    assert [(each.code, each.device, each.due_at) for each in again.causes] == [
        (e.code, e.device, e.due_at) for e in causes
    ]
    assert all(each.seen[-1] == seen[-1] for each in again.causes)


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"schema": "rankfall.nodehealth/2"}, "schema"),
        ({"state": "fine"}, "state"),
        ({"unheard": 1}, "unheard"),
        ({"boot": "b\n1"}, "boot"),
        ({"boot": "b\n"}, "boot"),
        ({"seq": -1}, "seq"),
        ({"since": 1 << 63}, "since"),
        ({"causes": [{"code": "Xid 79"}]}, "code"),
        ({"causes": [{"code": "xid/79"}] * (MAX_CAUSES + 1)}, "causes"),
        ({"causes": [{"code": "xid/79", "seen": [["a", 1, None, "more"]]}]}, "length 3"),
        ({"failed_check": "x" * 129}, "failed_check"),
    ],
)
def test_a_hostile_annotation_is_refused_with_the_field(change, word):
    text = json.dumps({"schema": "rankfall.nodehealth/1", **change})
    with pytest.raises(EvidenceLost) as caught:
        decode_health(text)
    assert word in str(caught.value)
    assert "next: remove the annotation" in str(caught.value)


@pytest.mark.parametrize(
    "text", ["", "null", "[]", "7", "{", "\udc00", "[" * 5_000, " " * (MAX_ANNOTATION + 1), "\x1b[31m"]
)
def test_what_is_no_record_is_refused(text):
    with pytest.raises(EvidenceLost):
        decode_health(text)


@given(st.text(max_size=600))
def test_shown_text_has_no_control_characters_and_a_bound(text):
    safe = printable(text)
    assert safe.isprintable()
    assert len(safe) <= 256
    if text.isprintable() and len(text) <= 256:
        assert safe == text


def test_a_fault_is_json_with_its_schema():
    fault = NodeFault(id="kmsg:b:1", node="n1", source="kmsg", trust="kernel", code="xid/79", boot="b", seq=1)
    assert json.loads(msgspec.json.encode(fault))["code"] == "xid/79"
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({**msgspec.to_builtins(fault), "node": "N1\n"}, NodeFault)
