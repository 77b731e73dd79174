"""Runs from begin to end: success, retry, stop; the window between the first failure and the verdict."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from rankfall.model import Cause, Decision, JobSpec, Outcome, Policies, RankFacts, SlotFacts, SpecError, Verdict
from rankfall.model.jobspec.check import check_spec
from rankfall.rundir import RunDir
from rankfall.supervisor.attempt.completion import SettleWindow, gang_recovered, is_final
from rankfall.supervisor.attempt_facts import bad_ends
from rankfall.supervisor.run_events import EVENTS_NAME, Event, EventLog, read_events
from rankfall.supervisor.stopping import slots_text, wait_until_left
from rankfall.supervisor.supervise import supervise

from .conftest import QUICK, Bench


def verdict_of(run: RunDir, attempt: int) -> tuple[str, int | None]:
    with run.reader() as reader:
        found = reader.diagnosis(attempt)
    assert found is not None
    return found.verdict.cause.slug, found.verdict.rank


def decision_of(outcome: Outcome) -> Decision:
    assert outcome.verdict is not None
    assert outcome.verdict.decision is not None
    return outcome.verdict.decision


def test_a_job_that_succeeds_has_no_verdict_and_code_0(bench: Bench) -> None:
    run, outcome = bench.run("print('fine')")
    assert (outcome.state, outcome.code, outcome.exit_origin, outcome.attempts) == ("succeeded", 0, "rankfall", 1)
    assert outcome.verdict is None
    assert outcome.raise_for_status() is outcome
    assert (run.path / "rank-00001.log").read_text() == "fine\n"
    with run.reader() as reader:
        assert reader.run().state == "succeeded"
        assert reader.verdicts() == []


def test_the_story_of_a_run_is_told_and_kept(bench: Bench) -> None:
    run, _ = bench.run("sys.exit(3 if rank == 1 else 0)", policies={"max_restarts": 0})
    kinds = [event.kind for event in bench.events]
    assert kinds[:2] == ["attempt", "launcher"]
    assert kinds.count("rank") == 2
    assert kinds[-3:] == ["verdict", "decision", "ended"]
    assert "rank 1 on node1 ended with code 3" in bench.texts("failure")
    assert read_events(run.path)[0] == bench.events


def test_errors_s19_the_root_ranks_own_code_is_the_runs_code(bench: Bench) -> None:
    _, outcome = bench.run("sys.exit(7 if rank == 1 else 0)", policies={"max_restarts": 0})
    assert (outcome.state, outcome.code, outcome.exit_origin) == ("failed", 7, "rank")
    assert outcome.verdict is not None
    assert outcome.verdict.rank == 1


def test_a_proven_user_error_stops_at_once(bench: Bench) -> None:
    run, outcome = bench.run("if rank == 0: raise TypeError('no such thing')\ntime.sleep(0.2)")
    assert (outcome.state, outcome.attempts, outcome.code) == ("failed", 1, 1)
    assert verdict_of(run, 1) == ("user_code_exception", 0)
    assert decision_of(outcome).action == "stop"


def test_errors_s23_each_attempt_has_its_own_verdict(bench: Bench) -> None:
    code = """
attempt = int(os.environ["RANKFALL_ATTEMPT"])
if attempt == 1 and rank == 0: os.kill(os.getpid(), signal.SIGKILL)
if attempt == 2 and rank == 1: os.kill(os.getpid(), signal.SIGSEGV)
time.sleep(0.1)
"""
    run, outcome = bench.run(code)
    assert (outcome.state, outcome.attempts) == ("succeeded", 3)
    assert verdict_of(run, 1) == ("killed_unknown", 0)
    assert verdict_of(run, 2) == ("segfault", 1)
    with run.reader() as reader:
        assert [row.attempt for row in reader.verdicts()] == [1, 2]


def test_errors_s4_the_root_decides_and_not_its_victims(bench: Bench) -> None:
    code = f"""
