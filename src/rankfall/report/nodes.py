"""``rankfall nodes list`` and ``describe`` for people. What a kernel or a person wrote is shown escaped."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from rankfall.model.nodes import NodeCause, NodesDocument, NodeStatus
from rankfall.report import words
from rankfall.report.escape import one_line
from rankfall.report.paint import Paint
from rankfall.report.tables import table

_LINE = 400


def render_nodes(document: NodesDocument, *, now: datetime, color: bool = False) -> str:
    """The table of ``rankfall nodes list``."""
    if not document.nodes:
        return "No nodes."
    rows = [
        (
            node.node,
            node.pool,
            _state(node),
            words.age(node.since, now=now),
            "yes" if node.tainted else "no",
            _ready(node),
            str(len(node.history)),
            _cause(node),
        )
        for node in document.nodes
    ]
    head = ("NODE", "POOL", "STATE", "FOR", "TAINTED", "READY", "QUARANTINES", "CAUSE")
    return table(head, rows, paint=Paint(color=color))


def render_node(node: NodeStatus, *, now: datetime, color: bool = False) -> str:
    """The text of ``rankfall nodes describe`` for one node: how it stands, what is wrong, what was before."""
    paint = Paint(color=color)
    style = {"healthy": paint.good, "suspect": paint.warn}.get(node.state, paint.bad)
    head = f"{paint.bold(node.node)}  {style(_state(node))}"
    if node.since:
        head += f" for {words.age(node.since, now=now)}"
    lines = [
        head,
        f"  pool {one_line(node.pool, width=100)}, {_ready(node)}, boot {one_line(node.boot or 'unknown', width=64)}",
    ]
    lines.append(f"  taints: {one_line(', '.join(node.taints) or 'none', width=_LINE)}")
    lines += [f"  {text}" for text in _remarks(node, now=now)]
    lines.append("  causes:" if node.causes else "  causes: none")
    for cause in node.causes:
        lines += _cause_lines(cause, now=now)
    if node.more_causes:
        lines.append(f"    and {node.more_causes} more")
    lines.append(f"  quarantined: {', '.join(_date(at) for at in node.history) or 'never, as far as its record tells'}")
    if node.past_boots:
        lines.append(f"  boots before: {', '.join(one_line(boot, width=64) for boot in node.past_boots)}")
    return "\n".join(lines)


def _remarks(node: NodeStatus, *, now: datetime) -> Sequence[str]:
    probation = words.moment(node.probation_until)
    found = [
        f"its record is not believed: {one_line(node.problem, width=_LINE)}" if node.problem else "",
        f"should be quarantined and is not: {node.held}" if node.held else "",
        "only a person gives it back: rankfall nodes clear" if node.only_a_person else "",
        f"on probation until {_date(node.probation_until)}: one warning quarantines it"
        if probation and probation > now
        else "",
        f"last declared good: {_date(node.cleared)}" if node.cleared else "",
        f"checks passed in a row: {node.clean}, the last {_date(node.checked)}" if node.checked else "",
        f"failed check: {one_line(node.failed_check, width=_LINE)}" if node.failed_check else "",
        f"being mended: {one_line(node.step, width=_LINE)}" if node.step else "",
        "left alone: it has the label rankfall.dev/hands-off" if node.opted_out else "",
    ]
    return [text for text in found if text]


def _cause_lines(cause: NodeCause, *, now: datetime) -> list[str]:
    where = f" {one_line(cause.device, width=128)}" if cause.device else ""
    state = "settled" if cause.cured else f"asks for {cause.wants}"
    seen = f"seen {words.count(cause.count, 'time')}, last {words.age(cause.last, now=now)} ago"
    lines = [f"    {one_line(cause.code, width=128)}{where}: {state}; {seen}"]
    return [*lines, f"      {one_line(cause.text, width=_LINE)}"] if cause.text else lines


def _state(node: NodeStatus) -> str:
    return f"{node.state}, held: {node.held}" if node.held else node.state


def _ready(node: NodeStatus) -> str:
    return f"{'ready' if node.ready else 'not ready'}{', cordoned' if node.cordoned else ''}"


def _cause(node: NodeStatus) -> str:
    if node.problem:
        return "its record is not believed"
    order = {"quarantine": 0, "suspect": 1, "watch": 2, "none": 3}
    open_ = sorted((cause for cause in node.causes if not cause.cured), key=lambda each: order[each.wants])
    if not open_:
        return ""
    more = f" and {len(open_) - 1 + node.more_causes} more" if len(open_) + node.more_causes > 1 else ""
    return f"{open_[0].code}{' ' + open_[0].device if open_[0].device else ''}{more}"


def _date(text: str | None) -> str:
    return text[:19] + "Z" if text else "-"
