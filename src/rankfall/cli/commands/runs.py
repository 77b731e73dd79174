"""``ps`` and ``status``: show runs from their directories."""

from __future__ import annotations

import sys
import time
from datetime import UTC, datetime

import click

from rankfall.cli import console
from rankfall.cli.console import Output
from rankfall.cli.options import output_option, redact_option, target_argument
from rankfall.cli.run_output import secret_values
from rankfall.cli.target import Where, read_home, resolve_refreshed
from rankfall.model import FINAL_STATES, RunsDocument, RunSummary
from rankfall.render.escape import Redactor
from rankfall.render.tables import render_runs, render_status
from rankfall.rundir import list_runs

_MAX_LISTED = 20


@click.command("ps")
@click.option("-a", "--all", "everything", is_flag=True, help="All runs, also those that ended long ago.")
@output_option()
def ps(*, everything: bool, output: Output) -> None:
    """List this machine's runs, newest first.

    Without -a: live ones, newest 20.
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
@redact_option
@output_option()
def status(*, run: str | None, where: Where, redact: Redactor | None, output: Output) -> None:
    """Show a run: state, slots, ranks.

    KIND/NAME is a cluster job not started by Rankfall.
    """
    directory = resolve_refreshed(run, where=where)
    with directory.reader() as reader:
        document = reader.status(time.time_ns())
    if redact is not None:
        redact.learn(secret_values(directory))
        document = redact.of(document)
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
