"""Each line of Loki exactly once: late lines, equal stamps, pages cut anywhere, a process that is killed between pages."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from rankfall.loki.reader import Cursor, Entry, State

OVERLAP = 50


def line(at: int, text: str) -> Entry:
    return Entry(at=at, key=("ns", "pod"), text=text, labels={})


class Model:
    """Loki as it was measured: the oldest lines first, start included, end not; equal stamps in any order."""

    def __init__(self) -> None:
        self.lines: list[Entry] = []

    def query(self, start: int, end: int, limit: int) -> list[Entry]:
        return sorted(one for one in self.lines if start <= one.at < end)[:limit]


def one_pass(cursor: Cursor, model: Model, end: int, overlap: int | None = None) -> tuple[list[str], list[int]]:
    got: list[str] = []
    stuck = []
    cursor.begin(end, overlap_ns=overlap)
    while True:
        window = cursor.window()
        if window is None:
            if cursor.stuck_at is None:
                return got, stuck
            stuck.append(cursor.stuck_at)
            cursor.skip()
            continue
        got += [one.text for one in cursor.take(model.query(*window), window)]


# (how long after the newest line so far, how late it is stored) of each line, in the order of storing.
LINES = st.lists(st.tuples(st.integers(0, 30), st.integers(0, OVERLAP)), max_size=60)


@given(LINES, st.integers(1, 7), st.lists(st.integers(0, 60), max_size=6), st.booleans())
@example([(0, 0), (0, 0), (20, 0), (30, 0), (0, OVERLAP)], 1, [3], False)
def test_every_line_comes_once_however_late_it_is_stored(steps, limit, passes, killed):
    model, got = Model(), []
    cursor = Cursor(State.starting_at(0), overlap_ns=OVERLAP, limit=limit, most=64)
    now = 0
    for number, (step, late) in enumerate(steps):
        now += step
        model.lines.append(line(max(0, now - late), f"line {number:03}"))
        if number in passes:
            got += one_pass(cursor, model, now + 1)[0]
            if killed:
                cursor = Cursor(cursor.state(), overlap_ns=OVERLAP, limit=limit, most=64)
    found, stuck = one_pass(cursor, model, now + 1)
    assert not stuck
    assert sorted(got + found) == [f"line {number:03}" for number in range(len(steps))]
    assert one_pass(cursor, model, now + 1) == ([], [])


@given(LINES, st.integers(1, 7), st.integers(0, 40))
def test_a_process_killed_after_any_page_goes_on_where_it_was(steps, limit, kill):
    model, now = Model(), 0
    for number, (step, late) in enumerate(steps):
        now += step
        model.lines.append(line(max(0, now - late), f"line {number:03}"))
    cursor = Cursor(State.starting_at(0), overlap_ns=OVERLAP, limit=limit, most=64)
    got: list[str] = []
    cursor.begin(now + 1)
    for _ in range(kill):
        window = cursor.window()
        if window is None:
            break
        got += [one.text for one in cursor.take(model.query(*window), window)]
    found, _ = one_pass(Cursor(cursor.state(), overlap_ns=OVERLAP, limit=limit, most=64), model, now + 1)
    assert sorted(got + found) == [f"line {number:03}" for number in range(len(steps))]


def test_a_nanosecond_that_fits_into_no_page_is_said_and_what_follows_still_comes():
    model = Model()
    model.lines = [line(5, f"same {number:03}") for number in range(130)] + [line(6, "after")]
    cursor = Cursor(State.starting_at(0), limit=10, most=50)
    found, stuck = one_pass(cursor, model, 100)
    assert stuck == [5]
    assert found[-1] == "after"
    assert len(found) == len(set(found)) == 51


def test_many_lines_of_one_nanosecond_come_by_a_larger_page():
    model = Model()
    model.lines = [line(5, f"same {number:03}") for number in range(130)] + [line(6, "after")]
    found, stuck = one_pass(Cursor(State.starting_at(0), limit=50, most=5000), model, 100)
    assert not stuck
    assert sorted(found) == sorted(one.text for one in model.lines)


def test_a_quick_look_leaves_late_lines_to_the_thorough_one_which_counts_them():
    model = Model()
    model.lines = [line(100, "one")]
    cursor = Cursor(State.starting_at(0), overlap_ns=OVERLAP)
    assert one_pass(cursor, model, 120)[0] == ["one"]
    model.lines += [line(90, "late"), line(130, "two")]
    assert one_pass(cursor, model, 140, overlap=5)[0] == ["two"]
    assert cursor.late == 0
    assert one_pass(cursor, model, 140)[0] == ["late"]
    assert cursor.late == cursor.state().late == 1


def test_nothing_before_the_beginning_is_asked_for():
    model = Model()
    model.lines = [line(99, "before"), line(100, "at")]
    assert one_pass(Cursor(State.starting_at(100)), model, 200)[0] == ["at"]


def test_memory_is_bounded_and_what_is_forgotten_is_not_repeated():
    model = Model()
    model.lines = [line(number, f"line {number}") for number in range(100)]
    cursor = Cursor(State.starting_at(0), overlap_ns=1000, limit=5, max_seen=20)
    assert len(one_pass(cursor, model, 200)[0]) == 100
    assert len(cursor.state().seen) == 20
    model.lines += [line(10, "too late for what is remembered"), line(190, "late")]
    assert one_pass(cursor, model, 200)[0] == ["late"]


def test_the_same_text_of_another_source_or_time_is_another_line():
    ids = {
        Entry(at=1, key=("a", "b"), text="x", labels={}).id,
        Entry(at=1, key=("ab", ""), text="x", labels={}).id,
        Entry(at=1, key=("a", "bx"), text="", labels={}).id,
        Entry(at=2, key=("a", "b"), text="x", labels={}).id,
    }
    assert len(ids) == 4
    assert Entry(at=1, key=("a", "b"), text="x", labels={"detected_level": "warn"}).id in ids


def test_a_long_time_is_asked_for_in_spans_that_servers_allow():
    cursor = Cursor(State.starting_at(0))
    day = 24 * 3600 * 10**9
    cursor.begin(3 * day + 5)
    asked = []
    while (window := cursor.window()) is not None:
        asked.append(window.end - window.start)
        cursor.take([], window)
    assert asked == [day, day, day, 5]
