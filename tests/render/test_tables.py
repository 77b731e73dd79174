from __future__ import annotations

from datetime import UTC, datetime

from rankfall.model import RankStatus, Restarts, RunSummary, SlotStatus, StatusDocument
from rankfall.render.tables import render_runs, render_status

NOW = datetime(2026, 1, 31, 12, 0, 0, tzinfo=UTC)
START = "2026-01-31T11:58:00.000000000Z"
END = "2026-01-31T11:59:00.000000000Z"


def run(**fields: object) -> RunSummary:
    values: dict[str, object] = {"run": "train-3fa9c1", "name": "train", "backend": "local", "state": "failed"}
    return RunSummary(**(values | {"attempts": 2, "started": START, "ended": END} | fields))  # type: ignore[arg-type]


def test_runs_are_aligned_and_tell_cause_rank_and_node() -> None:
    text = render_runs(
        [
            run(cause="host_oom", rank=5, node="node2"),
            run(run="x-000001", state="running", ended=None, supervised=True),
        ],
        now=NOW,
    )
    assert text.split("\n") == [
        "RUN           STATE    ATTEMPTS  AGE    TOOK   CAUSE     RANK  NODE",
        "train-3fa9c1  failed   2         2m00s  1m00s  host_oom  5     node2",
        "x-000001      running  2         2m00s  2m00s  -         -     -",
    ]


def test_a_run_that_goes_on_without_a_supervisor_is_told_apart() -> None:
    runs = [
        run(state="running", ended=None),
        run(state="running", ended=None, unattended=True),
        run(state="suspended", ended=None),
        run(state="failed"),
    ]
    states = [line[14:37].strip() for line in render_runs(runs, now=NOW).split("\n")[1:]]
    assert states == ["running, unsupervised", "running, unattended", "suspended", "failed"]


def test_no_runs_says_how_to_start_one() -> None:
    assert "rankfall run" in render_runs([], now=NOW)


def test_only_the_state_is_painted_not_a_run_named_like_it() -> None:
    text = render_runs([run(run="failed-3fa9c1")], now=NOW, color=True)
    assert "\nfailed-3fa9c1  \x1b[1;31mfailed\x1b[0m" in text


def test_status_shows_slots_ranks_and_what_is_wrong() -> None:
    status = StatusDocument(
        run="train-3fa9c1", name="train", backend="local", state="running", attempts=1, started=START,
        incomplete=("no space left",), slots=(SlotStatus(slot=0, role="worker", state="running", node="node0", pid=7),),
        ranks=(RankStatus(rank=3, state="running", slot=0, hook="loaded", step=12, line_age_s=4.2, node="no\x1bde"),),
    )  # fmt: skip
    text = render_status(status, now=NOW)
    assert text.startswith("Run train-3fa9c1 is running in attempt 1, for 2m00s.\n")
    assert "unsupervised: no process restarts it; rankfall attach train-3fa9c1" in text
    assert "record incomplete: no space left" in text
    assert "3     running  no\\x1bde" in text
    assert "4.2s ago" in text


def test_a_slot_that_is_ready_is_counted_once() -> None:
    status = StatusDocument(
        run="train-3fa9c1", name="train", backend="local", state="running", attempts=1, started=START, ready=1, active=2,
        failed=1, slots=(SlotStatus(slot=0, role="worker", state="running"),), sizes={"worker": 1}, sizes_wished={"worker": 3},
    )  # fmt: skip
    text = render_status(status, now=NOW)
    assert "\n  slots: 2 active (1 ready), 0 succeeded, 1 failed, 0 stopped\n" in text
    assert "\n  worker: 1 node, 3 requested\n" in text


def test_a_final_status_does_not_ask_for_a_supervisor() -> None:
    status = StatusDocument(
        run="train-3fa9c1", name="train", backend="local", state="failed", cause="host_oom", rank=1, node="node0",
        attempts=1, started=START, ended=END,
    )  # fmt: skip
    text = render_status(status, now=NOW)
    assert "failed in attempt 1 after 1m00s" in text
    assert "cause: host_oom, rank 1 on node0" in text
    assert "supervises" not in text


def test_restarts_beyond_the_limit_after_evictions_do_not_contradict_it() -> None:
    status = StatusDocument(
        run="train-3fa9c1", name="train", backend="job", state="restarting", attempts=4, started=START, supervised=True,
        restarts=Restarts(count=4, by_cause={"preempted": 3, "node_lost": 1}, limit=3),
        slots=(SlotStatus(slot=0, role="worker", state="running", node="node0", pid=7),),
    )  # fmt: skip
    text = render_status(status, now=NOW)
    assert "restarts: 4 (preempted 3, node_lost 1)" in text
    assert "restarting as attempt 5" in text
    assert "of 3" not in text
    assert "of 4" not in text
