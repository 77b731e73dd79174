"""Standing still: the rule, and real ranks that stand still."""

from __future__ import annotations

import threading

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from rankfall.backends.local import LocalBackend
from rankfall.backends.plan import Plan
from rankfall.backends.protocol import Company
from rankfall.model import Deadlines, RankFacts
from rankfall.supervise.hang import HangWatch
from rankfall.supervise.loop import supervise

from .conftest import Bench

SECOND = 1_000_000_000


def ranks(*steps: int | None) -> list[RankFacts]:
    return [RankFacts(rank=n, pid=100 + n, state="running", step=step) for n, step in enumerate(steps)]


def test_output_and_records_are_progress() -> None:
    watch = HangWatch(10.0, start=0)
    watch.see(9 * SECOND, fresh=True, ranks=ranks(None), activity=0)
    assert not watch.hung(18 * SECOND)
    assert watch.hung(19 * SECOND)


def test_a_new_step_is_progress_and_an_old_one_is_not() -> None:
    watch = HangWatch(10.0, start=0)
    watch.see(5 * SECOND, fresh=False, ranks=ranks(1, 1), activity=0)
    watch.see(9 * SECOND, fresh=False, ranks=ranks(1, 2), activity=0)
    watch.see(15 * SECOND, fresh=False, ranks=ranks(1, 2), activity=0)
    assert watch.quiet_for(15 * SECOND) == 6
    assert watch.hung(19 * SECOND)


def test_work_of_all_ranks_is_life_only_before_the_first_step() -> None:
    quiet = HangWatch(10.0, start=0)
    quiet.see(20 * SECOND, fresh=False, ranks=ranks(None, None), activity=20 * SECOND)
    assert not quiet.hung(25 * SECOND)
    spinning = HangWatch(10.0, start=0)
    spinning.see(1 * SECOND, fresh=False, ranks=ranks(1, None), activity=1 * SECOND)
    spinning.see(20 * SECOND, fresh=False, ranks=ranks(1, None), activity=20 * SECOND)
    assert spinning.hung(20 * SECOND)


def test_a_gang_that_is_not_complete_yet_does_not_hang() -> None:
    watch = HangWatch(10.0, start=0)
    for now in range(0, 100, 5):
        watch.hold(now * SECOND)
        assert not watch.hung(now * SECOND)
    watch.see(104 * SECOND, fresh=False, ranks=ranks(), activity=0)
    assert not watch.hung(104 * SECOND)
    assert watch.hung(105 * SECOND)


def test_without_a_limit_nothing_hangs() -> None:
    watch = HangWatch(None, start=0)
    assert not watch.hung(10**9 * SECOND)


@given(
    st.lists(st.tuples(st.integers(0, 20), st.booleans(), st.integers(0, 5), st.integers(-5, 20)), max_size=30),
    st.floats(0.5, 30),
)
def test_a_hang_needs_the_whole_time_without_a_sign(looks: list[tuple[int, bool, int, int]], limit: float) -> None:
    watch = HangWatch(limit, start=0)
    now, last, best = 0, 0, -1
    for wait, fresh, step, busy in looks:
        now += wait * SECOND
        if fresh or step > best:
            last = now
        best = max(best, step)
        watch.see(now, fresh=fresh, ranks=ranks(step), activity=now - busy * SECOND)
        assert watch.quiet_for(now) == (now - last) / SECOND
        assert watch.hung(now) == ((now - last) / SECOND * SECOND >= round(limit * SECOND))


def test_errors_s29_a_silent_gang_is_explained_with_stacks_then_stopped(bench: Bench) -> None:
    # Stands where torch would: what a stack looks like decides, not which library it is.
    (bench.folder / "distributed_c10d.py").write_text(
        "import threading\ndef all_reduce(): threading.Event().wait(600)\n"
    )
    code = """
from distributed_c10d import all_reduce
print("here", flush=True)
if rank == 1:
    time.sleep(600)
all_reduce()
"""
    run, outcome = bench.run(code, policies={"hang_timeout_s": 1.0, "max_restarts": 0})
    assert outcome.state == "failed"
    assert bench.texts("hang")
    assert outcome.verdict is not None
    assert outcome.verdict.state == "failed"
    assert (outcome.verdict.cause.slug, outcome.verdict.rank) == ("rank_stuck", 1)
    with run.reader() as reader:
        assert len(reader.verdicts()) == 1
    stacks = [path.read_text() for path in run.records_dir.glob("stacks-*.json")]
    assert len(stacks) == 2
    assert any("all_reduce" in text for text in stacks)
    order = [event.kind for event in bench.events if event.kind in {"hang", "stopping", "verdict"}]
    assert order == ["hang", "stopping", "verdict"]


class Scarce(LocalBackend):
    """A platform that has room for the second slot only after a while."""

    def submit(self, plan: Plan, *, company: Company) -> tuple[int, ...]:
        first = msgspec.structs.replace(plan, slots=plan.slots[:1])
        threading.Timer(4.0, super().submit, (plan,), {"company": company}).start()
        return super().submit(first, company=company)


def test_waiting_for_a_slot_is_no_hang_however_long(bench: Bench) -> None:
    run_dir = bench.run_dir(
        bench.spec("time.sleep(0.5)", nproc_per_node=1, policies={"hang_timeout_s": 2.0, "max_restarts": 0})
    )
    outcome = supervise(run_dir, backend=Scarce(), on_event=bench.events.append)
    assert outcome.state == "succeeded"
    assert not bench.texts("hang")


def test_a_rank_that_never_comes_is_named_after_the_start_timeout(bench: Bench) -> None:
    # Rank 1's program is no Python and says nothing of a rank before the wrapper looks; rank 0 waits for ever.
    code = "time.sleep(600)"
    run, outcome = bench.run(
        code,
        nnodes=1,
        nproc_per_node=1,
        launcher="exec",
        deadlines=Deadlines(startup_s=1.0),
        policies={"max_restarts": 0},
    )
    assert outcome.state == "failed"
    assert "was not there 1 s after the start" in bench.texts("deadline")[0]
    assert outcome.verdict is not None
    assert (outcome.verdict.cause.slug, outcome.verdict.rank) == ("deadline_exceeded", None)
    assert outcome.verdict.decisive is not None
    assert "was not there" in outcome.verdict.decisive.line
    with run.reader() as reader:
        assert reader.slots(1)[0].killed_by == "wrapper"
