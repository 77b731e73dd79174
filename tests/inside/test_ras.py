"""NCCL's RAS service asked by a real wrapper; a thread of a rank is the service."""

from __future__ import annotations

import socket
import sys
import threading

import pytest

from support import ras
from support.helpers import wait_until
from support.patience import scaled

from .conftest import channel

REPORT = ras.report(
    size=2,
    errors="MISMATCH",
    body=ras.behind(
        "a1", many="", few="  Rank 1 has launched up to operation 4 -- GPU 1 managed by process PID on node 10.0.0.1"
    ),
)


def begin(slot, body, port, *, host="localhost"):
    text = f"{ras.SERVER}\nREPORT = {REPORT!r}\n{body}\nwhile True:\n    time.sleep(1)\n"
    return slot.start(
        sys.executable,
        slot.script(text),
        RANK="0",
        LOCAL_RANK="0",
        WORLD_SIZE="2",
        NCCL_RAS_ADDR=f"{host}:{port}",
    )


def listens(port):
    def tried():
        with socket.socket() as link:
            return link.connect_ex(("127.0.0.1", port)) == 0

    wait_until(tried, timeout=20, what="the service")


def asked(slot):
    """The stacks of the only rank, which come last."""
    slot.control("stacks")
    wait_until(lambda: slot.records("stacks"), timeout=20, what="a stacks record")
    return slot.records("ras")


def ends(slot, process):
    slot.control("stop 5 done")
    assert process.wait(scaled(20)) == 143


def test_i32_p7_the_report_is_recorded_twice_before_the_stacks(slot) -> None:
    port = ras.free_port()
    process = begin(slot, "ras(REPORT)", port)
    listens(port)
    found = asked(slot)
    assert [record.ras.splitlines()[0] for record in found] == ["Communicators... (0.00s)"] * 2
    assert "Rank 1 has launched up to operation 4" in found[0].ras
    assert "Job summary" not in found[0].ras
    assert (found[0].slot, found[0].attempt, found[0].writer) == (1, 2, "wrapper")
    stacks = slot.one("stacks")
    assert all(record.mono_ns < stacks.mono_ns for record in found)
    ends(slot, process)


@pytest.mark.parametrize("how", ["mute", "garbage", "stops"])
def test_i32_p7_a_service_that_gives_no_report_costs_only_the_report(slot, how) -> None:
    port = ras.free_port()
    process = begin(slot, f"ras(REPORT, how={how!r})", port)
    listens(port)
    assert asked(slot) == []
    assert "Kernel view:" in slot.one("stacks").stacks
    ends(slot, process)


def test_i32_p7_a_flood_is_cut(slot) -> None:
    port = ras.free_port()
    process = begin(slot, "ras(REPORT, how='floods')", port)
    listens(port)
    found = asked(slot)
    assert len(found) == 2
    assert all(len(record.ras) == 6 * 1024 for record in found)
    ends(slot, process)


def test_i32_p7_a_stop_does_not_wait_for_a_silent_service(slot) -> None:
    port = ras.free_port()
    process = begin(slot, "ras(REPORT, how='mute')", port)
    listens(port)
    slot.control("stacks")
    slot.control("stop 5 done")
    assert process.wait(scaled(20)) == 143
    # It ended while the conversation was open: else the stacks, which wait for it, would be there.
    assert slot.records("stacks") == []
    assert slot.one("slot_end").exit.ours


def test_i32_p7_the_service_of_another_job_on_this_machine_is_not_believed(slot) -> None:
    words: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            link, _ = server.accept()
            with link:
                for answer in (b"SERVER PROTOCOL 2\n", b"OK\n", REPORT.encode()):
                    words.append(link.recv(1000))
                    link.sendall(answer) if words[-1] else None

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        process = begin(slot, "pass", server.getsockname()[1])
        wait_until(lambda: slot.records("start"), timeout=20, what="the rank")
        assert asked(slot) == []
        thread.join(scaled(20))
    assert words[:2] == [b"CLIENT PROTOCOL 2\n", b"TIMEOUT 1\n"]
    assert words[2:] == [b""]
    ends(slot, process)


def test_i32_p7_only_this_machine_is_asked_whatever_the_address(slot) -> None:
    # An address for documentation, which no network has.
    port = ras.free_port()
    process = begin(slot, "ras(REPORT)", port, host="192.0.2.1")
    listens(port)
    assert len(asked(slot)) == 2
    ends(slot, process)


def test_i32_p7_in_a_pod_the_report_leaves_by_the_log(pod) -> None:
    port = ras.free_port()
    process = begin(pod, "ras(REPORT)", port)
    listens(port)
    found = asked(pod)
    assert len(found) == 2
    ends(pod, process)
    out = process.stdout.read()
    assert [record.ras for record in channel(out) if record.kind == "ras"] == [record.ras for record in found]
