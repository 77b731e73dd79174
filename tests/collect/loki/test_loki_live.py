"""Lines followed out of Loki while the job goes on: each once, whatever comes late, goes away or is killed meanwhile."""

from __future__ import annotations

import asyncio
import errno

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rankfall.collect.loki.resume_state import LokiState
from rankfall.collect.pods.log_tailer import LogTailer
from rankfall.loki import LokiError
from rankfall.rundir.cluster.log_routes import stamp_text
from support.loki_world import UID, World, at

POD = "job-0-zzzzz"


@pytest.fixture
def world(tmp_path):
    return World(tmp_path)


class Script:
    """What reaches Loki at which second, and when Loki is away."""

    def __init__(self, world, *, away=(), passing=True) -> None:
        self.world, self.away, self.passing = world, away, passing
        self.lines: list[tuple[float, float, str]] = []

    def line(self, second: float, text: str, *, late: float = 0.0) -> None:
        self.lines.append((second + late, second, text))

    def __call__(self, now: float) -> None:
        assert now < 3600, "the follow does not end"
        for row in [row for row in self.lines if row[0] <= now]:
            self.lines.remove(row)
            self.world.loki.add(at(row[1]), row[2], pod=POD)
        gone = any(begin <= now < end for begin, end in self.away)
        self.world.loki.error = LokiError("away", passing=self.passing) if gone else None


def job(world, **more: object) -> Script:
    script = Script(world, **more)
    script.line(1, world.record(1, "slot_start", pod_uid="0b-uid"))
    for number in range(20):
        script.line(2 + number, f"[rank {number % 2}] {number}")
    script.line(30, world.record(2, "slot_end", pod_uid="0b-uid"))
    return script


def rank(world, number: int) -> list[int]:
    return [int(line) for line in world.stream(f"r{number}.out").splitlines()]


def test_a_pod_that_nobody_saw_is_followed_to_its_last_word_with_the_bytes_of_an_afterwards_take(tmp_path):
    live, after = World(tmp_path / "live"), World(tmp_path / "after")
    live.live(job(live))
    job(after)(100)
    assert after.take() == 22
    for stream in ("r0.out", "r1.out", "slot.out"):
        assert live.stream(stream) == after.stream(stream)
    assert rank(live, 1) == list(range(1, 20, 2))
    assert (live.gaps(), live.said) == ([], [])
    # Nothing is left for a take afterwards.
    assert live.take() == 0


def test_a_line_that_comes_late_is_stored_once_by_a_thorough_look(world):
    script = job(world)
    script.lines = [row for row in script.lines if "slot_end" not in row[2]]
    script.line(3.5, "[rank 0] 100", late=200)
    end = script.lines.pop(21)
    script.line(700, end[2])
    world.live(script)
    assert rank(world, 0) == [*range(0, 20, 2), 100]
    assert world.gaps() == []


def test_a_loki_that_is_away_for_minutes_is_said_once_and_nothing_is_lost(world):
    script = job(world, away=((5, 400),))
    world.live(script)
    assert (rank(world, 0), rank(world, 1)) == (list(range(0, 20, 2)), list(range(1, 20, 2)))
    assert world.said == ["away; trying again", "Loki answers again"]


def test_a_loki_that_refuses_is_asked_again_once_it_had_answered_and_given_up_when_it_never_had(world):
    world.live(job(world, away=((5, 50),), passing=False))
    assert rank(world, 0) == list(range(0, 20, 2))
    world.loki.error = LokiError("no such tenant")
    with pytest.raises(LokiError, match="no such tenant"):
        world.live(lambda now: pytest.fail("it waited"))


def test_after_the_end_a_loki_that_is_away_ends_the_follow(world):
    with pytest.raises(LokiError, match="away"):
        world.live(job(world, away=((40, 4000),), passing=False))
    # What came is there, and is said to be all.
    assert (rank(world, 0), world.gaps()) == (list(range(0, 20, 2)), [])


def test_a_full_disk_is_said_and_what_could_not_be_stored_comes_when_there_is_room(world, monkeypatch):
    real, full = LokiState.intend, iter([False, True, True])

    def intend(self, state, parts):
        if next(full, False):
            raise OSError(errno.ENOSPC, "No space left on device")
        real(self, state, parts)

    monkeypatch.setattr(LokiState, "intend", intend)
    world.live(job(world))
    assert (rank(world, 0), rank(world, 1)) == (list(range(0, 20, 2)), list(range(1, 20, 2)))
    assert world.said == ["cannot store lines from Loki: No space left on device; trying again"]


