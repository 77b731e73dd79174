"""``attach``, ``wait``, ``cancel``, ``suspend``, ``resume`` and ``resize``: return to a run."""

from __future__ import annotations

import sys
import threading
import time
from typing import TYPE_CHECKING, Final

import click

from rankfall.cli import console
from rankfall.cli.console import Output
from rankfall.cli.interrupts import Reading, goes_on
from rankfall.cli.options import confirm, output_option, rank_options, run_argument, runs_argument
from rankfall.cli.session import Session, Supervision, print_exit_origin
from rankfall.cli.target import one_run, read_home, several_runs
from rankfall.cli.values import Ranks, parse_ranks, parse_span
from rankfall.cli.viewer import Viewer
from rankfall.model import FINAL_STATES, EvidenceLost, InfrastructureError, Outcome, RankfallError, UsageError
from rankfall.model.exit_codes import CANCELLED
from rankfall.render.escape import one_line
from rankfall.render.formatting import count
from rankfall.rundir import RunDir, list_runs
from rankfall.rundir.incomplete import NEW_RUN_BYTES, PREFIX, disk_trouble, lost_of_run, sentences
from rankfall.rundir.removal import in_use
from rankfall.supervisor import request_cancel
from rankfall.supervisor.outcome import outcome_of
from rankfall.supervisor.requests import refuse_foreign

if TYPE_CHECKING:
    from rankfall.client import SyncRun
    from rankfall.client.resizing import How, Resized

_TICK_S: Final = 0.1
# Longest pause of a recording process, whose recorder wakes it; seconds.
_OWN_S: Final = 3600.0
# Longest time without supervisor in wait, above a hand-over's; seconds.
_ALONE_S: Final = 10.0
_TIMED_OUT: Final = 124
_MAX_NOTES: Final = 8
_TEXT: Final = 400


