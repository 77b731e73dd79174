"""Makes messages about a run, and their bodies for each kind of receiver.

Text of jobs is hostile: every value is redacted, then one bounded line without control characters. Slack gets plain
text objects with ``&``, ``<`` and ``>`` as entities, so a job makes no mention, link or markup. Teams gets text runs,
which know no Markdown. A mail header is one line.
"""

from __future__ import annotations

from email.message import EmailMessage
from email.policy import SMTP
from typing import Any, Final, NamedTuple
from urllib.parse import quote

import msgspec

from rankfall.model import RunState, Verdict
from rankfall.model.jobspec.policies import NotifyEvent, NotifyShape
from rankfall.model.patterns import bounded
from rankfall.model.run_status import Notification
from rankfall.render.escape import Redactor, one_line, shorten
from rankfall.render.summary import action_text, first_sentence, is_no_failure

_TEXT: Final = 600
_QUOTE: Final = 200
_DECISION: Final = 400
_NODE: Final = 100
_SUBJECT: Final = 150
# Adaptive cards expand {{DATE(...)}} and ${...}.
_EXPANDED: Final = bounded(r"([{$])(?=[{])", limit=4096)
_UNSAFE: Final = bounded(r"[<>|\s\"]", limit=1 << 16)
_APART: Final = r"\1" + "\u200b"
_ENDS: Final = {
    "succeeded": "The run succeeded",
    "failed": "The run failed",
    "cancelled": "The run was cancelled",
    "deleted": "The run ended, because its workload was deleted",
}


class Happening(NamedTuple):
    """One event of a run.

    Attributes:
        key: Names it within the run, as ``failure-1``; stable over takeovers.
        at: Time of the event, RFC 3339.
        state: State of the run that the event brought.
        verdict: Verdict with its decision, as far as known.
        reason: Text of the event.
        step: Last training step of the verdict's rank.
    """

    key: str
    event: NotifyEvent | None
    attempt: int | None
    at: str
    state: RunState
    verdict: Verdict | None = None
    reason: str | None = None
    step: int | None = None


class RunName(NamedTuple):
    """ID and name of a run."""

    run: str
    name: str


def message(about: RunName, found: Happening, *, redactor: Redactor, link: str | None) -> Notification:
    """Makes the message about an event; ``link`` is a template."""
    verdict = redactor.of(found.verdict) if found.verdict is not None else None
    reason = one_line(redactor.text(found.reason or ""), width=_TEXT)
    failed = verdict is not None and not is_no_failure(verdict)
    node = one_line(verdict.node, width=_NODE) if verdict is not None and verdict.node else None
    name = one_line(redactor.text(about.name), width=_NODE)
    values = {
        "run": about.run,
        "name": name,
        "attempt": found.attempt,
        "rank": verdict.rank if verdict is not None else None,
        "node": node,
    }
    return Notification(
        id=f"{about.run}/{found.key}",
        event=found.event,
        at=found.at,
        run=about.run,
        name=name,
        state=found.state,
        attempt=found.attempt,
        text=one_line(_sentence(found, verdict if failed else None, reason), width=_TEXT),
        cause=verdict.cause.slug if verdict is not None and failed else None,
        confidence=verdict.cause.confidence if verdict is not None and failed else None,
        rank=verdict.rank if verdict is not None else None,
        node=node,
        decision=one_line(action_text(verdict.decision), width=_DECISION) if verdict and verdict.decision else None,
        command=f"rankfall why {about.run}",
        link=_filled(link, values) if link else None,
    )


def _sentence(found: Happening, verdict: Verdict | None, reason: str) -> str:
    state = found.state
    if found.event == "restart":
        return f"Attempt {found.attempt} began."
    if found.event == "hang":
        return f"Hang in attempt {found.attempt}: {reason}"
    if found.event != "end":
        return _what(verdict, found.step) if verdict is not None else reason
    attempt = f" in attempt {found.attempt}" if found.attempt and state in {"succeeded", "failed"} else ""
    ended = f"{_ENDS.get(state, f'The run is {state}')}{attempt}"
    if verdict is not None:
        return f"{ended}. {_what(verdict, found.step)}"
    return f"{ended}: {reason}" if reason and state != "succeeded" else f"{ended}."


