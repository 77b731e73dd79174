"""Renders a report as HTML or Markdown, and a verdict for a notebook. Pure.

The page loads nothing and runs no script. Job text is escaped twice: control characters, then markup.
"""

from __future__ import annotations

import html
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from importlib import resources
from typing import Final

from rankfall.model import Proof, Verdict
from rankfall.model.run_status import AttemptReport, RankSpan, ReportDocument
from rankfall.render import formatting
from rankfall.render.escape import clean, clean_line, one_line
from rankfall.render.summary import action_text, summary
from rankfall.render.verdict import Details, labels, next_commands

# A report of 1,024 ranks stays below 2 MB.
_MAX_EVIDENCE: Final = 200
_MAX_LINE: Final = 2000
_MAX_ROWS: Final = 2048
_MAX_ATTEMPTS: Final = 100
# Time line in SVG units: width, lowest and highest row, height, room for labels.
_WIDE, _LOW, _HIGH, _TALL, _ROOM = 1000, 2, 16, 640, 90
_OUTCOMES: Final = {
    "root": "failed first",
    "consequence": "failed because of it",
    "failed": "failed",
    "stopped": "stopped by Rankfall",
    "completed": "completed",
    "running": "running",
    "unknown": "end unknown",
}


def render_html(report: ReportDocument) -> str:
    """Returns the whole page."""
    page = resources.files(__package__).joinpath("report.html").read_text("utf-8")
    # Texts may contain a marker, too.
    head, _, rest = page.partition("{title}")
    middle, _, end = rest.partition("{body}")
    return "".join((head, _t(f"Rankfall: {report.source}"), middle, "\n".join(_body(report)), end))


def _t(text: object, *, limit: int = _MAX_LINE) -> str:
    return html.escape(clean_line(str(text), max_line=limit))


def _body(report: ReportDocument) -> Iterator[str]:
    newest = report.attempts[-_MAX_ATTEMPTS:]
    last = newest[-1] if newest else None
    foreign = report.run.foreign if report.run is not None else None
    yield f"<h1>Rankfall report of {_t(report.source, limit=300)}</h1>"
    yield f'<p class="answer">{_t(last.summary if last and last.summary else "No attempt has a verdict.")}</p>'
    if report.incomplete:
        yield '<div class="warn"><p>The record is incomplete:</p>'
        yield f"{_list(report.incomplete)}</div>"
    if last is not None:
        yield from _attempt(last, source=report.source, foreign=foreign)
    if report.run is not None and len(newest) > 1:
        yield f"<h2>Nodes in all attempts</h2>{_node_history(newest)}"
        yield f"<h2>Attempts before</h2>{_attempts(newest)}"
        for one in reversed(newest[:-1]):
            yield f"<details><summary>Attempt {one.attempt}: {_t(one.summary, limit=300)}</summary>"
            yield from _attempt(one, source=report.source, foreign=foreign)
            yield "</details>"
    hidden = len(report.attempts) - len(newest)
    if hidden:
        yield f'<p class="note">{formatting.count(hidden, "older attempt")} omitted; the JSON report has all.</p>'
    yield f"<footer>Made {_t(report.made)} by Rankfall {_t(report.version)}. Times in UTC.</footer>"


def _attempt(one: AttemptReport, *, source: str, foreign: str | None) -> Iterator[str]:
    verdict = one.verdict
    if verdict is None:
        yield '<p class="note">This attempt has no verdict.</p>'
    else:
        rows = "".join(f"<dt>{label}</dt><dd>{_t(text)}</dd>" for label, text in labels(verdict, source=source))
        yield f"<dl>{rows}</dl>"
        yield from _decisive(verdict, one)
        if one.output:
            title = f"{formatting.count(len(one.output), 'last line')} of rank {verdict.rank}"
            lines = "\n".join(map(_t, one.output))
            yield _folded(title, f"<pre>{lines}</pre>")
        yield from _chain(verdict)
    if one.ranks:
        yield f"<h2>Ranks over time</h2>{_time_line(one.ranks)}{_key(one.ranks)}"
        yield f"<details><summary>{formatting.count(len(one.ranks), 'rank')} as a table</summary>{_ranks(one)}</details>"
        yield f"<h2>Nodes</h2>{_nodes(one)}"
    if verdict is not None:
        yield from _rest(verdict, one, foreign=foreign)


