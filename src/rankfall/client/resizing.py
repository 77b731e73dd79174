"""Requests another number of nodes for a run and waits until it is applied."""

from __future__ import annotations

import asyncio
import time
from typing import Final, Literal

import msgspec

from rankfall.model import FINAL_STATES, RunState, StatusDocument
from rankfall.model.jobspec.sizes import check_size, sized
from rankfall.rundir import RunDir
from rankfall.rundir.requests import planned_sizes, read_resizes, requested_sizes
from rankfall.supervisor import request_resize

_POLL_S: Final = 0.1
_BEGUN: Final = frozenset({"running", "ended", "lost"})
# Elastic slots join and leave while others run.
_IN_PLACE: Final = frozenset({"local", "job"})

How = Literal["nothing", "in_place", "new_attempt", "next_attempt"]


class Resized(msgspec.Struct, frozen=True, kw_only=True):
    """Answer to a resize request.

    Attributes:
        role: Resized role.
        nodes: Requested number.
        before: Nodes of the newest attempt, or of the first if none started.
        how: ``nothing`` to change; ``in_place``: slots join or leave; ``new_attempt``; ``next_attempt``, as none runs
            now.
        state: State of the run.
        holds: True if the run has this size.
    """

    run: str
    role: str
    nodes: int
    before: int
    how: How
    state: RunState
    holds: bool = False

    @property
    def over(self) -> bool:
        """True if the run has ended."""
        return self.state in FINAL_STATES


def ask(directory: RunDir, *, nodes: int, role: str | None, reason: str) -> Resized:
    """Writes a resize request unless it is impossible, pending or fulfilled.

    Raises:
        UsageError: The job cannot have this size.
        InfrastructureError: The cluster does not answer.
        StoreError: Writing failed.
    """
    spec = directory.spec
    name = check_size(spec, nodes=nodes, role=role)
    with directory.reader() as reader:
        state = reader.run().state
        newest = next(iter(reversed(reader.attempts())), None)
    before = planned_sizes(newest.plan if newest else {}, spec)[name]
    answer = Resized(run=directory.id, role=name, nodes=nodes, before=before, how="nothing", state=state)
    if answer.over:
        return answer
    requested = requested_sizes(directory.path, spec)
    if requested[name] == nodes:
        # The same request may be pending.
        how = "nothing" if before == nodes else _how(directory, running=newest is not None and newest.ended is None)
        return msgspec.structs.replace(answer, how=how, holds=before == nodes)
    _try_plan(directory, requested | {name: nodes}, attempt=(newest.attempt if newest else 0) + 1)
    request_resize(directory, role=name, nodes=nodes, reason=reason)
    if before == nodes:
        return msgspec.structs.replace(answer, holds=True)
    return msgspec.structs.replace(answer, how=_how(directory, running=newest is not None and newest.ended is None))


async def holds(directory: RunDir, asked: Resized) -> Resized:
    """Waits for the size, another resize request, suspension or the end; see ``state`` and ``holds``."""
    while True:
        status = await asyncio.to_thread(_status, directory)
        found = msgspec.structs.replace(asked, state=status.state, holds=_has(status, asked))
        newest = (await asyncio.to_thread(read_resizes, directory.path)).get(asked.role)
        other = newest is not None and newest.nodes != asked.nodes
        if found.holds or found.over or other or status.state == "suspended":
            return found
        await asyncio.sleep(_POLL_S)


def _has(status: StatusDocument, asked: Resized) -> bool:
    slots = [slot for slot in status.slots if slot.role == asked.role]
    running = sum(slot.state == "running" for slot in slots)
    begun = sum(slot.state in _BEGUN for slot in slots)
    return status.sizes.get(asked.role) == asked.nodes and running <= asked.nodes <= begun


def _how(directory: RunDir, *, running: bool) -> How:
    if not running:
        return "next_attempt"
    spec = directory.spec
    return "in_place" if spec.elastic and spec.backend in _IN_PLACE else "new_attempt"


def _try_plan(directory: RunDir, sizes: dict[str, int], *, attempt: int) -> None:
    """Plans the next attempt with these sizes, to raise its errors before the request is written."""
    from rankfall.backends.registry import backend_for  # noqa: PLC0415

    spec = directory.spec
    if spec.elastic:
        return
    wanted = sized(spec, sizes)
    backend = backend_for(wanted)
    try:
        backend.plan(wanted, directory, attempt)
    finally:
        backend.release()


def _status(directory: RunDir) -> StatusDocument:
    with directory.reader() as reader:
        return reader.status(time.time_ns())
