"""Records of the kernel's log: read whole or not at all, told from what a process wrote, and each one taken once."""

from __future__ import annotations

import errno
import os
import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankfall.kernellog.reader import Cursor, Gap, Ring, Unreadable
from rankfall.kernellog.record import MAX_RECORD, KmsgRecord, parse_record, unescape

XID = b"NVRM: Xid (PCI:0000:4e:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
BOOT = "060af334-3f16-446a-8c45-845f66fefde6"


def escape(text: bytes) -> bytes:
    """As the kernel does: printable ASCII but the backslash stays."""
    return b"".join(bytes((c,)) if 32 <= c < 127 and c != 92 else b"\\x%02x" % c for c in text)


def test_a_record_of_the_kernels_own_documentation():
    data = b"6,339,5140900,-;NET: Registered protocol family 10\n"
    record = parse_record(data)
    assert record == KmsgRecord(
        facility=0, level=6, seq=339, stamp_us=5140900, flags="-", text=b"NET: Registered protocol family 10"
    )


def test_a_dictionary_and_further_fields_of_the_head():
    data = b"30,340,5690716,-,caller=T12;udevd[80]: starting; version 181\n SUBSYSTEM=pci\n DEVICE=+pci:0000:00:01.0\n"
    record = parse_record(data)
    assert record is not None
    assert (record.facility, record.level, record.text) == (3, 6, b"udevd[80]: starting; version 181")
    assert b"SUBSYSTEM" not in record.text


@pytest.mark.parametrize(
    ("priority", "ours"), [(0, True), (7, True), (8, False), (12, False), (14, False), (1023, False)]
)
def test_only_facility_0_is_the_kernel(priority, ours):
    record = parse_record(b"%d,1,2,-;%s\n" % (priority, XID))
    assert record is not None
    assert record.by_kernel is ours


@given(
    st.tuples(st.integers(0, 4095), st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1)), st.binary(max_size=300),
    st.dictionaries(st.text("ABCDEF_", min_size=1, max_size=9), st.binary(max_size=30), max_size=4),
    st.sampled_from(["", ",caller=T1", ",caller=C0,more=1"]),
)  # fmt: skip
def test_what_the_kernel_writes_comes_back_byte_for_byte(numbers, text, pairs, more):
    priority, seq, stamp = numbers
    lines = b"".join(b" %s=%s\n" % (key.encode(), escape(value)) for key, value in pairs.items())
    record = parse_record(b"%d,%d,%d,-%s;%s\n%s" % (priority, seq, stamp, more.encode(), escape(text), lines))
    assert record is not None
    assert (record.facility * 8 + record.level, record.seq, record.stamp_us) == (priority, seq, stamp)
    assert unescape(record.text) == text
    assert b"\n" not in record.text


@given(st.binary(max_size=400) | st.from_regex(rb"[0-9,;c+\-\\x\n =A]{0,80}", fullmatch=True))
def test_no_bytes_are_read_half(data):
    record = parse_record(data)
    if record is not None:
        head = data.partition(b";")[0].split(b",")
        assert (record.seq, record.stamp_us) == (int(head[1]), int(head[2]))
        assert record.text == data.partition(b";")[2].partition(b"\n")[0]


@pytest.mark.parametrize(
    "data",
    [
        b"", b"\n", b";", b"6,1,2,-", b"6,1;text\n", b"6;text\n", b"-6,1,2,-;text\n", b" 6,1,2,-;text\n", b"6,1,2,-\n;text\n",
        b"6,18446744073709551616,2,-;text\n", b"6," + b"9" * 5000 + b",2,-;text\n", b"6,1,2,-;" + b"x" * MAX_RECORD,
        "\u0666,1,2,-;text\n".encode(),
    ],
)  # fmt: skip
def test_what_is_no_record_is_refused(data):
    assert parse_record(data) is None


class Source:
    """A descriptor that gives a record a read, as the device does; numbers stand for errors."""

    def __init__(self, *steps: bytes | int) -> None:
        self.steps = list(steps)

    def __call__(self, fd: int, size: int) -> bytes:
        step = self.steps.pop(0) if self.steps else errno.EAGAIN
        if isinstance(step, int):
            raise OSError(step, os.strerror(step))
        return step


def record(seq: int, text: bytes = b"harmless") -> bytes:
    return b"6,%d,%d,-;%s\n" % (seq, seq * 1000, text)


def taken(ring: Ring) -> list[int | tuple[int, int] | bytes]:
    found: list[int | tuple[int, int] | bytes] = []
    while entries := ring.take(2):
        for each in entries:
            if isinstance(each, Gap):
                found.append((each.first, each.last))
            else:
                found.append(each.data if isinstance(each, Unreadable) else each.seq)
    return found