def _decisive(verdict: Verdict, one: AttemptReport) -> Iterator[str]:
    if verdict.decisive is None:
        return
    yield "<h2>Decisive evidence</h2>"
    yield f'<p class="note">{_t(verdict.decisive.source)}, <code>{_t(verdict.decisive.where)}</code></p>'
    before = "".join(f"{_t(line)}\n" for line in one.before)
    lines = html.escape(clean(verdict.decisive.line, max_line=_MAX_LINE))
    yield f"<pre>{before}<b>{lines}</b></pre>"
    if one.frames:
        yield f"<p>Raised at:</p>{_list(one.frames)}"


def _chain(verdict: Verdict) -> Iterator[str]:
    """Yields the first failure and its consequences by kind."""
    if not verdict.consequences:
        return
    where = f" on {_t(verdict.node)}" if verdict.node else ""
    first = f"rank {verdict.rank}" if verdict.rank is not None else verdict.scope or "an unknown rank"
    yield "<h2>What followed</h2>"
    yield f'<div class="first"><strong>First: {_t(first)}{where}</strong>: {_t(verdict.cause.title)}</div><ul class="chain">'
    kinds: dict[str, list[int]] = {}
    reasons: dict[str, str] = {}
    for each in verdict.consequences:
        kinds.setdefault(each.slug, []).extend([] if each.rank is None else [each.rank])
        reasons.setdefault(each.slug, each.because)
    for slug, ranks in kinds.items():
        who = f"{formatting.count(len(set(ranks)), 'rank')} ({formatting.ranks(ranks)})" if ranks else "ranks unknown"
        yield f'<li><strong>{who}</strong>: <code>{_t(slug)}</code><br><span class="note">{_t(reasons[slug])}</span></li>'
    yield "</ul>"


def _rest(verdict: Verdict, one: AttemptReport, *, foreign: str | None) -> Iterator[str]:
    if one.advice or verdict.run:
        yield "<h2>Next</h2>"
        yield f"<p>{_t(one.advice)}</p>" if one.advice else ""
        commands = "\n".join(html.escape(command) for command in next_commands(verdict, Details(foreign=foreign)))
        yield f"<pre>{commands}</pre>" if commands else ""
    if verdict.missing:
        yield f"<h2>Unknown</h2>{_list(verdict.missing)}"
    if one.decisions:
        yield f"<h2>Decisions</h2>{_list(action_text(decision) for decision in one.decisions)}"
    if verdict.independent:
        faults = [
            f"{each.slug}, {_who(each.rank, each.slot)}: {each.line} ({each.because})" for each in verdict.independent
        ]
        yield f"<h2>Separate failures</h2>{_list(faults)}"
    if verdict.alternatives:
        others = [f"{each.slug}, {_who(each.rank, None)}: {each.rejected}" for each in verdict.alternatives]
        yield _folded(f"{formatting.count(len(others), 'rejected alternative')}", _list(others[:_MAX_EVIDENCE]))
    if verdict.evidence:
        rows = map(_proof, verdict.evidence[:_MAX_EVIDENCE])
        columns = ("Time", "Source", "Rank", "Node", "Cause", "Text")
        table = _table(_of("Evidence", one), columns, rows)
        count = f"{len(verdict.evidence)} pieces of evidence" if len(verdict.evidence) > 1 else "1 piece of evidence"
        yield _folded(count, table)


def _proof(proof: Proof) -> str:
    at = f"{formatting.clock(proof.at) or 'unknown'} {formatting.plus_minus(proof.uncertainty_s)}"
    text = html.escape(clean(proof.line, max_line=_MAX_LINE, max_text=4 * _MAX_LINE))
    where = f'{_t(proof.source)}<br><span class="note">{_t(proof.where)}</span>'
    cells = (_t(at), where, _who(proof.rank, proof.slot), _t(proof.node or ""), _t(proof.slug), f"<pre>{text}</pre>")
    return _row(cells)


