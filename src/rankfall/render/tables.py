"""Renders ``ps``, ``status``, ``nodes list`` and ``nodes describe`` as tables, and ``docs/causes.md``.

Aligned columns, no frames, no wrapping. Text of the kernel or of a user is escaped. ``rankfall config causes`` prints
the page of causes; a test compares it with the page in ``docs``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Final, get_args

from rankfall.model import FINAL_STATES, RankStatus, RunState, RunSummary, SlotStatus, StatusDocument
from rankfall.model.causes import CauseInfo, Family, catalogue
from rankfall.model.node_health.nodes_document import NodeCause, NodesDocument, NodeStatus
from rankfall.render import formatting
from rankfall.render.escape import one_line
from rankfall.render.formatting import Paint

_GAP = "  "
_CELL = 60


def table(head: Sequence[str], rows: Sequence[Sequence[str]], *, paint: Paint) -> str:
    """Returns a table with columns as wide as their longest cell; the last one has no padding."""
    cells = [[one_line(cell, width=_CELL) or "-" for cell in row] for row in rows]
    widths = [max([len(name), *(len(row[n]) for row in cells)]) for n, name in enumerate(head)]
    lines = [_GAP.join(name.ljust(width) for name, width in zip(head, widths, strict=True)).rstrip()]
    lines[0] = paint.dim(lines[0])
    for row in cells:
        line = _GAP.join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        lines.append(line)
    return "\n".join(lines)


def render_runs(runs: Sequence[RunSummary], *, now: datetime, color: bool = False) -> str:
    """Returns the table of ``rankfall ps``; a message if there is no run."""
    if not runs:
        return "No runs yet. Start one: rankfall run --nnodes 2 --nproc-per-node 2 train.py"
    paint = Paint(color=color)
    rows = [
        (
            run.run,
            f"{_ended_alone(run) or run.state}{_alone(run, now=now)}",
            str(run.attempts),
            formatting.age(run.started, now=now),
            formatting.since(run.started, run.ended or (run.seen if run.foreign else None), now=now),
            run.cause or "",
            _maybe(run.rank),
            run.node or "",
        )
        for run in runs
    ]
    head = ("RUN", "STATE", "ATTEMPTS", "AGE", "TOOK", "CAUSE", "RANK", "NODE")
    lines = table(head, rows, paint=paint).split("\n")
    painted = [
        line.replace(_GAP + run.state, _GAP + state_text(run.state, paint), 1)
        for line, run in zip(lines[1:], runs, strict=True)
    ]
    return "\n".join([lines[0], *painted])


def render_status(status: StatusDocument, *, now: datetime, color: bool = False) -> str:
    """Returns the text of ``rankfall status``: a sentence, facts, slots, ranks."""
    paint = Paint(color=color)
    blocks = [_state_sentence(status, now=now, paint=paint)]
    facts = [f"  reason: {one_line(status.reason, width=400)}"] if status.reason else []
    if status.slots:
        facts.append(f"  {_counts(status)}")
    if status.cause:
        who = f", rank {status.rank}" if status.rank is not None else ""
        place = f" on {one_line(status.node, width=100)}" if status.node else ""
        facts.append(f"  cause: {status.cause}{who}{place}")
    facts += [
        paint.warn(f"  {role}: {formatting.count(status.sizes.get(role, 0), 'node')}, {nodes} requested")
        for role, nodes in status.sizes_wished.items()
        if status.sizes.get(role) != nodes
    ]
    if held := held_by(status, now=now):
        facts.append(paint.warn(f"  {held}") if held.startswith("unsupervised") else f"  {held}")
    facts += [paint.warn(f"  record incomplete: {one_line(text, width=400)}") for text in status.incomplete]
    if facts:
        blocks[0] = "\n".join([blocks[0], *facts])
    if status.slots:
        pods = any(slot.pod for slot in status.slots)
        rows = [_slot(slot, pods=pods) for slot in status.slots]
        head = ("SLOT", "ROLE", "NODE", "STATE", "LAUNCHER", "POD" if pods else "PID", "EXIT")
        blocks.append(table(head, rows, paint=paint))
    if status.ranks:
        rows = [_rank(rank) for rank in status.ranks]
        titles = ("RANK", "STATE", "NODE", "SLOT", "LOCAL", "PID", "HOOK", "STEP", "EXIT", "LAST LINE")
        blocks.append(table(titles, rows, paint=paint))
    return "\n\n".join(blocks)


def _state_sentence(status: StatusDocument, *, now: datetime, paint: Paint) -> str:
    """State of the run as a sentence, with attempt and duration."""
    state = state_text(status.state, paint)
    attempt = f" in attempt {status.attempts}" if status.attempts else ""
    span = formatting.since(status.started, status.ended, now=now) if status.started else ""
    if status.state in {"succeeded", "failed"}:
        return f"Run {paint.bold(status.run)} {state}{attempt}{f' after {span}' if span else ''}."
    if _ended_alone(status):
        return f"Run {paint.bold(status.run)} has {paint.warn('ended')}{attempt} without its supervisor{f', after {span}' if span else ''}."
    if status.state == "restarting":
        # The count already includes attempts of the platform itself.
        number = status.attempts if status.unattended else status.attempts + 1
        most = status.restarts.limit + 1
        # Evictions and ignored failures restart a run beyond its limit.
        attempt = f" as attempt {number}{f' of {most}' if number <= most else ''}"
    if status.state == "unknown":
        return f"The state of run {paint.bold(status.run)} is {state}."
    verb = "was" if status.state in {"cancelled", "deleted"} else "is"
    preposition = "after" if status.ended else "for"
    return f"Run {paint.bold(status.run)} {verb} {state}{attempt}{f', {preposition} {span}' if span else ''}."


def _counts(status: StatusDocument) -> str:
    """Number of slots by state, and the restarts."""
    numbers = [f"{getattr(status, name)} {name}" for name in ("succeeded", "failed", "stopped")]
    counted = status.restarts
    text = f"slots: {status.active} active ({status.ready} ready), {', '.join(numbers)}"
    if counted.count:
        causes = ", ".join(f"{slug} {count}" for slug, count in counted.by_cause.items())
        limit = f" of {counted.limit}" if counted.count <= counted.limit else ""
        text += f"; restarts: {counted.count}{limit} ({causes})"
    return text


def _alone(run: RunSummary, *, now: datetime) -> str:
    """Suffix of a run's state if it has no supervisor; a suspended run needs none until resumed."""
    if run.state in FINAL_STATES or run.supervised:
        return ""
    if run.foreign is not None:
        return f", foreign{_seen(run, now=now)}"
    if run.state == "suspended":
        return ""
    return ", unattended" if run.unattended else ", unsupervised"


