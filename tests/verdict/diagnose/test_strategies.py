"""Strategies: the two that pick a record, those of others, and what holds whichever was chosen."""

from __future__ import annotations

import random

import msgspec
import pytest

from rankfall.model import Diagnosis
from rankfall.verdict.diagnose import BUILT_IN, CAUSAL, EARLIEST, FIRST_LISTED, Strategy, diagnose
from support.cases import case, died, left, piece


def answer(found: Diagnosis):
    return found.verdict.rank, found.verdict.cause.slug, found.verdict.cause.confidence


def victim_first():
    """Rank 0 complains of its partner before rank 1, the culprit, has raised."""
    evidence = [
        piece("peer_lost", 0, role="secondary", seconds=1, where="records/error-b.json"),
        piece("user_code_exception", 1, seconds=2, where="records/error-c.json"),
        piece("user_code_exception", 2, seconds=3, where="records/error-a.json", line="third"),
    ]
    return case([left(0, 1), left(1, 1), left(2, 1), died(3, 15, by="agent")], evidence)


def test_errors_s11_each_strategy_has_its_own_answer():
    told = {name: answer(diagnose(victim_first(), strategy=strategy)) for name, strategy in BUILT_IN.items()}
    assert told == {
        "causal": (1, "user_code_exception", "proven"),
        "earliest": (0, "peer_lost", "likely"),
        "first-listed": (2, "user_code_exception", "suspected"),
    }


@pytest.mark.parametrize("strategy", [EARLIEST, FIRST_LISTED], ids=lambda s: s.name)
def test_errors_s11_a_verdict_of_another_strategy_says_so(strategy):
    verdict = diagnose(victim_first(), strategy=strategy).verdict
    assert f"strategy {strategy.name} chose this cause" in verdict.missing[0]
    assert len(verdict.alternatives) == 2
    assert not any("strategy" in text for text in diagnose(victim_first()).verdict.missing)


def test_errors_s13_earliest_never_takes_a_record_without_time():
    evidence = [
        piece("user_code_exception", 0, seconds=None, line="no clock"),
        piece("bad_sample", 1, seconds=900),
    ]
    found = diagnose(case([left(0, 1), left(1, 1)], evidence), strategy=EARLIEST).verdict
    assert (found.rank, found.cause.slug) == (1, "bad_sample")
    assert [item.rejected for item in found.alternatives] == ["its record has no time"]


def test_earliest_without_any_time_leaves_the_answer_to_causal():
    evidence = [piece("user_code_exception", 0, seconds=None)]
    found = diagnose(case([left(0, 1), left(1, 1)], evidence), strategy=EARLIEST).verdict
    assert found.rank == 0
    assert "a record that strategy earliest could choose; the strategy causal was used" in found.missing


@pytest.mark.parametrize("strategy", [EARLIEST, FIRST_LISTED], ids=lambda s: s.name)
def test_a_death_without_any_record_is_explained_by_causal(strategy):
    found = diagnose(case([left(0, 0), died(1, 9)], []), strategy=strategy).verdict
    assert (found.rank, found.cause.slug) == (1, "killed_unknown")
    assert "the strategy causal was used" in found.missing[0]


def test_two_clocks_that_cannot_tell_make_earliest_a_suspicion():
    evidence = [
        piece("user_code_exception", 0, seconds=1.0, uncertainty=90.0, line="A"),
        piece("user_code_exception", 1, seconds=5.0, line="B"),
    ]
    assert answer(diagnose(case([left(0, 1), left(1, 1)], evidence), strategy=EARLIEST)) == (
        0,
        "user_code_exception",
        "suspected",
    )


def test_one_record_alone_is_more_than_a_suspicion():
    found = diagnose(case([left(0, 1), left(1, 0)], [piece("bad_sample", 0)]), strategy=FIRST_LISTED)
    assert answer(found) == (0, "bad_sample", "likely")


@pytest.mark.parametrize("strategy", BUILT_IN.values(), ids=lambda s: s.name)
def test_no_order_changes_an_answer(strategy):
    rng, told = random.Random(3), victim_first()
    evidence, answers = list(told.evidence), set()
    for _ in range(30):
        rng.shuffle(evidence)
        shuffled = msgspec.structs.replace(told, evidence=(*evidence, *evidence[:1]))
        answers.add(msgspec.json.encode(diagnose(shuffled, strategy=strategy)))
    assert len(answers) == 1


@pytest.mark.parametrize("strategy", BUILT_IN.values(), ids=lambda s: s.name)
def test_whose_mark_is_chosen_decides_the_retry(strategy):
    evidence = [piece("retryable_exception", 1, mark="retryable"), piece("peer_lost", 0, role="secondary", seconds=5)]
    found = diagnose(case([left(0, 1), left(1, 1)], evidence), strategy=strategy)
    if found.verdict.rank == 1:
        assert (found.mark, found.verdict.retry) == ("retryable", "yes")
    else:
        assert found.mark is None


# -- those of others


def words_of(pick):
    return diagnose(victim_first(), strategy=Strategy(name="ours", pick=pick)).verdict


def test_errors_s11_a_strategy_of_others_is_a_callable():
    def only_records_of_rank_2(told):
        kept = tuple(piece for piece in told.evidence if piece.rank == 2)
        return diagnose(msgspec.structs.replace(told, evidence=kept))

    found = words_of(only_records_of_rank_2)
    assert (found.rank, found.run, found.state) == (2, "job-abc123", "failed")
    assert "strategy ours chose this cause" in found.missing[0]


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


def fails(told):
    raise Mute


def crashes(told):
    return {}["nothing"]


@pytest.mark.parametrize(
    ("pick", "words"),
    [
        (crashes, "it failed with KeyError: 'nothing'"),
        (fails, "it failed with Mute: (no text)"),
        (lambda _: "rank 1", "it gave a str instead of a Diagnosis"),
        (lambda _: None, "a record that strategy ours could choose"),
    ],
)
def test_a_strategy_that_gives_no_answer_takes_none_away(pick, words):
    found = words_of(pick)
    assert (found.rank, found.cause.slug) == (1, "user_code_exception")
    assert words in found.missing[0]
    assert "the strategy causal was used" in found.missing[0]


def test_a_strategy_cannot_make_a_fall_a_success():
    def rosy(told):
        found = diagnose(told)
        verdict = msgspec.structs.replace(found.verdict, state="succeeded", run="other-000000", attempt=7)
        return msgspec.structs.replace(found, verdict=verdict)

    found = words_of(rosy)
    assert (found.state, found.run, found.attempt) == ("failed", "job-abc123", 1)


def test_what_is_no_failure_is_asked_of_no_strategy():
    told = msgspec.structs.replace(victim_first(), succeeded=True)
    assert diagnose(told, strategy=Strategy(name="ours", pick=crashes)) == diagnose(told, strategy=CAUSAL)
