"""``restart_scope: replica``: one slot falls and is started again alone, in real processes, while the others run on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest

from rankfall.backends.local.backend import LocalBackend
from rankfall.backends.plan import Plan
from rankfall.backends.protocol import Life
from rankfall.explain import explain_run, explain_slot_failure
from rankfall.model import Diagnosis, FailureRule, InfrastructureError, NotFound, Success
from rankfall.model.jobspec.job import Role
from rankfall.render.tables import render_status
from rankfall.rundir import RunDir
from rankfall.rundir.lines import LineQuery, read_lines
from rankfall.supervisor import request_cancel
from rankfall.supervisor.platform_reports import NodeReporter
from rankfall.supervisor.run_events import Event
from rankfall.supervisor.supervise import supervise
from support.helpers import wait_until
from support.patience import scaled

from .conftest import Bench
from .test_cancel import Threaded

MORTAL = Path(__file__).with_name("mortal.py")

# Each worker writes down who it is; which of them fall, and how often, stands in the arguments: SLOT TIMES HOW.
WORKER = """
slot, start = os.environ["RANKFALL_SLOT"], int(os.environ.get("RANKFALL_INSTANCE", 0))
with open("starts", "a") as file:
    file.write(f"{slot} {start} {os.getpid()}\\n")
print(f"slot {slot} start {start}", flush=True)
who, times, how = sys.argv[1:4]
if slot == who and start < int(times):
    os.kill(os.getpid(), signal.SIGKILL) if how == "kill" else sys.exit(int(how))
if slot == who:
    open("done", "w").close()
until = time.monotonic() + 600
while not os.path.exists("done") and time.monotonic() < until:
    time.sleep(0.02)
"""
ALONE = {"nnodes": 3, "launcher": "exec", "restart_scope": "replica"}


def words(bench: Bench, *args: str) -> dict[str, object]:
    """A command of the user's own: exec starts no Python by itself."""
    spec = bench.spec(WORKER)
    return {"command": (str(spec.python), spec.command[0], *args)}


def made(bench: Bench, *args: str, **fields: object) -> RunDir:
    policies = fields.pop("policies", {})
    spec = bench.spec(policies=policies, **ALONE)
    return bench.run_dir(msgspec.structs.replace(spec, **words(bench, *args), **fields))


def starts(bench: Bench) -> list[tuple[str, str]]:
    rows = [line.split() for line in (bench.folder / "starts").read_text().splitlines()]
    return sorted((slot, start) for slot, start, _ in rows)


def test_one_slot_is_killed_twice_and_started_again_alone(bench: Bench) -> None:
    # By itself a second SIGKILL without progress in between would be a fault that repeats.
    run = made(bench, "1", "2", "kill", rules=(FailureRule(signals=(9,), action="restart"),))
    outcome = bench.supervise(run)
    assert (outcome.state, outcome.attempts) == ("succeeded", 1)
    assert starts(bench) == [("0", "0"), ("1", "0"), ("1", "1"), ("1", "2"), ("2", "0")]
    with run.reader() as reader:
        falls = [row.fall for row in reader.falls(1)]
        assert [(f.slot, f.instance, f.action, f.state) for f in falls] == [
            (1, 0, "retry", "done"),
            (1, 1, "retry", "done"),
        ]
        assert [f.diagnosis.verdict.cause.slug for f in falls] == ["killed_unknown", "killed_unknown"]
        assert [f.left for f in falls] == [2, 1]
        assert not set(falls[0].evidence) & set(falls[1].evidence)
        status = reader.status(0)
        assert [(s.slot, s.restarts, s.exit) for s in status.slots] == [(0, 0, "0"), (1, 2, "0"), (2, 0, "0")]
        assert reader.decisions() == []
    lines = sorted(line.data.decode() for line in read_lines(run, LineQuery(attempt="all")))
    assert lines == [f"slot {slot} start {start}" for slot, start in starts(bench)]


