"""``why``: prints the verdict of a run, files, or a pipe."""

from __future__ import annotations

import os
import select
import stat
import sys
from pathlib import Path
from typing import BinaryIO, Final

import click

from rankfall.cli import console
from rankfall.cli.console import Output
from rankfall.cli.options import output_option, place_options
from rankfall.cli.run_output import details_of, details_of_files
from rankfall.cli.target import Where, as_it_is, one_run, parse_target, read_home, resolve_target
from rankfall.explain import explain_files, explain_run, explain_slot_failure, explain_stream
from rankfall.model import NotFound, UsageError, Verdict
from rankfall.render.verdict import render_verdict
from rankfall.rundir import RunDir
from rankfall.strategy_registry import find_strategy

# Seconds in which a program before the pipe prints its first bytes.
_PIPE_S: Final = 0.5


@click.command("why")
@click.argument("target", nargs=-1, metavar="[RUN | KIND/NAME | PATH... | -]")
@click.option("--attempt", type=click.IntRange(min=1), metavar="N", help="Attempt of a run; default: the newest.")
@click.option(
    "--slot",
    type=click.IntRange(min=0),
    metavar="N",
    help="Slot of a run: the newest failure of this slot alone (restart_scope).",
)
@click.option(
    "--fresh",
    is_flag=True,
    help="Diagnose a run again with the cluster's current data, ignoring the stored verdict.",
)
@click.option(
    "--signatures",
    multiple=True,
    metavar="FILE",
    help="More signatures for files (TOML, docs/signatures.md); those in the home's signatures/ folder always apply.",
)
@click.option(
    "--strategy",
    metavar="NAME",
    callback=lambda ctx, param, value: value and find_strategy(value, field="--strategy").name,  # noqa: ARG005 - click's signature
    help="Rule that chooses the root: causal, earliest, first-listed, or a plug-in's.",
)
@place_options
@output_option("Format; json is rankfall.verdict/1.")
def why(
    *,
    target: tuple[str, ...],
    attempt: int | None,
    slot: int | None,
    fresh: bool,
    signatures: tuple[str, ...],
    strategy: str | None,
    namespace: str | None,
    context: str | None,
    kubeconfig: str | None,
    no_exec: bool,
    output: Output,
) -> None:
    """Show which rank failed first, why, and where.

    KIND/NAME is a cluster job not started by Rankfall: job, jobset, trainjob, pytorchjob, tfjob, mpijob, or one pod.

    Ends with 0 for any verdict, 66 if the target does not exist.
    """
    verdict, source, run = _explained(
        list(target),
        attempt=attempt,
        slot=slot,
        fresh=fresh,
        own=[Path(text) for text in signatures],
        strategy=strategy,
        where=Where(namespace=namespace, context=context, kubeconfig=kubeconfig, no_exec=no_exec),
    )
    if output is not Output.TABLE:
        sys.stdout.write(console.document(verdict, output))
        return
    details = details_of(run, verdict) if run else details_of_files(verdict)
    color = console.color_on()
    console.out(render_verdict(verdict, source=source, details=details, width=console.width(), color=color))


def _explained(
    targets: list[str],
    *,
    attempt: int | None,
    slot: int | None,
    fresh: bool,
    own: list[Path],
    strategy: str | None,
    where: Where,
) -> tuple[Verdict, str, RunDir | None]:
    if not targets and attempt is None and slot is None and not fresh and _has_text(sys.stdin.buffer):
        console.say("explaining standard input")
        targets = ["-"]
    run = one_run(None) if not targets else _as_run(targets, where)
    if run is not None:
        run = as_it_is(run)
    elif len(targets) == 1:
        run = _copied_run(Path(targets[0]))
    if run is not None and own:
        raise UsageError("--signatures is for files", hint=f"put the file for a run into {read_home()}/signatures/")
    if run is not None and slot is not None:
        if fresh or strategy is not None:
            raise UsageError("--slot shows a stored diagnosis", hint="leave out --fresh and --strategy")
        return explain_slot_failure(run, slot=slot, attempt=attempt).verdict, run.id, run
    if run is not None:
        return explain_run(run, attempt=attempt, fresh=fresh, strategy=strategy, ask=fresh).verdict, run.id, run
    if attempt is not None or fresh or slot is not None:
        raise UsageError(
            "--attempt, --slot and --fresh are for runs", hint="leave the flag out: files have no attempts"
        )
    if targets == ["-"]:
        if sys.stdin.isatty():
            console.say("reading from this terminal; end with Ctrl-D")
        return explain_stream(sys.stdin.buffer, signatures=own, strategy=strategy).verdict, "standard input", None
    if "-" in targets:
        raise UsageError("- stands alone", hint="rankfall why -, or rankfall why PATH...")
    return (
        explain_files([Path(text) for text in targets], signatures=own, strategy=strategy).verdict,
        ", ".join(targets),
        None,
    )


def _has_text(stdin: BinaryIO) -> bool:
    """True if standard input is a file, or a pipe with bytes within ``_PIPE_S``."""
    try:
        kind = os.fstat(stdin.fileno()).st_mode
        if stat.S_ISREG(kind):
            return bool(stdin.peek(1))  # type: ignore[attr-defined] # a buffered reader
        if not (stat.S_ISFIFO(kind) or stat.S_ISSOCK(kind)):
            return False
        ready, _, _ = select.select([stdin], [], [], _PIPE_S)
        return bool(ready) and bool(stdin.peek(1))  # type: ignore[attr-defined] # as above
    except (OSError, ValueError):
        return False


def _is_there(name: str) -> bool:
    try:
        return Path(name).exists()
    except OSError:
        return False


def _copied_run(path: Path) -> RunDir | None:
    """Returns the run whose directory, or a copy of it, has this path; it is only read."""
    if not all(_is_there(str(path / name)) for name in ("meta.json", "spec.json", "run.db")):
        return None
    run = RunDir(path.resolve())
    with run.reader() as reader:
        stored = reader.diagnosis(None)
    # Records belong to the run's id, and a copy may have any name.
    run.id = (stored.verdict.run if stored is not None else None) or run.id
    return run


def _as_run(targets: list[str], where: Where) -> RunDir | None:
    """Returns the run, or None for files. A run beats a file; ``./NAME`` is always a file."""
    if len(targets) == 1 and (where.given or parse_target(targets[0]) is not None):
        return resolve_target(targets[0], where=where)
    if len(targets) != 1 or targets == ["-"]:
        return None
    name = targets[0]
    try:
        return RunDir.open(read_home(), name)
    except NotFound as missing:
        if _is_there(name):
            return None
        raise NotFound(f"there is no run and no file {name[:200]!r}", hint=missing.hint) from None
    except UsageError:
        if _is_there(name):
            return None
        raise
