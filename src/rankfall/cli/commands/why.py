"""``why`` and ``report``: explain a run, files, or a pipe."""

from __future__ import annotations

import os
import select
import stat
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO, Final

import click

from rankfall.cli import console
from rankfall.cli.console import Output
from rankfall.cli.options import output_option, place_options
from rankfall.cli.run_output import details_of, details_of_files
from rankfall.cli.target import Where, as_it_is, one_run, opened_copy, parse_target, read_home, resolve_target
from rankfall.explain import explain_files, explain_run, explain_slot_failure, explain_stream
from rankfall.model import NotFound, RankFacts, StoreError, UsageError, Verdict
from rankfall.model.run_status import AttemptReport, RankOutcome, RankSpan, ReportDocument
from rankfall.model.timestamps import rfc3339
from rankfall.render.summary import advice_text, summary
from rankfall.render.verdict import NO_DETAILS, render_verdict
from rankfall.rundir import AttemptRow, DecisionRow, RunDir
from rankfall.rundir.bundle import SUFFIX, pack
from rankfall.rundir.incomplete import lost_of_run
from rankfall.rundir.status import exit_text, newest_round
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
        run = opened_copy(Path(targets[0]))
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


_FORMATS: Final = (".html", ".md", ".json")


@click.command("report")
@click.argument("target", nargs=-1, metavar="[RUN | KIND/NAME | PATH...]")
@click.option(
    "-o",
    "--output",
    "file",
    metavar="FILE",
    help="New file: .html, .md or .json; default: RUN.html here. - prints Markdown.",
)
@click.option(
    "--bundle", is_flag=True, help="Write an archive of the run with its report; open it with rankfall why FILE."
)
@place_options
def report(
    *,
    target: tuple[str, ...],
    file: str | None,
    bundle: bool,
    namespace: str | None,
    context: str | None,
    kubeconfig: str | None,
    no_exec: bool,
) -> None:
    """Write what happened to a run as one file to read, mail or attach to an issue.

    The HTML file needs no network. An archive leaves out secrets.json.
    """
    where = Where(namespace=namespace, context=context, kubeconfig=kubeconfig, no_exec=no_exec)
    verdict, source, run = _explained(
        list(target), attempt=None, slot=None, fresh=False, own=[], strategy=None, where=where
    )
    if bundle and run is None:
        raise UsageError("--bundle is for a run", hint="log files can be mailed as they are")
    document = _report(run, source) if run is not None else _report_of_files(verdict, source)
    if file == "-" and not bundle:
        from rankfall.render.report import render_markdown  # noqa: PLC0415

        console.out(render_markdown(document).rstrip("\n"))
        return
    suffix = SUFFIX if bundle else ".html"
    path = Path(file or f"{run.id if run is not None else 'report'}{suffix}")
    if not path.name.endswith((SUFFIX,) if bundle else _FORMATS):
        wanted = SUFFIX if bundle else ", ".join(_FORMATS)
        raise UsageError(
            f"{path.name[:100]!r} does not end with one of: {wanted}", hint="the suffix chooses the format"
        )
    if run is not None and bundle:
        size = pack(run.path, path, extra={"report.html": _rendered(document, ".html").encode()})
    else:
        data = _rendered(document, path.suffix).encode()
        size = len(data)
        try:
            path.write_bytes(data)
        except OSError as error:
            raise StoreError(f"cannot write {path}: {error.strerror}", hint="choose another file with -o") from error
    console.say(f"rankfall: wrote {path} ({max(1, size // 1000):,} kB)")


def _rendered(document: ReportDocument, suffix: str) -> str:
    if suffix == ".json":
        return console.document(document, Output.JSON)
    from rankfall.render.report import render_html, render_markdown  # noqa: PLC0415

    return render_markdown(document) if suffix == ".md" else render_html(document)


def _made(source: str, **fields: Any) -> ReportDocument:
    from rankfall import __version__  # noqa: PLC0415

    return ReportDocument(made=rfc3339(time.time_ns()) or "", version=__version__, source=source, **fields)


def _report_of_files(verdict: Verdict, source: str) -> ReportDocument:
    details = details_of_files(verdict)
    one = AttemptReport(
        summary=summary(verdict),
        advice=advice_text(verdict),
        verdict=verdict,
        frames=details.frames,
        before=details.before,
    )
    return _made(source, attempts=(one,))


def _report(run: RunDir, source: str) -> ReportDocument:
    with run.reader() as reader:
        rows, whole = reader.attempts(), reader.summary()
        ranks = {row.attempt: newest_round(reader.ranks(row.attempt)) for row in rows}
        decisions = {row.attempt: reader.decisions(row.attempt) for row in rows}
    attempts = tuple(_attempt(run, row, ranks[row.attempt], decisions[row.attempt]) for row in rows)
    lost = tuple(one.text for one in lost_of_run(run))
    return _made(source, run=whole, incomplete=lost, attempts=attempts)


def _attempt(run: RunDir, row: AttemptRow, ranks: list[RankFacts], decisions: list[DecisionRow]) -> AttemptReport:
    verdict = None
    with suppress(NotFound):
        verdict = explain_run(run, attempt=row.attempt).verdict
    details = details_of(run, verdict) if verdict is not None else NO_DETAILS
    return AttemptReport(
        attempt=row.attempt,
        state=row.state,
        started=rfc3339(row.started),
        ended=rfc3339(row.ended),
        summary=summary(verdict, step=details.step) if verdict is not None else "",
        advice=advice_text(verdict) if verdict is not None else "",
        verdict=verdict,
        frames=details.frames,
        before=details.before,
        decisions=tuple(one.decision for one in decisions),
        ranks=tuple(_span(facts, verdict) for facts in sorted(ranks, key=lambda one: one.rank)),
    )


def _span(facts: RankFacts, verdict: Verdict | None) -> RankSpan:
    return RankSpan(
        rank=facts.rank,
        slot=facts.slot,
        node=facts.node,
        outcome=_outcome(facts, verdict),
        exit=exit_text(facts.exit_code, facts.signal),
        started=rfc3339(facts.started_at),
        ended=rfc3339(facts.ended_at),
        uncertainty_s=facts.ended_uncertainty,
        step=facts.step,
    )


def _outcome(facts: RankFacts, verdict: Verdict | None) -> RankOutcome:
    if verdict is not None and verdict.rank == facts.rank and verdict.state != "succeeded":
        return "root"
    slugs = {one.slug for one in verdict.consequences if one.rank == facts.rank} if verdict is not None else set()
    if slugs:
        return "stopped" if slugs == {"peer_teardown"} else "consequence"
    if facts.state == "running":
        return "running"
    if facts.exit_code == 0:
        return "completed"
    return "failed" if facts.exit_code or facts.signal else "unknown"
