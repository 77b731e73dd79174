"""A report is one page that loads nothing, whatever a job printed, and small for a thousand ranks."""

from __future__ import annotations

import re
import unicodedata
from html.parser import HTMLParser

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rankfall.client.client import Client
from rankfall.model import Cause, Consequence, Decision, Decisive, Proof, RunSummary, Verdict
from rankfall.model.run_status import AttemptReport, RankSpan, ReportDocument
from rankfall.render.report import render_fragment, render_html, render_markdown
from rankfall.render.summary import summary
from rankfall.render.verdict import labels

HOSTILE = (
    "<script>alert(1)</script>",
    "</pre><img src=x onerror=alert(1)>",
    '"><svg onload=alert(1)>',
    "\x1b[31m\x1b]0;title\x07",
    "\u202egnp.exe",
    "{body}{title}",
    "```\n# Heading\n@everyone #123 <b>",
    "| a | b |\n| --- |",
)
# What the page itself is made of; nothing of it runs or loads.
TAGS = {
    "html",
    "head",
    "meta",
    "title",
    "style",
    "body",
    "main",
    "h1",
    "h2",
    "p",
    "div",
    "dl",
    "dt",
    "dd",
    "pre",
    "b",
    "code",
    "ul",
    "li",
    "strong",
    "br",
    "span",
    "svg",
    "rect",
    "line",
    "text",
    "details",
    "summary",
    "table",
    "thead",
    "tbody",
    "tr",
    "th",
    "td",
    "footer",
}


