"""What an agent tells: always small enough, always readable again, and never half believed."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankfall.model import EvidenceLost
from rankfall.model.node_health.kernel_reports import (
    MAX_ENTRIES,
    MAX_REPORT,
    KernelEntry,
    KernelLine,
    KernelReport,
    Place,
    decode_line,
    decode_report,
    encode_report,
)
from rankfall.model.node_health.records import MAX_SEEN, MAX_TEXT, NodeFault, printable
from rankfall.nodes.rules.faults import of_agent_line, of_report

BOOT = "060af334-3f16-446a-8c45-845f66fefde6"


BEGIN = '{"schema":"rankfall.kernelreport/1",'


def entry(number: int = 7, **more: object) -> KernelEntry:
    given: dict[str, object] = {
        "code": "xid/79", "seen": (Place(number, 100),), "first": Place(number, 100), "device": "gpu 0000:4e:00", "text": "a line"
    }  # fmt: skip
    return msgspec.convert(given | more, KernelEntry)


texts = st.text(max_size=MAX_TEXT).map(printable)
entries = st.builds(
    lambda text, seen, count: entry(text=text, seen=tuple(Place(n, n) for n in range(seen)), count=count),
    texts,
    st.integers(1, MAX_SEEN),
    st.integers(0, 1 << 53),
)


@given(st.lists(entries, max_size=MAX_ENTRIES))
def test_any_report_fits_and_comes_back(found):
    report = KernelReport(boot=BOOT, seq=9, lost=3, entries=tuple(found))
    text = encode_report(report)
    assert len(text.encode()) <= MAX_REPORT
    again = decode_report(text)
    assert again.more + len(again.entries) == len(found)
    assert [each.count for each in again.entries] == [each.count for each in found[again.more :]]


@pytest.mark.parametrize(
    "text",
    [
        "", "{}", "[]", "x" * (MAX_REPORT + 1), "\ud800", '{"schema":"rankfall.kernelreport/2","boot":"b"}',
        '{"boot":"b"}', BEGIN + '"boot":"b","entries":[{"code":"xid/79","seen":[],"first":[1,1]}]}', BEGIN + '"boot":"b","other":1}',
        BEGIN + '"boot":"a b"}', "[" * 5000, BEGIN + '"boot":' + "[" * 5000,
    ],
)  # fmt: skip
def test_a_report_of_another_form_is_refused_whole(text):
    with pytest.raises(EvidenceLost, match=r"rankfall\.dev/kernel-faults"):
        decode_report(text)


def test_each_record_of_a_report_is_one_fault_with_the_id_that_it_always_has():
    report = KernelReport(
        boot=BOOT, entries=(entry(seen=(Place(7, 70), Place(9, 90)), count=5, trust="injected", job="u-1"),)
    )
    found = of_report(report, node="n1")
    assert [(each.id, each.seq, each.at, each.trust, each.job) for each in found] == [
        (f"kmsg:{BOOT}:7", 7, 70, "injected", "u-1"),
        (f"kmsg:{BOOT}:9", 9, 90, "injected", "u-1"),
    ]
    assert [msgspec.json.decode(msgspec.json.encode(each), type=NodeFault) for each in found] == found


def test_a_printed_line_is_the_same_fault_and_only_of_its_own_node():
    line = KernelLine(
        kind="record", node="n1", boot=BOOT, seq=7, at=70, trust="kernel", code="xid/79", device="gpu 0000:4e:00"
    )
    again = decode_line(msgspec.json.encode(line))
    assert again == line
    found = of_agent_line(line, node="n1")
    assert found is not None
    assert (found.id, found.trust, found.source, found.code) == (f"kmsg:{BOOT}:7", "collector", "loki", "xid/79")
    injected = of_agent_line(msgspec.structs.replace(line, trust="injected"), node="n1")
    assert injected is not None
    assert injected.trust == "injected"
    assert of_agent_line(line, node="n2") is None
    for other in ({"kind": "plain"}, {"code": None}, {"seq": None}, {"boot": "a b"}, {"trust": None}):
        assert of_agent_line(msgspec.structs.replace(line, **other), node="n1") is None
    for text in (b"NVRM: Xid (PCI:0000:4e:00): 79", '{"kind":"start","node":"n1","boot":"b"}', "\ud800"):
        assert decode_line(text) is None
    assert decode_line('{"schema":"rankfall.kernelline/1","kind":"start","node":1}') is None