def test_a_log_of_the_api_is_continued_and_a_log_that_loki_began_is_left_by_the_apis_follower(world):
    world.pod(gone=False, log="open")
    instances = world.instances()
    log = instances.open(0, uid=UID, number=0)
    log.opened()
    log.push(f"{stamp_text(at(1))} [rank 0] 1\n{stamp_text(at(2))} [rank 0] 2\n".encode())
    instances.close()
    for second in (1, 2, 3):
        world.loki.add(at(second), f"[rank 0] {second}")

    class KilledError(Exception):
        pass

    def killed(now: float) -> None:
        raise KilledError

    with pytest.raises(KilledError):
        world.live(killed)
    assert rank(world, 0) == [1, 2, 3]
    # What may be missing is said, and whoever follows the API leaves this log.
    (gap,) = world.gaps()
    assert stamp_text(at(2)) in gap
    instances = world.instances()
    log = instances.open(0, uid=UID, number=0)
    assert log.cursor.closed == "lost"
    follower = LogTailer(
        None, pod="p", namespace="n", container="c", log=log,
        state=lambda: pytest.fail("asked"), refresh=lambda: pytest.fail("asked"), trouble=print,
    )  # fmt: skip
    assert asyncio.run(follower.run()) == "lost"
    instances.close()
    # Another follow goes on there.
    world.loki.add(at(4), "[rank 0] 4")
    world.loki.add(at(5), world.record(2, "slot_end", pod_uid=UID))
    world.live(lambda now: None)
    assert (rank(world, 0), world.gaps()) == ([1, 2, 3, 4], [])


def test_lines_without_a_proof_wait_for_it_and_are_not_lost(world):
    """The collector brings a newer line of stderr before the last stored one of stdout: what joins them comes later."""
    world.pod(gone=False, log="open")
    instances = world.instances()
    log = instances.open(0, uid=UID, number=0)
    log.opened()
    log.push(f"{stamp_text(at(1))} [rank 0] 1\n".encode())
    instances.close()
    world.loki.add(at(2), "[rank 0] 2")

    def tick(now: float) -> None:
        if now == 10:
            world.loki.add(at(1), "[rank 0] 1")
        if now == 20:
            world.loki.add(at(3), world.record(2, "slot_end", pod_uid=UID))

    world.live(tick)
    assert rank(world, 0) == [1, 2]
    assert len(world.said) == 1
    assert "could be lost or repeated when joined" in world.said[0]


class KilledError(Exception):
    pass


@settings(max_examples=10)
@given(
    late=st.lists(st.sampled_from([0.0, 1.0, 30.0, 90.0, 500.0]), min_size=24, max_size=24),
    away=st.lists(st.tuples(st.integers(1, 60), st.integers(1, 200)), max_size=2),
    kills=st.lists(st.tuples(st.integers(0, 3), st.booleans()), max_size=3),
)
def test_every_line_comes_once_whatever_is_late_away_or_killed(tmp_path_factory, late, away, kills):
    """launch-logs S12: also while Loki is followed. Lateness up to what a thorough look sees."""
    world = World(tmp_path_factory.mktemp("live"))
    script = Script(world, away=[(begin, begin + length) for begin, length in away])
    script.line(1, world.record(1, "slot_start", pod_uid="0b-uid"))
    for number, delay in enumerate(late):
        script.line(2 + number // 2, f"[rank 0] {number}", late=delay)
    script.line(800, world.record(2, "slot_end", pod_uid="0b-uid"))
    real = LokiState.intend
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("rankfall.collect.loki.attempt_lines.POLL_S", 20.0)
        patch.setattr("rankfall.collect.loki.pod_lines.PAGE", 5)
        for count, before in kills:

            def intend(self, state, parts, left=[count], before=before):  # noqa: B006 - counts on purpose
                left[0] -= 1
                if left[0] < 0 and before:
                    raise KilledError
                real(self, state, parts)
                if left[0] < 0:
                    raise KilledError

            patch.setattr(LokiState, "intend", intend)
            with pytest.raises(KilledError):
                world.live(script)
            assert sorted(set(rank(world, 0))) == sorted(rank(world, 0))
        patch.setattr(LokiState, "intend", real)
        world.live(script)
    assert sorted(rank(world, 0)) == list(range(24))
    assert world.gaps() == []
