"""``why`` and ``report``: explain a run, files, or a pipe."""

from __future__ import annotations

import shlex
import sys
import time
from bisect import bisect_left
from collections import Counter
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
import msgspec

from rankfall.cli import console
from rankfall.cli.console import Output
from rankfall.cli.options import output_option, place_options, redact_option, runs_or_files
from rankfall.cli.run_output import details_of, details_of_files, last_lines, secret_values
from rankfall.cli.target import (
    Where,
    as_it_is,
    copied_input,
    has_text,
    is_copy,
    one_run,
    opened_archives,
    opened_copy,
    read_home,
    run_of_argument,
)
from rankfall.cli.values import parse_size
from rankfall.explain import explain_files, explain_run, explain_slot_failure, explain_stream
from rankfall.model import NotFound, RankFacts, StoreError, UsageError, Verdict
from rankfall.model.run_status import AttemptReport, RankOutcome, RankSpan, ReportDocument
from rankfall.model.timestamps import rfc3339
from rankfall.model.verdict import Answer, Proof
from rankfall.render.escape import one_line
from rankfall.render.summary import advice_text, summary
from rankfall.render.verdict import NO_DETAILS, Details, render_verdict
from rankfall.rundir import AttemptRow, DecisionRow, RunDir
from rankfall.rundir.bundle import SUFFIX, pack
from rankfall.rundir.incomplete import lost_of_run
from rankfall.rundir.status import exit_text, newest_round
from rankfall.strategy_registry import find_strategy

if TYPE_CHECKING:
    from rankfall.render.escape import Redactor

# Least --max-bytes, and lengths of texts.
_LEAST: Final = 1 << 10
_SHORTER: Final = (500, 200, 80, 20, 0)
# What it cuts, the least important first.
_CUT: Final = (
    ("evidence", "context"),
    ("alternatives", None),
    ("evidence", "secondary"),
    ("missing", None),
    ("consequences", None),
    ("evidence", "primary"),
    ("independent", None),
    ("evidence", None),
)
# Text that a job can choose.
_SENTENCE: Final = "/answer/sentence"
_UNTRUSTED: Final = (
    _SENTENCE,
    "/pod",
    "/node",
    "/gpu",
    "/exclude",
    "/decisive/where",
    "/decisive/line",
    "/evidence/*/node",
    "/evidence/*/where",
    "/evidence/*/line",
    "/consequences/*/because",
    "/alternatives/*/rejected",
    "/missing/*",
    "/independent/*/node",
    "/independent/*/line",
    "/independent/*/because",
    "/decision/because",
)


@click.command("why")
@click.argument("target", nargs=-1, metavar="[RUN | KIND/NAME | PATH... | -]", shell_complete=runs_or_files)
@click.option("--attempt", type=click.IntRange(min=1), metavar="N")
@click.option("--slot", type=click.IntRange(min=0), metavar="N")
@click.option("--fresh", is_flag=True)
@click.option("--signatures", multiple=True, metavar="FILE")
@click.option(
    "--strategy",
    metavar="NAME",
    callback=lambda ctx, param, value: value and find_strategy(value, field="--strategy").name,  # noqa: ARG005 - click's signature
)
@place_options
@click.option(
    "--max-bytes",
    metavar="SIZE",
    callback=lambda ctx, param, value: _limit(value),  # noqa: ARG005 - click's signature
)
@redact_option
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
    max_bytes: int | None,
    redact: Redactor | None,
    output: Output,
) -> None:
    """Show which rank failed first, why, and where.

    KIND/NAME is a cluster job not started by Rankfall: job, jobset, trainjob, pytorchjob, tfjob, mpijob, or one pod.

    Ends with 0 for any verdict, 66 if the target does not exist.
    """
    verdict, source, of = _explained(
        list(target),
        attempt=attempt,
        slot=slot,
        fresh=fresh,
        own=[Path(text) for text in signatures],
        strategy=strategy,
        where=Where(namespace=namespace, context=context, kubeconfig=kubeconfig, no_exec=no_exec),
    )
    if redact is not None and isinstance(of, RunDir):
        redact.learn(secret_values(of))
    if output is not Output.TABLE:
        bare = redact is None and max_bytes is None
        content = verdict if bare else _answer(verdict, output, redact=redact, limit=max_bytes)
        sys.stdout.write(console.document(content, output, compact=max_bytes is not None))
        return
    details = details_of(of, verdict, redact) if isinstance(of, RunDir) else details_of_files(verdict, of, redact)
    if isinstance(of, RunDir) and target and is_copy(of):
        details = msgspec.structs.replace(details, name=shlex.quote(one_line(target[0], width=300)))
    if redact is not None:
        details = redact.of(details)
        verdict, source = redact.of(verdict), redact.text(source)
    console.out(_text(verdict, source, details, limit=max_bytes))


def _limit(text: str | None) -> int | None:
    if not text:
        return None
    size = parse_size(text, flag="--max-bytes")
    if size < _LEAST:
        raise UsageError(f"--max-bytes {text[:60]!r} is too small", hint=f"at least {_LEAST}")
    return size


