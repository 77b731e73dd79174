"""The status area as text: marks of ranks, progress from lines, and text of a job that is no friend."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rankfall.model import JobSpec, RankFacts, SlotFacts
from rankfall.render.formatting import Paint
from rankfall.render.live import (
    MARKS,
    SILENT_NS,
    Pace,
    Snapshot,
    Step,
    area,
    last_state,
    rank_state,
    states_of,
    step_of,
    strip,
)

SECOND = 1_000_000_000
ORDER = list(MARKS)
SLOTS = st.lists(st.lists(st.sampled_from(ORDER), min_size=1, max_size=9), min_size=1, max_size=200)
HOSTILE = st.text(max_size=300) | st.sampled_from(
    ["\x1b[2J\x1b]0;owned\x07", "[bold]x[/bold]", "\u202egnp.exe", "界" * 200, "a\tb", "\x9b31m"]
)


@given(SLOTS, st.integers(1, 250))
def test_marks_fit_the_width_and_the_worst_of_several_ranks_wins(slots: list, width: int) -> None:
    ranks = [state for slot in slots for state in slot]
    found = strip(slots, width=width)
    assert len(found) <= width
    marks = [state for state in found if state is not None]
    assert min(map(ORDER.index, marks)) == min(map(ORDER.index, ranks))
    if len(ranks) <= width:
        assert marks == ranks
        return
    # Each mark stands for adjacent ranks, nearly equally many, and none is better than one of them.
    least = len(ranks) // width
    for number, mark in enumerate(marks):
        own = ranks[number * len(ranks) // width : (number + 1) * len(ranks) // width]
        assert len(own) in {least, least + 1}
        assert ORDER.index(mark) == min(map(ORDER.index, own))


def test_one_failed_rank_of_1024_shows_in_80_columns() -> None:
    slots: list = [["running"] * 8 for _ in range(128)]
    slots[77][3] = "failed"
    found = strip(slots, width=79)
    assert len(found) == 79
    assert found.count("failed") == 1


def test_lines_and_bars_of_usual_forms_have_progress() -> None:
    lines = {
        "step 5/100": Step(5, 100),
        "[rank 0] Step: 12 of 20, loss 0.3": Step(12, 20),
        "Epoch 1:  12%|█▏        | 12/100 [00:01<00:08, 10.1it/s, loss=0.3]": Step(12, 100),
        " iteration        7/  500000 | consumed samples: 28": Step(7, 500000),
        "Epoch: [0][ 12/5005]  Time 0.2": Step(12, 5005),
        "12/100 [====>.....] - ETA: 3s": Step(12, 100),
        "global_step=4": Step(4, None),
        "step 3.5": None,
        "read 3/4 of shard": None,
        "step 7/3": None,
    }
    assert {line: step_of(line) for line in lines} == lines


@given(HOSTILE)
def test_any_text_is_examined(text: str) -> None:
    step_of(text)
    shown = last_state(b"x\r" + text.encode("utf-8", "surrogatepass"))
    assert shown is None or not [char for char in shown if ord(char) < 0x20 or 0x7F <= ord(char) < 0xA0]


def test_a_bar_is_shown_in_its_last_state() -> None:
    assert last_state(b"\r  0%|  |\r 50%|# |\r100%|##|") == "100%|##|"
    assert last_state(b"\r 50%|# |\r") == "50%|# |"
    assert last_state(b"no bar") is None


def test_the_rate_is_of_the_last_minute_and_a_better_source_replaces_a_worse() -> None:
    pace = Pace()
    for second in range(200):
        pace.take(second * SECOND, Step(second if second < 100 else 100 + 5 * (second - 100), None), reported=True)
    assert pace.text == f"step {pace.step}, 5.0 a second"
    pace.take(200 * SECOND, Step(3, 10))
    pace.take(204 * SECOND, Step(4, 10))
    pace.take(205 * SECOND, Step(900, None), reported=True)
    assert pace.text == "step 4 of 10, 4.0s each, 24s left"


def test_a_rank_that_printed_and_stopped_is_silent_and_one_that_never_printed_is_not() -> None:
    facts = RankFacts(rank=0, state="running")
    now = 10 * SILENT_NS
    assert rank_state(facts, seen=None, now=now, verdict=None) == "running"
    assert rank_state(facts, seen=now - SILENT_NS, now=now, verdict=None) == "silent"
    assert rank_state(facts, seen=now - SILENT_NS + 1, now=now, verdict=None) == "running"


def test_ranks_of_a_lost_slot_and_ranks_that_rankfall_stopped_differ() -> None:
    spec = JobSpec(name="job", command=("a",), nnodes=3, nproc_per_node=2)
    slots = [
        SlotFacts(slot=0, role="worker", state="lost"),
        SlotFacts(slot=1, role="worker", state="running", launcher="torchrun"),
    ]
    ranks = [
        RankFacts(rank=0, slot=0, state="running"),
        RankFacts(rank=1, slot=0, state="ended", exit_code=0),
        RankFacts(rank=2, slot=1, state="ended", signal=15, killed_by="wrapper"),
    ]
    assert states_of(spec.parts, slots, ranks, seen={}, now=1) == [
        ["failed", "completed"],
        ["consequence", "starting"],
        ["starting", "starting"],
    ]


@given(phase=HOSTILE, bar=HOSTILE, width=st.integers(1, 200), color=st.booleans())
def test_no_text_of_a_job_leaves_its_line(*, phase: str, bar: str, width: int, color: bool) -> None:
    found = Snapshot(
        run="job-1",
        state="running",
        attempt=1,
        parts=JobSpec(name="job", command=("a",), nnodes=1, nproc_per_node=1).parts,
        ranks=(RankFacts(rank=0, slot=0, state="running", phase=phase),),
    )
    shown = last_state(b"x\r" + bar.encode("utf-8", "surrogatepass"))
    lines = area(
        found, now=1, seen={}, newest=1, paces={}, bars={"rank 0": shown} if shown else {}, width=width,
        paint=Paint(color=color),
    )  # fmt: skip
    for line in lines:
        text = line
        for code in ("1", "2", "32", "1;31"):
            text = text.replace(f"\x1b[{code}m", "")
        text = text.replace("\x1b[0m", "")
        assert len(text) <= width
        assert not [char for char in text if ord(char) < 0x20 or 0x7F <= ord(char) < 0xA0 or char == "\u202e"]
