"""Lines of pods that the API no longer has, out of Loki: each once, under its own instance, joined only where the join is proved."""

from __future__ import annotations

import random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankfall.collect.loki.pod_lines import Origin, origin
from rankfall.collect.loki.resume_state import LokiState
from rankfall.loki import LokiError
from rankfall.loki.settings import LABELS
from rankfall.model import JobSpec
from rankfall.rundir import RunDir
from rankfall.rundir.cluster.log_routes import StampParser, stamp_text
from support.feeding import CHANNEL, record_line
from support.loki_world import UID, World, at


@pytest.fixture
def world(tmp_path):
    return World(tmp_path)


def test_a_pod_that_was_never_followed_comes_with_its_ranks_and_records_and_only_once(world):
    world.pod(log="open")
    world.loki.add(at(1), world.record(1, "slot_start"))
    world.loki.add(at(2), "[rank 0] a")
    world.loki.add(at(3), "[rank 1] b")
    world.loki.add(at(4), "two\nlines")
    world.loki.add(at(9), world.record(2, "slot_end"))
    assert world.take() == 6
    assert (world.stream("r0.out"), world.stream("r1.out"), world.stream("slot.out")) == (
        b"a\n",
        b"b\n",
        b"two\nlines\n",
    )
    assert len(list(world.run.records_dir.glob("slot_end-*"))) == 1
    assert world.gaps() == []
    # All of it is there: nothing more is asked of this pod.
    assert world.take() == 0
    assert world.stream("r0.out") == b"a\n"


def test_a_log_that_ended_when_its_pod_vanished_is_continued_where_it_ended(world):
    world.pod()
    world.followed(f"{stamp_text(at(1))} [rank 0] one\n{stamp_text(at(2))} [rank 0] two\n".encode())
    assert len(world.gaps()) == 1
    for second, text in ((1, "one"), (2, "two"), (3, "three")):
        world.loki.add(at(second), f"[rank 0] {text}")
    # Of the very nanosecond where it ended.
    world.loki.add(at(2), "[rank 0] also two")
    assert world.take() == 2
    assert world.stream("r0.out") == b"one\ntwo\nalso two\nthree\n"
    # Without the wrapper's last word nobody knows whether that was all.
    assert len(world.gaps()) == 1
    world.loki.add(at(4), world.record(2, "slot_end"))
    world.loki.add(at(2.5), "[rank 0] late")
    assert world.take() == 2
    assert world.stream("r0.out") == b"one\ntwo\nalso two\nthree\nlate\n"
    assert world.gaps() == []


def test_stamps_of_a_node_in_another_zone_are_known_again(world):
    world.pod()
    zone = 5 * 3600 + 1800
    world.followed(f"{stamp_text(at(1), east_s=zone)} [rank 0] one\n".encode())
    world.loki.add(at(1), "[rank 0] one")
    world.loki.add(at(2), "[rank 0] two")
    assert world.take() == 1
    assert world.stream("r0.out") == b"one\ntwo\n"


def test_a_collector_with_stamps_of_its_own_is_not_joined_and_that_is_said(world):
    world.pod()
    world.followed(f"{stamp_text(at(1))} [rank 0] one\n{stamp_text(at(2))} [rank 0] two\n".encode())
    for second, text in ((1.1, "one"), (2.1, "two"), (3.1, "three")):
        world.loki.add(at(second), f"[rank 0] {text}")
    assert world.take() == 0
    assert world.stream("r0.out") == b"one\ntwo\n"
    assert any("could be lost or repeated when joined" in text for text in world.said)
    assert len(world.gaps()) == 1
    world.said.clear()
    assert world.take() == 0
    assert world.stream("r0.out") == b"one\ntwo\n"


def test_pods_that_nobody_saw_are_found_by_the_token_of_their_records(world):
    for slot, uid in ((0, "0b-uid"), (1, "0c-uid")):
        pod = f"job-{slot}-zzzzz"
        world.loki.add(at(1), world.record(slot + 1, "slot_start", slot=slot, pod_uid=uid), pod=pod)
        world.loki.add(at(2), f"[rank {slot}] hello", pod=pod)
    # Text of a job that looks like a record, and a record of another run.
    world.loki.add(at(1), f"\x1erankfall/1 {CHANNEL} nonsense", pod="liar")
    world.loki.add(at(1), record_line("other-000000", 1, 9, kind="slot_start", writer="wrapper").decode(), pod="liar")
    world.loki.add(at(2), "[rank 0] lie", pod="liar")
    assert world.take() == 4
    assert (world.stream("r0.out"), world.stream("r1.out", slot=1)) == (b"hello\n", b"hello\n")
    assert len(world.gaps()) == 2


def test_a_pod_of_a_job_that_rankfall_did_not_start_is_read_by_its_own_container(world):
    world.source = msgspec.structs.replace(world.source, container="")
    world.pod(log="open", container="pytorch")
    world.loki.add(at(1), "hello")
    assert world.take() == 1
    assert world.loki.asked == ['{namespace="here",container="pytorch",pod="job-0-abcde"}']
    assert world.stream("slot.out") == b"hello\n"


def test_pods_of_an_unattended_run_that_cannot_be_told_apart_are_left_out(world):
    world.run = RunDir.create(
        JobSpec(name="two", command=("x",), backend="jobset", unattended=True), home=world.run.path.parents[1]
    )
    for pod in ("a", "b"):
        world.loki.add(at(1), world.record(ord(pod), "slot_start", pod_uid=f"uid-{pod}"), pod=pod)
    assert world.take() == 0
    assert any("2 pods of it that were never recorded (a, b)" in text for text in world.said)