def _text(verdict: Verdict, source: str, details: Details, *, limit: int | None) -> str:
    """Renders the verdict within ``limit`` bytes."""

    def size(text: str) -> int:
        return len(f"{text}\n".encode(sys.stdout.encoding or "utf-8", "backslashreplace"))

    render = partial(render_verdict, verdict, source=source, **console.shape(sys.stdout))
    text = render(details=details)
    if limit is None or size(text) <= limit:
        return text
    lines = render(details=msgspec.structs.replace(details, before=())).split("\n")
    for kept in range(len(lines), 0, -1):
        cut = [f"{len(lines) - kept} lines cut (--max-bytes)"] if kept < len(lines) else []
        if size(text := "\n".join([*lines[:kept], *cut])) <= limit:
            return text
    return text.encode("ascii", "backslashreplace")[: limit - 1].decode("ascii")


def _answer(verdict: Verdict, output: Output, *, redact: Redactor | None, limit: int | None) -> Verdict:
    """Document with its ``answer``, within ``limit`` bytes."""
    verdict = redact.of(verdict) if redact is not None else verdict
    sentence = summary(verdict)
    cut: Counter[str] = Counter()

    def made(changed: Verdict, more: Counter[str], sentence: str = sentence) -> Verdict:
        paths = tuple(path for path in _UNTRUSTED if path == _SENTENCE or getattr(changed, path.split("/")[1]))
        answer = Answer(
            sentence=sentence, redacted=redact is not None, max_bytes=limit, cut=dict(+(cut + more)), untrusted=paths
        )
        return msgspec.structs.replace(changed, answer=answer)

    def fits(document: Verdict) -> bool:
        return limit is None or len(console.document(document, output, compact=True).encode()) <= limit

    for field, role in _CUT:
        if fits(made(verdict, Counter())):
            break
        least = [
            number
            for number, row in enumerate(getattr(verdict, field) or ())
            if role is None or (row.role == role and not _decides(row, verdict))
        ]
        fitting = partial(_without, verdict, field, least)
        count = bisect_left(range(len(least)), 1, key=lambda n: fits(made(fitting(n), Counter({field: n}))))
        verdict = fitting(count)
        cut[field] += count
    for most in _SHORTER:
        if fits(made(verdict, Counter())):
            break
        verdict, characters = _shortened(verdict, most)
        cut["characters"] += characters
    for most in (1 << 20, 200, 60, 10):
        if fits(document := made(verdict, Counter(), sentence[:most])):
            return document
        verdict = msgspec.structs.replace(
            verdict, node=verdict.node and verdict.node[:most], pod=None, gpu=None, role=None, exclude=msgspec.UNSET
        )
    return document


def _without(verdict: Verdict, field: str, least: list[int], count: int) -> Verdict:
    """Document without the last ``count`` of the ``least`` rows."""
    gone = set(least[len(least) - count :])
    rows = tuple(row for number, row in enumerate(getattr(verdict, field) or ()) if number not in gone)
    return msgspec.structs.replace(verdict, **{field: rows}) if gone else verdict


def _decides(row: Proof, verdict: Verdict) -> bool:
    return verdict.decisive is not None and row.where == verdict.decisive.where


def _shortened(verdict: Verdict, most: int) -> tuple[Verdict, int]:
    """Shortens texts to ``most`` characters; returns also the number of removed ones."""
    removed = 0

    def short(value: Any) -> Any:
        nonlocal removed
        changes = {
            name: text[:most]
            for name in ("because", "line", "where")
            if len(text := getattr(value, name, None) or "") > most
        }
        removed += sum(len(getattr(value, name)) - most for name in changes)
        return msgspec.structs.replace(value, **changes)

    decisive = short(verdict.decisive) if verdict.decisive is not None else None
    decision = short(verdict.decision) if verdict.decision is not None else None
    return msgspec.structs.replace(verdict, decisive=decisive, decision=decision), removed


def _explained(
    targets: list[str],
    *,
    attempt: int | None,
    slot: int | None,
    fresh: bool,
    own: list[Path],
    strategy: str | None,
    where: Where,
) -> tuple[Verdict, str, RunDir | Path]:
    """Verdict, its source for display, and its run; of files the folder of their relative paths."""
    if not targets and attempt is None and slot is None and not fresh and has_text(sys.stdin.buffer):
        console.say("explaining standard input")
        targets = ["-"]
    run = one_run(None) if not targets else run_of_argument(targets, where)
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
        file, within = copied_input()
        return explain_stream(file, signatures=own, strategy=strategy).verdict, "standard input", within
    if "-" in targets:
        raise UsageError("- stands alone", hint="rankfall why -, or rankfall why PATH...")
    paths, within = opened_archives([Path(text) for text in targets])
    verdict = explain_files(paths, within=within, signatures=own, strategy=strategy).verdict
    return verdict, ", ".join(targets), within


_FORMATS: Final = (".html", ".md", ".json")


