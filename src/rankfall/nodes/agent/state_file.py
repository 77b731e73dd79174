"""The agent's file on its node's disk: the cursor, and the report that goes with it. Replaced as a whole.

Both lie in one file, so a record is never counted twice and never skipped, wherever the agent is killed.
Nothing is forced to disk: a reboot begins a new ring, and the old file no longer counts.
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
    """How far an agent is.

    Attributes:
        cursor: the last record that was read and told.
        report: what the Node is to show.
        published: highest number of which an Event was sent.
        since: when the ring became readable or unreadable, nanoseconds since the epoch.
        readable: whether it is.
    """

    schema: Literal["rankfall.agentstate/1"] = "rankfall.agentstate/1"
    cursor: Cursor | None = None
    report: KernelReport | None = None
    published: Annotated[int, msgspec.Meta(ge=-1)] = msgspec.field(default=-1, name="told")
    since: Annotated[int, msgspec.Meta(ge=0)] = 0
    readable: bool = True


class StateFile:
    """The file.

    Args:
        folder: where it lies; None = nothing is kept: after a start everything that is in the ring is told again, with the same numbers.
        say: takes a sentence where it cannot be read or written.
    """

    def __init__(self, folder: Path | None, *, say: Callable[[str], None]) -> None:
        self._path = None if folder is None else folder / FILE
        self._say = say
        self._failing = False

    def load(self) -> AgentState:
        """What was kept; nothing where there is no file, or one that cannot be read."""
        if self._path is None:
            return AgentState()
        try:
            data = self._path.read_bytes()
            return decoding.decode(data[:_LARGEST], kind=AgentState)
        except FileNotFoundError:
            return AgentState()
        except (OSError, msgspec.DecodeError) as error:
            self._say(
                f"{self._path} cannot be read ({printable(str(error))}): the ring is told from its oldest record on"
            )
            return AgentState()

    def save(self, state: AgentState) -> None:
        """Replace what was kept. A disk that takes nothing stops nobody, and is said once."""
        if self._path is None:
            return
        new = self._path.with_suffix(".new")
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            with open(new, "wb", opener=_private) as file:
                file.write(msgspec.json.encode(state))
            os.replace(new, self._path)  # noqa: PTH105 - as the call of the system that it is
            self._failing = False
        except OSError as error:
            if not self._failing:
                self._say(f"{self._path} cannot be written ({error}): after a restart records will be told again")
            self._failing = True


def _private(path: str, flags: int) -> int:
    # As rankfall.rundir.lease, which brings more into the agent than it may weigh.
    return os.open(path, flags | os.O_CLOEXEC, 0o600)