def _time_line(ranks: Sequence[RankSpan]) -> str:
    """Returns one bar per rank with the uncertainty of its end."""
    ranks = ranks[:_MAX_ROWS]
    spans = [(_seconds(one.started), _seconds(one.ended)) for one in ranks]
    known = [at for span in spans for at in span if at is not None]
    if not known:
        return '<p class="note">All times are unknown.</p>'
    begin, end = min(known), max(known)
    scale = (_WIDE - _ROOM - 10) / max(end - begin, 1e-3)
    height = max(_LOW, min(_HIGH, _TALL / len(ranks)))
    every = max(1, round(12 / height))
    parts = []
    for number, (one, (started, ended)) in enumerate(zip(ranks, spans, strict=True)):
        y = 4 + number * height
        left = _ROOM + ((started if started is not None else begin) - begin) * scale
        right = _ROOM + ((ended if ended is not None else end) - begin) * scale
        if number % every == 0:
            parts.append(f'<text x="0" y="{y + min(height, 11):.1f}">rank {one.rank}</text>')
        title = f"rank {one.rank}: {_OUTCOMES[one.outcome]}, exit {one.exit or 'unknown'}, {one.started or '?'} to {one.ended or '?'}"
        parts.append(
            f'<rect class="o-{one.outcome}" x="{left:.1f}" y="{y:.1f}" width="{max(1.5, right - left):.1f}" '
            f'height="{max(1.0, height * 0.8):.1f}"><title>{_t(title)}</title></rect>'
        )
        if one.uncertainty_s and ended is not None:
            low, high = (max(_ROOM, right - one.uncertainty_s * scale), min(_WIDE, right + one.uncertainty_s * scale))
            middle = y + height * 0.4
            parts.append(f'<line class="band" x1="{low:.1f}" y1="{middle:.1f}" x2="{high:.1f}" y2="{middle:.1f}"/>')
    tall = 4 + len(ranks) * height + 18
    first, last = next(one.started or one.ended for one in ranks if one.started or one.ended), end - begin
    parts.append(f'<text x="{_ROOM}" y="{tall - 4:.1f}">{_t(formatting.clock(first))}</text>')
    parts.append(f'<text x="{_WIDE}" y="{tall - 4:.1f}" text-anchor="end">+{formatting.span(last)}</text>')
    label = "Time line of the ranks; the table below has the same facts."
    return f'<svg viewBox="0 0 {_WIDE} {tall:.0f}" role="img" aria-label="{label}">{"".join(parts)}</svg>'


def _seconds(text: str | None) -> float | None:
    at = formatting.moment(text)
    return None if at is None else at.timestamp()


def _key(ranks: Sequence[RankSpan]) -> str:
    counts: Counter[str] = Counter(one.outcome for one in ranks)
    items = (
        f'<span><span class="o-{name}" aria-hidden="true">■</span> {counts[name]} {words}</span>'
        for name, words in _OUTCOMES.items()
        if counts[name]
    )
    return f'<p class="key">{"".join(items)}</p>'


def _ranks(one: AttemptReport) -> str:
    columns = ("Rank", "Slot", "Node", "Outcome", "Exit", "Step", "Started", "Ended")
    rows = (
        _row((
            str(span.rank), _n(span.slot), _t(span.node or ""), _OUTCOMES[span.outcome], _t(span.exit or ""), _n(span.step),
            _t(formatting.clock(span.started)), _t(f"{formatting.clock(span.ended)} {formatting.plus_minus(span.uncertainty_s)}"),
        ))
        for span in one.ranks[:_MAX_ROWS]
    )  # fmt: skip
    return _table(_of("Ranks", one), columns, rows)


def _nodes(one: AttemptReport) -> str:
    places: dict[str, list[RankSpan]] = {}
    for rank in one.ranks:
        places.setdefault(rank.node or "unknown", []).append(rank)
    verdict = one.verdict
    rows = []
    for node, ranks in places.items():
        bad = [rank.rank for rank in ranks if rank.outcome in {"root", "consequence", "failed"}]
        gpu, action = "", ""
        if verdict is not None and verdict.node == node:
            gpu, action = verdict.gpu or "", _node_action(verdict)
        cells = (_t(node), formatting.ranks(rank.rank for rank in ranks), formatting.ranks(bad), _t(gpu), _t(action))
        rows.append(_row(cells))
    columns = ("Node", "Ranks", "Failed", "GPU", "Advice for the node")
    return _table(_of("Nodes", one), columns, rows[:_MAX_ROWS])