@click.command("report")
@click.argument("target", nargs=-1, metavar="[RUN | KIND/NAME | PATH...]", shell_complete=runs_or_files)
@click.option(
    "-o",
    "--output",
    "file",
    metavar="FILE",
    help="File, replaced if it exists: .html, .md or .json; default: RUN.html here. - prints Markdown.",
)
@click.option(
    "--bundle", is_flag=True, help="Write an archive of the run with its report; open it with rankfall why FILE."
)
@place_options
@redact_option
def report(
    *,
    target: tuple[str, ...],
    file: str | None,
    bundle: bool,
    namespace: str | None,
    context: str | None,
    kubeconfig: str | None,
    no_exec: bool,
    redact: Redactor | None,
) -> None:
    """Write what happened to a run as one file to read, mail or attach to an issue.

    The HTML file needs no network. An archive leaves out secrets.json.
    """
    where = Where(namespace=namespace, context=context, kubeconfig=kubeconfig, no_exec=no_exec)
    verdict, source, of = _explained(
        list(target), attempt=None, slot=None, fresh=False, own=[], strategy=None, where=where
    )
    run = of if isinstance(of, RunDir) else None
    if bundle and run is None:
        raise UsageError("--bundle is for a run", hint="log files can be mailed as they are")
    if bundle and redact is not None:
        raise UsageError("--redact cannot change the lines in a --bundle", hint="write a report: -o FILE.html --redact")
    if redact is not None:
        redact.learn(secret_values(run) if run is not None else ())
    document = _report(of, source, redact) if isinstance(of, RunDir) else _report_of_files(verdict, source, of, redact)
    if redact is not None:
        document = redact.of(document)
    if file == "-" and not bundle:
        from rankfall.render.report import render_markdown  # noqa: PLC0415

        console.out(render_markdown(document).rstrip("\n"))
        return
    suffix = SUFFIX if bundle else ".html"
    path = Path(file or f"{run.id if run is not None else 'report'}{suffix}")
    if not path.name.endswith((SUFFIX,) if bundle else _FORMATS):
        wanted = SUFFIX if bundle else ", ".join(_FORMATS)
        archive = not bundle and path.name.endswith(SUFFIX)
        hint = "for an archive add --bundle" if archive else f"as: -o report{SUFFIX if bundle else '.html'}"
        raise UsageError(f"{path.name[:100]!r} does not end with one of: {wanted}", hint=hint)
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
    if bundle:
        console.say(f"rankfall: open it anywhere with: rankfall why {path.name}")
        console.say("rankfall: the archive holds all lines as they are; report -o FILE.html --redact masks secrets")


def _rendered(document: ReportDocument, suffix: str) -> str:
    if suffix == ".json":
        return console.document(document, Output.JSON)
    from rankfall.render.report import render_html, render_markdown  # noqa: PLC0415

    return render_markdown(document) if suffix == ".md" else render_html(document)


def _made(source: str, **fields: Any) -> ReportDocument:
    from rankfall import __version__  # noqa: PLC0415

    return ReportDocument(made=rfc3339(time.time_ns()) or "", version=__version__, source=source, **fields)


def _report_of_files(verdict: Verdict, source: str, within: Path, redact: Redactor | None) -> ReportDocument:
    details = details_of_files(verdict, within, redact)
    one = AttemptReport(
        summary=summary(verdict),
        advice=advice_text(verdict, frames=details.frames),
        verdict=verdict,
        frames=details.frames,
        before=details.before,
    )
    return _made(source, attempts=(one,))


def _report(run: RunDir, source: str, redact: Redactor | None) -> ReportDocument:
    with run.reader() as reader:
        rows, whole = reader.attempts(), reader.summary()
        ranks = {row.attempt: newest_round(reader.ranks(row.attempt)) for row in rows}
        decisions = {row.attempt: reader.decisions(row.attempt) for row in rows}
    attempts = tuple(
        _attempt(run, row, ranks[row.attempt], decisions[row.attempt], newest=row is rows[-1], redact=redact)
        for row in rows
    )
    return _made(source, run=whole, incomplete=tuple(one.text for one in lost_of_run(run)), attempts=attempts)


def _attempt(
    run: RunDir,
    row: AttemptRow,
    ranks: list[RankFacts],
    decisions: list[DecisionRow],
    *,
    newest: bool,
    redact: Redactor | None,
) -> AttemptReport:
    verdict = None
    with suppress(NotFound):
        verdict = explain_run(run, attempt=row.attempt).verdict
    # Only the newest attempt's logs are read: a run can have 100 attempts.
    details = details_of(run, verdict, redact) if verdict is not None and newest else NO_DETAILS
    return AttemptReport(
        attempt=row.attempt,
        state=row.state,
        started=rfc3339(row.started),
        ended=rfc3339(row.ended),
        summary=summary(verdict, step=details.step) if verdict is not None else "",
        advice=advice_text(verdict, frames=details.frames) if verdict is not None else "",
        verdict=verdict,
        frames=details.frames,
        before=details.before,
        output=last_lines(run, verdict, redact) if verdict is not None and newest else (),
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