def _ended_alone(run: RunSummary | StatusDocument) -> str:
    """``ended`` if all processes of a run have ended that has no supervisor to store it; else empty."""
    return "ended" if run.ended and run.state not in FINAL_STATES else ""


def _seen(run: RunSummary | StatusDocument, *, now: datetime) -> str:
    return f", seen {formatting.age(run.seen, now=now)} ago" if run.seen else ""


def held_by(run: RunSummary | StatusDocument, *, now: datetime) -> str:
    """Returns a message about the supervision of an unfinished run; empty if it is normal."""
    if run.state not in {"queued", "starting", "running", "restarting"}:
        return ""
    seen = _seen(run, now=now)
    recorded = "another process records its lines"
    if run.foreign is not None:
        if seen:
            recorded = f"no process records its lines{seen}; rankfall logs -f {run.foreign} does"
        return f"{run.foreign}: Rankfall did not start this object and never changes it; {recorded}"
    if run.unattended:
        if seen:
            recorded = f"no process records its lines{seen}; rankfall attach {run.run} does"
        return f"unattended: Kubernetes restarts and ends it; {recorded}"
    if run.supervised:
        return ""
    if _ended_alone(run):
        return f"unsupervised: no process stores its end; rankfall attach {run.run} does, and restarts it if that helps"
    return f"unsupervised: no process restarts it{seen}; rankfall attach {run.run} takes it over"


