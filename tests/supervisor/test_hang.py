"""Standing still: the rule, and real ranks that stand still."""

from __future__ import annotations

import statistics
import threading
import time
from itertools import pairwise
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
from rankfall.evidence.readers.stream_reader import printed_step
from rankfall.model import Deadlines, JobSpec, Policies, RankFacts, SlotFacts
from rankfall.supervisor.attempt import timeouts
from rankfall.supervisor.attempt.completion import SettleWindow
from rankfall.supervisor.attempt.timeouts import HangWatch, TimeoutWatch
from rankfall.supervisor.supervise import supervise
from support import ras
from support.patience import scaled

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
    watch.see(7 * SECOND, fresh=False, ranks=ranks(1, 1), activity=0)
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
    stepped: int | None = None
    newest: int | None = None
    gaps: list[int] = []
    for wait, fresh, step, busy in looks:
        now += wait * SECOND
        if fresh or step > best:
            last = now
        best = max(best, step)
        if step != newest:
            if newest is not None and stepped is not None and step > newest:
                gaps.append(now - stepped)
            newest, stepped = step, now
        watch.see(now, fresh=fresh, ranks=ranks(step), activity=now - busy * SECOND)
        assert watch.quiet_for(now) == (now - last) / SECOND
        needed = max(round(limit * SECOND), 5 * round(statistics.median(gaps)) if gaps else 0)
        assert watch.hung(now) == ((now - last) / SECOND * SECOND >= needed)
        assert watch.late(now) == (round(limit * SECOND) <= now - last < needed)


@given(
    step=st.floats(0.2, 2000),
    floor=st.floats(0.1, 1800),
    factors=st.lists(st.floats(1, 3), min_size=3, max_size=60),
    printed=st.booleans(),
)
def test_i32_p7_no_step_of_three_step_times_is_a_hang_and_a_stop_is_one_after_five(
    *, step: float, floor: float, factors: list[float], printed: bool
) -> None:
    watch = HangWatch(floor, start=0)
    now = 0
    for number, factor in enumerate(factors):
        end = now + round(factor * step * SECOND)
        if number > 1:
            assert not watch.hung(end - 1)
        now = end
        reported = None if printed else number
        watch.see(now, fresh=printed, ranks=ranks(reported, None), activity=0, printed=number if printed else None)
    limit = watch.limit_ns
    assert limit is not None
    assert round(5 * step * SECOND) - 5 <= limit <= max(floor, 15 * step) * SECOND + 5
    assert not watch.hung(now + limit - 1000)
    assert watch.hung(now + limit + 1000)
    assert ("hang_timeout_s" in watch.limit_text) == (limit == round(floor * SECOND))


def test_time_without_the_whole_gang_and_a_step_counter_that_begins_again_are_no_step_time() -> None:
    watch = HangWatch(1.0, start=0)
    for at, step in ((1, 1), (2, 2), (3, 3)):
        watch.see(at * SECOND, fresh=False, ranks=ranks(step, step - 1), activity=0)
    watch.hold(4 * SECOND)
    watch.see(1000 * SECOND, fresh=False, ranks=ranks(4, 4), activity=0)
    # Restarted from an older checkpoint, by other processes; the old ones' steps stay known.
    old = [RankFacts(rank=0, pid=100, state="ended", step=4)]
    for at, step in ((2000, 1), (2001, 2)):
        again = RankFacts(rank=0, pid=200, state="running", step=step)
        watch.see(at * SECOND, fresh=False, ranks=[*old, again], activity=0)
    assert watch.step_ns == SECOND


@pytest.mark.parametrize(
    ("text", "step"),
    [
        (b"step 12 loss 2.000\n", 12),
        (b"[2026-01-01 10:00:00] iteration      120/ 5000 | elapsed 3.1 s\n", 120),
        (b"Iter: 7, lr 0.1\n", 7),
        (b"{'global_step': 40, 'loss': 1.5}\n", 40),
        (b" 12%|#2        | 12/100 [00:30<03:40,  2.5s/it]\r 13%|#3        | 13/100 [00:33<03:37,  2.5s/it]\r", 13),
        (b"step 5\nstep 6\nsaving a checkpoint\n", 6),
        # The line is not whole: it may be step 120.
        (b"step 11\nstep 12", 11),
        (b"step_time 3 s, 8 GPUs, epochs 3\n", None),
        (b"step 99999999999999999999\n", None),
        (b"x" * 5000 + b"step 3\n" + b"y" * 5000 + b"\n", None),
    ],
)
def test_steps_in_lines(text: bytes, step: int | None) -> None:
    assert printed_step(text) == step


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


STEPS = """
import threading
from rankfall_inside.api import progress
def step(number, factor=1, phase=None):
    time.sleep(factor * PACE)
    progress(number, phase=phase)
for number in range(1, 5):
    step(number)
""".replace("PACE", str(scaled(1.1)))


