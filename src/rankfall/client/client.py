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
from rankfall.model.verdict import render_notebooks_with
from rankfall.rundir import RunDir, list_runs
from rankfall.rundir import home as default_home
from rankfall.supervisor import spawn_detached

if TYPE_CHECKING:
    from rankfall.backends.files import Copied, Place


def _in_html(verdict: Verdict) -> str:
    from rankfall.render.report import render_fragment  # noqa: PLC0415 - only for a notebook

    return render_fragment(verdict)


render_notebooks_with(_in_html)


class Client:
    """Async client for one home folder.

    Args:
        home: Default ``$RANKFALL_HOME`` or the platform's data folder.

    Attributes:
        home: Absolute path of the home folder.

    Raises:
        StoreError: Not creatable, or another version's layout.
    """

    def __init__(self, *, home: str | Path | None = None) -> None:
        self.home = Path(home).expanduser().absolute() if home is not None else default_home()

    async def submit(
        self, spec: JobSpec, *, detach: bool = True, request_token: str | None = None, replace: bool = False
    ) -> Run:
        """Starts a job.

        Args:
            spec: Job spec; default ``cwd`` and ``python`` are this process's.
            detach: Supervise in a separate process, else in a thread here. Unattended jobs are only launched, or
                recorded in the thread.
            request_token: Request id; a repeated call returns the same run, another job with it is refused.
            replace: Remove cluster objects that an earlier call left without a run directory.

        Returns:
            The run, perhaps before its first slot starts.

        Raises:
            SpecError: A field is wrong, or fields contradict each other.
            UsageError: The spec cannot work; nothing was created.
            InfrastructureError: The cluster does not answer.
            StoreError: Home is not writable.
        """
        return await asyncio.to_thread(self._submit, spec, detach, request_token, replace)

    async def plan(self, spec: JobSpec) -> dict[str, Any]:
        """Returns the plan of ``submit`` as plain data, secrets masked; creates nothing.

        Args:
            spec: As for :meth:`Client.submit`.

        Raises:
            UsageError: The spec cannot work.
            InfrastructureError: The cluster does not answer.
        """
        return await asyncio.to_thread(self._plan, complete(spec))

    async def runs(self) -> list[RunSummary]:
        """Returns all runs, newest first.

        Raises:
            StoreError: The home folder is not readable.
        """
        return await asyncio.to_thread(self._runs)

    async def get(self, run: str) -> Run:
        """Returns a run.

        Args:
            run: Id or unique prefix.

        Raises:
            NotFound: No match.
            UsageError: Several matches.
        """
        return Run(await asyncio.to_thread(RunDir.open, self.home, run))

    async def why(
        self,
        target: str | Run | Path | Collection[Path],
        *,
        attempt: int | None = None,
        strategy: str | None = None,
    ) -> Verdict:
        """Returns the verdict of a run, or of files and folders.

        Args:
            target: Run, id or paths; text is first tried as id.
            attempt: Attempt number; default newest.
            strategy: Name; default the run's.

        Raises:
            NotFound: No such run, attempt or file.
            SpecError: No such strategy.
        """
        return await asyncio.to_thread(self._why, target, attempt, strategy)

    async def copy_to_workspace(
        self, run: str | Run, sources: Path | Collection[Path], remote: str, *, exclude: Collection[str] = ()
    ) -> Copied | None:
        """Copies local files and folders to a run, as ``rankfall cp``; skips existing files.

        Args:
            run: Run or id.
            sources: Local paths.
            remote: Relative to the code directory, or absolute on the volume: new name, or folder with several sources
                or a final slash.
            exclude: Patterns of names or paths.

        Returns:
            Summary; None if the run has no volume.

        Raises:
            NotFound: No such run or source.
            UsageError: Path outside or source unusable; nothing was sent.
            InfrastructureError: The copy failed; a repeated call resumes it.
        """
        from rankfall.backends.files import put  # noqa: PLC0415

        place = await self._files(run)
        some = [sources] if isinstance(sources, Path) else list(sources)
        return None if place is None else await put(place, some, remote, exclude=tuple(exclude))

    async def copy_from_workspace(
        self, run: str | Run, remote: str, local: Path, *, exclude: Collection[str] = ()
    ) -> Copied | None:
        """Copies a file or folder of a run to this machine; skips existing files.

        Args:
            run: Run or id.
            remote: Relative to the code directory, or absolute on the volume.
            local: New name, or an existing folder for a single file.
            exclude: Patterns of names or paths.

        Returns:
            Summary; None if the run has no volume.

        Raises:
            NotFound: No such run or file.
            UsageError: Path outside or target unusable.
            InfrastructureError: The copy failed; a repeated call resumes it.
        """
        from rankfall.backends.files import get  # noqa: PLC0415

        place = await self._files(run)
        return None if place is None else await get(place, remote, local, exclude=tuple(exclude))

    async def _files(self, run: str | Run) -> Place | None:
        from rankfall.backends.files import place_of  # noqa: PLC0415

        found = run if isinstance(run, Run) else await self.get(run)
        return await asyncio.to_thread(place_of, found.directory, say=lambda _: None)

    def _submit(self, spec: JobSpec, detach: bool, request_token: str | None, replace: bool) -> Run:  # noqa: FBT001 - private, by position from to_thread
        spec = complete(spec)
        self._plan(spec, elsewhere=detach)
        directory = create_run(spec, home=self.home, request_token=request_token, replace=replace)
        run = Run(directory)
        if run.outcome() is not None or directory.lease_holder() is not None:
            return run
        if detach and spec.unattended:
            from rankfall.supervisor.unattended.driver import launch  # noqa: PLC0415

            launch(directory)
        elif detach:
            with contextlib.suppress(LockHeld):
                spawn_detached(directory)
        else:
            threading.Thread(target=supervise_here, args=(directory,), name=f"rankfall-{run.id}", daemon=True).start()
        return run

    def _plan(self, spec: JobSpec, *, elsewhere: bool = False) -> dict[str, Any]:
        from rankfall.backends.registry import first_plan  # noqa: PLC0415

        return first_plan(spec, home=self.home, elsewhere=elsewhere).document()

    def _runs(self) -> list[RunSummary]:
        found = []
        for directory in list_runs(self.home):
            with directory.reader() as reader:
                found.append(reader.summary())
        return found

    def _why(self, target: str | Run | Path | Collection[Path], attempt: int | None, strategy: str | None) -> Verdict:
        from rankfall.explain import explain_files, explain_run  # noqa: PLC0415

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