def state_text(state: RunState, paint: Paint) -> str:
    """Returns a state in its color."""
    style = {"failed": paint.bad, "succeeded": paint.good, "running": paint.bold, "restarting": paint.warn}.get(state)
    return style(state) if style else state


def _slot(slot: SlotStatus, *, pods: bool) -> tuple[str, ...]:
    return (
        str(slot.slot),
        slot.role,
        slot.node or "",
        slot.state,
        slot.launcher or "",
        one_line(slot.pod or "", width=100) if pods else _maybe(slot.pid),
        _ended(slot.exit, slot.note, again=slot.restarts),
    )


def _rank(rank: RankStatus) -> tuple[str, ...]:
    age = formatting.span(rank.line_age_s) + " ago" if rank.line_age_s is not None else ""
    return (
        str(rank.rank),
        rank.state,
        rank.node or "",
        _maybe(rank.slot),
        _maybe(rank.local_rank),
        _maybe(rank.pid),
        rank.hook or "",
        _maybe(rank.step),
        _ended(rank.exit, rank.note),
        age,
    )


def _ended(code: str | None, note: str | None, *, again: int = 0) -> str:
    restarts = f"after {formatting.count(again, 'restart')}" if again else None
    return ", ".join(part for part in (code, note, restarts) if part)


def _maybe(number: int | None) -> str:
    return "" if number is None else str(number)


_LINE = 400


def render_nodes(document: NodesDocument, *, now: datetime, color: bool = False) -> str:
    """Returns the table of ``rankfall nodes list``."""
    if not document.nodes:
        return "No nodes."
    rows = [
        (
            node.node,
            node.pool,
            _state(node),
            formatting.age(node.since, now=now),
            "yes" if node.tainted else "no",
            _held_node(node),
            _ready(node),
            str(len(node.history)),
            _cause(node),
        )
        for node in document.nodes
    ]
    head = ("NODE", "POOL", "STATE", "FOR", "TAINTED", "HELD BY", "READY", "QUARANTINES", "CAUSE")
    return table(head, rows, paint=Paint(color=color))


def render_node(node: NodeStatus, *, now: datetime, color: bool = False) -> str:
    """Returns the text of ``rankfall nodes describe`` for one node: state, problems, history."""
    paint = Paint(color=color)
    style = {"healthy": paint.good, "suspect": paint.warn}.get(node.state, paint.bad)
    head = f"{paint.bold(node.node)}  {style(_state(node))}"
    if node.since:
        head += f" for {formatting.age(node.since, now=now)}"
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
    lines.append(f"  quarantined: {', '.join(_date(at) for at in node.history) or _without_history(node)}")
    if node.past_boots:
        lines.append(f"  boots before: {', '.join(one_line(boot, width=64) for boot in node.past_boots)}")
    return "\n".join(lines)


def _without_history(node: NodeStatus) -> str:
    """The history holds the controller's quarantines only."""
    if node.state != "quarantined":
        return "never, according to its record"
    return f"since {_date(node.since)}, by a person" if node.since else "now, by a person"


def _remarks(node: NodeStatus, *, now: datetime) -> Sequence[str]:
    probation = formatting.moment(node.probation_until)
    found = [
        f"its record is ignored: {one_line(node.problem, width=_LINE)}" if node.problem else "",
        f"should be quarantined but is not: {node.held}" if node.held else "",
        "only a person can clear it: rankfall nodes clear" if node.only_a_person else "",
        f"on probation until {_date(node.probation_until)}: one warning quarantines it"
        if probation and probation > now
        else "",
        f"last declared good: {_date(node.cleared)}" if node.cleared else "",
        f"checks passed in a row: {node.clean}, the last {_date(node.checked)}" if node.checked else "",
        f"failed check: {one_line(node.failed_check, width=_LINE)}" if node.failed_check else "",
        f"in remediation: {one_line(node.step, width=_LINE)}" if node.step else "",
        "not managed: it has the label rankfall.dev/hands-off" if node.opted_out else "",
        f"held by {one_line(node.holder, width=_LINE)}: Rankfall neither taints nor repairs it meanwhile"
        if node.holder
        else "",
    ]
    return [text for text in found if text]


