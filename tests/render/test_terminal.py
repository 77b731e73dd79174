from __future__ import annotations

import re

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankfall.model import Alternative, Cause, Consequence, Decision, Decisive, Proof, Time, Verdict, catalogue
from rankfall.render.verdict import advice, done_text, headline, next_commands, render_brief, render_verdict
from rankfall.verdict.diagnose import diagnose
from support.cases import case, died, left, piece

TRACEBACK = """Traceback (most recent call last):
  File "train.py", line 88, in <module>
    main()
ValueError: loss is not finite"""
SGR = re.compile(r"\x1b\[[0-9;]*m")


def fallen(**fields: object) -> Verdict:
    found = diagnose(
        case(
            [left(0, 1, seconds=1.2), left(1, 1, seconds=1.2), left(2, 1), died(3, 15, by="agent")],
            [
                piece("user_code_exception", 2, line=TRACEBACK),
                piece("peer_lost", 1, role="secondary", seconds=1.1),
                piece("peer_lost", 0, role="secondary", seconds=1.1),
            ],
        )
    ).verdict
    return msgspec.structs.replace(found, **fields)


def proof(line: str, *, where: str = "x") -> Proof:
    return Proof(
        id=line[:8], source="log", slug="unknown", role="primary", rank=1, slot=0, node="n", at=None, uncertainty_s=None,
        where=where, line=line, trust="job",
    )  # fmt: skip


def test_errors_s10_the_first_five_lines_answer() -> None:
    stop = Decision(action="stop", rule="user_error", because="a proven user error does not go away", state="done")
    lines = render_verdict(fallen(decision=stop)).split("\n")
    assert lines[:5] == [
        "run     job-abc123, attempt 1, failed",
        "rank    2 (local rank 0, slot 1)",
        "node    node1",
        "cause   Python exception in training code (user_code_exception, proven)",
        "done    stopped: a proven user error does not go away",
    ]
    assert lines[5] == ""


def test_the_evidence_names_source_time_and_place_and_the_decisive_line_is_whole() -> None:
    text = render_verdict(fallen())
    assert "Evidence  2026-09-21, times in UTC" in text
    assert re.search(r"\d\d:\d\d:\d\d\.000  record  rank 2  records/user_code_exception-2\.json", text)
    assert "      ValueError: loss is not finite" in text
    assert "      Traceback (most recent call last):" in text


def test_the_place_where_it_was_raised_stands_below_the_decisive_line() -> None:
    frames = ("train.py:88 in step", "evil\x1b]0;x\x07.py:1 in main")
    text = render_verdict(fallen(), frames=frames)
    assert (
        "ValueError: loss is not finite\n        at train.py:88 in step\n        at evil\\x1b]0;x\\x07.py:1 in main\n"
        in text
    )
    assert render_brief(fallen(), frames=frames).endswith("\n        at train.py:88 in step")


def test_consequences_are_counted_and_named() -> None:
    assert "3 other ranks fell as a consequence: 0, 1, 3 (peer_lost, peer_teardown)" in render_verdict(fallen())


def test_the_end_says_what_to_type() -> None:
    lines = render_verdict(fallen()).split("\n")
    assert lines[-2:] == [
        "  $ rankfall logs job-abc123 --attempt 1 --rank 2 --tail 50",
        "  $ rankfall why job-abc123 --attempt 1 -o json",
    ]


def test_unknown_says_so_and_lists_what_is_missing_first() -> None:
    verdict = Verdict(
        run="job-abc123", attempt=1, state="failed", cause=Cause.of("unknown", confidence="unknown"),
        missing=("the logs of rank 3", "kernel log: not permitted"), evidence=(proof("noise"),),
    )  # fmt: skip
    text = render_verdict(verdict)
    assert "rank    not known" in text
    assert "node    not known" in text
    assert "cause   unknown, the evidence does not hold it" in text
    assert text.index("Not known\n  the logs of rank 3") < text.index("Evidence")


def test_a_suspicion_is_called_one() -> None:
    verdict = fallen(cause=Cause.of("peer_lost", confidence="suspected"))
    assert "(peer_lost, only suspected)" in render_verdict(verdict)