@pytest.mark.parametrize("how", ["reported", "printed"])
def test_i32_p7_a_slow_step_is_no_hang(bench: Bench, how: str) -> None:
    shown = "progress(number, phase=phase)" if how == "reported" else 'print(f"step {number}", flush=True)'
    times = bench.folder / "times"
    note = f"open({str(times)!r}, 'a').write(f'{{time.monotonic()}}\\n')"
    code = STEPS.replace("progress(number, phase=phase)", f"{shown}; {note}") + "step(5, factor=3)\nstep(6)\n"
    policies = {"hang_timeout_s": scaled(2.0), "max_restarts": 0}
    _, outcome = bench.run(code, policies=policies)
    assert outcome.state == "succeeded"
    assert not bench.texts("hang")
    # Each slow step is announced once; on a busy machine there may be more than the fifth.
    waits = [event for event in bench.events if event.kind == "waiting"]
    ends = sorted(map(float, times.read_text().split()))
    slow = [one for one, other in pairwise(ends) if other - one > 0.9 * policies["hang_timeout_s"]]
    assert 1 <= len(waits) <= len(slow)
    assert {event.data["waits_for"] for event in waits} == {"steps"}
    assert all("5 times the job's step time of" in event.text for event in waits)


def test_i32_p7_a_rank_that_left_the_collective_is_named_after_five_step_times(bench: Bench) -> None:
    (bench.folder / "distributed_c10d.py").write_text(
        "import threading\ndef all_reduce(): threading.Event().wait(600)\n"
    )
    code = (
        STEPS
        + """
from distributed_c10d import all_reduce
if rank == 1:
    time.sleep(600)
all_reduce()
"""
    )
    run, outcome = bench.run(code, policies={"hang_timeout_s": scaled(2.0), "max_restarts": 0})
    assert outcome.verdict is not None
    assert (outcome.verdict.cause.slug, outcome.verdict.rank) == ("rank_stuck", 1)
    (hang,) = [event for event in bench.events if event.kind == "hang"]
    assert hang.data["limit_s"] == pytest.approx(5 * hang.data["step_s"], abs=0.1)
    assert hang.data["quiet_s"] >= hang.data["limit_s"] > scaled(2.0)
    assert "5 times the job's step time" in hang.text
    # The wait was announced before, and its reason is gone.
    kinds = [event.kind for event in bench.events if event.kind in {"waiting", "hang", "stopping", "verdict"}]
    assert kinds == ["waiting", "hang", "stopping", "verdict"]
    with run.reader() as reader:
        assert "step time" not in (reader.run().reason or "")


def test_i32_p7_a_checkpoint_pause_beside_a_silent_rank_delays_the_alarm_and_names_the_silent_one(bench: Bench) -> None:
    (bench.folder / "distributed_c10d.py").write_text(
        "import threading\ndef all_reduce(): threading.Event().wait(600)\n"
    )
    code = (
        STEPS
        + """
from distributed_c10d import all_reduce
if rank == 1:
    time.sleep(600)
time.sleep(3 * PACE)
open("saved", "w").close()
all_reduce()
""".replace("PACE", str(scaled(1.1)))
    )
    _, outcome = bench.run(code, policies={"hang_timeout_s": scaled(2.0), "max_restarts": 0})
    assert (bench.folder / "saved").exists()
    assert outcome.verdict is not None
    assert (outcome.verdict.cause.slug, outcome.verdict.rank) == ("rank_stuck", 1)
    assert len(bench.texts("hang")) == 1


@pytest.mark.parametrize(
    ("how", "left", "line"), [("well", False, "NCCL RAS: rank 1 launched"), ("mute", True, "stands at")]
)
def test_i32_p7_nccl_names_the_rank_whose_stack_is_like_all_others(
    bench: Bench, how: str, *, left: bool, line: str
) -> None:
    # With a silent service another rank's stack tells it, as without a service.
    (bench.folder / "distributed_c10d.py").write_text(
        "import threading\ndef all_reduce(): threading.Event().wait(600)\n"
    )
    counts = ras.behind(
        "a1",
        many="  Rank 0 has launched up to operation 5 -- [process information not found]",
        few="  Rank 1 has launched up to operation 4 -- [process information not found]",
    )
    report = ras.report(size=2, errors="MISMATCH", body=counts)
    code = f"""{ras.SERVER}
from distributed_c10d import all_reduce
if rank == 0:
    ras({report!r}, how={how!r})
if rank == 1 and {left}:
    time.sleep(600)
all_reduce()
"""
    policies = {"hang_timeout_s": 3.0, "max_restarts": 0}
    run, outcome = bench.run(code, policies=policies, env={"NCCL_RAS_ADDR": f"localhost:{ras.free_port()}"})
    assert outcome.verdict is not None
    assert (outcome.verdict.cause.slug, outcome.verdict.rank) == ("rank_stuck", 1)
    assert outcome.verdict.decisive is not None
    assert line in outcome.verdict.decisive.line
    # Slot 1's own ranks have no service: that of slot 0 on the same port is not asked in its name.
    assert len(list(run.records_dir.glob("ras-*-0-*.json"))) == (0 if left else 2)
    assert not list(run.records_dir.glob("ras-*-1-*.json"))


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
