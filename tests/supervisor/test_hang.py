"""Standing still: the rule, and real ranks that stand still."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankfall.backends.local.backend import LocalBackend
from rankfall.backends.plan import Plan
from rankfall.backends.protocol import Cancellation
from rankfall.evidence.attempt.observer import Delta
from rankfall.model import Deadlines, JobSpec, Policies, RankFacts, SlotFacts
from rankfall.supervisor.attempt import timeouts
from rankfall.supervisor.attempt.completion import SettleWindow
from rankfall.supervisor.attempt.timeouts import HangWatch, TimeoutWatch
from rankfall.supervisor.supervise import supervise

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


def test_imports_that_move_are_no_hang_and_are_looked_at_ever_more_seldom() -> None:
    watch = HangWatch(10.0, start=0)
    asked = []
    for now in range(200):
        if watch.hung(now * SECOND):
            asked.append(now)
            assert watch.goes_on(now * SECOND, {1: f"place {now}", 2: "the same"})
    assert asked == [10, 20, 40, 80, 160]
    # Both stand where they stood.
    assert watch.hung(320 * SECOND)
    assert not watch.goes_on(320 * SECOND, {1: "place 160", 2: "the same"})
    # One has come through it, and the other one stands still.
    assert not watch.goes_on(320 * SECOND, {2: "the same"})


def test_after_output_the_time_is_as_long_as_ever() -> None:
    watch = HangWatch(10.0, start=0)
    for now in (10, 20, 40):
        assert watch.goes_on(now * SECOND, {1: str(now)})
    watch.see(50 * SECOND, fresh=True, ranks=ranks(None), activity=0)
    assert not watch.hung(59 * SECOND)
    assert watch.hung(60 * SECOND)


def test_whoever_imports_for_an_hour_hangs_and_so_does_whoever_imports_after_a_step() -> None:
    watch = HangWatch(10.0, start=0)
    assert watch.goes_on(10 * SECOND, {1: "a"})
    assert watch.goes_on(3609 * SECOND, {1: "b"})
    assert not watch.goes_on(3610 * SECOND, {1: "c"})
    stepped = HangWatch(10.0, start=0)
    stepped.see(1, fresh=False, ranks=ranks(1, None), activity=0)
    assert not stepped.goes_on(20 * SECOND, {1: "a"})
    assert not HangWatch(10.0, start=0).goes_on(20 * SECOND, {})


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
    run, outcome = bench.run(code, policies={"hang_timeout_s": 3.0, "max_restarts": 0})
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


def test_a_rank_whose_import_takes_longer_than_the_time_is_no_hang(bench: Bench) -> None:
    # Of many parts, none of which a second look finds again, and without CPU time: a file system that is slow.
    for part in range(12):
        more = f"import slow_{part + 1}" if part < 11 else "done = True"
        (bench.folder / f"slow_{part}.py").write_text(f"import time\ntime.sleep(0.8)\n{more}\n")
    code = """
if rank == 1:
    import slow_0
"""
    _, outcome = bench.run(code, policies={"hang_timeout_s": 3.0, "max_restarts": 0})
    assert outcome.state == "succeeded"
    assert not bench.texts("hang")
    assert "of 2 ranks are still importing" in bench.texts("waiting")[0]


def test_an_import_that_stands_still_is_a_hang_and_is_said_to_be_one(bench: Bench) -> None:
    (bench.folder / "distributed_c10d.py").write_text(
        "import threading\ndef all_reduce(): threading.Event().wait(600)\n"
    )
    (bench.folder / "stuck.py").write_text("import time\ntime.sleep(600)\n")
    code = """
from distributed_c10d import all_reduce
if rank == 1:
    import stuck