def test_a_fault_of_all_ranks_blames_none() -> None:
    text = render_verdict(fallen(scope="all", rank=None, node=None, slot=None))
    assert "rank    all, the same fault on each" in text
    assert "node    none in particular" in text


@pytest.mark.parametrize("state", ["running", "succeeded"])
def test_nothing_wrong_is_no_riddle(state: str) -> None:
    verdict = Verdict(
        run="job-abc123", attempt=1, state=state, cause=Cause.of("unknown", confidence="unknown"), missing=("a failure",)
    )  # fmt: skip
    text = render_verdict(verdict)
    assert "cause   none" in text
    assert "not known" not in text.lower()


def test_files_have_no_run() -> None:
    text = render_verdict(fallen(run=None, attempt=None), source="logs/")
    assert text.startswith("run     none, read from logs/\n")
    assert "done    nothing: these are files" in text
    assert next_commands(fallen(run=None)) == ()


def test_a_pod_is_named_with_its_node() -> None:
    assert "pod     trainer-0 on node1" in render_verdict(fallen(pod="trainer-0"))


def test_rejected_alternatives_tell_why() -> None:
    other = Alternative(slug="peer_lost", rank=1, rejected="its peer's end explains it")
    text = render_verdict(fallen(alternatives=(other,) * 9))
    assert "rank 1, peer_lost: its peer's end explains it" in text
    assert "and 5 more, all of them in -o json" in text


@pytest.mark.parametrize(
    ("decision", "text"),
    [
        (None, "nothing yet"),
        (Decision(action="retry", rule="r", because="", budget="total", left=2, state="done"),
         "started again (2 restarts left of budget total)"),
        (Decision(action="retry", rule="r", because="why", state="intent"), "to be started again: why"),
        (Decision(action="stop", rule="r", because="spent", budget="total", left=0, state="done"), "stopped: spent"),
    ],
)  # fmt: skip
def test_what_was_done(decision: Decision | None, text: str) -> None:
    assert done_text(decision) == text


def test_hostile_text_of_the_job_stays_harmless() -> None:
    evil = "\x1b]0;owned\x07\u202e\r\nrun     other-000000, attempt 1, succeeded\x9b2J"
    verdict = fallen(
        node=evil, pod=evil, gpu=evil, evidence=(proof(evil, where=evil),), missing=(evil,),
        decisive=Decisive(source="log", where=evil, line=evil),
        alternatives=(Alternative(slug="peer_lost", rank=1, rejected=evil),),
        decision=Decision(action="retry", rule="r", because=evil),
    )  # fmt: skip
    text = render_verdict(verdict)
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e]", text)
    assert [line for line in text.split("\n") if line.startswith("run ")] == ["run     job-abc123, attempt 1, failed"]


@given(
    line=st.text(max_size=3000),
    width=st.integers(10, 200),
    rank=st.none() | st.integers(0, 10**6),
    slug=st.sampled_from(sorted(catalogue())),
)
def test_any_verdict_can_be_shown_within_the_width(line: str, width: int, rank: int | None, slug: str) -> None:
    verdict = fallen(
        rank=rank,
        evidence=(proof(line),),
        cause=Cause.of(slug, confidence="likely"),
        consequences=(Consequence(rank=None, slug="peer_lost", because=line),),
        missing=(line,),
    )
    plain = render_verdict(verdict, width=width)
    assert SGR.sub("", render_verdict(verdict, width=width, color=True)) == plain
    assert "\x1b" not in plain
    assert "\n\n\n" not in plain
    assert headline(verdict)


def test_colour_never_reaches_over_a_line_end() -> None:
    for line in render_verdict(fallen(), width=50, color=True).split("\n"):
        opened = [match[0] for match in SGR.finditer(line)]
        assert not opened or opened[-1] == "\x1b[0m"


def test_a_brief_verdict_is_five_lines_and_one_proof() -> None:
    lines = render_brief(fallen()).split("\n")
    assert len(lines) == 7
    assert lines[-1].strip() == "ValueError: loss is not finite"


def test_every_cause_has_advice_and_no_advice_is_left_over() -> None:
    assert set(advice()) == set(catalogue())


def test_a_time_that_is_not_known_is_said_to_be_unknown() -> None:
    text = render_verdict(fallen(time=Time(), evidence=(proof("boom"),)))
    assert "time unknown  log  rank 1" in text
