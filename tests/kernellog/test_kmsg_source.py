"""What gives records is opened without blocking, and says which boot they are of."""

from __future__ import annotations

import os
import socket
import threading

import pytest

from rankfall.kernellog.reader import Ring, Unreadable, open_device, open_socket, this_boot
from rankfall.kernellog.record import MAX_RECORD, KmsgRecord
from rankfall.model import EvidenceLost
from support.patience import scaled

BOOT = "060af334-3f16-446a-8c45-845f66fefde6"


def test_a_device_is_opened_with_the_boot_of_this_kernel(tmp_path):
    (tmp_path / "kmsg").write_bytes(b"6,1,1,-;text\n")
    (tmp_path / "boot").write_text(BOOT + "\n")
    opened = open_device(tmp_path / "kmsg", boot_id=tmp_path / "boot")
    try:
        assert opened.boot == BOOT
        assert not os.get_blocking(opened.fd)
    finally:
        os.close(opened.fd)
    with pytest.raises(EvidenceLost, match="cannot read the kernel log") as caught:
        open_device(tmp_path / "no", boot_id=tmp_path / "boot")
    assert "CAP_SYSLOG" in (caught.value.hint or "")


def test_a_plain_file_gives_each_of_its_records(tmp_path):
    (tmp_path / "boot").write_text(BOOT + "\n")
    path = tmp_path / "kmsg"
    # Longer than one read, with a dictionary at the end of a record, a cut first line, and no newline at the end.
    lines = [b"6,%d,1,-;text %d %s\n" % (n, n, 40 * b"x") for n in range(1_000)]
    lines[500:500] = [b" SUBSYSTEM=pci\n DEVICE=+pci:0000:00:01.0\n"]
    path.write_bytes(b"ut\n" + b"".join(lines)[:-1])
    opened = open_device(path, boot_id=tmp_path / "boot")
    try:
        ring = Ring(opened.fd, boot=opened.boot)
        found = ring.take(2_000)
        assert ring.ended
    finally:
        os.close(opened.fd)
    assert found[0] == Unreadable(data=b"ut\n")
    assert [each.seq for each in found[1:] if isinstance(each, KmsgRecord)] == list(range(1_000))


def test_a_long_line_of_a_plain_file_is_bounded(tmp_path):
    path = tmp_path / "kmsg"
    path.write_bytes(b"6,1,1,-;text\n" + 100_000 * b"x" + b"\n6,2,1,-;text\n")
    with path.open("rb", buffering=0) as file:
        found = Ring(file.fileno(), boot=BOOT).take()
    assert [each.seq for each in found if isinstance(each, KmsgRecord)] == [1, 2]
    assert max(len(each.data) for each in found if isinstance(each, Unreadable)) <= MAX_RECORD


def test_what_holds_no_records_is_refused(tmp_path):
    (tmp_path / "boot").write_text(BOOT + "\n")
    path = tmp_path / "dmesg"
    path.write_text("[Mon Nov 30 03:12:41 2026] NVRM: Xid (PCI:0000:4e:00): 79, pid=1, name=x\n")
    with pytest.raises(EvidenceLost, match="no line has the form of /dev/kmsg") as caught:
        open_device(path, boot_id=tmp_path / "boot")
    assert f"rankfall why {path}" in (caught.value.hint or "")
    os.mkfifo(tmp_path / "pipe")
    for other in (tmp_path, tmp_path / "pipe"):
        with pytest.raises(EvidenceLost, match="neither a device nor a file"):
            open_device(other, boot_id=tmp_path / "boot")
    path.write_bytes(b"")
    os.close(open_device(path, boot_id=tmp_path / "boot").fd)


def test_a_boot_id_of_another_form_is_refused(tmp_path):
    (tmp_path / "boot").write_text("two words\n")
    with pytest.raises(EvidenceLost, match="no boot id"):
        this_boot(tmp_path / "boot")
    with pytest.raises(EvidenceLost, match="cannot read the boot id"):
        this_boot(tmp_path / "no")


def served(path, *messages: bytes) -> threading.Thread:
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listening.bind(str(path))
    listening.listen(1)

    def serve() -> None:
        with listening:
            connection, _ = listening.accept()
            with connection:
                for each in messages:
                    connection.send(each)

    thread = threading.Thread(target=serve)
    thread.start()
    return thread


def test_a_socket_says_its_boot_first(tmp_path):
    thread = served(tmp_path / "s", BOOT.encode(), b"6,1,1,-;text\n")
    opened = open_socket(tmp_path / "s")
    thread.join(scaled(10))
    try:
        assert opened.boot == BOOT
        assert os.read(opened.fd, 100) == b"6,1,1,-;text\n"
        assert not os.get_blocking(opened.fd)
    finally:
        os.close(opened.fd)


@pytest.mark.parametrize("messages", [(), (b"6,1,1,-;text\n",), (b"\xff",)])
def test_a_socket_that_says_no_boot_is_refused(tmp_path, messages):
    thread = served(tmp_path / "s", *messages)
    with pytest.raises(EvidenceLost, match="sent no boot id"):
        open_socket(tmp_path / "s")
    thread.join(scaled(10))


def test_a_socket_that_nobody_serves_is_said(tmp_path):
    with pytest.raises(EvidenceLost, match="cannot read records from the socket"):
        open_socket(tmp_path / "none")
