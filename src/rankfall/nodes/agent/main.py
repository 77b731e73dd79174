"""Builds an agent and runs it until a signal; the publisher has a thread."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO, Final

import msgspec

from rankfall.kernellog import reader
from rankfall.kernellog.reader import Opened
from rankfall.kube.auth.access import Access
from rankfall.nodes.agent.agent_loop import Agent
from rankfall.nodes.agent.api import NodeApi
from rankfall.nodes.agent.probe import Probe
from rankfall.nodes.agent.publisher import Publisher
from rankfall.nodes.agent.state_file import StateFile

#: Seconds for the last write.
_LAST_S: Final = 5.0
_DEFECT: Final = 74


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of the operator.

    ``state`` is the state file's folder or None; ``socket`` replaces the ring; ``once`` ends after existing records.
    """

    node: str
    device: Path = reader.DEVICE
    socket: Path | None = None
    state: Path | None = None
    all_: bool = False
    injected: bool = False
    once: bool = False
    probe: tuple[str, int] | None = None

    def open(self) -> Opened:
        """Opens the ring.

        Raises:
            EvidenceLost: The ring cannot be read.
        """
        return reader.open_device(self.device) if self.socket is None else reader.open_socket(self.socket)


def run(settings: Settings, *, access: Access | None, out: BinaryIO, say: Callable[[str], None]) -> int:
    """Runs an agent until SIGTERM or SIGINT; returns the exit code.

    Without ``access`` the agent writes nothing to the Node.

    Raises:
        RankfallError: The agent cannot start.
    """
    state = StateFile(settings.state, say=say)
    publisher = None
    api = None
    if access is not None:
        api = NodeApi(access, node=settings.node)
        publisher = Publisher(api, node=settings.node, say=say, published=state.load().published)
    boot = reader.this_boot() if settings.socket is None else None
    with contextlib.ExitStack() as stack:
        probe = None
        if settings.probe is not None:
            healthy = publisher.turns if publisher is not None else lambda: True
            probe = stack.enter_context(Probe(settings.probe, healthy=healthy))
        agent = stack.enter_context(
            Agent(
                node=settings.node,
                open_=settings.open,
                out=out,
                state=state,
                shows=publisher,
                say=say,
                all_=settings.all_,
                injected=settings.injected,
                once=settings.once,
                boot=boot,
                probe=probe,
            )
        )
        failed: list[BaseException] = []

        def publish() -> None:
            if publisher is None or api is None:
                return
            try:
                with api:
                    publisher.run()
            except BaseException as error:  # noqa: BLE001 - a silently dead thread would leave the Node outdated
                failed.append(error)
                agent.stop()

        thread = threading.Thread(target=publish, name="publisher", daemon=True)
        before = {number: signal.signal(number, lambda *_: agent.stop()) for number in (signal.SIGTERM, signal.SIGINT)}
        wake = signal.set_wakeup_fd(agent.wakes, warn_on_full_buffer=False)
        try:
            thread.start()
            agent.run()
        finally:
            if publisher is not None:
                publisher.stop()
            thread.join(_LAST_S)
            signal.set_wakeup_fd(wake)
            for number, handler in before.items():
                signal.signal(number, handler)
    if failed:
        say(f"a defect of Rankfall itself: writing to the Node ended with {failed[0]!r}")
        return _DEFECT
    return 0
