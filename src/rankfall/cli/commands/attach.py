"""``attach``, ``wait`` and ``cancel``: return to a run."""

from __future__ import annotations

import sys
import threading
import time
from typing import Final

import click

from rankfall.cli import console
from rankfall.cli.console import Output
from rankfall.cli.interrupts import Reading, goes_on
from rankfall.cli.options import output_option, rank_options, run_argument
from rankfall.cli.session import Session, Supervision, print_exit_origin
from rankfall.cli.target import one_run
from rankfall.cli.values import Ranks, parse_ranks, parse_span
from rankfall.cli.viewer import Viewer
from rankfall.model import FINAL_STATES, EvidenceLost, InfrastructureError, Outcome, UsageError
from rankfall.rundir import RunDir
from rankfall.supervisor import request_cancel
from rankfall.supervisor.outcome import outcome_of
from rankfall.supervisor.requests import refuse_foreign

_TICK_S: Final = 0.1
# Longest pause of a recording process, whose recorder wakes it; seconds.
_OWN_S: Final = 3600.0
# Longest time without supervisor in wait, above a hand-over's; seconds.
_ALONE_S: Final = 10.0
_TIMED_OUT: Final = 124
_CANCELLED: Final = 130


@click.command("attach")
@run_argument
@rank_options
@click.option(
    "--tail",
    type=click.IntRange(min=0),
    default=20,
    show_default=True,
    metavar="N",
    help="Begin with the last N lines.",
)
@click.option("-q", "--quiet", is_flag=True, help="Print only the outcome.")
def attach(
    *, run: str | None, rank: tuple[str, ...], everything: bool, max_bytes: int | None, tail: int, quiet: bool
) -> int:
    """Watch a run as if it was started here.

    If its supervisor died, this process supervises the run; the job keeps running meanwhile. Ctrl-C offers detach or
    cancel.
    """
    if everything and rank:
        raise UsageError("--all and --rank contradict each other", hint="give one of them")
    directory = one_run(run)
    refuse_foreign(directory, "attach")
    viewer = Viewer(
        directory,
        ranks=parse_ranks(rank),
        everything=everything,
        quiet=quiet,
        tail=tail,
        history=False,
        limit=max_bytes,
    )
    session = Session(directory, viewer, own=False, standby=True)
    return session.exit_code(session.stay())


@click.command("wait")
@run_argument
@click.option("--timeout", metavar="90s|10m", help="Give up after this time.")
@output_option("Format of the outcome.")
def wait(*, run: str | None, timeout: str | None, output: Output) -> int:
    """Wait for a run's end and exit with the code of `run`; 124 after the timeout."""
    limit = parse_span(timeout, flag="--timeout") if timeout else None
    directory = one_run(run)
    reading = Reading()
    outcome: Outcome | None = None
    with reading.until_signal():
        outcome = _wait(directory, limit=limit)
    if reading.code is not None:
        console.say(f"rankfall: {goes_on(directory)}")
        console.say(f"rankfall-exit: rankfall {reading.code}")
        return reading.code
    if outcome is None:
        console.say(f"rankfall: {directory.id} has not ended after {timeout}")
        console.say(f"rankfall-exit: rankfall {_TIMED_OUT}")
        return _TIMED_OUT
    _tell(outcome, output)
    return print_exit_origin(outcome)


@click.command("cancel")
@run_argument
@click.option("--reason", default="", help="Text that is stored with the run.")
@click.option("-y", "--yes", is_flag=True, help="Skip the confirmation.")
@output_option("Format of the outcome.")
def cancel(*, run: str | None, reason: str, yes: bool, output: Output) -> int:
    """Stop a run and all its processes; returns after the last one ended."""
    directory = one_run(run)
    refuse_foreign(directory, "cancel")
    if run is None and not yes:
        _ask(directory)
    with directory.reader() as reader:
        state = reader.run().state
    if state in FINAL_STATES:
        console.say(f"rankfall: {directory.id} has already ended: {state}")
        return 0
    if directory.spec.unattended:
        return _cancel_unattended(directory, reason, output)
    request_cancel(directory.path, reason=reason)
    viewer = Viewer(directory, ranks=Ranks(), quiet=True, history=False, show_outcome=False)
    outcome = Session(directory, viewer, own=False).stay()
    if outcome is None:
        return _CANCELLED
    _tell(outcome, output)
    return 0


def _cancel_unattended(directory: RunDir, reason: str, output: Output) -> int:
    """Cancels in the cluster, without supervisor; records the end if no process does."""
    from rankfall.supervisor.unattended import control  # noqa: PLC0415

    viewer = Viewer(directory, ranks=Ranks(), quiet=True, history=False, show_outcome=False)
    session = Session(directory, viewer, own=directory.lease_holder() is None)
    session.begin()
    said: list[str] = []
    answer = control.cancel(directory, reason=reason, say=said.append)
    if answer != "gone":
        what = "it still runs" if answer == "going" else "its state in the cluster cannot be read"
        raise InfrastructureError(
            f"{directory.id} was cancelled, but {what}{f': {said[-1]}' if said else ''}",
            hint=f"run it again: rankfall cancel {directory.id}",
        )
    outcome = session.stay()
    if outcome is None:
        return _CANCELLED
    _tell(outcome, output)
    return 0


def _wait_unattended(directory: RunDir, *, limit: float | None) -> Outcome | None:
    """Polls an unattended run, and records it if no process does; returns None after ``limit`` seconds."""
    begun = time.monotonic()
    own: Supervision | None = None
    try:
        while True:
            if own is not None and own.over:
                ended, own = own, None
                ended.result()
            if own is None:
                with directory.reader() as reader:
                    if reader.run().state in FINAL_STATES:
                        return outcome_of(directory, reader)
                if directory.lease_holder() is None:
                    own = Supervision(directory, unseen=True)
                    own.begin()
            if limit is not None and time.monotonic() - begun >= limit:
                return None
            if own is None:
                threading.Event().wait(_TICK_S)
            else:
                own.pause(_OWN_S if limit is None else min(_OWN_S, max(0.0, begun + limit - time.monotonic())))
    finally:
        if own is not None:
            own.control.release()
            own.result()


def _wait(directory: RunDir, *, limit: float | None) -> Outcome | None:
    if directory.spec.unattended:
        return _wait_unattended(directory, limit=limit)
    pause = threading.Event()
    begun = alone = time.monotonic()
    while True:
        with directory.reader() as reader:
            state = reader.run().state
            if state in FINAL_STATES:
                return outcome_of(directory, reader)
        now = time.monotonic()
        if directory.lease_holder() is not None:
            alone = now
        elif now - alone > _ALONE_S:
            raise EvidenceLost(
                f"{directory.id} (state {state}) has no supervisor: nothing will record its end",
                hint=f"run rankfall attach {directory.id} to supervise it",
            )
        if limit is not None and now - begun >= limit:
            return None
        pause.wait(_TICK_S)


def _tell(outcome: Outcome, output: Output) -> None:
    if output is Output.TABLE:
        console.out(f"{outcome.run} {outcome.state}")
    else:
        sys.stdout.write(console.document(outcome, output))


def _ask(directory: RunDir) -> None:
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise UsageError("cancel needs a run's id, or -y for the newest one", hint=f"rankfall cancel {directory.id}")
    sys.stderr.write(f"Cancel {directory.id}? [y/N] ")
    sys.stderr.flush()
    if sys.stdin.readline().strip().lower() not in {"y", "yes"}:
        raise click.Abort