def test_lines_of_a_restarted_container_go_where_their_labels_say_or_nowhere(world):
    world.pod(restarts=1)
    path = f"/var/log/pods/here_job-0-abcde_{UID}/main/"
    world.loki.add(at(1), "first", filename=f"{path}0.log")
    world.loki.add(at(2), "second", filename=f"{path}1.log")
    world.loki.add(at(3), "of whom?")
    world.loki.add(at(3), "of another pod of this name", k8s_pod_uid="other")
    assert world.take() == 2
    assert (world.stream("slot.out"), world.stream("slot.out", instance=1)) == (b"first\n", b"second\n")
    assert any("was restarted" in text for text in world.said)


def test_a_pod_that_the_api_may_still_have_is_left_to_it(world):
    world.pod(gone=False, log="open")
    world.loki.add(at(1), "here")
    assert world.take() == 0
    assert ["these pods may still exist" in text for text in world.said] == [True]
    assert world.take(over=True) == 1
    assert len(world.said) == 2


def test_a_loki_that_does_not_answer_leaves_what_came_before_and_the_next_time_goes_on(world):
    world.pod(log="open")
    rows = list(range(2500))
    for number in rows:
        world.loki.add(at(number / 100), f"[rank 0] {number}")
    world.loki.dies = 2
    with pytest.raises(LokiError):
        world.take()
    assert 0 < world.stream("r0.out").count(b"\n") < 2500
    world.loki.dies = None
    world.take()
    assert world.stream("r0.out") == b"".join(b"%d\n" % number for number in rows)


class KilledError(Exception):
    pass


@given(st.lists(st.sampled_from(["intend", "feed", "done"]), max_size=6), st.integers(0, 1000))
def test_a_process_killed_between_any_two_steps_neither_loses_nor_repeats(tmp_path_factory, kills, seed):
    """launch-logs S12: each line once, however often the client dies while it takes them in."""
    world = World(tmp_path_factory.mktemp("kill"))
    world.pod(log="open")
    rng = random.Random(seed)
    texts = [f"[rank 0] {number}" for number in range(40)]
    for number, text in enumerate(texts):
        world.loki.add(at(number // 3), text)
    rng.shuffle(world.loki.rows)

    def attempt(kill: str | None) -> None:
        with pytest.MonkeyPatch.context() as patch:
            real, count = LokiState.intend, rng.randrange(4)

            def intend(self, state, parts):
                nonlocal count
                count -= 1
                if count < 0 and kill == "intend":
                    raise KilledError
                real(self, state, parts)
                if count < 0 and kill == "feed":
                    raise KilledError

            patch.setattr(LokiState, "intend", intend)
            patch.setattr("rankfall.collect.loki.pod_lines.PAGE", 7)
            world.take()

    for kill in kills:
        try:
            attempt(kill)
        except KilledError:
            continue
    attempt(None)
    assert sorted(world.stream("r0.out").splitlines()) == sorted(text[9:].encode() for text in texts)


def test_what_comes_after_a_wrappers_last_word_is_stored_too_and_the_gap_of_an_earlier_take_is_taken_back(world):
    world.pod(log="open")
    world.loki.add(at(1), "[rank 0] one")
    assert world.take() == 1
    assert len(world.gaps()) == 1
    world.loki.add(at(9), world.record(2, "slot_end"))
    assert world.take() == 1
    assert world.gaps() == []
    world.loki.add(at(8), "[rank 0] late")
    assert world.take() == 1
    assert (world.stream("r0.out"), world.gaps()) == (b"one\nlate\n", [])


def test_the_state_stays_small_and_survives_a_torn_row(world, monkeypatch):
    monkeypatch.setattr("rankfall.collect.loki.resume_state.COMPACT", 2000)
    monkeypatch.setattr("rankfall.collect.loki.pod_lines.PAGE", 50)
    world.pod(log="open")
    world.until = at(15000)
    for number in range(3000):
        world.loki.add(at(5 * number), f"[rank 0] {number}")
    world.take()
    (path,) = (world.run.path / "kube" / "attempt-1" / "loki").iterdir()
    assert path.stat().st_size < 100_000
    with path.open("ab") as file:
        file.write(b'{"mark": 1')
    world.loki.add(at(14990.5), "[rank 0] late")
    assert world.take() == 1
    world.loki.add(at(14990.6), "[rank 0] later")
    assert world.take() == 1
    assert world.stream("r0.out").count(b"\n") == 3002


@pytest.mark.parametrize(
    ("labels", "found"),
    [
        ({}, Origin(None, None)),
        ({"filename": "/var/log/pods/ns_pod_u-1/main/3.log"}, Origin("u-1", 3)),
        ({"log_file_path": "/var/log/pods/ns_pod_u-1/main/0.log.20260101-101010"}, Origin("u-1", 0)),
        ({"k8s_pod_uid": "u-2", "k8s_container_restart_count": "1"}, Origin("u-2", 1)),
        ({"k8s_container_restart_count": "many", "filename": "/tmp/x"}, Origin(None, None)),
    ],
)
def test_what_labels_tell(labels, found):
    assert origin(labels) == found


@given(st.integers(0, 2**62), st.integers(-48, 56))
def test_a_stamp_is_read_as_it_was_written(ns, quarter):
    text = stamp_text(ns, east_s=quarter * 900)
    assert StampParser().split(f"{text} x".encode()) == (ns, len(text) + 1)


def test_the_labels_of_the_default_are_promtails():
    assert LABELS == {"namespace": "namespace", "pod": "pod", "container": "container"}