def _what(verdict: Verdict, step: int | None) -> str:
    """First sentence, with the last line of the decisive evidence."""
    first = first_sentence(verdict, step=step)
    lines = verdict.decisive.line.strip().splitlines() if verdict.decisive is not None else []
    return f"{first} Evidence: {one_line(lines[-1], width=_QUOTE)}" if lines else first


def _filled(template: str, values: dict[str, Any]) -> str:
    for name, value in values.items():
        template = template.replace(f"{{{name}}}", "" if value is None else quote(str(value), safe=""))
    return _UNSAFE.sub(lambda one: quote(one[0]), template)


def body(note: Notification, shape: NotifyShape) -> bytes:
    """Returns the JSON body of a webhook's POST."""
    return msgspec.json.encode({"json": _plain, "slack": _slack, "teams": _teams}[shape](note))


def mail(note: Notification, to: str) -> bytes:
    """Returns a mail with its headers. Repetitions have one ``Message-ID``, so that readers may hide them."""
    made = EmailMessage(policy=SMTP)
    made["To"] = to
    made["Subject"] = shorten(f"[rankfall] {_head(note)}", _SUBJECT)
    made["Message-ID"] = f"<{note.id.replace('/', '.')}@rankfall.invalid>"
    made["Auto-Submitted"] = "auto-generated"
    made.set_content("\n".join([note.text, "", *_lines(note), *([note.link] if note.link else []), ""]))
    # sendmail expects the line ends of this machine.
    return made.as_bytes().replace(b"\r\n", b"\n")


def _head(note: Notification) -> str:
    return f"{note.run}: {note.text}"


def _lines(note: Notification) -> list[str]:
    cause = f"{note.cause} ({note.confidence})" if note.cause else None
    rows = {
        "run": f"{note.run} ({note.state})",
        "attempt": note.attempt,
        "cause": cause,
        "rank": note.rank,
        "node": note.node,
        "decision": note.decision,
        "more": note.command,
    }
    return [f"{label}: {value}" for label, value in rows.items() if value is not None]


def _plain(note: Notification) -> Any:
    return note


def _slack(note: Notification) -> dict[str, Any]:
    blocks: list[dict[str, Any]] = [
        {"type": "section", "text": {"type": "plain_text", "text": text, "emoji": False}}
        for text in (_entities(_head(note)), _entities("\n".join(_lines(note))))
    ]
    if note.link:
        blocks.append({"type": "section", "text": {"type": "mrkdwn", "text": f"<{_entities(note.link)}|more>"}})
    return {
        "text": _entities(_head(note)),
        "mrkdwn": False,
        "unfurl_links": False,
        "unfurl_media": False,
        "blocks": blocks,
    }


def _entities(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _teams(note: Notification) -> dict[str, Any]:
    def block(text: str, **style: str) -> dict[str, Any]:
        run = {"type": "TextRun", "text": _EXPANDED.sub(_APART, text), **style}
        return {"type": "RichTextBlock", "inlines": [run]}

    card: dict[str, Any] = {
        "$schema": "http://adaptivecards.io/schemas/adaptive-card.json",
        "type": "AdaptiveCard",
        "version": "1.4",
        "body": [block(_head(note), weight="Bolder"), *map(block, _lines(note))],
    }
    if note.link:
        card["actions"] = [{"type": "Action.OpenUrl", "title": "more", "url": note.link}]
    attachment = {"contentType": "application/vnd.microsoft.card.adaptive", "contentUrl": None, "content": card}
    return {"type": "message", "attachments": [attachment]}
