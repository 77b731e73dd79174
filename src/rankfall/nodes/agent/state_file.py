"""The agent's state on its node's disk: cursor and matching report, replaced as a whole.

Nothing is forced to disk, because a reboot begins a new ring.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Final, Literal

import msgspec

from rankfall.kernellog.reader import Cursor
from rankfall.model import decoding
from rankfall.model.node_health.kernel_reports import KernelReport
from rankfall.model.node_health.records import printable

FILE: Final = "agent.json"
_LARGEST: Final = 1 << 20


class AgentState(msgspec.Struct, frozen=True, kw_only=True):
    """Progress of an agent.

    Attributes:
        cursor: Last record that was reported.
        report: Report for the Node.
        published: Highest record number with a sent Event.
        since: Last change of ``readable``, nanoseconds since the epoch.
        readable: True if the ring is readable.
    """

    schema: Literal["rankfall.agentstate/1"] = "rankfall.agentstate/1"
    cursor: Cursor | None = None
    report: KernelReport | None = None
    published: Annotated[int, msgspec.Meta(ge=-1)] = msgspec.field(default=-1, name="told")
    since: Annotated[int, msgspec.Meta(ge=0)] = 0
    readable: bool = True


class StateFile:
    """The state file. Without a folder the whole ring is reported again after a start."""

    def __init__(self, folder: Path | None, *, say: Callable[[str], None]) -> None:
        self._path = None if folder is None else folder / FILE
        self._say = say
        self._failing = False

    def load(self) -> AgentState:
        """Returns the stored state; empty if unreadable."""
        if self._path is None:
            return AgentState()
        try:
            data = self._path.read_bytes()
            return decoding.decode(data[:_LARGEST], kind=AgentState)
        except FileNotFoundError:
            return AgentState()
        except (OSError, msgspec.DecodeError) as error:
            self._say(
                f"{self._path} cannot be read ({printable(str(error))}): all records of the kernel ring are reported again"
            )
            return AgentState()

    def save(self, state: AgentState) -> None:
        """Replaces the stored state; a failure is reported once."""
        if self._path is None:
            return
        new = self._path.with_suffix(".new")
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            with open(new, "wb", opener=_private) as file:
                file.write(msgspec.json.encode(state))
            os.replace(new, self._path)  # noqa: PTH105 - named as the system call
            self._failing = False
        except OSError as error:
            if not self._failing:
                self._say(f"{self._path} cannot be written ({error}): after a restart, records will be reported again")
            self._failing = True


def _private(path: str, flags: int) -> int:
    # ``rankfall.rundir.lease`` would load too much.
    return os.open(path, flags | os.O_CLOEXEC, 0o600)
