"""A report in a real browser: readable at two widths, in light and dark, on paper, and with the keyboard alone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from selenium.webdriver.common.keys import Keys

from rankfall.model import Alternative, Cause, Decision
from rankfall.model.run_status import AttemptReport, ReportDocument
from rankfall.render.report import render_html
from render.test_report import HOSTILE, report, verdict
from support import browser
from support.browser import Browser, Scheme

pytestmark = [
    pytest.mark.full,
    pytest.mark.timeout(120),
    pytest.mark.skipif(bool(browser.missing()), reason=f"a real browser: {browser.missing()}"),
]


def numbered(document: ReportDocument) -> ReportDocument:
    """The same with its attempts counted from 1."""
    attempts = (msgspec.structs.replace(one, attempt=number) for number, one in enumerate(document.attempts, 1))
    return msgspec.structs.replace(document, attempts=tuple(attempts))


def restarted() -> ReportDocument:
    """A run whose first attempt lost a GPU and whose second one an exception ended."""
    first = AttemptReport(
        started="2026-11-26T10:00:00.000000000Z",
        summary="Rank 1 on node0 lost its GPU.",
        verdict=verdict(
            "node0",
            cause=Cause.of("gpu_fallen_off_bus", confidence="proven"),
            gpu="0000:3b:00",
            node_action="replace",
            alternatives=(Alternative(slug="host_oom", rank=1, rejected="no kernel line names it"),),
        ),
        decisions=(Decision(action="retry_elsewhere", rule="elsewhere", because="another node has a working GPU"),),
        advice="Replace the GPU.",
        ranks=report("node0").attempts[0].ranks,
    )
    return numbered(msgspec.structs.replace(report("run-1"), attempts=(first, report("node1").attempts[0])))


HOSTILE_TEXT = "\n".join(
    (
        *HOSTILE,
        "<img src=http://127.0.0.1:9/x onerror=\"document.title='taken'\">",
        "<style>*{display:none}</style><base href=http://127.0.0.1:9/><iframe src=javascript:alert(1)>",
        "javascript:alert(1)",
        "&lt;script&gt;document.title='taken'&lt;/script&gt;",
        "word" * 3000,
    )
)
PAGES = {
    "two attempts": restarted(),
    "hostile text": numbered(report(HOSTILE_TEXT)),
    "64 ranks": numbered(report("a line of the job", ranks=64)),
    "1024 ranks": numbered(report("a line of the job", ranks=1024)),
    "no verdict": ReportDocument(made="2026-11-26T10:00:00Z", version="0", source="run-1", attempts=(AttemptReport(),)),
}


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with browser.chromium() as found:
        yield found


def page(folder: Path, name: str) -> Path:
    path = folder / "report.html"
    path.write_text(render_html(PAGES[name]), "utf-8")
    return path


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("name", [name for name in PAGES if name != "1024 ranks"])
def test_i24_p3_a_report_is_accessible_and_fits(
    chromium: Browser, tmp_path: Path, name: str, width: int, scheme: Scheme
) -> None:
    chromium.open(page(tmp_path, name), width=width, scheme=scheme)
    assert chromium.run("return document.documentElement.scrollWidth <= window.innerWidth"), "it scrolls sideways"
    # Folded text counts, too.
    chromium.run("document.querySelectorAll('details').forEach(one => { one.open = true })")
    assert chromium.findings() == []
    assert chromium.run("return document.documentElement.scrollWidth <= window.innerWidth"), "it scrolls sideways"
    assert chromium.messages() == []


@pytest.mark.parametrize("width", [390, 1280])
def test_i24_p3_a_report_of_1024_ranks_fits(chromium: Browser, tmp_path: Path, width: int) -> None:
    # Without axe-core: its check of contrast takes minutes for 8,000 cells of one style.
    chromium.open(page(tmp_path, "1024 ranks"), width=width)
    chromium.run("document.querySelectorAll('details').forEach(one => { one.open = true })")
    assert chromium.run("return document.documentElement.scrollWidth <= window.innerWidth"), "it scrolls sideways"
    assert chromium.messages() == []
    assert chromium.run("return document.querySelectorAll('svg rect').length") == 2 * 1024


def test_i24_p3_the_two_schemes_differ(chromium: Browser, tmp_path: Path) -> None:
    background = "return getComputedStyle(document.body).backgroundColor"
    chromium.open(page(tmp_path, "two attempts"), scheme="light")
    light = chromium.run(background)
    chromium.open(page(tmp_path, "two attempts"), scheme="dark")
    assert (light, chromium.run(background)) == ("rgb(255, 255, 255)", "rgb(13, 17, 23)")


def test_i24_p3_hostile_text_runs_nothing_and_loads_nothing(chromium: Browser, tmp_path: Path) -> None:
    chromium.open(page(tmp_path, "hostile text"))
    assert chromium.messages() == []
    assert chromium.run("return performance.getEntriesByType('resource').length") == 0
    assert str(chromium.driver.title).startswith("Rankfall: <script>")
    active = "script, img, iframe, base, link, object, embed, a, form, [onerror], [onload], [src], [href]"
    assert chromium.run(f"return document.querySelectorAll('{active}').length") == 0
    assert chromium.run("return document.querySelectorAll('style').length") == 1


def test_i24_p3_the_keyboard_alone_opens_all_that_is_folded(chromium: Browser, tmp_path: Path) -> None:
    chromium.open(page(tmp_path, "two attempts"))
    folded = chromium.run("return document.querySelectorAll('details').length")
    assert isinstance(folded, int)
    assert folded >= 4
    seen: list[str] = []
    for _ in range(60):
        chromium.driver.switch_to.active_element.send_keys(Keys.TAB)
        focused = chromium.run("return document.activeElement.tagName")
        if focused == "BODY":
            break
        seen.append(str(focused))
        outline = chromium.run("return getComputedStyle(document.activeElement).outlineStyle")
        assert outline == "solid", f"no ring around the focused {focused}"
        if focused == "SUMMARY":
            chromium.driver.switch_to.active_element.send_keys(Keys.ENTER)
    assert seen.count("SUMMARY") == folded
    # A wide table scrolls with the arrow keys.
    assert "DIV" in seen
    assert chromium.run("return document.querySelectorAll('details:not([open])').length") == 0


def test_i24_p3_paper_shows_what_is_folded_in_dark_ink(chromium: Browser, tmp_path: Path) -> None:
    chromium.open(page(tmp_path, "two attempts"), scheme="dark", media="print")
    visible = (
        "return [...document.querySelectorAll('details table, details pre')]"
        ".map(one => one.checkVisibility({contentVisibilityAuto: true}) && one.getBoundingClientRect().height > 0)"
    )
    shown = chromium.run(visible)
    assert isinstance(shown, list)
    assert len(shown) > 4
    assert all(shown)
    assert chromium.run("return getComputedStyle(document.body).color") == "rgb(27, 31, 36)"
