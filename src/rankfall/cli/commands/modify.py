"""``suspend``, ``resume`` and ``resize``: change a live run."""

from __future__ import annotations

from typing import Final

import click

from rankfall.cli import console
from rankfall.cli.options import run_argument
from rankfall.cli.target import one_run
from rankfall.client import Run, SyncRun
from rankfall.client.resizing import How, Resized
from rankfall.model import FINAL_STATES, UsageError
from rankfall.rundir import RunDir


@click.command("suspend")
@run_argument
@click.option("--reason", default="", help="Text that is stored with the run.")
def suspend(*, run: str | None, reason: str) -> None:
    """Stop all processes of a run without ending the run; returns after the last one ended.

    Uses no budget; the total deadline pauses until `rankfall resume`.
    """
    directory = one_run(run)
    if not SyncRun(Run(directory)).suspend(reason):
        raise _over(directory, "suspend")
    console.out(f"{directory.id} suspended")
    console.say(f"rankfall: continue it with: rankfall resume {directory.id}")


@click.command("resume")
@run_argument
@click.option("--reason", default="", help="Text that is stored with the run.")
def resume(*, run: str | None, reason: str) -> None:
    """Continue a suspended run in a new attempt, in the background.

    Also restores a lost supervisor.
    """
    directory = one_run(run)
    found = SyncRun(Run(directory))
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
@click.option("--role", metavar="NAME", help="Role to resize; needed only if a job has several roles.")
@click.option("--wait", is_flag=True, help="Return when the run has this size.")
@click.option("--reason", default="", help="Text that is stored with the run.")
def resize(*, run: str, nodes: int, role: str | None, wait: bool, reason: str) -> None:
    """Give a run another number of nodes. Uses no budget; the total deadline continues.

    MIN:MAX jobs change in place if possible; others restart in a new attempt.
    """
    directory = one_run(run)
    answer = SyncRun(Run(directory)).resize(nodes, role=role, reason=reason, wait=wait)
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
        return f"{answer.role}: {answer.nodes} nodes, {_WORDS['nothing']}"
    if answer.holds:
        return f"{answer.role}: {answer.before} -> {answer.nodes} nodes, done"
    return f"{answer.role}: {answer.before} -> {answer.nodes} nodes, {_WORDS[answer.how]}"


def _why_not(answer: Resized) -> str:
    if answer.state == "suspended":
        return f"the run is suspended and gets its new size when it continues: rankfall resume {answer.run}"
    return "another size was requested since then"