def test_health_s39_an_overrun_is_a_counted_gap_and_the_later_xid_is_seen():
    ring = Ring(
        0,
        boot=BOOT,
        read=Source(record(5), record(6), errno.EPIPE, errno.EPIPE, record(90, XID), errno.EAGAIN, record(91)),
    )
    first = ring.take()
    assert [each.seq for each in first if isinstance(each, KmsgRecord)] == [5, 6, 90]
    assert first[2] == Gap(boot=BOOT, first=7, last=89)
    assert isinstance(first[3], KmsgRecord)
    assert first[3].text == XID
    assert (ring.lost, ring.overruns, ring.repeated) == (83, 2, 0)
    assert taken(ring) == [91]
    assert ring.cursor == Cursor(BOOT, 91)


def test_a_reader_that_starts_again_repeats_nothing_and_says_what_it_missed():
    again = Ring(0, boot=BOOT, after=Cursor(BOOT, 6), read=Source(*(record(n) for n in (4, 5, 6, 7, 8))))
    assert taken(again) == [7, 8]
    assert again.repeated == 3
    late = Ring(0, boot=BOOT, after=Cursor(BOOT, 6), read=Source(record(20)))
    assert taken(late) == [(7, 19), 20]


def test_a_new_boot_begins_at_0_and_the_first_start_misses_nothing():
    ring = Ring(0, boot=BOOT, after=Cursor("other", 700), read=Source(record(3)))
    assert taken(ring) == [(0, 2), 3]
    assert ring.cursor == Cursor(BOOT, 3)
    assert taken(Ring(0, boot=BOOT, read=Source(record(30)))) == [30]


def test_what_is_no_record_is_given_as_it_came_and_moves_nothing():
    ring = Ring(0, boot=BOOT, read=Source(record(1), b"nonsense", record(2)))
    assert taken(ring) == [1, b"nonsense", 2]
    assert ring.lost == 0


def test_another_error_is_for_the_owner_and_the_cursor_stays():
    ring = Ring(0, boot=BOOT, read=Source(record(1), record(2), errno.EIO))
    with pytest.raises(OSError, match="Input/output"):
        ring.take()
    assert ring.cursor == Cursor(BOOT, 2)


@given(st.lists(st.tuples(st.integers(1, 12), st.integers(0, 12), st.integers(0, 12)), min_size=1, max_size=8))
def test_any_ring_every_record_is_taken_once_or_lies_in_a_gap(starts):
    """A ring that overwrites, and readers that are killed and start again from their cursor.

    Each start: how many records were written since the one before, how many are left of all, and where the kernel tells of an overrun.
    """
    cursor = Cursor("before", 0)
    accounted: list[int] = []
    oldest = written = 0
    for more, kept, overrun in starts:
        written += more
        oldest = max(oldest, written - 1 - kept)
        steps: list[bytes | int] = [record(n) for n in range(oldest, written)]
        steps.insert(overrun, errno.EPIPE)
        ring = Ring(0, boot=BOOT, after=cursor, read=Source(*steps))
        for each in taken(ring):
            assert not isinstance(each, bytes)
            accounted += range(each[0], each[1] + 1) if isinstance(each, tuple) else [each]
        assert ring.cursor is not None
        cursor = ring.cursor
    assert accounted == list(range(written))


def test_a_long_ring_that_was_seen_already_hides_nothing_that_is_new():
    ring = Ring(0, boot=BOOT, after=Cursor(BOOT, 4_999), read=Source(*(record(n) for n in range(5_002))))
    assert [each.seq for each in ring.take(2) if isinstance(each, KmsgRecord)] == [5_000, 5_001]


def test_a_ring_that_always_overruns_gives_its_owner_a_turn():
    assert Ring(0, boot=BOOT, read=Source(*[errno.EPIPE] * 10_000)).take() == []


def test_a_socket_that_gives_a_record_a_message_is_read_as_the_device():
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with here, there:
        here.setblocking(False)
        ring = Ring(here.fileno(), boot=BOOT)
        assert ring.take() == []
        for number in range(3):
            there.send(record(number))
        assert taken(ring) == [0, 1, 2]
        there.close()
        assert ring.take() == []
        assert ring.ended


@pytest.mark.root
def test_the_ring_of_this_machine_is_read_without_a_gap_and_not_again():
    fd = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        ring = Ring(fd, boot=BOOT)
        entries = ring.take(200_000)
    finally:
        os.close(fd)
    records = [each for each in entries if isinstance(each, KmsgRecord)]
    assert not [each for each in entries if isinstance(each, Unreadable)]
    assert ring.overruns or not ring.lost
    assert [each.seq for each in records] == sorted({each.seq for each in records})
    fd = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        again = Ring(fd, boot=BOOT, after=ring.cursor).take(200_000)
    finally:
        os.close(fd)
    old = {each.seq for each in records}
    assert not [each for each in again if isinstance(each, KmsgRecord) and each.seq in old]
