"""``ps`` and ``status``: read from the run directories, nothing is kept elsewhere."""

from __future__ import annotations

import sys
import time
from datetime import UTC, datetime
from typing import Annotated

import typer

from rankfall.cli import emit
from rankfall.cli.app import verb_app
from rankfall.cli.emit import Output
from rankfall.cli.target import one_run, read_home
from rankfall.model import FINAL_STATES, RunsDocument, RunSummary
from rankfall.report.tables import render_runs, render_status
from rankfall.store import list_runs

app = verb_app()
_SHOWN = 20


@app.command("ps")
def ps(
    *,
    everything: Annotated[bool, typer.Option("-a", "--all", help="All runs, also long ended ones.")] = False,
    output: Annotated[Output, typer.Option("-o", "--output", help="Format.")] = Output.TABLE,
) -> None:
    """List the runs of this machine, newest first.

    Without -a: those that are not over, and the newest 20 in all.
    """
    found = _summaries()
    shown = found if everything else [run for n, run in enumerate(found) if n < _SHOWN or run.state not in FINAL_STATES]
    if output is not Output.TABLE:
        sys.stdout.write(emit.document(RunsDocument(runs=tuple(shown)), output))
        return
    emit.out(render_runs(shown, now=datetime.now(UTC), color=emit.color_on()))
    if len(shown) < len(found):
        emit.say(f"{len(found) - len(shown)} more: rankfall ps -a")


@app.command("status")
def status(
    run: Annotated[str | None, typer.Argument(help="Run id or its beginning; the newest run by default.")] = None,
    *,
    output: Annotated[Output, typer.Option("-o", "--output", help="Format.")] = Output.TABLE,
) -> None:
    """Show a run: its state, its slots, its ranks."""
    with one_run(run).reader() as reader:
        document = reader.status(time.time_ns())
    if output is Output.TABLE:
        emit.out(render_status(document, now=datetime.now(UTC), color=emit.color_on()))
    else:
        sys.stdout.write(emit.document(document, output))


def _summaries() -> list[RunSummary]:
    found = []
    for run in list_runs(read_home()):
        with run.reader() as reader:
            found.append(reader.summary())
    return found
