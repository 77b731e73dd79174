"""``suspend`` and ``resume``: stop a run without ending it, and let it go on, whoever supervises it."""

from __future__ import annotations

import click

from rankfall.cli import emit
from rankfall.cli.options import run_argument
from rankfall.cli.target import one_run
from rankfall.client import Run, SyncRun
from rankfall.model import FINAL_STATES, UsageError
from rankfall.store import RunDir


@click.command("suspend")
@run_argument
@click.option("--reason", default="", help="Kept with the run.")
def suspend(*, run: str | None, reason: str) -> None:
    """Stop everything of a run and keep it; returns when nothing of it runs any more.

    No budget is used, and the total deadline stands still until `rankfall resume`.
    """
    directory = one_run(run)
    if not SyncRun(Run(directory)).suspend(reason):
        raise _over(directory, "suspend")
    emit.out(f"{directory.id} suspended")
    emit.say(f"rankfall: go on with: rankfall resume {directory.id}")


@click.command("resume")
@run_argument
@click.option("--reason", default="", help="Kept with the run.")
def resume(*, run: str | None, reason: str) -> None:
    """Let a suspended run go on in a new attempt, in the background.

    A run that lost its supervisor gets one.
    """
    directory = one_run(run)
    found = SyncRun(Run(directory))
    if found.resume(reason):
        emit.out(f"{directory.id} resumed")
        emit.say(f"rankfall: watch it with: rankfall attach {directory.id}")
        return
    with directory.reader() as reader:
        state = reader.run().state
    if state in FINAL_STATES:
        raise _over(directory, "resume")
    emit.say(f"rankfall: {directory.id} is not suspended: {state}")


def _over(directory: RunDir, verb: str) -> UsageError:
    with directory.reader() as reader:
        state = reader.run().state
    return UsageError(
        f"{directory.id} is over ({state}): there is nothing to {verb}", hint="rankfall run starts it anew"
    )