def _node_action(verdict: Verdict) -> str:
    return "" if verdict.node_action == "none" else verdict.node_action


def _node_history(attempts: Sequence[AttemptReport]) -> str:
    """Returns for each node the attempts that used it, and the first failures there with GPU and advice."""
    used: dict[str, list[int]] = {}
    failures: dict[str, list[str]] = {}
    for one in attempts:
        number = one.attempt or 0
        for node in dict.fromkeys(rank.node for rank in one.ranks if rank.node):
            used.setdefault(node, []).append(number)
        verdict = one.verdict
        if verdict is not None and verdict.node:
            used.setdefault(verdict.node, [])
            parts = [verdict.cause.slug, _who(verdict.rank, verdict.slot), f"GPU {verdict.gpu}" if verdict.gpu else ""]
            parts.append(f"node: {action}" if (action := _node_action(verdict)) else "")
            text = f"attempt {number}: {', '.join(part for part in parts if part)}"
            failures.setdefault(verdict.node, []).append(_t(text))
    rows = [
        _row((_t(node), formatting.ranks(numbers), "<br>".join(failures.get(node, ()))))
        for node, numbers in list(used.items())[:_MAX_ROWS]
    ]
    return _table("Nodes in all attempts", ("Node", "Attempts", "First failures"), rows)


def _attempts(attempts: Sequence[AttemptReport]) -> str:
    rows = []
    for one in attempts:
        verdict = one.verdict
        decided = action_text(one.decisions[-1]) if one.decisions else ""
        cause = verdict.cause.slug if verdict is not None else ""
        who = _who(verdict.rank, verdict.slot) if verdict is not None else ""
        node = verdict.node or "" if verdict is not None else ""
        cells = (str(one.attempt), _t(formatting.clock(one.started)), _t(cause), who, _t(node), _t(decided))
        rows.append(_row(cells))
    return _table("Attempts", ("Attempt", "Started", "Cause", "Rank", "Node", "Decision"), rows)


def _table(name: str, columns: Iterable[str], rows: Iterable[str]) -> str:
    """Returns a table that scrolls by itself; a screen reader announces its name."""
    head = "".join(f'<th scope="col">{column}</th>' for column in columns)
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{_t(name)}">'
        f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table></div>"
    )


def _of(name: str, one: AttemptReport) -> str:
    return name if one.attempt is None else f"{name} of attempt {one.attempt}"


def _row(cells: Iterable[str]) -> str:
    return f"<tr>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>"


def _folded(title: str, inner: str) -> str:
    return f"<details><summary>{title}</summary>{inner}</details>"


def _list(lines: Iterable[str]) -> str:
    return f"<ul>{''.join(f'<li>{_t(line)}</li>' for line in lines)}</ul>"


def _who(rank: int | None, slot: int | None) -> str:
    return f"rank {rank}" if rank is not None else f"slot {slot}" if slot is not None else ""


def _n(number: int | None) -> str:
    return "" if number is None else str(number)


