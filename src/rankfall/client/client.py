"""Submits jobs and finds runs of one home folder."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rankfall.client.run import Run, supervise_here
from rankfall.client.submission import complete, create_run
from rankfall.model import JobSpec, LockHeld, NotFound, RunSummary, UsageError, Verdict
from rankfall.rundir import RunDir, list_runs
from rankfall.rundir import home as default_home
from rankfall.supervisor import spawn_detached

if TYPE_CHECKING:
    from rankfall.backends.files import Copied, Place


class Client:
    """Runs of one home.

    Args:
        home: Rankfall's home; by default ``$RANKFALL_HOME`` or the platform's data folder.

    Raises:
        StoreError: home cannot be made, or is laid out by another version.
    """

    def __init__(self, *, home: Path | None = None) -> None:
        self.home = home.absolute() if home is not None else default_home()

    async def submit(
        self, spec: JobSpec, *, detach: bool = True, request_token: str | None = None, replace: bool = False
    ) -> Run:
        """Start a job.

        Args:
            spec: the job. Without ``cwd`` and ``python`` this process's folder and Python are written into it, so that the run is
                the same whoever supervises it later.
            detach: supervise in a process of its own; false = in a thread of this process, and the run waits when it ends. An unattended job
                is launched and left, or recorded in that thread.
            request_token: names the request: a second call with it gives the same run.
            replace: end what an earlier request with this token, whose directory is not here, left running in a cluster.

        Raises:
            UsageError: the spec cannot work; nothing was created.
            StoreError: the home cannot be written.
        """
        return await asyncio.to_thread(self._submit, spec, detach, request_token, replace)

    async def plan(self, spec: JobSpec) -> dict[str, Any]:
        """What ``submit`` would start, as plain data with secrets masked; creates nothing.

        Raises:
            UsageError: the spec cannot work.
        """
        return await asyncio.to_thread(self._plan, complete(spec))

    async def runs(self) -> list[RunSummary]:
        """All runs, newest first."""
        return await asyncio.to_thread(self._runs)

    async def get(self, run: str) -> Run:
        """The run with this id, or the only one whose id begins so.

        Raises:
            NotFound: there is none.
            UsageError: several begin so.
        """
        return Run(await asyncio.to_thread(RunDir.open, self.home, run))

    async def why(
        self,
        target: str | Run | Path | Collection[Path],
        *,
        attempt: int | None = None,
        strategy: str | None = None,
    ) -> Verdict:
        """The verdict of a run, or of plain files and folders.

        Args:
            target: a run, its id, or paths. A text is a run's id first, a path second.
            attempt: of a run; the newest by default.
            strategy: how the root is chosen; the run's own by default.

        Raises:
            NotFound: there is no such run, attempt or file.
            SpecError: there is no such strategy.
        """
        return await asyncio.to_thread(self._why, target, attempt, strategy)

    async def copy_to_workspace(
        self, run: str | Run, sources: Path | Collection[Path], remote: str, *, exclude: Collection[str] = ()
    ) -> Copied | None:
        """Copy files and folders of this machine to a run's, as ``rankfall cp`` does; what is there already is not sent again.

        Args:
            run: a run or its id.
            sources: of this machine.
            remote: where the run's command sees them: relative to its code directory, or absolute on its volume. It becomes the copy's
                name; with several sources, or a slash at its end, they go into it.
            exclude: patterns of names or paths that are left out.

        Returns:
            What was done; None: the run has no volume, and nothing was.

        Raises:
            NotFound: there is no such run or source.
            UsageError: a path leads out, or a source cannot be copied; nothing was sent.
            InfrastructureError: the copy cannot be done; the same again goes on where it stopped.
        """
        from rankfall.backends.files import put  # noqa: PLC0415 - only what is really copied needs it

        place = await self._files(run)
        some = [sources] if isinstance(sources, Path) else list(sources)
        return None if place is None else await put(place, some, remote, exclude=tuple(exclude))

    async def copy_from_workspace(
        self, run: str | Run, remote: str, local: Path, *, exclude: Collection[str] = ()
    ) -> Copied | None:
        """Copy a file or folder of a run to ``local``, which becomes its name; an existing folder takes a single file.

        Arguments, answers and errors are those of :meth:`copy_to_workspace`.
        """
        from rankfall.backends.files import get  # noqa: PLC0415 - as above

        place = await self._files(run)
        return None if place is None else await get(place, remote, local, exclude=tuple(exclude))

    async def _files(self, run: str | Run) -> Place | None:
        from rankfall.backends.files import place_of  # noqa: PLC0415 - as above

        found = run if isinstance(run, Run) else await self.get(run)
        return await asyncio.to_thread(place_of, found.directory, say=lambda _: None)

    def _submit(self, spec: JobSpec, detach: bool, request_token: str | None, replace: bool) -> Run:  # noqa: FBT001 - private, by position from to_thread
        spec = complete(spec)
        self._plan(spec, elsewhere=detach)
        directory = create_run(spec, home=self.home, request_token=request_token, replace=replace)
        run = Run(directory)
        if run.outcome() is not None or directory.lease_holder() is not None:
            # An earlier request with the same token made it.
            return run
        if detach and spec.unattended:
            from rankfall.supervisor.unattended.driver import launch  # noqa: PLC0415 - a supervised run needs none of it

            launch(directory)
        elif detach:
            with contextlib.suppress(LockHeld):
                spawn_detached(directory)
        else:
            threading.Thread(target=supervise_here, args=(directory,), name=f"rankfall-{run.id}", daemon=True).start()
        return run

    def _plan(self, spec: JobSpec, *, elsewhere: bool = False) -> dict[str, Any]:
        from rankfall.backends.registry import first_plan  # noqa: PLC0415 - a client that only lists runs needs none

        return first_plan(spec, home=self.home, elsewhere=elsewhere).document()

    def _runs(self) -> list[RunSummary]:
        found = []
        for directory in list_runs(self.home):
            with directory.reader() as reader:
                found.append(reader.summary())
        return found

    def _why(self, target: str | Run | Path | Collection[Path], attempt: int | None, strategy: str | None) -> Verdict:
        from rankfall.explain import explain_files, explain_run  # noqa: PLC0415 - loads the signatures

        if isinstance(target, Run):
            return explain_run(target.directory, attempt=attempt, strategy=strategy).verdict
        if isinstance(target, str):
            try:
                return explain_run(RunDir.open(self.home, target), attempt=attempt, strategy=strategy).verdict
            except NotFound:
                if not os.path.lexists(target):
                    raise
                target = Path(target)
        paths = [target] if isinstance(target, Path) else list(target)
        if attempt is not None:
            raise UsageError("files have no attempts", hint="leave attempt out")
        return explain_files(paths, strategy=strategy).verdict