all_reduce()
"""
    run, outcome = bench.run(code, policies={"hang_timeout_s": 3.0, "max_restarts": 0})
    assert outcome.verdict is not None
    assert (outcome.verdict.cause.slug, outcome.verdict.rank) == ("rank_stuck", 1)
    assert outcome.verdict.decisive is not None
    assert outcome.verdict.decisive.line.startswith("rank 1 is still importing at stuck.py:<module>:2 while 1 others")
    with run.reader() as reader:
        assert len(reader.verdicts()) == 1


class Scarce(LocalBackend):
    """A platform that has room for the second slot only after a while."""

    def submit(self, plan: Plan, *, cancellation: Cancellation) -> tuple[int, ...]:
        first = msgspec.structs.replace(plan, slots=plan.slots[:1])
        threading.Timer(4.0, super().submit, (plan,), {"cancellation": cancellation}).start()
        return super().submit(first, cancellation=cancellation)


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


def test_while_torchrun_has_not_started_all_ranks_nothing_hangs_and_the_wait_is_told() -> None:
    spec = JobSpec(
        command=("t.py",), nnodes=1, nproc_per_node=2, launcher="torchrun", policies=Policies(hang_timeout_s=10.0)
    )
    plan = SimpleNamespace(launcher="torchrun", attempt=1, slots=[SimpleNamespace(role=spec.one_role, slot=0)])
    said: list[tuple[str, str]] = []
    scene: Any = SimpleNamespace(spec=spec, plan=plan, observer=SimpleNamespace(last_activity=0), blind=False)
    events: Any = SimpleNamespace(say=lambda kind, text, **_: said.append((kind, text)))
    began = time.time_ns()
    # Whoever takes stacks or a verdict asks one of these for what it has not.
    nobody: Any = SimpleNamespace()
    watch = TimeoutWatch(
        scene,
        attempt_end=nobody,
        run="r",
        backend=nobody,
        control=nobody,
        events=events,
        window=SettleWindow(Policies()),
        started=began,
        total_at=None,
    )
    slots = (SlotFacts(slot=0, state="running", recorder=True),)
    for seconds in (5, 11):
        watch.look(Delta(), slots, ranks(None), now=began + seconds * SECOND)
    ((kind, text),) = said
    assert kind == "waiting"
    assert text.startswith("no progress for 11 s: 1 ranks have not started yet; only torchrun's limit")
    # All are there, and stand still.
    with pytest.raises(AttributeError):
        watch.look(Delta(), slots, ranks(None, None), now=time.time_ns() + 60 * SECOND)


def test_i19_while_pods_cannot_be_watched_no_rank_is_missing_and_nothing_stands_still() -> None:
    spec = JobSpec(
        command=("t.py",),
        nnodes=1,
        launcher="plain",
        policies=Policies(hang_timeout_s=10.0),
        deadlines=Deadlines(startup_s=5.0),
    )
    plan = SimpleNamespace(launcher="plain", attempt=1, slots=[SimpleNamespace(role=spec.one_role, slot=0)])
    waits: list[str | None] = []
    scene: Any = SimpleNamespace(
        spec=spec,
        plan=plan,
        observer=SimpleNamespace(last_activity=0),
        ranks=tuple,
        blind=True,
        wait=lambda what, text, *, now: waits.append(f"{what}: {text}"),
        waited=lambda *, now: waits.append(None),
    )
    nobody: Any = SimpleNamespace()
    began = time.time_ns()
    said: list[str] = []
    events: Any = SimpleNamespace(say=lambda kind, text, **_: said.append(f"{kind}: {text}"))
    watch = TimeoutWatch(
        scene,
        attempt_end=nobody,
        run="r",
        backend=nobody,
        control=nobody,
        events=events,
        window=SettleWindow(Policies()),
        started=began,
        total_at=None,
    )
    slots = (SlotFacts(slot=0, state="running", recorder=True),)
    for seconds in (1, 20, 40):
        watch.look(Delta(), slots, (), now=began + seconds * SECOND)
    assert set(waits) == {"pods: the startup deadline has passed; it takes effect when the pods can be watched again"}
    # Seen again, and what is seen now is not taken to be all there is.
    scene.blind = False
    watch.look(Delta(), slots, (), now=began + 41 * SECOND)
    assert said == []
    timeouts.time = SimpleNamespace(monotonic=lambda: time.monotonic() + 60, time_ns=time.time_ns)  # type: ignore[assignment]
    try:
        with pytest.raises(AttributeError):
            watch.look(Delta(), slots, (), now=began + 42 * SECOND)
    finally:
        timeouts.time = time
    assert waits[-1] is None
    assert said == ["deadline: 1 rank was not there 5 s after the start"]