def test_each_fall_of_a_slot_that_is_started_again_may_tell_its_node(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = []

    def report_slot_failure(self: NodeReporter, plan: Plan, diagnosis: Diagnosis, *, slot: int, instance: int) -> None:
        del self
        told.append((plan.attempt, diagnosis.verdict.node, slot, instance))

    monkeypatch.setattr(NodeReporter, "report_slot_failure", report_slot_failure)
    run = made(bench, "1", "2", "kill", rules=(FailureRule(signals=(9,), action="restart"),))
    assert bench.supervise(run).state == "succeeded"
    assert told == [(1, "node1", 1, 0), (1, "node1", 1, 1)]


def test_a_permanent_code_of_one_slot_ends_all(bench: Bench) -> None:
    run = made(bench, "1", "9", "126")
    outcome = bench.supervise(run)
    assert (outcome.state, outcome.attempts, outcome.code) == ("failed", 1, 126)
    assert outcome.verdict is not None
    assert (outcome.verdict.slot, outcome.verdict.node) == (1, "node1")
    assert starts(bench) == [("0", "0"), ("1", "0"), ("2", "0")]
    with run.reader() as reader:
        assert [(r.fall.action, r.fall.rule, r.fall.state) for r in reader.falls()] == [("stop", "cause_no", "done")]
        assert [(r.decision.action, r.decision.rule) for r in reader.decisions()] == [("stop", "cause_no")]


def test_a_budget_that_is_spent_by_one_slot_is_named(bench: Bench) -> None:
    run = made(bench, "2", "9", "130", policies={"max_restarts": 1})
    outcome = bench.supervise(run)
    assert (outcome.state, outcome.attempts) == ("failed", 1)
    assert starts(bench) == [("0", "0"), ("1", "0"), ("2", "0"), ("2", "1")]
    with run.reader() as reader:
        assert reader.run().reason == "budget total exhausted (1/1)"


@pytest.mark.parametrize(
    ("name", "moment"),
    [
        ("add_decision", 1),
        ("start", 4),
        ("decision_done", 1),
        ("add_decision", 2),
        ("start", 5),
    ],
)
def test_a_supervisor_killed_at_a_restart_neither_repeats_nor_forgets_it(bench: Bench, name: str, moment: int) -> None:
    run = made(bench, "1", "2", "130", policies={"max_restarts": 2})
    command = [sys.executable, str(MORTAL), str(run.path), str(moment), f"after-{name}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == -9, done.stderr
    assert bench.supervise(run).state == "succeeded"
    assert starts(bench) == [("0", "0"), ("1", "0"), ("1", "1"), ("1", "2"), ("2", "0")]
    with run.reader() as reader:
        falls = [row.fall for row in reader.falls()]
        assert [(f.instance, f.action, f.left, f.state) for f in falls] == [
            (0, "retry", 1, "done"),
            (1, "retry", 0, "done"),
        ]
        assert reader.status(0).restarts.by_cause == {"user_exit": 2}


def test_a_supervisor_killed_after_the_last_word_ends_the_run_with_it(bench: Bench) -> None:
    run = made(bench, "0", "9", "126")
    command = [sys.executable, str(MORTAL), str(run.path), "1", "after-add_decision"]
    assert subprocess.run(command, capture_output=True, check=False).returncode == -9
    outcome = bench.supervise(run)
    assert (outcome.state, outcome.code) == ("failed", 126)
    with run.reader() as reader:
        assert len(reader.falls()) == 1
        assert [row.decision.action for row in reader.decisions()] == ["stop"]


def test_a_fraction_goes_on_without_a_slot_that_cannot_be_started_again(bench: Bench) -> None:
    run = made(bench, "2", "9", "126", success=Success(policy="fraction", fraction=0.6, drain_s=1))
    (bench.folder / "done").touch()
    outcome = bench.supervise(run)
    assert outcome.state == "succeeded"
    assert starts(bench) == [("0", "0"), ("1", "0"), ("2", "0")]
    with run.reader() as reader:
        notes = {slot.slot: slot.note for slot in reader.status(0).slots}
        assert notes[2] == "failed, not needed for success" or notes[2] is not None


def test_a_cancel_during_the_back_off_of_one_slot_ends_all(bench: Bench) -> None:
    run = made(bench, "1", "9", "130", policies={"backoff_s": 30.0})
    fell = threading.Event()

    def heard(event: Event) -> None:
        if event.kind == "fall":
            fell.set()

    def cancel() -> None:
        fell.wait(scaled(20))
        # The other slots may still be on their way to their first line.
        wait_until(lambda: len(starts(bench)) == 3, timeout=20, what="the start of all slots")
        request_cancel(run.path, reason="enough")

    thread = threading.Thread(target=cancel)
    thread.start()
    outcome = supervise(run, on_event=heard)
    thread.join()
    assert outcome.state == "cancelled"
    assert starts(bench) == [("0", "0"), ("1", "0"), ("2", "0")]
    with run.reader() as reader:
        assert [row.fall.state for row in reader.falls()] == ["intent"]
        assert reader.status(0).restarts.count == 0


def test_what_was_known_of_an_earlier_start_is_no_evidence_of_a_later_fall(bench: Bench) -> None:
    # The first start dies of memory it says it has not, the second leaves with a bare code.
    code = """
if int(os.environ.get("RANKFALL_INSTANCE", 0)) == 0:
    print("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB", file=sys.stderr, flush=True)
    sys.exit(130)
sys.exit(126)
"""
    again = (FailureRule(causes=("memory",), action="restart"),)
    spec = bench.spec(code, nnodes=1, launcher="exec", restart_scope="replica", rules=again)
    run = bench.run_dir(msgspec.structs.replace(spec, command=(str(spec.python), *spec.command)))
    bench.supervise(run)
    with run.reader() as reader:
        first, second = (row.fall for row in reader.falls())
    assert first.evidence
    assert not set(first.evidence) & {piece.id for piece in second.diagnosis.verdict.evidence}
    assert first.diagnosis.verdict.cause.slug != second.diagnosis.verdict.cause.slug
    fresh = explain_run(run, fresh=True)
    assert fresh.verdict.cause.slug == second.diagnosis.verdict.cause.slug


def roles_of(bench: Bench, falls: str) -> RunDir:
    """Two workers of scope gang and two evaluators of scope replica; ``falls`` names the slot that leaves with 130 when it starts first."""
    code = f"""
from pathlib import Path
slot, attempt = os.environ["RANKFALL_SLOT"], os.environ["RANKFALL_ATTEMPT"]
start = int(os.environ.get("RANKFALL_INSTANCE", 0))
with open("starts", "a") as file:
    file.write(f"{{attempt}}.{{slot}} {{start}} {{os.getpid()}}\\n")
def wait(seen):
    until = time.monotonic() + 600
    while not seen() and time.monotonic() < until:
        time.sleep(0.02)
def ended(pattern): return [*Path(os.environ["RANKFALL_SLOT_DIR"]).parent.glob(pattern + "/end.json")]
if slot == "{falls}" and start == 0 and attempt == "1":
    # All have started; where the whole attempt ends by it, the evaluators are done.
    wait(lambda: len(open("starts").readlines()) == 4)
    wait(lambda: slot == "3" or len(ended("eval-*")) == 2)
    sys.exit(130)
if slot in "01" and attempt == "1":
    # The other worker of the one that falls, or both until the evaluator has started again.
    wait(lambda: "1.3 1" in open("starts").read())
"""
    spec = bench.spec(code)
    command = (str(spec.python), *spec.command)
    roles = (
        Role(name="worker", nnodes=2, launcher="exec"),
        Role(name="eval", nnodes=2, launcher="exec", restart_scope="replica"),
    )
    return bench.run_dir(msgspec.structs.replace(spec, nnodes=1, launcher="auto", command=command, roles=roles))


def test_a_role_of_scope_replica_leaves_the_others_alone(bench: Bench) -> None:
    run = roles_of(bench, "3")
    outcome = bench.supervise(run)
    assert (outcome.state, outcome.attempts) == ("succeeded", 1)
    assert starts(bench) == [("1.0", "0"), ("1.1", "0"), ("1.2", "0"), ("1.3", "0"), ("1.3", "1")]


def test_a_role_of_scope_gang_ends_the_attempt_and_what_is_done_is_not_run_again(bench: Bench) -> None:
    run = roles_of(bench, "0")
    outcome = bench.supervise(run)
    assert (outcome.state, outcome.attempts) == ("succeeded", 2)
    assert starts(bench) == [
        ("1.0", "0"), ("1.1", "0"), ("1.2", "0"), ("1.3", "0"),
        ("2.0", "0"), ("2.1", "0"),
    ]  # fmt: skip


def test_the_fall_of_one_slot_can_be_read_afterwards(bench: Bench) -> None:
    run = made(bench, "1", "1", "130")
    assert bench.supervise(run).state == "succeeded"
    verdict = explain_slot_failure(run, slot=1).verdict
    assert (verdict.slot, verdict.node, verdict.cause.slug) == (1, "node1", "user_exit")
    assert verdict.decision is not None
    assert (verdict.decision.action, verdict.decision.state) == ("retry", "done")
    with pytest.raises(NotFound, match=r"slot 2 of run .* did not fail alone"):
        explain_slot_failure(run, slot=2)
    with pytest.raises(NotFound, match="in attempt 7"):
        explain_slot_failure(run, slot=1, attempt=7)
    with run.reader() as reader:
        assert "after 1 restart" in render_status(reader.status(0), now=datetime.now(UTC))


class Lingering(LocalBackend):
    """Like a platform that replaces what fell when it likes, and that can say who took the job away."""

    def __init__(self, *, taken: str | None = None, broken: bool = False, late: int = 0) -> None:
        super().__init__()
        self.taken = taken
        self.broken = broken
        self.late = late

    def deleted_externally(self, plan: Plan, *, surely: bool = False) -> str | None:
        return self.taken

    def start_again(self, plan: Plan, slot: int) -> None:
        if self.broken:
            raise InfrastructureError("slot 1 could not be started: no more processes", hint="raise the limit")
        if not self.late:
            super().start_again(plan, slot)

    def life(self, plan: Plan, slot: int) -> Life:
        found = super().life(plan, slot)
        if found == "absent" and self.late:
            self.late -= 1
            if not self.late:
                super().start_again(plan, slot)
        return found


def test_a_job_that_somebody_took_away_is_not_started_again_slot_by_slot(bench: Bench) -> None:
    run = made(bench, "1", "9", "130")
    outcome = supervise(run, on_event=bench.events.append, backend=Lingering(taken="somebody deleted it"))
    assert outcome.state in {"cancelled", "deleted"}
    with run.reader() as reader:
        assert reader.falls() == []


def test_a_slot_that_cannot_be_started_again_ends_the_attempt(bench: Bench) -> None:
    run = made(bench, "1", "9", "130", policies={"max_restarts": 1})
    outcome = supervise(run, on_event=bench.events.append, backend=Lingering(broken=True))
    assert outcome.state == "failed"
    assert outcome.verdict is not None
    assert "no more processes" in (outcome.verdict.decisive.line if outcome.verdict.decisive else "")
    assert starts(bench) == [("0", "0"), ("1", "0"), ("2", "0")]


def test_a_slot_that_its_platform_is_slow_to_replace_is_waited_for_and_told(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rankfall.supervisor.attempt.slot_restarts._WAIT_NS", 0)
    run = made(bench, "1", "1", "130")
    outcome = supervise(run, on_event=bench.events.append, backend=Lingering(late=6))
    assert outcome.state == "succeeded"
    assert any("slot 1 waits until" in text for text in bench.texts("waiting"))
    assert starts(bench) == [("0", "0"), ("1", "0"), ("1", "1"), ("2", "0")]


def test_a_slot_whose_wrapper_is_killed_is_lost_and_started_again_alone(bench: Bench) -> None:
    run = made(bench, "none", "0", "0", policies={"grace_s": 0.5})
    supervisor = Threaded(bench, run)
    lock = run.slot_dir(1, "worker", 1) / "lock"
    wait_until(lambda: (bench.folder / "starts").exists() and len(starts(bench)) == 3, timeout=30, what="all slots")
    os.kill(int(lock.read_bytes().split()[0]), signal.SIGKILL)
    wait_until(lambda: ("1", "1") in starts(bench), timeout=30, what="the second start")
    (bench.folder / "done").touch()
    assert supervisor.join().state == "succeeded"
    with run.reader() as reader:
        ((fall, done),) = [(row.fall, row.done_at) for row in reader.falls()]
    assert (fall.slot, fall.diagnosis.verdict.cause.slug, done is not None) == (1, "killed_unknown", True)
