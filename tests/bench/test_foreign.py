"""What the page shows of a job that Rankfall did not start: the rules of what is left out, and what it must say."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bench.common import ROOT
from bench.foreign.fall import MESSAGE, SlotFailure
from bench.foreign.page import WIDTH, root_cause, shown, status, wrong

BAR = "=" * 60
LOG = (
    f"rank 0 step 1\nTraceback\n{BAR}\ntrain.py FAILED\n---\nRoot Cause (first observed failure):\n  rank : 1\n{BAR}\n"
)
VERDICT = {
    "rank": 2,
    "slot": 1,
    "node": "n1",
    "cause": {"slug": "user_code_exception"},
    "decisive": {"line": f"ValueError: {MESSAGE}"},
}
FALL = SlotFailure(
    logs={0: LOG, 1: ""},
    described="Name: train\nSpec:\n  Suspend: false\nStatus:\n  Conditions:\nEvents: <none>\n",
    why=f"rank    2\n{ROOT}/.venv/lib\n{str(ROOT)[1:]}/.venv/lib\n" + "x" * 300 + "\n",
    verdict=VERDICT,
    nodes={0: "n2", 1: "n1"},
    untouched=True,
)


def test_of_torchrun_its_last_block_is_shown_and_of_the_object_its_status():
    text = shown(FALL)
    assert "Root Cause (first observed failure):\n  rank : 1\n" in text
    assert "step 1" not in text
    assert "Suspend" not in text
    assert "Status:\n  Conditions:\nEvents: <none>\n" in text
    assert max(map(len, text.splitlines())) == WIDTH
    assert text.count("```") == 6
    assert "\n.venv/lib\n.venv/lib\n" in text


def test_nothing_is_shown_beside_what_was_not_said():
    with pytest.raises(ValueError, match="torchrun named no root cause"):
        root_cause("Terminated")
    with pytest.raises(ValueError, match="shows no status"):
        status("Name: train")


def test_a_verdict_that_is_not_right_is_told_apart():
    assert wrong(FALL) == []
    other = replace(FALL, verdict=VERDICT | {"node": "n2", "decisive": None}, untouched=False)
    assert wrong(other) == [
        "node: 'n2', not 'n1'",
        "line: False, not True",
        "object untouched: False, not True",
    ]


def test_the_page_shows_all_three():
    text = (ROOT / "docs" / "results" / "bench-foreign.md").read_text()
    part = text.partition("<!-- part foreign -->\n")[2].partition("<!-- /part foreign -->")[0]
    assert part.count("```text\n$ ") == 3
    # Torchrun of the first node blames a rank of its own, Kubernetes none, Rankfall the one that fell.
    blamed = part.partition("Root Cause")[2].partition("```")[0]
    assert "rank      : 0" in blamed or "rank      : 1" in blamed
    assert "rank    2 (local rank 0, slot 1)" in part
    assert f"ValueError: {MESSAGE}" in part
