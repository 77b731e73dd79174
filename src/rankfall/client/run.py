"""One run for its user: status, lines, verdict, wait and requests."""

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
# Seconds for summary files.
_LINGER_S: Final = 5.0
# Seconds without a supervisor; another may take over.
_ALONE_S: Final = 5.0
# Texts for answers of an unattended job that did not end or stop.
_STATES: Final = {"going": "it still runs", "unknown": "its state in the cluster is unknown"}


class Run:
    """One run, live or ended.

    Attributes:
        id: Its id.
        directory: Its run directory; ``directory.path`` is the folder.
    """

    def __init__(self, directory: RunDir) -> None:
        self.directory = directory
        self.id = directory.id

    def __repr__(self) -> str:
        return f"Run({self.id!r})"

    async def status(self) -> StatusDocument:
        """Returns the current state of the run, its slots and ranks.

        Raises:
            StoreError: The run directory is missing or unreadable.
        """
        return await asyncio.to_thread(self._status)

    async def verdict(self, *, attempt: int | None = None, slot: int | None = None) -> Verdict | None:
        """Returns the newest verdict; None if nothing has failed.

        Args:
            attempt: Number; default the newest with a verdict.
            slot: Slot that failed alone (``restart_scope: replica``).

        Raises:
            StoreError: The run directory is missing or unreadable.
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
        """Yields lines in time order; see :class:`rankfall.rundir.lines.LineQuery`.

        Args:
            follow: Continue until the run ends; each line once.
            ranks: Global ranks; None for all.
            last: Only the last rank.
            failed: Only failed ranks.
            slots: Slot numbers; None for all.
            attempt: Number, ``"all"``, or None for the newest.
            streams: Both, stdout or stderr.
            since: Nanoseconds since the epoch.
            tail: Number of last existing lines.
            grep: RE2 pattern.
            level: ``"error"`` for error lines.
            instance: Start of the slot, from 0.
            include_unranked: Include lines without rank.

        Yields:
            Each line once.

        Raises:
            UsageError: Contradictory filters.
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
            # State first, so this poll has all earlier lines.
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

    async def wait(self, *, timeout: float | None = None) -> Outcome:  # noqa: ASYNC109 - limits the wait, not the run
        """Waits for the end of the run.

        Args:
            timeout: Seconds; None for no limit.

        Returns:
            The outcome, also of a failed run.

        Raises:
            TimeoutError: Not ended in time; the run continues.
            EvidenceLost: No supervisor; an unattended run is recorded here instead.
        """
        async with asyncio.timeout(timeout):
            found = await self._end()
        deadline = time.monotonic() + _LINGER_S
        while await asyncio.to_thread(self.directory.lease_holder) is not None:
            if time.monotonic() > deadline:
                break
            await asyncio.sleep(_FOLLOW_S)
        if pending_cleanup(self.directory) is not None:
            from rankfall.supervisor.supervise import finish  # noqa: PLC0415

            await asyncio.to_thread(finish, self.directory)
        return found

    async def _recorded(self) -> Outcome:
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
                    f"run {self.id} has no supervisor, so nothing can finish it",
                    hint=f"run rankfall attach {self.id}, or call Run.resume()",
                )
            await asyncio.sleep(_POLL_S)

    async def cancel(self, reason: str = "") -> Outcome:
        """Requests the end and waits; without a supervisor, stops the slots from here.

        Args:
            reason: Text stored with the run.

        Returns:
            The outcome; an ended run stays unchanged.

        Raises:
            UsageError: Rankfall did not start this job.
            InfrastructureError: The cluster did not confirm the end of an unattended job.
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
        """Stops all slots without using budget; waits until nothing runs.

        Args:
            reason: Text stored with the run.

        Returns:
            False if the run ended first.

        Raises:
            UsageError: Rankfall did not start this job.
            InfrastructureError: The cluster did not confirm the suspension of an unattended job.
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
        """Continues a suspended run in a new attempt; starts a detached supervisor if none runs.

        Args:
            reason: Text stored with the run.

        Returns:
            True if the run was suspended or had no supervisor.

        Raises:
            UsageError: Rankfall did not start this job.
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
        """Requests another number of nodes; starts a detached supervisor if none runs, unless suspended.

        Args:
            nodes: Requested number.
            role: Required only with several roles.
            reason: Text stored with the run.
            wait: Wait for the size, the end, suspension or another request.

        Returns:
            How the size changes, and whether the run has it.

        Raises:
            UsageError: Impossible size; nothing changed.
            InfrastructureError: The cluster does not answer.
        """
        refuse_foreign(self.directory, "resize")
        asked = await asyncio.to_thread(resizing.ask, self.directory, nodes=nodes, role=role, reason=reason)
        if asked.over or asked.how == "nothing":
            return asked
        if not await asyncio.to_thread(self._held):
            await self._supervised()
        return await resizing.holds(self.directory, asked) if wait else asked

    async def _cancel_unattended(self, reason: str) -> Outcome:
        from rankfall.supervisor.unattended import control as steering  # noqa: PLC0415

        messages: list[str] = []
        recorder = asyncio.create_task(self._recorded())
        try:
            answer = await asyncio.to_thread(steering.cancel, self.directory, reason=reason, say=messages.append)
            if answer != "gone":
                raise InfrastructureError(
                    f"{self.id} was cancelled, but {_STATES[answer]}{f': {messages[-1]}' if messages else ''}",
                    hint="call Run.cancel() again",
                )
            return await recorder
        finally:
            recorder.cancel()

    async def _suspend_unattended(self, reason: str) -> bool:
        from rankfall.supervisor.unattended import control as steering  # noqa: PLC0415

        if await asyncio.to_thread(self.outcome) is not None:
            return False
        recorder = asyncio.create_task(self._recorded())
        try:
            answer = await asyncio.to_thread(steering.suspend, self.directory, reason=reason)
            if answer in {"going", "unknown"}:
                raise InfrastructureError(
                    f"{self.id} was suspended, but {_STATES[answer]}", hint="run rankfall suspend again"
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
        from rankfall.supervisor.unattended import control as steering  # noqa: PLC0415

        return await asyncio.to_thread(steering.resume, self.directory, reason=reason)

    async def _supervised(self) -> bool:
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
        """Requests suspend or resume once; False if the run has ended."""
        if self.outcome() is not None:
            return False
        hold = read_suspension(self.directory.path, initially=self.directory.spec.suspend)
        # This makes an outside suspension the user's.
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
        """Returns the outcome, None before the end; reads files, so blocks the event loop.

        Raises:
            StoreError: The run directory is missing or unreadable.
        """
        from rankfall.supervisor.outcome import outcome_of  # noqa: PLC0415

        with self.directory.reader() as reader:
            return outcome_of(self.directory, reader) if reader.run().state in FINAL_STATES else None


def supervise_here(directory: RunDir) -> Outcome:
    """Supervises a run in this thread until its end."""
    from rankfall.supervisor.supervise import supervise  # noqa: PLC0415

    return supervise(directory)


async def _until_cancelled(directory: RunDir) -> Outcome:
    """Records a run in a thread; cancellation stops the recording, not the run."""
    from rankfall.supervisor.requests import Control  # noqa: PLC0415
    from rankfall.supervisor.supervise import supervise  # noqa: PLC0415

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
