"""Marks of our own stops, clocks of nodes, difficulties: what each small part promises."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from rankfall.collect.background import AGAIN_S, ProblemReporter, error_text
from rankfall.collect.pods.instance_log import InstanceLog
from rankfall.rundir.cluster.clock_bounds import ClockFile, ClockView, clock_path, read_clocks
from rankfall.rundir.cluster.marks import Stop, StopMark, mark_stop, read_stop, stop_path
from support.kubemodel import NS

# -- stops


def test_the_first_mark_stands(tmp_path):
    mark = StopMark(tmp_path, 1)
    assert (read_stop(tmp_path, 1), mark.read()) == (None, None)
    mark_stop(tmp_path, 1, Stop(at_ns=5, reason="first"))
    mark_stop(tmp_path, 1, Stop(at_ns=9, reason="second"))
    assert read_stop(tmp_path, 1) == mark.read() == Stop(at_ns=5, reason="first")
    assert read_stop(tmp_path, 2) is None
    assert [path.name for path in stop_path(tmp_path, 1).parent.iterdir()] == ["stop.json"]


def test_many_who_mark_at_once_leave_one_whole_mark(tmp_path):
    gate = threading.Barrier(8)
    failed: list[BaseException] = []

    def mark(number: int) -> None:
        gate.wait()
        try:
            mark_stop(tmp_path, 1, Stop(at_ns=number, reason="x" * 1000 * number))
        except BaseException as error:  # noqa: BLE001 - shown below
            failed.append(error)

    threads = [threading.Thread(target=mark, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    found = read_stop(tmp_path, 1)
    assert found is not None
    assert len(found.reason) == 1000 * found.at_ns
    assert [path.name for path in stop_path(tmp_path, 1).parent.iterdir()] == ["stop.json"]


def test_a_damaged_mark_is_none(tmp_path):
    path = stop_path(tmp_path, 1)
    path.parent.mkdir(parents=True)
    path.write_bytes(b'{"at_ns"')
    assert read_stop(tmp_path, 1) is None


# -- clocks


def log(**fields: Any) -> Any:
    return SimpleNamespace(delay_ns=None, **fields)


def test_the_least_delay_of_a_slot_is_kept_over_logs_and_writers(tmp_path):
    file, view = ClockFile(tmp_path, attempt=1), ClockView(tmp_path, attempt=1)
    one, two = log(), log()
    file.watch(0, one)
    file.watch(3, two)
    file.write()
    assert (read_clocks(tmp_path, 1), view.poll()) == ({}, {})
    one.delay_ns, two.delay_ns = 50, -7 * NS
    file.write()
    assert read_clocks(tmp_path, 1) == view.poll() == {0: 50, 3: -7 * NS}
    assert view.poll() == {}
    one.delay_ns = 20
    next_one = log()
    # What the log before it told is not forgotten.
    file.watch(0, next_one)
    next_one.delay_ns = 90
    file.write()
    again = ClockFile(tmp_path, attempt=1)
    late = log()
    late.delay_ns = 500
    again.watch(0, late)
    again.write()
    assert read_clocks(tmp_path, 1)[0] == 20


def test_clocks_that_could_not_be_written_are_written_later(tmp_path, monkeypatch):
    file, one = ClockFile(tmp_path, attempt=1), log()
    file.watch(0, one)
    one.delay_ns = 5
    clock_path(tmp_path, 1).parent.parent.write_bytes(b"in the way")
    with pytest.raises(OSError, match="attempt-1"):
        file.write()
    clock_path(tmp_path, 1).parent.parent.unlink()
    file.write()
    assert read_clocks(tmp_path, 1) == {0: 5}


@pytest.mark.parametrize("data", [b"", b"[]", b'{"0":"x"}', b'{"0":5'])
def test_a_damaged_file_of_clocks_is_none(tmp_path, data):
    path = clock_path(tmp_path, 1)
    path.parent.mkdir(parents=True)
    path.write_bytes(data)
    assert read_clocks(tmp_path, 1) == ClockView(tmp_path, attempt=1).poll() == {}


@pytest.mark.parametrize(
    ("live", "behind", "delay"),
    [
        # A line from the future proves a clock that is ahead, whenever it comes.
        (False, -90.0, -90 * NS),
        (True, -90.0, -90 * NS),
        # An old line that comes now may have waited: only a live one says that a clock is behind.
        (False, 90.0, None),
        (True, 90.0, 90 * NS),
    ],
)
def test_what_lines_prove_of_a_clock(tmp_path, live, behind, delay):
    now = 1_795_276_800 * NS
    made = InstanceLog(tmp_path, on_record=lambda _line, _at: False, now=lambda: now + round(behind * NS))
    made.opened()
    made.live = live
    made.push(b"2026-11-21T16:00:00.000000000Z x\n")
    made.close()
    assert made.delay_ns == delay


# -- difficulties


class Clock:
    now = 1000.0


def troubles() -> tuple[ProblemReporter, list[str], Clock]:
    told: list[str] = []
    clock = Clock()
    return ProblemReporter(told.append, clock=lambda: clock.now), told, clock


def test_what_lasts_is_told_once():
    made, told, clock = troubles()
    for _ in range(100):
        made.say("disk", "full")
        clock.now += AGAIN_S
    assert told == ["full"]


def test_what_comes_and_goes_is_told_now_and_then():
    made, told, clock = troubles()
    for number in range(10):
        made.say("watch", f"broken {number}")
        made.over("watch")
        clock.now += AGAIN_S / 4
    assert told == ["broken 0", "broken 4", "broken 8"]
    made.over("never said")


def test_i19_p4_a_full_disk_is_told_again_while_it_lasts_and_so_is_its_end():
    made, told, clock = troubles()
    for _ in range(31):
        made.full(OSError(28, "No space left on device"))
        clock.now += 1
    made.stored()
    made.stored()
    first, again, twice, over = told
    assert first == "cannot store data from the cluster: No space left on device; trying again"
    assert again.startswith("nothing could be stored for 15 s, so new lines do not appear: No space left on device")
    assert "for 30 s, so new lines do not appear" in twice
    assert over == "storing continues after 31 s: Rankfall fetches what the cluster still has"


def test_each_name_is_told_and_their_number_is_bounded():
    made, told, _ = troubles()
    for number in range(10_000):
        made.say(f"name {number}", "x")
    assert len(told) == 10_000
    assert len(made._reported) <= 256


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (OSError(28, "No space left on device", "/secret/path"), "No space left on device"),
        (OSError("odd"), "odd"),
        (ZeroDivisionError("by zero"), "ZeroDivisionError: by zero"),
    ],
)
def test_errors_in_words(error, words):
    assert error_text(error) == words