@click.command("attach")
@run_argument
@rank_options
@click.option(
    "--tail",
    type=click.IntRange(min=0),
    default=20,
    show_default=True,
    metavar="N",
)
@click.option("-q", "--quiet", is_flag=True)
def attach(
    *,
    run: str | None,
    rank: tuple[str, ...],
    everything: bool,
    max_bytes: int | None,
    live: bool | None,
    tail: int,
    quiet: bool,
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
    viewer.keep_area(live=live)
    session = Session(directory, viewer, own=False, standby=True)
    return session.exit_code(session.stay())


@click.command("wait")
@run_argument
@click.option("--timeout", metavar="90s|10m")
@output_option("Format of the outcome.")
def wait(*, run: str | None, timeout: str | None, output: Output) -> int:
    """Wait for a run's end and exit with the code of `run`; 124 after the timeout."""
    limit = parse_span(timeout, flag="--timeout") if timeout else None
    directory = one_run(run)
    with in_use(directory):
        return _until_end(directory, limit=limit, timeout=timeout, output=output)


def _until_end(directory: RunDir, *, limit: float | None, timeout: str | None, output: Output) -> int:
    reading = Reading()
    outcome: Outcome | None = None
    with reading.until_signal():
        outcome = _wait(directory, limit=limit)
    if reading.code is not None:
        console.say(f"rankfall: {goes_on(directory)}")
        console.say(f"rankfall-exit: rankfall {reading.code}")
        return reading.code
    if outcome is None:
        console.say(f"rankfall: {directory.id} has not ended{f' after {timeout}' if limit else ' yet'}")
        console.say(f"rankfall-exit: rankfall {_TIMED_OUT}")
        return _TIMED_OUT
    for text in sentences(lost_of_run(directory)):
        console.say(f"rankfall: {text}")
    _say_notes(directory)
    _tell(outcome, output)
    return print_exit_origin(outcome)


@click.command("cancel")
@runs_argument
@click.option("--all", "everything", is_flag=True)
@click.option("--reason", default="")
@click.option("-y", "--yes", is_flag=True)
@output_option("Format of the outcome.")
def cancel(*, runs: tuple[str, ...], everything: bool, reason: str, yes: bool, output: Output) -> int:
    """Stop runs and all their processes; returns after the last one ended.

    If one of several does not exist, none stops.
    """
    if everything and runs:
        raise UsageError("--all and RUN contradict each other", hint="give one of them")
    chosen = _live_runs() if everything else several_runs(runs)
    for directory in chosen:
        refuse_foreign(directory, "cancel")
    if not chosen:
        console.say("rankfall: no run to cancel")
    live = []
    for directory in chosen:
        with directory.reader() as reader:
            state = reader.run().state
        if state in FINAL_STATES:
            console.say(f"rankfall: {directory.id} has already ended: {state}")
            ended = _wait(directory, limit=None) if output is not Output.TABLE else None
            if ended is not None:
                _tell(ended, output)
        else:
            live.append(directory)
    if live and not runs and not yes:
        confirm(f"Cancel {', '.join(one.id for one in live)}?", hint=f"rankfall cancel {live[0].id}")
    for directory in live:
        if not directory.spec.unattended:
            request_cancel(directory.path, reason=reason)
    failed: RankfallError | None = None
    code = 0
    for directory in live:
        try:
            code = max(code, _cancel(directory, reason, output))
        except (InfrastructureError, EvidenceLost) as error:
            if failed is not None:
                console.say(f"rankfall: {error.in_one_line}")
            failed = failed or error
    if failed is not None:
        raise failed
    return code


def _live_runs() -> list[RunDir]:
    found = []
    for directory in list_runs(read_home()):
        with directory.reader() as reader:
            ended = reader.run().state in FINAL_STATES
        if not ended and directory.foreign is None:
            found.append(directory)
    return found


def _cancel(directory: RunDir, reason: str, output: Output) -> int:
    if directory.spec.unattended:
        return _cancel_unattended(directory, reason, output)
    viewer = Viewer(directory, ranks=Ranks(), quiet=True, history=False, show_outcome=False)
    outcome = Session(directory, viewer, own=False).stay()
    if outcome is None:
        return CANCELLED
    with directory.reader() as reader:
        stored = reader.run().state
    if stored not in FINAL_STATES:
        raise EvidenceLost(
            f"{directory.id} was cancelled and none of its processes runs, but its end could not be stored: "
            f"{disk_trouble(directory.path, least=NEW_RUN_BYTES) or f'{directory.db_path} takes nothing'}",
            hint=f"free space there, then store the end: rankfall cancel {directory.id}",
        )
    _say_notes(directory)
    _tell(outcome, output)
    return 0


def _say_notes(directory: RunDir) -> None:
    with directory.reader() as reader:
        for text in reader.run().incomplete[:_MAX_NOTES]:
            console.say(f"rankfall: {PREFIX}{one_line(text, width=_TEXT)}")


def _cancel_unattended(directory: RunDir, reason: str, output: Output) -> int:
    """Cancels in the cluster, without supervisor; records the end if no process does."""
    from rankfall.supervisor.unattended import control  # noqa: PLC0415

    viewer = Viewer(directory, ranks=Ranks(), quiet=True, history=False, show_outcome=False)
    session = Session(directory, viewer, own=directory.lease_holder() is None)
    session.begin()
    messages: list[str] = []
    answer = control.cancel(directory, reason=reason, say=messages.append)
    if answer != "gone":
        what = "it still runs" if answer == "going" else "its state in the cluster cannot be read"
        raise InfrastructureError(
            f"{directory.id} was cancelled, but {what}{f': {messages[-1]}' if messages else ''}",
            hint=f"run it again: rankfall cancel {directory.id}",
        )
    outcome = session.stay()
    if outcome is None:
        return CANCELLED
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


@click.command("suspend")
@run_argument
@click.option("--reason", default="")
def suspend(*, run: str | None, reason: str) -> None:
    """Stop all processes of a run without ending the run; returns after the last one ended.

    Uses no budget; the total deadline pauses until `rankfall resume`.
    """
    directory = one_run(run)
    if not _api(directory).suspend(reason):
        raise _over(directory, "suspend")
    console.out(f"{directory.id} suspended")
    console.say(f"rankfall: continue it with: rankfall resume {directory.id}")


@click.command("resume")
@run_argument
@click.option("--reason", default="")
def resume(*, run: str | None, reason: str) -> None:
    """Continue a suspended run in a new attempt, in the background.

    Also restores a lost supervisor.
    """
    directory = one_run(run)
    found = _api(directory)
    if found.resume(reason):
        console.out(f"{directory.id} resumed")
        console.say(f"rankfall: watch it with: rankfall attach {directory.id}")
        return
    with directory.reader() as reader:
        state = reader.run().state
    if state in FINAL_STATES:
        raise _over(directory, "resume")
    console.say(f"rankfall: {directory.id} is not suspended: {state}")


def _over(directory: RunDir, verb: str) -> UsageError:
    with directory.reader() as reader:
        state = reader.run().state
    return UsageError(
        f"{directory.id} has ended ({state}): there is nothing to {verb}",
        hint="start it as a new run with rankfall run",
    )


_WORDS: Final[dict[How, str]] = {
    "nothing": "unchanged",
    "in_place": "in place: the other slots continue",
    "new_attempt": "in a new attempt that starts now",
    "next_attempt": "from the next attempt",
}


@click.command("resize")
@click.argument("run", metavar="RUN")
@click.argument("nodes", metavar="N", type=click.IntRange(min=1))
@click.option("--role", metavar="NAME")
@click.option("--wait", is_flag=True)
@click.option("--reason", default="")
def resize(*, run: str, nodes: int, role: str | None, wait: bool, reason: str) -> None:
    """Give a run another number of nodes. Uses no budget; the total deadline continues.

    MIN:MAX jobs change in place if possible; others restart in a new attempt.
    """
    directory = one_run(run)
    answer = _api(directory).resize(nodes, role=role, reason=reason, wait=wait)
    if answer.over and not answer.holds:
        raise UsageError(
            f"{answer.run} has ended ({answer.state}): there is nothing to resize",
            hint="start it as a new run with rankfall run --nnodes",
        )
    console.out(f"{answer.run} {_line(answer)}")
    if wait and not answer.holds:
        console.say(f"rankfall: stopped waiting: {_why_not(answer)}")
    elif answer.how != "nothing":
        console.say(f"rankfall: check it with: rankfall status {answer.run}")


def _line(answer: Resized) -> str:
    if answer.how == "nothing":
        return f"{answer.role}: {count(answer.nodes, 'node')}, {_WORDS['nothing']}"
    if answer.holds:
        return f"{answer.role}: {answer.before} -> {count(answer.nodes, 'node')}, done"
    return f"{answer.role}: {answer.before} -> {count(answer.nodes, 'node')}, {_WORDS[answer.how]}"


def _why_not(answer: Resized) -> str:
    if answer.state == "suspended":
        return f"the run is suspended and gets its new size when it continues: rankfall resume {answer.run}"
    return "another size was requested since then"


def _api(directory: RunDir) -> SyncRun:
    from rankfall.client import Run, SyncRun  # noqa: PLC0415

    return SyncRun(Run(directory))
