"""``ps`` and ``status``: list runs and show one, read from the run directories."""

from __future__ import annotations

import sys
import time
from datetime import UTC, datetime

import click

from rankfall.cli import console
from rankfall.cli.console import Output
from rankfall.cli.options import output_option, target_argument
from rankfall.cli.target import Where, read_home, resolve_refreshed
from rankfall.model import FINAL_STATES, RunsDocument, RunSummary
from rankfall.render.tables import render_runs, render_status
from rankfall.rundir import list_runs

_MAX_LISTED = 20


@click.command("ps")
@click.option("-a", "--all", "everything", is_flag=True, help="All runs, also long ended ones.")
@output_option()
def ps(*, everything: bool, output: Output) -> None:
    """List the runs of this machine, newest first.

    Without -a: those that are not over, and the newest 20 in all.
    """
    found = _summaries()
    listed = (
        found
        if everything
        else [run for n, run in enumerate(found) if n < _MAX_LISTED or run.state not in FINAL_STATES]
    )
    if output is not Output.TABLE:
        sys.stdout.write(console.document(RunsDocument(runs=tuple(listed)), output))
        return
    console.out(render_runs(listed, now=datetime.now(UTC), color=console.color_on()))
    if len(listed) < len(found):
        console.say(f"{len(found) - len(listed)} more: rankfall ps -a")


@click.command("status")
@target_argument
@output_option()
def status(*, run: str | None, where: Where, output: Output) -> None:
    """Show a run: its state, its slots, its ranks.

    KIND/NAME is a job of a cluster that Rankfall did not start.
    """
    with resolve_refreshed(run, where=where).reader() as reader:
        document = reader.status(time.time_ns())
    if output is Output.TABLE:
        console.out(render_status(document, now=datetime.now(UTC), color=console.color_on()))
    else:
        sys.stdout.write(console.document(document, output))


def _summaries() -> list[RunSummary]:
    found = []
    for run in list_runs(read_home()):
        with run.reader() as reader:
            found.append(reader.summary())
    return found
