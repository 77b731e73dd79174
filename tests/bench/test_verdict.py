"""The benches of verdicts: what they compare with, and what they refuse."""

from __future__ import annotations

import json

import pytest

from bench.verdict import corpus, fall, forms, unseen

TRACE = "Traceback (most recent call last):\n  File \"train.py\", line 3, in main\n    step()\nKeyError: 'x'\n"
LABELS = (
    {
        "log": "1.log",
        "accept": ["user_code_exception"],
        "rank": None,
        "retryable": "no",
        "decisive_line": "KeyError: 'x'",
    },
    {"log": "2.log", "accept": ["gpu_oom"], "rank": 3, "retryable": "unknown"},
)


@pytest.fixture
def logs(tmp_path):
    (tmp_path / "1.log").write_text(TRACE)
    (tmp_path / "2.log").write_text("nothing of interest\n")
    (tmp_path / "labels.jsonl").write_text("".join(json.dumps(label) + "\n" for label in LABELS))
    return tmp_path


def test_a_folder_without_labels_is_refused(tmp_path):
    with pytest.raises(SystemExit, match=r"no labels.jsonl: name a folder"):
        corpus.judge(tmp_path)


def test_logs_are_judged_by_their_labels(logs):
    found = corpus.judge(logs)
    assert [(one.cause, one.rank, one.line, one.retry) for one in found] == [
        ("right", "none", "right", "right"),
        ("unknown", "unknown", "none", "none"),
    ]
    cause, rank, line, _, harmful = corpus.rows(found, "half")
    assert (cause.figure, cause.holds) == ("1 of 2 right (50%), 0 wrong, 1 unknown", False)
    assert (rank.holds, line.holds, harmful.holds) == (False, True, True)
    assert "| 2.log | `gpu_oom` |" in corpus.page(found)
    assert "1.log" not in corpus.page(found)


def test_a_wrong_cause_counts_against_its_confidence(logs):
    wrong = json.dumps(LABELS[0] | {"accept": ["gpu_oom"], "retryable": "yes"})
    (logs / "labels.jsonl").write_text(f"{wrong}\n")
    found = corpus.judge(logs)
    assert [row.figure for row in corpus.calibration(found) if "likely" in row.what] == ["0 of 1 right (0.0%)"]
    assert (found[0].retry, found[0].harmful) == ("wrong", False)


def test_a_second_readers_answers_are_compared_with_the_labels(logs):
    assert corpus.of_second_reader(logs) == []
    answers = [
        LABELS[0] | {"retryable": "unknown"},
        LABELS[1] | {"accept": ["host_oom", "gpu_oom"], "rank": 2},
    ]
    (logs / "second.jsonl").write_text("".join(json.dumps(answer) + "\n" for answer in answers))
    cause, rank, line, retry = corpus.of_second_reader(logs)
    assert cause.figure == "1 of 2 right (50%), 1 wrong, 0 unknown"
    assert rank.figure == "0 of 1 right (0%), 1 wrong, 0 unknown"
    assert (line.figure, retry.figure) == (
        "1 of 1 right (100%), 0 wrong, 0 unknown",
        "0 of 1 right (0%), 0 wrong, 1 unknown",
    )
    assert {row.holds for row in (cause, rank, line, retry)} == {None}


def test_a_text_is_judged_in_all_its_forms(logs):
    counts = forms.judge(logs)
    assert counts.total() == 2 * len(forms.FORMS) >= 80
    assert {form for (form, _), number in counts.items() if number} == set(forms.FORMS)
    assert [row.holds for row in forms.rows(counts, "half")] == [True]


def test_a_log_is_judged_without_the_signatures_that_match_in_it_alone(logs):
    found = {one.label.log: one for one in unseen.judge(logs)}
    # Only the first log has a signature of its own; without it the exception is one of no known kind.
    assert {log: (one.slug, one.confidence) for log, one in found.items()} == {
        "1.log": ("user_code_exception", "suspected")
    }
    shared = (logs / "labels.jsonl").read_text().replace("2.log", "3.log")
    (logs / "3.log").write_text(TRACE)
    (logs / "labels.jsonl").write_text(shared)
    assert unseen.judge(logs) == []
    assert {row.holds for row in unseen.rows_of(list(found.values()), "half")} == {None}


def test_the_logs_of_the_repository_have_labels_and_their_halves_share_no_thread():
    halves = [
        (corpus.FOLDER / half, corpus.labels_of(corpus.FOLDER / half)) for half in (corpus.DEVELOP, corpus.MEASURED)
    ]
    for folder, labels in halves:
        assert sorted(label.log for label in labels) == sorted(path.name for path in folder.glob("*.log"))
    develop, measured = ({label.thread for label in labels} for _, labels in halves)
    assert not develop & measured


def test_a_fallen_gang_says_20_kb_a_rank_and_one_is_the_culprit():
    said = [record for slot in range(fall.NODES) for record in fall.fall("large-1", slot, at=10**18)]
    errors = [record for record in said if record["kind"] == "error"]
    assert len(errors) == fall.RANKS
    assert all(0.95 * fall.EACH_BYTES < len(json.dumps(one)) < 1.05 * fall.EACH_BYTES for one in errors[:8])
    assert [one["rank"] for one in errors if "ValueError" in one["error"]["types"][0]] == [fall.CULPRIT]
    assert len({record["id"] for record in said}) == len(said)
