"""A ring, an API server and an agent between them, in one process: for tests."""

from __future__ import annotations

import io
import os
import socket
from collections.abc import Callable
from pathlib import Path

from rankfall.kernellog.reader import Opened
from rankfall.model.node_health.kernel_reports import KernelEntry, KernelLine, decode_line
from rankfall.nodes.agent.agent_loop import Agent
from rankfall.nodes.agent.publisher import Standing
from rankfall.nodes.agent.state_file import StateFile

BOOT = "060af334-3f16-446a-8c45-845f66fefde6"
XID_79 = "NVRM: Xid (PCI:0000:4e:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
XID_94 = "NVRM: Xid (PCI:0000:0f:00): 94, pid=2503421, name=python3, Ch 00000008"


def record(seq: int, text: str = "harmless", *, facility: int = 0) -> bytes:
    return f"{facility * 8 + 3},{seq},{seq * 1_000_000},-;{text}\n".encode()


class Ring:
    """What the device is: an open begins at the oldest record that is left."""

    def __init__(self, boot: str = BOOT) -> None:
        self.boot = boot
        self.records: list[bytes] = []
        self.opened: list[socket.socket] = []

    def write(self, *records: bytes) -> None:
        self.records += records

    def open(self) -> Opened:
        here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        here.setblocking(False)
        for each in self.records:
            there.send(each)
        there.close()  # at its end: the agent of a test need not be told
        return Opened(here.detach(), self.boot)


class ReportPublisher:
    """Takes what an agent wants shown."""

    def __init__(self) -> None:
        self.published = -1
        self.offers: list[Standing] = []
        self.new: list[KernelEntry] = []
        self.forgotten = 0

    def forget(self) -> None:
        self.forgotten += 1

    def offer(self, standing: Standing, *, new: KernelEntry | None = None, urgent: bool = False) -> None:
        self.offers.append(standing)
        self.new += [] if new is None else [new]


class World:
    """One node and its disk; ``read`` is one life of an agent that reads what is there.

    Args:
        folder: of the state.
    """

    def __init__(self, folder: Path | None, ring: Ring | None = None) -> None:
        self.ring = ring or Ring()
        self.folder = folder
        self.said: list[str] = []
        self.shows = ReportPublisher()

    def agent(self, out: io.BytesIO, *, open_: Callable[[], Opened] | None = None, **more: object) -> Agent:
        given = {"once": True, "proc": Path(os.devnull)} | more
        return Agent(
            node="n1",
            open_=open_ or self.ring.open,
            out=out,
            state=StateFile(self.folder, say=self.said.append),
            shows=self.shows,
            say=self.said.append,
            **given,  # type: ignore[arg-type]
        )

    def read(self, **more: object) -> list[KernelLine]:
        out = io.BytesIO()
        with self.agent(out, **more) as agent:
            agent.run()
        return lines(out)


def lines(out: io.BytesIO) -> list[KernelLine]:
    found = [decode_line(each) for each in out.getvalue().splitlines()]
    assert None not in found
    return [each for each in found if each is not None]


def seqs(found: list[KernelLine], *kinds: str) -> list[int | None]:
    return [each.seq for each in found if each.kind in (kinds or ("record",))]
