"""``resize``: another number of nodes for a run that has begun, whoever supervises it."""

from __future__ import annotations

from typing import Final

import click

from rankfall.cli import emit
from rankfall.cli.target import one_run
from rankfall.client import Run, SyncRun
from rankfall.client.resizing import How, Resized
from rankfall.model import UsageError

_WORDS: Final[dict[How, str]] = {
    "nothing": "as it is",
    "in_place": "in place: the others run on",
    "new_attempt": "in a new attempt that begins now",
    "next_attempt": "from the next attempt on",
}


@click.command("resize")
@click.argument("run", metavar="RUN")
@click.argument("nodes", metavar="N", type=click.IntRange(min=1))
@click.option("--role", metavar="NAME", help="Whose nodes; needed only where a job has several roles.")
@click.option("--wait", is_flag=True, help="Return when the run has this size.")
@click.option("--reason", default="", help="Kept with the run.")
def resize(*, run: str, nodes: int, role: str | None, wait: bool, reason: str) -> None:
    """Give a run another number of nodes. No budget is used, and the total deadline goes on.

    A job of MIN:MAX nodes changes in place where its backend can; any other is stopped as for `rankfall suspend`
    and goes on at once in a new attempt.
    """
    directory = one_run(run)
    answer = SyncRun(Run(directory)).resize(nodes, role=role, reason=reason, wait=wait)
    if answer.over and not answer.holds:
        raise UsageError(
            f"{answer.run} is over ({answer.state}): there is nothing to resize",
            hint="rankfall run starts it anew, with --nnodes as you like",
        )
    emit.out(f"{answer.run} {_line(answer)}")
    if wait and not answer.holds:
        emit.say(f"rankfall: not waited for any longer: {_why_not(answer)}")
    elif answer.how != "nothing":
        emit.say(f"rankfall: look at it with: rankfall status {answer.run}")


def _line(answer: Resized) -> str:
    if answer.how == "nothing":
        return f"{answer.role}: {answer.nodes} nodes, {_WORDS['nothing']}"
    if answer.holds:
        return f"{answer.role}: {answer.before} -> {answer.nodes} nodes, done"
    return f"{answer.role}: {answer.before} -> {answer.nodes} nodes, {_WORDS[answer.how]}"


def _why_not(answer: Resized) -> str:
    if answer.state == "suspended":
        return f"the run is suspended and takes its new size when it goes on: rankfall resume {answer.run}"
    return "somebody wished for another size since"