def _cause_lines(cause: NodeCause, *, now: datetime) -> list[str]:
    where = f" {one_line(cause.device, width=128)}" if cause.device else ""
    state = "settled" if cause.cured else f"requires {cause.wants}"
    seen = f"seen {formatting.count(cause.count, 'time')}, last {formatting.age(cause.last, now=now)} ago"
    lines = [f"    {one_line(cause.code, width=128)}{where}: {state}; {seen}"]
    return [*lines, f"      {one_line(cause.text, width=_LINE)}"] if cause.text else lines


def _state(node: NodeStatus) -> str:
    return f"{node.state}, held: {node.held}" if node.held else node.state


def _held_node(node: NodeStatus) -> str:
    """Returns who keeps new pods off a node."""
    own = "Rankfall" if node.tainted else ""
    other = node.holder or ("cordon" if node.cordoned else "")
    return ", ".join(filter(None, (own, other)))


def _ready(node: NodeStatus) -> str:
    return f"{'ready' if node.ready else 'not ready'}{', cordoned' if node.cordoned else ''}"


def _cause(node: NodeStatus) -> str:
    if node.problem:
        return "its record is ignored"
    order = {"quarantine": 0, "suspect": 1, "watch": 2, "none": 3}
    open_ = sorted((cause for cause in node.causes if not cause.cured), key=lambda each: order[each.wants])
    if not open_:
        return ""
    more = f" and {len(open_) - 1 + node.more_causes} more" if len(open_) + node.more_causes > 1 else ""
    return f"{open_[0].code}{' ' + open_[0].device if open_[0].device else ''}{more}"


def _date(text: str | None) -> str:
    return text[:19] + "Z" if text else "-"


_HEAD: Final = """# Causes

Made by `rankfall config causes`; do not edit. The page lists each cause that a verdict can name (`cause.slug` in `why -o json`). A slug is a public contract, like an
error code: it never gets another name or meaning; new slugs can be added.

- **Role.** `primary` can be the cause of a failure. `secondary` is usually the consequence of another rank's failure; a verdict names it only without other evidence, mostly as `suspected` ([confidence](verdicts.md#how-sure-a-verdict-is)). `context` supports or weakens a verdict and is never a cause.
- **Again.** The restart without a rule of the job: `no`; `yes`, after a pause; `once`, so the same failure again ends the run; `elsewhere`, not on that node. Budgets and rules: [exit-codes.md](exit-codes.md).
- **Node.** The strongest action on the node: `suspect` counts and watches it, `taint` keeps new pods away. Output of a job never taints a node. One failure on all ranks and a cause that is only suspected change no node.
- **Evidence.** The usual evidence. How Rankfall recognises lines of text: [signatures.md](signatures.md).
"""
_TITLES: Final[dict[Family, str]] = {
    "user": "The job's own code",
    "data": "Data",
    "memory": "Memory",
    "gpu": "GPUs",
    "network": "Network",
    "storage": "Storage",
    "platform": "The platform: nodes, pods, the scheduler",
    "control": "Stopped on request or as a consequence",
    "unknown": "Unknown",
}


def causes_page() -> str:
    """Returns the page ``docs/causes.md`` as Markdown."""
    from rankfall.render.summary import advice  # noqa: PLC0415

    texts = {slug: known.advice for slug, known in advice().items()}
    return _HEAD + "".join(_family(family, texts) for family in get_args(Family))


def _family(family: Family, advice: Mapping[str, str]) -> str:
    rows = [_row(cause, advice[cause.slug]) for cause in catalogue().values() if cause.family == family]
    head = (
        "| cause | meaning | role | again | node | evidence | advice |\n| --- | --- | --- | --- | --- | --- | --- |\n"
    )
    return f"\n## {_TITLES[family]}\n\n{head}{''.join(rows)}"


def _row(cause: CauseInfo, advice: str) -> str:
    texts = (cause.title, cause.role, cause.retry, cause.node_action, cause.evidence, advice)
    return f"| `{cause.slug}` | {' | '.join(text.replace('|', chr(92) + '|') for text in texts)} |\n"
