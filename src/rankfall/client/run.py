"""One run as its user sees it: status, lines, verdict, wait, and the requests cancel, suspend, resume, resize.

Where nobody supervises the run, ``cancel`` supervises it in this process until its end.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Collection, Iterator
from typing import Final, Literal

from rankfall.client import resizing
from rankfall.model import (
    FINAL_STATES,
    EvidenceLost,
    InfrastructureError,
    LockHeld,
    Outcome,
    RankfallError,
    RunState,
    StatusDocument,
    Verdict,
)
from rankfall.rundir import RunDir
from rankfall.rundir.lines import Line, LineQuery, LineTail, read_lines
from rankfall.supervisor import read_suspension, request_cancel, request_suspension, spawn_detached
from rankfall.supervisor.outcome import pending_cleanup
from rankfall.supervisor.requests import refuse_foreign

_POLL_S: Final = 0.1
_FOLLOW_S: Final = 0.05
# What a supervisor still does after the final state: the files made for reading.
_LINGER_S: Final = 5.0
# How long a run may be without a supervisor before a wait for it is given up: one may just be taking over from another.
_ALONE_S: Final = 5.0


class Run:
    """One run, live or ended.

    Attributes:
        id: as ``ps`` shows it.
        directory: its run directory.
    """

    def __init__(self, directory: RunDir) -> None:
        self.directory = directory
        self.id = directory.id

    def __repr__(self) -> str:
        return f"Run({self.id!r})"

    async def status(self) -> StatusDocument:
        """The run with its slots and ranks, as it stands now."""
        return await asyncio.to_thread(self._status)

    async def verdict(self, *, attempt: int | None = None, slot: int | None = None) -> Verdict | None:
        """The newest verdict; None while nothing has fallen.

        Args:
            attempt: of this one; of the newest that has one by default.
            slot: of the last time that this slot fell alone (``restart_scope: replica``), in whatever became of it.
        """
        return await asyncio.to_thread(self._verdict, attempt, slot)

    async def logs(
        self,
        *,
        follow: bool = False,
        ranks: Collection[int] | None = None,
        last: bool = False,
        failed: bool = False,
        slots: Collection[int] | None = None,
        attempt: int | Literal["all"] | None = None,
        streams: Literal["all", "out", "err"] = "all",
        since: int | None = None,
        tail: int | None = None,
        grep: str | None = None,
        level: Literal["error"] | None = None,
        instance: int | None = None,
        include_unranked: bool | None = None,
    ) -> AsyncIterator[Line]:
        """Lines of the run in the order of their stamps; fields and filters as :class:`rankfall.rundir.lines.LineQuery`.

        Args:
            follow: go on until the run has ended; each line comes once.
            ranks: global ranks; None = all.
            last: the last rank.
            failed: ranks that failed.
            slots: only these slots.
            attempt: its number, ``"all"``, or None for the newest.
            streams: both, only stdout, or only stderr.
            since: nanoseconds since the epoch.
            tail: only the last so many lines of what is there.
            grep: RE2 pattern.
            level: ``"error"``: only lines of errors.
            instance: only this start of a slot, from 0.
            include_unranked: lines of no rank too.

        Raises:
            UsageError: the filters make no sense.
        """
        query = LineQuery(
            ranks=frozenset(ranks) if ranks is not None else None,
            last=last,
            failed=failed,
            slots=frozenset(slots) if slots is not None else None,
            attempt=attempt,
            streams=streams,
            since=since,
            tail=tail,
            grep=grep,
            level=level,
            instance=instance,
            include_unranked=include_unranked,
        )
        if follow:
            async for line in self._follow(query):
                yield line
            return
        lines = await asyncio.to_thread(read_lines, self.directory, query)
        while batch := await asyncio.to_thread(_some, lines):
            for line in batch:
                yield line

    async def _follow(self, query: LineQuery) -> AsyncIterator[Line]:
        tail = await asyncio.to_thread(LineTail, self.directory, query)
        while True:
            # Asked before the lines are read: what was written before the end is then surely among them.
            over = await asyncio.to_thread(self._over)
            found = await asyncio.to_thread(tail.poll)
            for line in found:
                yield line
            if over and not found:
                break
            if not found:
                await asyncio.sleep(_FOLLOW_S)
        for line in await asyncio.to_thread(list, tail.drain()):
            yield line

    async def wait(self, *, timeout: float | None = None) -> Outcome:  # noqa: ASYNC109 - the deadline is of the wait alone
        """Wait for the end.

        Args:
            timeout: seconds; None = no limit.

        Raises:
            TimeoutError: the run had not ended by then; it goes on.
            EvidenceLost: nobody supervises the run, so it cannot come to its end by itself. An unattended one is recorded here then.
        """
        async with asyncio.timeout(timeout):
            found = await self._end()
        deadline = time.monotonic() + _LINGER_S
        while await asyncio.to_thread(self.directory.lease_holder) is not None:
            if time.monotonic() > deadline:
                break
            await asyncio.sleep(_FOLLOW_S)
        if pending_cleanup(self.directory) is not None:
            from rankfall.supervisor.supervise import finish  # noqa: PLC0415 - loads the signatures

            await asyncio.to_thread(finish, self.directory)
        return found

    async def _recorded(self) -> Outcome:
        """The end of a run that nobody has to hold: where nobody records it, this process does."""
        while True:
            found = await asyncio.to_thread(self.outcome)
            if found is not None:
                return found
            if await asyncio.to_thread(self.directory.lease_holder) is None:
                with contextlib.suppress(LockHeld):
                    return await _until_cancelled(self.directory)
            await asyncio.sleep(_POLL_S)

    async def _end(self) -> Outcome:
        if self.directory.spec.unattended:
            return await self._recorded()
        alone_since: float | None = None
        while True:
            found = await asyncio.to_thread(self.outcome)
            if found is not None:
                return found
            if await asyncio.to_thread(self.directory.lease_holder) is not None:
                alone_since = None
            elif alone_since is None:
                alone_since = time.monotonic()
            elif time.monotonic() - alone_since > _ALONE_S:
                raise EvidenceLost(
                    f"nobody supervises run {self.id}, so it cannot come to its end",
                    hint=f"rankfall attach {self.id}, or Run.resume()",
                )
            await asyncio.sleep(_POLL_S)

    async def cancel(self, reason: str = "") -> Outcome:
        """Ask for the end, and wait for it. Without a living supervisor this process stops the slots itself.

        A run that has ended already stays as it is.
        """
        refuse_foreign(self.directory, "cancel")
        if (ended := await asyncio.to_thread(self.outcome)) is not None:
            return ended
        if self.directory.spec.unattended:
            return await self._cancel_unattended(reason)
        await asyncio.to_thread(request_cancel, self.directory.path, reason=reason)
        while (found := await asyncio.to_thread(self.outcome)) is None:
            if await asyncio.to_thread(self.directory.lease_holder) is None:
                with contextlib.suppress(LockHeld):
                    return await asyncio.to_thread(supervise_here, self.directory)
            await asyncio.sleep(_FOLLOW_S)
        return found

    async def suspend(self, reason: str = "") -> bool:
        """Stop everything of the run, use no budget, and keep its record; returns when nothing of it runs.

        Returns:
            Whether the run is suspended now; false when it had ended before it could be.
        """
        refuse_foreign(self.directory, "suspend")
        if self.directory.spec.unattended:
            return await self._suspend_unattended(reason)
        if not await asyncio.to_thread(self._hold, "suspend", reason):
            return False
        while True:
            state = await asyncio.to_thread(self._state)
            if state == "suspended" or state in FINAL_STATES:
                return state == "suspended"
            await self._supervised()
            await asyncio.sleep(_FOLLOW_S)

    async def resume(self, reason: str = "") -> bool:
        """Let a suspended run go on in a new attempt, and give a run that nobody supervises a detached supervisor.

        Returns:
            Whether either was needed; false too when the run has ended.
        """
        refuse_foreign(self.directory, "resume")
        if await asyncio.to_thread(self.outcome) is not None:
            return False
        held = await asyncio.to_thread(self._held)
        if self.directory.spec.unattended:
            return held and await self._resume_unattended(reason)
        if held:
            await asyncio.to_thread(self._hold, "resume", reason)
        return await self._supervised() or held

    async def resize(
        self, nodes: int, *, role: str | None = None, reason: str = "", wait: bool = False
    ) -> resizing.Resized:
        """Give the run another number of nodes; a run that nobody supervises gets a detached supervisor, unless it is suspended.

        Args:
            nodes: wished.
            role: whose; needed only where the job has several roles.
            reason: kept with the run.
            wait: return when the run has this size. It is given up when the run ends or is suspended, or somebody wishes for another size.

        Raises:
            UsageError: the job cannot have this size; nothing was changed.
            InfrastructureError: the cluster, which would have to say so, does not answer.
        """
        refuse_foreign(self.directory, "resize")
        asked = await asyncio.to_thread(resizing.ask, self.directory, nodes=nodes, role=role, reason=reason)
        if asked.over or asked.how == "nothing":
            return asked
        if not await asyncio.to_thread(self._held):
            await self._supervised()
        return await resizing.holds(self.directory, asked) if wait else asked

    async def _cancel_unattended(self, reason: str) -> Outcome:
        from rankfall.supervisor.unattended import control as steering  # noqa: PLC0415 - loads the client of Kubernetes

        said: list[str] = []
        recorder = asyncio.create_task(self._recorded())
        try:
            answer = await asyncio.to_thread(steering.cancel, self.directory, reason=reason, say=said.append)
            if answer != "gone":
                raise InfrastructureError(
                    f"{self.id} was asked to end and is {answer}{f': {said[-1]}' if said else ''}",
                    hint="ask again: Run.cancel()",
                )
            return await recorder
        finally:
            recorder.cancel()

    async def _suspend_unattended(self, reason: str) -> bool:
        from rankfall.supervisor.unattended import control as steering  # noqa: PLC0415 - loads the client of Kubernetes

        if await asyncio.to_thread(self.outcome) is not None:
            return False
        recorder = asyncio.create_task(self._recorded())
        try:
            answer = await asyncio.to_thread(steering.suspend, self.directory, reason=reason)
            if answer in {"going", "unknown"}:
                raise InfrastructureError(
                    f"{self.id} was asked to stand still and is {answer}", hint="ask again: rankfall suspend"
                )
            while True:
                state = await asyncio.to_thread(self._state)
                if state == "suspended" or state in FINAL_STATES:
                    return state == "suspended"
                await asyncio.sleep(_FOLLOW_S)
        finally:
            recorder.cancel()
            with contextlib.suppress(asyncio.CancelledError, RankfallError):
                await recorder

    async def _resume_unattended(self, reason: str) -> bool:
        from rankfall.supervisor.unattended import control as steering  # noqa: PLC0415 - loads the client of Kubernetes

        return await asyncio.to_thread(steering.resume, self.directory, reason=reason)

    async def _supervised(self) -> bool:
        """Start a detached supervisor where there is none; whether one was started."""
        if await asyncio.to_thread(self.directory.lease_holder) is not None:
            return False
        try:
            await asyncio.to_thread(spawn_detached, self.directory)
        except LockHeld:
            return False
        return True

    def _held(self) -> bool:
        return read_suspension(self.directory.path, initially=self.directory.spec.suspend).suspended

    def _hold(self, what: Literal["suspend", "resume"], reason: str) -> bool:
        """Ask for it, once; whether the run has not ended."""
        if self.outcome() is not None:
            return False
        hold = read_suspension(self.directory.path, initially=self.directory.spec.suspend)
        # What somebody in the cluster began would end with them: it becomes this user's own.
        if hold.suspended != (what == "suspend") or (what == "suspend" and hold.outside):
            request_suspension(self.directory.path, what, reason=reason)
        return True

    def _state(self) -> RunState:
        with self.directory.reader() as reader:
            return reader.run().state

    def _status(self) -> StatusDocument:
        with self.directory.reader() as reader:
            return reader.status(time.time_ns())

    def _verdict(self, attempt: int | None, slot: int | None) -> Verdict | None:
        with self.directory.reader() as reader:
            found = reader.diagnosis(attempt) if slot is None else reader.slot_failure_of(slot, attempt)
        return found.verdict if found else None

    def _over(self) -> bool:
        return self._state() in FINAL_STATES

    def outcome(self) -> Outcome | None:
        """How the run ended; None while it has not. Reads files: call it from a thread where that matters."""
        from rankfall.supervisor.outcome import outcome_of  # noqa: PLC0415 - a client that only lists runs needs none

        with self.directory.reader() as reader:
            return outcome_of(self.directory, reader) if reader.run().state in FINAL_STATES else None


def supervise_here(directory: RunDir) -> Outcome:
    """Supervise a run in this thread to its end."""
    from rankfall.supervisor.supervise import supervise  # noqa: PLC0415 - loads the signatures

    return supervise(directory)


async def _until_cancelled(directory: RunDir) -> Outcome:
    """Record a run in a thread; who is cancelled lets go of it, and the run goes on."""
    from rankfall.supervisor.requests import Control  # noqa: PLC0415 - a client that only lists runs needs none
    from rankfall.supervisor.supervise import supervise  # noqa: PLC0415 - as above

    control = Control()
    work = asyncio.ensure_future(asyncio.to_thread(supervise, directory, control=control))
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        control.release()
        with contextlib.suppress(RankfallError):
            await work
        raise
    finally:
        if work.done():
            control.close()


def _some(lines: Iterator[Line], count: int = 500) -> list[Line]:
    found = []
    for line in lines:
        found.append(line)
        if len(found) >= count:
            break
    return found