if os.environ["RANKFALL_ATTEMPT"] == "2": sys.exit(0)
if rank == 0: os.kill(os.getpid(), signal.SIGKILL)
{bench.waits_for_event("failure")}
raise ConnectionResetError("[Errno 104] Connection reset by peer")
"""
    run, outcome = bench.run(code)
    assert (outcome.state, outcome.attempts) == ("succeeded", 2)
    assert verdict_of(run, 1) == ("killed_unknown", 0)


def test_restarts_are_bounded(bench: Bench) -> None:
    _, outcome = bench.run("os.kill(os.getpid(), signal.SIGKILL)", nnodes=1, policies={"max_restarts": 1})
    assert (outcome.state, outcome.attempts, outcome.code) == ("failed", 2, 137)
    assert decision_of(outcome).rule in {"restarts_spent", "repeated"}
    # What was said of the plan of the first attempt and is as before is not said again.
    started = [event.data["attempt"] for event in bench.events if event.kind == "attempt"]
    assert (started, len(bench.texts("launcher"))) == ([1, 2], 1)


def test_errors_s7_all_evidence_there_no_wait(bench: Bench) -> None:
    # A quiet time that would outlast the test.
    run, outcome = bench.run(
        "sys.exit(3)", policies={"max_restarts": 0, "settle_quiet_s": 600.0, "settle_max_s": 900.0}
    )
    assert outcome.code == 3
    with run.reader() as reader:
        last = max(facts.ended_at or 0 for facts in reader.slots(1))
    assert next(event for event in bench.events if event.kind == "verdict").at >= last


def test_errors_s6_a_rank_that_does_not_end_is_stopped_after_the_quiet_time(bench: Bench) -> None:
    run, outcome = bench.run("time.sleep(0 if rank == 0 else 600); sys.exit(4)", policies={"max_restarts": 0})
    assert outcome.code == 4
    with run.reader() as reader:
        slots = {facts.slot: facts for facts in reader.slots(1)}
    assert slots[1].killed_by == "wrapper"
    assert bench.texts("stopping") == ["stopping: another part of the job failed"]
    assert bench.texts("stopped")


def test_a_rank_that_leaves_early_with_0_is_fine(bench: Bench) -> None:
    _, outcome = bench.run("time.sleep(0 if rank == 0 else 1.2)")
    assert outcome.state == "succeeded"


def test_an_error_that_is_only_printed_stops_nothing(bench: Bench) -> None:
    code = """
try:
    raise RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB")
except RuntimeError:
    import traceback; traceback.print_exc()
time.sleep(1.2)
"""
    _, outcome = bench.run(code)
    assert (outcome.state, outcome.attempts) == ("succeeded", 1)


def test_a_verdict_does_not_wait_for_slots_that_are_slow_to_stop(bench: Bench) -> None:
    code = """
if rank == 1: sys.exit(5)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
time.sleep(600)
"""
    run, outcome = bench.run(code, policies={"max_restarts": 0, "grace_s": 2.5})
    assert outcome.code == 5
    with run.reader() as reader:
        versions = [row.version for row in reader.verdicts()]
    assert versions[0] == 1
    stop = next(event.at for event in bench.events if event.kind == "stopping")
    ended = next(event.at for event in bench.events if event.kind == "decision")
    assert (ended - stop) / 1e9 > 2.0
    # What is proven is reported before.
    assert next(event.at for event in bench.events if event.kind == "verdict") < ended - 2 * 10**9


def waits(bench: Bench) -> dict[str, str]:
    """What was waited for at last, by its kind."""
    return {event.data["waits_for"]: event.text for event in bench.events if event.kind == "waiting"}


def test_i19_a_proven_exception_beside_healthy_ranks_waits_for_nothing(bench: Bench) -> None:
    # A quiet time that would outlast the test.
    policies = {"max_restarts": 0, "settle_quiet_s": 600.0, "settle_max_s": 900.0}
    run, outcome = bench.run("if rank == 1: raise ValueError('bad sample')\ntime.sleep(600)", policies=policies)
    assert verdict_of(run, 1) == ("user_code_exception", 1)
    assert outcome.code == 1
    kinds = [event.kind for event in bench.events]
    # Reported before the others are stopped, and once.
    assert kinds.count("verdict") == 1
    assert kinds.index("verdict") < kinds.index("stopping")
    assert waits(bench) == {}


def test_i19_each_wait_of_a_failure_is_named_in_the_events_and_in_the_status(bench: Bench) -> None:
    code = """
