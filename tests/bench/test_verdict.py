"""The benches of verdicts: what they compare with, and what they refuse."""

from __future__ import annotations

import json

import pytest

from bench.verdict import corpus, fall

TRACE = "Traceback (most recent call last):\n  File \"train.py\", line 3, in main\n    step()\nKeyError: 'x'\n"


def test_a_missing_corpus_is_said_with_what_to_set(tmp_path, monkeypatch):
    monkeypatch.setenv(corpus.VARIABLE, str(tmp_path))
    with pytest.raises(SystemExit, match=r"no labels.jsonl: set RANKFALL_CORPUS"):
        corpus.folder_of(None)


def test_logs_are_judged_by_their_labels(tmp_path):
    (tmp_path / "1.log").write_text(TRACE)
    (tmp_path / "2.log").write_text("nothing of interest\n")
    labels = [
        {"log": "1.log", "accept": ["user_code_exception"], "rank": None, "retryable": "no", "source": "a thread"},
        {"log": "2.log", "accept": ["gpu_oom"], "rank": 3, "retryable": "unknown"},
    ]
    (tmp_path / "labels.jsonl").write_text("".join(json.dumps(label) + "\n" for label in labels))
    found = corpus.judge(corpus.folder_of(str(tmp_path)))
    assert [(one.cause, one.rank) for one in found] == [("right", "right"), ("unknown", "unknown")]
    cause, rank, _ = corpus.rows(found)
    assert (cause.figure, cause.holds) == ("1 of 2 right, 0 wrong, 1 not told", False)
    assert rank.holds
    assert "| 1.log | `user_code_exception` |" in corpus.page(found)


def test_a_fallen_gang_says_20_kb_a_rank_and_one_is_the_culprit():
    said = [record for slot in range(fall.NODES) for record in fall.fall("large-1", slot, at=10**18)]
    errors = [record for record in said if record["kind"] == "error"]
    assert len(errors) == fall.RANKS
    assert all(0.95 * fall.EACH_BYTES < len(json.dumps(one)) < 1.05 * fall.EACH_BYTES for one in errors[:8])
    assert [one["rank"] for one in errors if "ValueError" in one["error"]["types"][0]] == [fall.CULPRIT]
    assert len({record["id"] for record in said}) == len(said)
