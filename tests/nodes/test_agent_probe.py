"""The liveness probe of an agent: answered by the loop that reads the ring, with a kernel that is silent and with one that never stops; held up by nobody."""

from __future__ import annotations

import http.client
import io
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from nodes.agent_world import BOOT, World, record
from rankfall.kernellog.reader import Opened
from rankfall.model import UsageError
from rankfall.nodes.agent.probe import MOST, Probe
from rankfall.nodes.agent.publisher import REFRESH_S, Publisher
from support.helpers import wait_until
from support.patience import scaled


def asked(port: int) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=scaled(20))
    try:
        connection.request("GET", "/healthz")
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


@contextmanager
def running(probe: Probe) -> Iterator[socket.socket]:
    """An agent that reads; the kernel's side of its ring."""
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    here.setblocking(False)
    agent = World(None).agent(io.BytesIO(), open_=lambda: Opened(here.detach(), BOOT), once=False, probe=probe)
    with agent, there:
        thread = threading.Thread(target=agent.run)
        thread.start()
        try:
            yield there
        finally:
            agent.stop()
            thread.join(scaled(30))
            assert not thread.is_alive()


def test_a_quiet_agent_answers_and_one_whose_writer_hangs_says_so():
    well = [True]
    with Probe(("127.0.0.1", 0), healthy=lambda: well[0]) as probe, running(probe):
        assert asked(probe.port) == (200, b"ok\n")
        well[0] = False
        assert asked(probe.port) == (503, b"not ok\n")


def test_an_agent_of_a_kernel_that_never_stops_answers():
    with Probe(("127.0.0.1", 0), healthy=lambda: True) as probe, running(probe) as kernel:
        done = threading.Event()

        def talk() -> None:
            number = 0
            while not done.is_set():
                kernel.send(record(number))
                number += 1

        talking = threading.Thread(target=talk)
        talking.start()
        try:
            assert [asked(probe.port)[0] for _ in range(3)] == [200] * 3
        finally:
            done.set()
            talking.join(scaled(30))


def test_who_connects_and_asks_nothing_holds_nobody_up():
    with Probe(("127.0.0.1", 0), healthy=lambda: True) as probe, running(probe):
        silent = [socket.create_connection(("127.0.0.1", probe.port), timeout=scaled(20)) for _ in range(MOST + 3)]
        try:
            assert asked(probe.port)[0] == 200
            # The oldest were closed for the newer ones.
            assert silent[0].recv(1) == b""
        finally:
            for each in silent:
                each.close()
        wait_until(lambda: not probe._open, timeout=20, what="the agent to see that they are gone")


def test_an_address_that_is_taken_is_refused():
    with Probe(("127.0.0.1", 0), healthy=lambda: True) as probe, pytest.raises(UsageError, match="cannot listen on"):  # fmt: skip
        Probe(("127.0.0.1", probe.port), healthy=lambda: True)


def test_a_writer_that_hangs_is_told_after_two_refreshes():
    now = [0.0]
    publisher = Publisher(None, node="n1", say=print, clock=lambda: now[0])  # type: ignore[arg-type]
    assert publisher.turns()
    now[0] = 2 * REFRESH_S
    assert not publisher.turns()
