"""``ps``, ``status``, ``rm`` and ``prune``: show and delete run directories."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import click

from rankfall.cli import console
from rankfall.cli.console import Output
from rankfall.cli.options import confirm, output_option, redact_option, runs_argument, target_argument
from rankfall.cli.run_output import secret_values
from rankfall.cli.target import Where, as_it_is, read_home, resolve_refreshed, several_runs
from rankfall.cli.values import parse_size, parse_span
from rankfall.model import (
    FINAL_STATES,
    RankfallError,
    RunsDocument,
    RunSummary,
    StatusDocument,
    StoreError,
    UsageError,
)
from rankfall.model.run_status import is_unwatched
from rankfall.render.escape import Redactor
from rankfall.render.formatting import Paint, count, size
from rankfall.render.tables import render_runs, render_status
from rankfall.rundir import RunDir, list_runs
from rankfall.rundir.removal import Ended, Kept, Rules, chosen, ended, remove, remove_remains, size_of

_MAX_LISTED = 20
_WATCH_S = 1.0
# For requests to a cluster.
_CLUSTER_S = 5.0
# Reading and drawing the state may cost one part in 60 of the time.
_SHARE = 60


@click.command("ps")
@click.option("-a", "--all", "everything", is_flag=True, help="All runs, also those that ended long ago.")
@output_option()
def ps(*, everything: bool, output: Output) -> None:
    """List this machine's runs, newest first.

    Without -a: live ones, newest 20.
    """
    found = _summaries()
    listed = found if everything else [run for n, run in enumerate(found) if n < _MAX_LISTED or _lives(run)]
    if output is not Output.TABLE:
        sys.stdout.write(console.document(RunsDocument(runs=tuple(listed)), output))
        return
    console.out(render_runs(listed, now=datetime.now(UTC), color=console.color_on()))
    if len(listed) < len(found):
        console.say(f"{len(found) - len(listed)} more: rankfall ps -a")


def _lives(run: RunSummary) -> bool:
    return run.state not in FINAL_STATES and not is_unwatched(run)


@click.command("status")
@target_argument
@click.option("-w", "--watch", is_flag=True, help="Follow to the end.")
@redact_option
@output_option()
def status(*, run: str | None, where: Where, watch: bool, redact: Redactor | None, output: Output) -> None:
    """Show a run: state, slots, ranks.

    KIND/NAME is a cluster job not started by Rankfall.
    """
    directory = resolve_refreshed(run, where=where)
    printed = None
    screen = watch and output is Output.TABLE and sys.stdout.isatty()
    before = time.thread_time()
    while True:
        with directory.reader() as reader:
            document = reader.status(time.time_ns())
        if redact is not None:
            redact.learn(secret_values(directory))
            document = redact.of(document)
        state = (document.state, document.attempts, [(one.state, one.slot) for one in document.slots], [
            (one.rank, one.state, one.exit) for one in document.ranks
        ])  # fmt: skip
        if screen:
            _redraw(document)
        elif state != printed:
            _show(document, output, again=printed is not None)
        printed = state
        if not watch or document.state in FINAL_STATES:
            return
        sys.stdout.flush()
        pause = _CLUSTER_S if directory.spec.unattended else _WATCH_S
        time.sleep(max(pause, min(_CLUSTER_S, _SHARE * (time.thread_time() - before))))
        before = time.thread_time()
        as_it_is(directory)


def _redraw(document: StatusDocument) -> None:
    """Overwrites the screen without flicker; no line wraps. The last state appears whole."""
    from rankfall.render.live import screen  # noqa: PLC0415

    shape = shutil.get_terminal_size()
    paint = Paint(color=console.color_on())
    if document.state in FINAL_STATES:
        console.out("\x1b[H\x1b[J" + render_status(document, now=datetime.now(UTC), color=paint.color))
        return
    text = screen(document, now=datetime.now(UTC), columns=shape.columns, rows=shape.lines - 1, paint=paint)
    console.out("\x1b[H\x1b[?7l" + text.replace("\n", "\x1b[K\n") + "\x1b[K\x1b[?7h\x1b[J")


def _show(document: StatusDocument, output: Output, *, again: bool) -> None:
    if output is not Output.TABLE:
        sys.stdout.write(console.document(document, output))
        return
    text = render_status(document, now=datetime.now(UTC), color=console.color_on())
    console.out(f"\n{text}" if again else text)


def _summaries() -> list[RunSummary]:
    found = []
    for run in list_runs(read_home()):
        with run.reader() as reader:
            found.append(reader.summary())
    return found


@click.command("rm")
@runs_argument
@click.option("-y", "--yes", is_flag=True, help="Skip the confirmation.")
def rm(*, runs: tuple[str, ...], yes: bool) -> None:
    """Delete ended runs: output, records, verdicts; nothing in a cluster.

    If one of several runs lives or does not exist, all stay.
    """
    if not runs:
        raise UsageError("rm needs a run's id", hint="rankfall ps -a lists the runs")
    _remove([ended(run) for run in several_runs(runs)], yes=yes, hint=f"rankfall rm --yes {' '.join(runs)}")


@click.command("prune")
@click.option("--older-than", metavar="30d", help="Runs ended before.")
@click.option("--keep", type=click.IntRange(min=0), metavar="N", help="The newest N ended runs stay.")
@click.option("--max-size", metavar="10G", help="The oldest, until all runs use this.")
@click.option("--dry-run", is_flag=True, help="Only print.")
@click.option("-y", "--yes", is_flag=True, help="Skip the confirmation.")
def prune(*, older_than: str | None, keep: int | None, max_size: str | None, dry_run: bool, yes: bool) -> None:
    """Delete old ended runs. Without a rule, `[retention]` of config.toml applies.

    Live runs, foreign jobs that are watched, and other folders stay.
    """
    flags = {"older-than": older_than, "keep": keep, "max-size": max_size}
    given = {key: value for key, value in flags.items() if value is not None}
    rules = rules_of(given)
    if rules.empty:
        from rankfall.cli.app import VERBS, config_path  # noqa: PLC0415
        from rankfall.cli.options import read_config  # noqa: PLC0415

        rules = rules_of(read_config(config_path(), VERBS).get("retention", {}), of=str(config_path()))
    if rules.empty:
        raise UsageError("prune needs a rule", hint="rankfall prune --older-than 30d, --keep 20 or --max-size 10G")
    home = read_home()
    found, staying = candidates(home)
    old = chosen(rules, found, others=[one.run for one in staying], now=time.time_ns())
    for run, why in staying[:_MAX_LISTED]:
        console.say(f"rankfall: {run.id} stays: {why.in_one_line}")
    if len(staying) > _MAX_LISTED:
        console.say(f"rankfall: {count(len(staying) - _MAX_LISTED, 'more run')} stay: rankfall ps -a")
    if dry_run:
        for one in old:
            console.out(f"{one.run.id} {size(size_of(one.run.path))}")
        console.say(f"rankfall: {len(old)} of {len(found) + len(staying)} runs would be deleted")
        return
    words = "".join(f" --{key} {value}" for key, value in given.items())
    _remove(old, yes=yes, hint=f"rankfall prune{words} --yes", remains=remove_remains(home))


class Staying(NamedTuple):
    """A run that may not be deleted, and the reason."""

    run: RunDir
    why: RankfallError


def candidates(home: Path, *, go_on: Callable[[], bool] = lambda: True) -> tuple[list[Ended], list[Staying]]:
    """Returns removable runs, and all others; after ``go_on`` has become False all are others."""
    found: list[Ended] = []
    staying = []
    for run in list_runs(home):
        try:
            if not go_on():
                raise Kept("there was no time for it")
            found.append(ended(run))
        except RankfallError as error:
            staying.append(Staying(run, error))
    return found, staying


def rules_of(given: dict[str, Any], *, of: str = "") -> Rules:
    """Parses rules of ``prune`` or ``[retention]``. A number without a unit would delete too much.

    Raises:
        UsageError: Wrong key or value.
    """
    place = f"{of}: [retention] " if of else "--"
    known = ("older-than", "keep", "max-size")
    data = {key.replace("_", "-"): value for key, value in given.items()}
    for key in data:
        if key not in known:
            raise UsageError(f"{place}{key[:60]} is no rule", hint=f"allowed: {', '.join(known)}")
    keep = data.get("keep")
    if keep is not None and (not isinstance(keep, int) or isinstance(keep, bool) or keep < 0):
        raise UsageError(f"{place}keep {str(keep)[:60]!r} is no number of runs", hint="as: keep = 20")
    age, most = data.get("older-than"), data.get("max-size")
    return Rules(
        older_than=None if age is None else parse_span(str(age), flag=f"{place}older-than", unit_needed=True),
        keep=keep,
        max_size=None if most is None else parse_size(str(most), flag=f"{place}max-size", unit_needed=True),
    )


def _remove(found: list[Ended], *, yes: bool, hint: str, remains: int = 0) -> None:
    if found and not yes:
        total = sum(size_of(one.run.path) for one in found)
        names = ", ".join(one.run.id for one in found[:_MAX_LISTED]) + (" ..." if len(found) > _MAX_LISTED else "")
        confirm(f"Delete {count(len(found), 'run')} ({size(total)}): {names}?", hint=hint)
    freed, removed = remains, 0
    problems = []
    for one in found:
        try:
            bytes_of = remove(one.run)
        except (Kept, StoreError) as error:
            problems.append(error)
            continue
        console.out(f"removed {one.run.id} {size(bytes_of)}")
        freed, removed = freed + bytes_of, removed + 1
    console.say(f"rankfall: removed {count(removed, 'run')}, {size(freed)}")
    for other in problems[1:]:
        console.say(f"rankfall: {other.message}")
    if problems:
        raise problems[0]
