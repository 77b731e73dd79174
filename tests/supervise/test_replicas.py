"""``restart_scope: replica``: one slot falls and is started again alone, in real processes, while the others run on."""

from __future__ import annotations

import msgspec

from rankfall.model import FailureRule
from rankfall.store import RunDir
from rankfall.store.lines import LineQuery, read_lines

from .conftest import Bench

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
until = time.monotonic() + 20
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


def test_a_permanent_code_of_one_slot_ends_all(bench: Bench) -> None:
    run = made(bench, "1", "9", "126")
    outcome = bench.supervise(run)
    assert (outcome.state, outcome.attempts, outcome.code) == ("failed", 1, 126)
    assert outcome.verdict is not None
    assert (outcome.verdict.slot, outcome.verdict.node) == (1, "node1")
    assert starts(bench) == [("0", "0"), ("1", "0"), ("2", "0")]
    with run.reader() as reader:
        assert [(r.fall.action, r.fall.rule) for r in reader.falls()] == [("stop", "cause_no")]
        assert [(r.decision.action, r.decision.rule) for r in reader.decisions()] == [("stop", "cause_no")]


def test_a_budget_that_is_spent_by_one_slot_is_named(bench: Bench) -> None:
    run = made(bench, "2", "9", "130", policies={"max_restarts": 1})
    outcome = bench.supervise(run)
    assert (outcome.state, outcome.attempts) == ("failed", 1)
    assert starts(bench) == [("0", "0"), ("1", "0"), ("2", "0"), ("2", "1")]
    with run.reader() as reader:
        assert reader.run().reason == "budget total exhausted (1/1)"