class Page(HTMLParser):
    """Tags and attributes of a page, and whether they close in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: set[str] = set()
        self.open: list[str] = []
        self.text = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes |= {name for name, _ in attrs}
        if tag not in {"meta", "br"} and not self.get_starttag_text().endswith("/>"):  # type: ignore[union-attr]
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def verdict(text: str, **fields: object) -> Verdict:
    proof = Proof(
        id="1", source="log", slug="user_code_exception", role="primary", rank=1, slot=0, node=text, at=None,
        uncertainty_s=0.5, where=text, line=text, trust="job",
    )  # fmt: skip
    return msgspec.structs.replace(
        Verdict(
            run="run-1",
            attempt=1,
            state="failed",
            cause=Cause.of("user_code_exception", confidence="proven"),
            rank=1,
            node=text,
            decisive=Decisive(source="log", where=text, line=text),
            evidence=(proof,),
            consequences=(Consequence(rank=0, slug="peer_lost", because=text),),
            missing=(text,),
        ),
        **fields,
    )


def report(text: str, *, ranks: int = 2) -> ReportDocument:
    spans = tuple(
        RankSpan(
            rank=number,
            node=text if number == 1 else f"node{number // 8}",
            outcome="root" if number == 1 else "consequence",
            exit="1",
            started="2026-11-26T10:00:00.000000000Z",
            ended=f"2026-11-26T10:{number % 60:02d}:30.500000000Z",
            uncertainty_s=0.05,
        )
        for number in range(ranks)
    )
    one = AttemptReport(
        attempt=1, summary=text, verdict=verdict(text), frames=(text,), before=(text,), output=(text, text), ranks=spans
    )
    run = RunSummary(run="run-1", name=text, backend="local", state="failed", attempts=1)
    return ReportDocument(
        made="2026-11-26T10:00:00Z", version="0", source=text, run=run, incomplete=(text,), attempts=(one, one)
    )


@given(st.text(max_size=200) | st.sampled_from(HOSTILE))
@example(HOSTILE[0])
@example(HOSTILE[5])
def test_i24_p3_no_text_of_a_job_becomes_markup(text: str) -> None:
    page = Page(render_html(report(text)))
    assert set(page.tags) <= TAGS
    assert not page.open
    assert not {name for name in page.attributes if name.startswith("on") or name in {"src", "href"}}
    # One of the template, none of the text.
    assert page.tags.count("title") == 1 + 2 * 2
    assert not {char for char in page.text if ord(char) < 0x20 and char not in "\n\t"}


@pytest.mark.parametrize("text", HOSTILE)
def test_i24_p3_in_markdown_the_text_of_a_job_is_code(text: str) -> None:
    found = render_markdown(report(text))
    fence, outside = "", []
    for line in found.split("\n"):
        if not fence and line.startswith("```") and line.endswith("text"):
            fence = line.removesuffix("text")
        elif fence and line == fence:
            fence = ""
        elif not fence:
            outside.append(line)
    assert not fence
    for line in outside:
        assert not line.startswith(("# Heading", "| a |"))
        assert "<script" not in line.replace("\\<", "") or "`" in line


def test_i24_p3_a_report_of_1024_ranks_is_small() -> None:
    page = render_html(report("KeyError: 'x'", ranks=1024))
    assert len(page) < 2_000_000
    assert page.count("<rect") == 2 * 1024


def test_i24_p3_what_a_report_says() -> None:
    page = Page(render_html(report("KeyError: 'column_7'"))).text
    for text in (
        "run-1, attempt 1, failed",
        "First: rank 1",
        "1 rank (0)",
        "peer_lost",
        "1 failed first",
        "rankfall logs run-1",
    ):
        assert text in page, text
    assert "The record is incomplete" in page


def test_i24_p3_a_node_has_its_attempts_failures_and_gpus() -> None:
    document = report("node7")
    first, last = document.attempts
    lost = verdict(
        "node0", cause=Cause.of("gpu_fallen_off_bus", confidence="proven"), gpu="GPU-3", node_action="replace"
    )
    first = msgspec.structs.replace(first, verdict=lost, ranks=report("node0").attempts[0].ranks)
    attempts = (first, msgspec.structs.replace(last, attempt=2), msgspec.structs.replace(last, attempt=3))
    rows = table(msgspec.structs.replace(document, attempts=attempts), "Nodes in all attempts")
    assert rows == [
        ["node0", "1-3", "attempt 1: gpu_fallen_off_bus, rank 1, GPU GPU-3, node: replace"],
        ["node7", "2, 3", "attempt 2: user_code_exception, rank 1attempt 3: user_code_exception, rank 1"],
    ]


def table(document: ReportDocument, name: str) -> list[list[str]]:
    """The cells of a table of the page, by its name, row by row."""
    found = re.search(rf'aria-label="{name}">.*?<tbody>(.*?)</tbody>', render_html(document), re.DOTALL)
    assert found is not None
    rows = re.findall("<tr>(.*?)</tr>", found[1])
    return [[Page(cell).text for cell in re.findall("<td>(.*?)</td>", row)] for row in rows]


def test_i24_p3_the_last_lines_of_the_rank_stand_in_the_page_and_in_markdown() -> None:
    document = report("KeyError: 'column_7'")
    one = msgspec.structs.replace(document.attempts[0], output=("step 4", "<b>step 5</b>"))
    document = msgspec.structs.replace(document, attempts=(one,))
    page = Page(render_html(document)).text
    assert "2 last lines of rank 1step 4\n<b>step 5</b>" in page
    assert "Last lines of rank 1:\n\n```text\nstep 4\n<b>step 5</b>\n```" in render_markdown(document)


def test_i24_p3_without_a_verdict_or_times_it_says_so() -> None:
    empty = ReportDocument(made="now", version="0", source="run-2")
    assert "No attempt has a verdict" in render_html(empty)
    assert "No attempt has a verdict" in render_markdown(empty)
    one = AttemptReport(attempt=1, ranks=(RankSpan(rank=0),))
    page = render_html(msgspec.structs.replace(empty, attempts=(one,)))
    assert "All times are unknown" in page
    assert "This attempt has no verdict" in page


def placed(text: str, **fields: object) -> Verdict:
    """A verdict with the text in every field that a job or a cluster can choose."""
    why = Decision(action="retry", rule="r", because=text, budget=text, left=1)
    return verdict(text, pod=text, gpu=text, decision=why, **fields)


@given(
    text=st.text(max_size=200) | st.sampled_from(HOSTILE),
    source=st.sampled_from(["log", "record", "pod"]),
    nameless=st.booleans(),
)
@example(text="\x1b[31m\u202e</pre><script>\ud800\r\n<img src=x onerror=alert(1)>", source="log", nameless=True)
@example(text="</dd></dl></div><style>*{display:none}</style>", source="pod", nameless=False)
def test_i24_p3_no_tag_of_a_job_survives_in_a_notebook(*, text: str, source: str, nameless: bool) -> None:
    def shown(line: str) -> Page:
        decisive = Decisive(source=source, where=line, line=line)
        return Page(render_fragment(placed(line, decisive=decisive, rank=None if nameless else 1)))

    page = shown(text)
    assert page.tags == shown("plain").tags
    assert page.attributes == {"style"}
    assert not page.open
    hidden = {
        char for char in page.text if unicodedata.category(char) in {"Cc", "Cs", "Zl", "Zp"} or char in "\u202e\u2066"
    }
    assert hidden <= {"\n", "\t"}


def test_i24_p3_a_notebook_shows_sentence_labels_and_decisive_line_in_its_own_colors() -> None:
    found = placed("KeyError: 'column_7'")
    # The Python API is loaded.
    assert Client.__module__ == "rankfall.client.client"
    html = found._repr_html_()
    assert html == render_fragment(found)
    page = Page(html)
    assert "Rank 1" in page.text
    assert summary(found) in page.text
    for label, text in labels(found, source=None):
        assert f"{label}{text}" in page.text
    assert "log, KeyError: 'column_7'" in page.text
    # A theme of the notebook sets text and background; nothing is loaded.
    assert not re.search(r"(?<!-)\bcolor:|http|url\(|@import|background:#", html)


def test_i24_p3_a_huge_line_and_no_decisive_line_are_shown_too() -> None:
    huge = "<b>\u202e" * 3_000_000
    for decisive in (Decisive(source="log", where=huge, line=huge), None):
        html = render_fragment(placed("x", decisive=decisive))
        assert len(html) < 100_000
        assert Page(html).tags.count("pre") == (decisive is not None)