if rank == 1: os.kill(os.getpid(), signal.SIGKILL)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
time.sleep(600)
"""
    spec = bench.spec(code, policies={"max_restarts": 0, "grace_s": 2.0, "settle_quiet_s": 2.0, "settle_max_s": 5.0})
    run = bench.run_dir(spec)
    reasons: set[str | None] = set()

    def seen(event: Event) -> None:
        bench.events.append(event)
        with run.reader() as reader:
            reasons.add(reader.run().reason)

    supervise(run, on_event=seen)
    named = waits(bench)
    assert named["evidence"] == (
        "the verdict waits for more evidence until none arrives for 2 s, at most 5 s: so far killed_unknown (likely)"
    )
    assert named["ends"] == "waits for the end of slot 0 on node0, at most 2 s after SIGTERM"
    assert set(named.values()) & reasons


def test_a_plan_that_fails_later_ends_the_run_with_its_reason(bench: Bench) -> None:
    code = "os.unlink(sys.argv[0]); os.kill(os.getpid(), signal.SIGKILL)"
    run, outcome = bench.run(code, nnodes=1)
    assert (outcome.state, outcome.attempts) == ("failed", 1)
    with run.reader() as reader:
        assert "does not exist" in (reader.run().reason or "")


def test_a_finished_run_is_only_told_again(bench: Bench) -> None:
    run, first = bench.run("sys.exit(3)", nnodes=1, policies={"max_restarts": 0})
    count = len(bench.events)
    assert bench.supervise(run) == first
    assert len(bench.events) == count


def test_inside_off_leaves_no_hook(bench: Bench) -> None:
    run, outcome = bench.run("print('rankfall_inside.hook.rank_process' in sys.modules)", inside="off")
    assert outcome.state == "succeeded"
    assert (run.path / "rank-00000.log").read_text() == "False\n"


# -- the window


def test_the_window_opens_once_and_closes_by_quiet_or_by_the_limit() -> None:
    window = SettleWindow(msgspec.structs.replace(QUICK, settle_quiet_s=2.0, settle_max_s=5.0))
    assert not window.see(0.0, failed=False, changed=True)
    assert not window.over(100.0)
    assert window.see(100.0, failed=True, changed=False)
    assert not window.see(100.5, failed=True, changed=False)
    assert not window.over(101.9)
    assert window.over(102.0)
    window.see(101.9, failed=True, changed=True)
    assert not window.over(103.0)
    for at in (103.0, 104.0, 104.9):
        window.see(at, failed=True, changed=True)
    assert not window.over(104.9)
    assert window.over(105.0)
    window.close()
    assert not window.over(200.0)


def test_i19_what_a_process_wrote_itself_has_a_moment_to_arrive() -> None:
    window = SettleWindow(msgspec.structs.replace(QUICK, settle_quiet_s=20.0, settle_max_s=60.0))
    assert not window.quiet(100.0)
    window.see(100.0, failed=True, changed=False)
    assert not window.quiet(100.4)
    assert window.quiet(100.5)
    window.see(100.45, failed=True, changed=True)
    assert not window.quiet(100.5)
    assert window.quiet(100.6)
    short = SettleWindow(msgspec.structs.replace(QUICK, settle_quiet_s=0.1, settle_max_s=0.2))
    short.see(10.0, failed=True, changed=False)
    assert short.quiet(10.25)


@pytest.mark.parametrize(
    ("slug", "confidence", "rank", "retry", "final"),
    [
        ("user_code_exception", "proven", 3, "no", True),
        ("user_code_exception", "likely", 3, "no", False),
        ("user_code_exception", "proven", None, "no", False),
        # A node's own words may still say more.
        ("gpu_ecc", "proven", 3, "elsewhere", False),
        ("killed_unknown", "likely", 3, "once", False),
    ],
)
def test_i19_only_a_proven_cause_that_nothing_changes_ends_the_wait(slug, confidence, rank, retry, final) -> None:
    verdict = Verdict(
        state="failed", exit_origin="rank", cause=Cause.of(slug, confidence=confidence), rank=rank, retry=retry
    )
    assert is_final(verdict) is final


def test_i19_slots_in_a_text_are_the_first_few() -> None:
    assert slots_text([3]) == "slot 3"
    assert slots_text([5, 1]) == "slots 1, 5"
    assert slots_text(range(10)) == "slots 0, 1, 2, 3, 4, 5, 6, 7 and 2 more"


def test_i19_the_last_states_of_pods_are_waited_for_by_name(tmp_path: Path) -> None:
    alive = [True, True]

    class Platform:
        def alive(self, plan: object, slot: int) -> bool:
            del plan
            return alive[slot]

    said: list[tuple[str, str]] = []

    def wait(what: str, text: str, *, now: int) -> None:
        assert now
        said.append((what, text))
        alive[:] = [False, False]

    plan: Any = SimpleNamespace(cluster=object())
    control: Any = SimpleNamespace(wait=time.sleep)
    wait_until_left(plan, [0, 1], backend=Platform(), control=control, wait=wait)  # type: ignore[arg-type]
    assert said == [("last_states", "waits for the kubelet's last report on slots 0, 1, at most 10 s")]


def test_errors_s5_the_window_stays_open_for_its_minimum_however_quiet_it_is() -> None:
    window = SettleWindow(msgspec.structs.replace(QUICK, settle_quiet_s=1.0, settle_min_s=4.0, settle_max_s=6.0))
    window.see(10.0, failed=True, changed=False)
    assert not window.over(13.9)
    assert window.over(14.0)
    window.see(13.9, failed=True, changed=True)
    assert not window.over(14.8)
    assert window.over(14.9)
    window.see(15.5, failed=True, changed=True)
    assert window.over(16.0)
    with pytest.raises(SpecError, match="settle_min_s"):
        check_spec(JobSpec(command=("t.py",), policies=Policies(settle_min_s=40.0)))


def test_only_a_bad_end_is_a_failure_and_of_a_command_of_its_own_only_its_own() -> None:
    slots = [SlotFacts(slot=0, state="ended", exit_code=0), SlotFacts(slot=1, state="running")]
    ranks = [
        RankFacts(rank=0, slot=0, state="ended", exit_code=0),
        RankFacts(rank=1, slot=1, pid=9, state="ended", exit_code=2),
    ]
    assert bad_ends(slots, ranks, launcher="torchrun") == {("rank", 1, 9)}
    assert bad_ends(slots, ranks, launcher="exec") == frozenset()
    lost = [SlotFacts(slot=0, state="lost")]
    assert bad_ends(lost, [], launcher="exec") == {("slot", 0, None)}


def test_an_elastic_gang_that_went_on_is_told_from_one_that_hangs() -> None:
    fell = RankFacts(rank=1, slot=1, pid=2, state="ended", signal=9, started_at=10, ended_at=50)
    slots = [SlotFacts(slot=0, state="running"), SlotFacts(slot=1, state="ended", exit_code=1)]
    old = RankFacts(rank=0, slot=0, pid=1, state="running", started_at=10)
    new = RankFacts(rank=0, slot=0, pid=3, round=1, state="running", started_at=60)
    assert not gang_recovered([fell, old], slots, least=1)
    assert gang_recovered([fell, new], slots, least=1)
    assert not gang_recovered([fell, new], slots, least=2)


# -- events


def test_events_that_are_torn_or_damaged_cost_only_themselves(tmp_path: Path) -> None:
    log = EventLog(tmp_path, None)
    log.say("gap", "one", at=1)
    path = tmp_path / EVENTS_NAME
    with path.open("ab") as file:
        file.write(b"\xff no json\n")
    log.say("gap", "two", at=2, slots=[1])
    with path.open("ab") as file:
        file.write(b'{"kind": "gap"')
    events, offset = read_events(tmp_path)
    assert [event.text for event in events] == ["one", "two"]
    assert read_events(tmp_path, offset=offset) == ([], offset)
    assert read_events(tmp_path / "absent") == ([], 0)


@pytest.mark.parametrize("text", ["x" * 10_000, "\x1b[31m"])
def test_an_event_is_bounded_and_kept_raw(tmp_path: Path, text: str) -> None:
    EventLog(tmp_path / "absent", None).say("gap", text, at=1)
    EventLog(tmp_path, None).say("gap", text, at=time.time_ns())
    assert read_events(tmp_path)[0][0].text == text[:2000]


@pytest.mark.parametrize(
    ("sends", "slug", "rank"),
    [
        ("os.kill(os.getppid(), signal.SIGTERM)", "user_exit", 1),
        ("import subprocess; subprocess.run(['sh', '-c', f'kill -TERM {os.getppid()}'])", "external_signal", None),
    ],
)
def test_a_rank_that_signals_its_own_launcher_is_the_cause(
    bench: Bench, sends: str, slug: str, rank: int | None
) -> None:
    code = f"{bench.waits_for_event('rank')}\nif rank == 1: {sends}\nwhile True: signal.pause()"
    _, outcome = bench.run(code, nnodes=1, nproc_per_node=2, policies={"max_restarts": 0})
    verdict = outcome.verdict
    assert verdict is not None
    assert (verdict.cause.slug, verdict.rank) == (slug, rank)
    assert not [text for text in verdict.missing if "of the signal" in text or "of the program" in text]
    assert verdict.decisive is not None
    own = verdict.decisive.line.endswith("sent signal 15 to its own launcher in slot 0")
    assert own == (rank is not None) == (" from outside by " not in verdict.decisive.line)
