"""Whatever a job prints or is named, a message is one bounded line each, and no receiver takes it as markup, a mention or a header."""

from __future__ import annotations

import email
import email.policy
import html
import json
import unicodedata
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankfall.model import Cause, Decision, Verdict, decoding
from rankfall.model.run_status import Notification
from rankfall.model.verdict import Decisive
from rankfall.render.escape import Redactor
from rankfall.render.notification import Happening, RunName, body, mail, message

ATTACKS = (
    "<!channel>",
    "<@U0123>",
    "<https://evil.example|click>",
    "&lt;!here&gt;",
    "*bold* _it_ `code` [x](http://evil.example)",
    "{{DATE(2026-01-01T00:00:00Z)}}",
    "{{{x}}} ${secret}",
    "<at>all</at>",
    "a\r\nBcc: all@example.org\r\n\r\nbody",
    "\x1b]0;title\x07\u202eevil",
    "\udcff\ud800",
    "\n.\n",
    "x" * 5000,
)
TEXTS = st.lists(st.sampled_from(ATTACKS) | st.text(max_size=40), max_size=4).map(" ".join)
PLANTED = "hunter2hunter2"


def hostile(text: str, *, link: str | None = None, event: str = "failure") -> Notification:
    """A message with this text in everything that a job, a node or a person chose."""
    verdict = Verdict(
        run="train-608d43",
        attempt=1,
        state="failed",
        cause=Cause.of("user_code_exception", confidence="proven"),
        scope="rank",
        rank=2,
        node=text or "n",
        decisive=Decisive(source="log", where=text, line=f"{text}: failed"),
        decision=Decision(action="stop", rule="final", because=text),
    )
    found = Happening(
        key=f"{event}-1",
        event=event,
        attempt=1,
        at="2026-01-01T00:00:00Z",
        state="failed",
        verdict=verdict,
        reason=text,
    )  # type: ignore[arg-type]
    redactor = Redactor()
    redactor.learn([PLANTED])
    about = RunName(run="train-608d43", name="train")
    return message(about, found, redactor=redactor, link=link)


def strings(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value]
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [text for part in parts for text in strings(part)]


@given(TEXTS, st.sampled_from(["failure", "hang", "end"]))
def test_slack_gets_no_markup_and_no_mention(text: str, event: str) -> None:
    sent = body(hostile(text, event=event), "slack")
    assert len(sent) < 16 << 10
    data = json.loads(sent)
    assert data["mrkdwn"] is False
    assert {block["text"]["type"] for block in data["blocks"]} == {"plain_text"}
    for one in (data["text"], *(block["text"]["text"] for block in data["blocks"])):
        assert "<" not in one
        assert ">" not in one
        # Every & begins an entity of ours.
        assert html.unescape(one).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;") == one
        assert len(one) <= 3000 * 5


@given(TEXTS, st.sampled_from(["failure", "hang", "end"]))
def test_teams_gets_text_without_markdown_and_expands_nothing(text: str, event: str) -> None:
    sent = body(hostile(text, event=event), "teams")
    assert len(sent) < 16 << 10
    card = json.loads(sent)["attachments"][0]["content"]
    assert {block["type"] for block in card["body"]} == {"RichTextBlock"}
    assert {run["type"] for block in card["body"] for run in block["inlines"]} == {"TextRun"}
    assert "entities" not in card
    assert not any("{{" in one or "${" in one for one in strings(card))


@given(TEXTS, st.sampled_from(["failure", "hang", "end"]))
def test_a_mail_has_our_headers_alone(text: str, event: str) -> None:
    sent = mail(hostile(text, event=event), "team@example.org")
    assert len(sent) < 32 << 10
    read = email.message_from_bytes(sent, policy=email.policy.default)
    assert [name.lower() for name in read] == [
        "to", "subject", "message-id", "auto-submitted", "content-type", "content-transfer-encoding", "mime-version",
    ]  # fmt: skip
    assert read["To"] == "team@example.org"
    assert not read.defects


@given(TEXTS)
def test_json_is_a_bounded_document_of_visible_lines(text: str) -> None:
    sent = body(hostile(text), "json")
    assert len(sent) < 16 << 10
    note = decoding.decode(sent, kind=Notification)
    assert msgspec.json.encode(note) == sent
    for one in (note.text, note.decision or "", note.node or ""):
        assert not {unicodedata.category(char) for char in one} & {"Cc", "Cs", "Zl", "Zp"}


@given(TEXTS)
def test_a_link_stays_in_its_place(text: str) -> None:
    link = "https://logs.example.org/<{run}>?node={node}&rank={rank}&attempt={attempt}"
    found = hostile(text, link=link).link or ""
    assert found.startswith("https://logs.example.org/%3Ctrain-608d43%3E?node=")
    assert found.endswith("&rank=2&attempt=1")
    assert found.isascii()
    assert not set(found) & set('<>|" \n')
    assert found.count("&") == 2


@pytest.mark.parametrize("event", ["failure", "hang", "end"])
def test_secrets_are_masked_before_the_text_is_cut(event: str) -> None:
    # Cut first, half of the secret would stay.
    note = hostile("y" * 90 + f" {PLANTED} token=abcdefgh12345678", event=event)
    for shape in ("json", "slack", "teams"):
        sent = body(note, shape)  # type: ignore[arg-type]
        assert b"hunter2" not in sent
        assert b"abcdefgh" not in sent


@pytest.mark.parametrize("event", ["failure", "end"])
def test_the_last_line_of_the_evidence_is_part_of_the_message(event: str) -> None:
    note = hostile(f"first line\nKeyError: {PLANTED} 'labels'", event=event)
    assert note.text.endswith("Evidence: KeyError: *** 'labels': failed")
    assert len(hostile("x" * 5000, event=event).text) <= 600
