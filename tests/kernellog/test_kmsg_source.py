"""What gives records is opened without blocking, and says which boot they are of."""

from __future__ import annotations

import os
import socket
import threading

import pytest

from rankfall.kernellog.reader import open_device, open_socket, this_boot
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