def render_markdown(report: ReportDocument) -> str:
    """Returns the report for an issue tracker; job text is in code spans and blocks only."""
    last = report.attempts[-1] if report.attempts else None
    parts = [f"# Rankfall report of {_span(report.source)}"]
    if last is None or last.verdict is None:
        return "\n\n".join([*parts, "No attempt has a verdict."]) + "\n"
    verdict = last.verdict
    parts.append(f"**{_plain(last.summary)}**")
    parts += [f"> The record is incomplete: {_plain(text)}" for text in report.incomplete]
    parts.append("\n".join(f"- {label}: {_span(text)}" for label, text in labels(verdict, source=report.source)))
    if verdict.decisive is not None:
        text = "\n".join([*last.before, clean(verdict.decisive.line, max_line=_MAX_LINE)])
        parts += [f"Decisive: {_span(verdict.decisive.where)}", _block(text)]
        parts += ["\n".join(f"- at {_span(frame)}" for frame in last.frames)] if last.frames else []
    if last.output:
        parts += [f"Last lines of rank {verdict.rank}:", _block("\n".join(last.output))]
    if verdict.consequences:
        kinds: dict[str, list[int]] = {}
        for each in verdict.consequences:
            kinds.setdefault(each.slug, []).extend([] if each.rank is None else [each.rank])
        rows = [
            f"- {slug}: {'ranks ' + formatting.ranks(ranks) if ranks else 'ranks unknown'}"
            for slug, ranks in kinds.items()
        ]
        parts += ["What followed:", "\n".join(rows)]
    if len(report.attempts) > 1:
        rows = ["| attempt | cause | rank | node |", "| --- | --- | --- | --- |"]
        for one in report.attempts[-_MAX_ATTEMPTS:]:
            found = one.verdict
            cells = (found.cause.slug, _who(found.rank, found.slot), found.node or "") if found else ("", "", "")
            rows.append(f"| {one.attempt} | {' | '.join(_span(cell) if cell else '' for cell in cells)} |")
        parts.append("\n".join(rows))
    if verdict.missing:
        parts += ["Unknown:", "\n".join(f"- {_plain(text)}" for text in verdict.missing)]
    if last.advice:
        parts += ["Next:", _plain(last.advice)]
    return "\n\n".join([*parts, f"_Made {report.made} by Rankfall {_plain(report.version)}._"]) + "\n"


# Colors come from the notebook, so its light and dark themes fit. Styles are inline: untrusted notebooks lose others.
_BORDER: Final = "border-left:4px solid #d1453b;padding:.1em 0 .1em .8em"
_ANSWER: Final = "margin:.2em 0 .5em;font-size:1.1em;font-weight:600;overflow-wrap:anywhere"
_GRID: Final = "display:grid;grid-template-columns:max-content 1fr;gap:.1em 1em;margin:.3em 0"
_LABEL: Final = "font-weight:400;opacity:.75"
_VALUE: Final = "margin:0;overflow-wrap:anywhere"
_LINES: Final = (
    "margin:.3em 0;padding:.5em;background:rgba(128,128,128,.15);white-space:pre-wrap;overflow-wrap:anywhere"
)
_MAX_DECISIVE: Final = 8000


def render_fragment(verdict: Verdict) -> str:
    """Returns sentence, labels and decisive line as HTML for a notebook."""
    rows = "".join(
        f'<dt style="{_LABEL}">{label}</dt><dd style="{_VALUE}">{_t(text)}</dd>'
        for label, text in labels(verdict, source=None)
    )
    parts = [f'<p style="{_ANSWER}">{_t(summary(verdict))}</p><dl style="{_GRID}">{rows}</dl>']
    if verdict.decisive is not None:
        line = html.escape(clean(verdict.decisive.line, max_line=_MAX_LINE, max_text=_MAX_DECISIVE))
        place = f"{_t(verdict.decisive.source)}, {_t(verdict.decisive.where)}"
        parts.append(f'<p style="{_VALUE};opacity:.75">{place}</p><pre style="{_LINES}">{line}</pre>')
    return f'<div style="{_BORDER}">{"".join(parts)}</div>'


# Characters that mean something to Markdown, HTML, mentions or references.
_MARKUP: Final = str.maketrans({char: f"\\{char}" for char in "\\`*_{}[]<>()#+!|~@&"})


def _plain(text: str) -> str:
    return one_line(text, width=_MAX_LINE).translate(_MARKUP)


def _span(text: str) -> str:
    line = one_line(text, width=300).replace("|", "¦")
    fence = "`" * (_ticks(line) + 1)
    # Only next to a backtick a space belongs to the fence.
    pad = " " if fence != "`" else ""
    return f"{fence}{pad}{line}{pad}{fence}" if line else ""


def _block(text: str) -> str:
    safe = "\n".join(clean_line(line, max_line=_MAX_LINE) for line in text.split("\n"))
    fence = "`" * max(3, _ticks(safe) + 1)
    return f"{fence}text\n{safe}\n{fence}"


def _ticks(text: str) -> int:
    longest = run = 0
    for char in text:
        run = run + 1 if char == "`" else 0
        longest = max(longest, run)
    return longest
