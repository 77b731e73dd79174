"""What lines of the kernel mean: every form that drivers print, and nothing that only looks like one."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodes.lines import HARMLESS, LINES
from rankfall.kernellog.record import KmsgRecord
from rankfall.model.node_health.records import NodeFault
from rankfall.nodes.rules.fault_rules import packaged
from rankfall.nodes.rules.faults import of_condition, of_line, of_record
from rankfall.nodes.rules.kernel_lines import Recogniser

pytestmark = pytest.mark.steady

XID_79 = LINES[0][0]
SECOND = 1_000_000_000


def codes(*lines: str, prefixed: bool = False) -> list[str]:
    reader = Recogniser(prefixed=prefixed)
    told = [reader.read(line.encode(), at=n * SECOND) for n, line in enumerate(lines)]
    return [each.code for each in told if each is not None]


@pytest.mark.parametrize(("line", "code", "device", "slug"), LINES)
def test_a_line_is_what_its_driver_means(line, code, device, slug):
    told = Recogniser().read(line.encode())
    assert told is not None
    assert (told.code, told.device, told.slug) == (code, device, slug)
    assert packaged().find(code) is not None


@pytest.mark.parametrize("line", HARMLESS)
def test_other_lines_are_no_fault(line):
    assert codes(line) == []


@given(st.lists(st.sampled_from([*(line for line, *_ in LINES), *HARMLESS, "", "x", "x\n" + LINES[0][0]]), max_size=12))
def test_lines_that_one_look_passes_over_would_have_said_nothing(lines):
    texts = [each.encode() for each in lines]
    whole, quick = Recogniser(), Recogniser()
    told = [whole.read(text) for text in texts]
    worth = quick.worth(texts)
    assert [quick.read(text) if n in worth else quick.skip() for n, text in enumerate(texts)] == told


def test_most_of_what_a_kernel_says_is_passed_over():
    texts = [b"cni0: port 1(veth9a15e765) entered forwarding state", LINES[0][0].encode(), b"eth0: renamed from veth1"]
    assert Recogniser().worth(texts) == {1}
    assert Recogniser().worth([]) == set()


def test_what_dmesg_puts_before_a_line_is_left_out_only_where_dmesg_printed_it():
    for prefix in ("[1235733.431527] ", "[   12.000001] ", "<3>[  538.007373][ T1234] "):
        assert codes(prefix + XID_79, prefixed=True) == ["xid/79"]
        assert codes(prefix + XID_79) == []


def test_health_s11_application_xids_name_process_and_device():
    told = Recogniser().read(LINES[5][0].encode())
    assert told is not None
    assert (told.pid, told.process, told.device) == (3737626, "xid_trigger", "gpu 000b:00:00")
    assert [packaged().action(f"xid/{number}") for number in (13, 31, 43, 45)] == ["suspect", "suspect", "none", "none"]
    blamed = Recogniser().read(b"NVRM: Xid (PCI:0000:61:00): 45, pid=1, name=x, Ch 0000000a, caused by previous Xid 94")
    assert blamed is not None
    assert blamed.detail == "previous xid 94"


@pytest.mark.parametrize(
    ("text", "instance", "number"),
    [
        (
            "NVRM: Xid (PCI:0000:01:00 GPU-I:05): 94, pid=7194, Contained: CE User Channel (0x9). RST: No, D-RST: No",
            "GPU-I:05",
            94,
        ),
        ("NVRM: Xid (PCI:0000:01:00 GPU-I:01 GPU-CI:00): 95, pid=7062, Uncontained", "GPU-I:01 GPU-CI:00", 95),
    ],
)
def test_health_s36_forms_with_mig_instances(text, instance, number):
    told = Recogniser().read(text.encode())
    assert told is not None
    assert (told.code, told.device, told.instance) == (f"xid/{number}", "gpu 0000:01:00", instance)


def test_health_s37_a_lost_gpu_without_number_is_one_event_in_every_form():
    head, middle, tail = (
        "NVRM: The NVIDIA GPU 0000:18:00.0",
        "NVRM: (PCI ID: 10de:2330) installed in this system has",
        "NVRM: fallen off the bus and is not responding to commands.",
    )
    other = "cni0: port 1(veth9a15e765) entered forwarding state"
    assert codes(head, other, middle, other, other, tail) == ["xid/79"]
    reader = Recogniser()
    told = [
        reader.read(line.encode(), at=n)
        for n, line in enumerate(
            (
                head,
                middle,
                tail,
                "NVRM: GPU 0000:18:00.0: GPU has fallen off the bus.",
                "NVRM: Xid (PCI:0000:18:00): 79, GPU has fallen off the bus.",
            )
        )
    ]
    assert [each.device for each in told if each is not None] == ["gpu 0000:18:00"]
    # Between two GPUs whose records are mixed nothing is guessed.
    reader = Recogniser()
    told = [
        reader.read(line.encode(), at=n)
        for n, line in enumerate((head, head.replace("18", "2a"), middle, middle, tail))
    ]
    assert [(each.code, each.device) for each in told if each is not None] == [("xid/79", None)]
    assert codes(head, middle, "NVRM: is not supported by this driver") == []


def test_health_s38_further_lines_of_an_sxid_are_no_event():
    first = "nvidia-nvswitch3: SXid (PCI:0000:05:00.0): 12028, Non-fatal, Link 32 egress non-posted PRIV error (First)"
    more = [
        first.partition("Non-fatal")[0] + rest
        for rest in ("Severity 0 Engine instance 32", "Data {0x1, 0x2}", "Data {0x3}")
    ]
    assert codes(first, *more) == ["sxid/12028/nonfatal"]
    assert packaged().action("sxid/12028/nonfatal") == "watch"


def test_health_s28_the_line_says_how_grave_an_nvlink5_error_is():
    fatal = Recogniser().read(LINES[15][0].encode())
    assert fatal is not None
    assert fatal.detail == "link 1, sub-code 33"
    assert (packaged().action("xid/149/fatal"), packaged().action("xid/145/nonfatal")) == ("quarantine", "watch")


@pytest.mark.parametrize(
    "text",
    ["NVRM: Xid (PCI:0000:4e:00) 79, text", "NVRM: Xid : 79", "NVRM: Xid (PCI:0000:4e:00): 7979797, x", "NVRM: Xid ("],
)
def test_an_xid_line_of_another_form_is_shown_and_has_no_rule(text):
    assert codes(text) == ["xid/unreadable"]
    assert packaged().find("xid/unreadable") is None


@pytest.mark.parametrize(
    ("line", "code"), [(line, code) for line, code, _, _ in LINES if packaged().action(code) != "none"]
)
def test_a_name_that_a_user_chose_makes_no_other_line(line, code):
    """The kernel prints names of processes (15 bytes) at the start of a line, and longer names of users behind its own words."""
    name = line[:15]
    for text in (
        f"{name}[4711]: segfault at 0 ip 00007f3a sp 00007ffd error 4 in libc.so.6[7f3a+1000]",
        f"{name} invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj=0",
        f"usb 1-1: Product: {line}",
        f"EXT4-fs warning (device sda1): ext4_rename:3921: {line}",
        f"Memory cgroup out of memory: Killed process 1 ({name}) total-vm:1kB",
        f"x\\x0a{line}",
    ):
        assert code not in codes(text)


@given(
    st.binary(max_size=300)
    | st.builds(
        lambda line, cut, rest: line.encode()[:cut] + rest,
        st.sampled_from([each[0] for each in LINES]),
        st.integers(0, 120),
        st.binary(max_size=40),
    )
)
def test_no_bytes_break_the_reader_or_give_another_number(data):
    told = Recogniser(prefixed=True).read(data)
    if told is not None and told.code.startswith("xid/") and told.code[4:].isdigit():
        assert b"allen off the bus" in data or f": {told.code[4:]}".encode() in data.replace(b": 0", b": ")


def record(text: str, *, seq: int = 7, facility: int = 0) -> KmsgRecord:
    return KmsgRecord(facility=facility, level=3, seq=seq, stamp_us=seq * 1_000_000, flags="-", text=text.encode())


def fault(entry: KmsgRecord, reader: Recogniser) -> NodeFault | None:
    return of_record(entry, node="n1", boot="b-1", boot_at=100, reader=reader)


def test_a_record_becomes_a_fault_with_boot_number_and_stamp():
    found = fault(record(XID_79), Recogniser())
    assert found is not None
    assert (found.id, found.node, found.trust, found.boot, found.seq) == ("kmsg:b-1:7", "n1", "kernel", "b-1", 7)
    assert (found.at, found.uncertainty, found.code, found.text) == (100 + 7 * SECOND, 1.0, "xid/79", XID_79)
    assert msgspec.json.decode(msgspec.json.encode(found), type=NodeFault) == found
    assert fault(record("harmless"), Recogniser()) is None


def test_what_a_process_wrote_is_told_from_the_kernel_and_hides_none_of_its_lines():
    reader = Recogniser()
    forged = fault(record(XID_79, facility=1), reader)
    assert forged is not None
    assert forged.trust == "injected"
    assert fault(record("NVRM: The NVIDIA GPU 0000:aa:00.0", facility=1), reader) is None
    real = fault(record(XID_79, seq=8), reader)
    assert real is not None
    assert real.trust == "kernel"
    tail = fault(record("NVRM: fallen off the bus and is not responding to commands.", seq=9), reader)
    assert tail is not None
    assert tail.device is None


def test_a_collected_line_is_known_by_what_its_collector_says():
    def read(identity: str, text: str = "[538441.007373] " + XID_79) -> NodeFault | None:
        return of_line(
            text.encode(),
            node="n1",
            source="loki",
            trust="pod_text",
            reader=Recogniser(prefixed=True),
            identity=identity,
            at=None,
        )

    one, other = read("stream:1"), read("stream:2")
    assert one is not None
    assert other is not None
    assert one.id != other.id
    assert (one.code, one.trust, one.seq, one.at) == ("xid/79", "pod_text", None, None)
    assert read("stream:3", "nothing") is None
    hostile = read("stream:4", XID_79 + "\x1b[31m\x00")
    assert hostile is not None
    assert hostile.text.isprintable()


def test_conditions_of_others_count_when_they_are_bad():
    found = of_condition(node="n1", type_="KernelDeadlock", status="True", since=5, message="stuck\n")
    assert found is not None
    assert (found.id, found.code, found.trust, found.text) == (
        "condition:KernelDeadlock:5",
        "condition/KernelDeadlock",
        "condition",
        "stuck\\n",
    )
    good = of_condition(node="n1", type_="KernelDeadlock", status="False", since=6, message="")
    assert good is not None
    assert (good.id, good.code) == ("condition:KernelDeadlock/good:6", "condition/KernelDeadlock/good")
    rule = packaged().find(good.code)
    assert rule is not None
    assert (rule.action, rule.recovers, rule.release) == ("none", "condition/KernelDeadlock", False)
    assert of_condition(node="n1", type_="KernelDeadlock", status="Unknown", since=5, message="") is None
    assert of_condition(node="n1", type_="Ready", status="False", since=5, message="") is None
    ready = of_condition(node="n1", type_="AcceleratedHardwareReady", status="False", since=5, message="")
    assert ready is not None
