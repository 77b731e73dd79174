"""The log of one container instance: each line once, under its rank, through cuts, kills and odd bytes."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rankfall.collect.pods import recent_lines
from rankfall.collect.pods.instance_log import MAX_PART, InstanceLog
from rankfall.collect.pods.recent_lines import Overlap
from rankfall.collect.pods.resume import MARGIN_S, Cursor
from rankfall.rundir.cluster.log_routes import StampParser
from rankfall.rundir.cluster.marks import CURSOR_NAME
from rankfall.rundir.streams.files import IndexReader

pytestmark = pytest.mark.steady

NS = 1_000_000_000
START = 1_790_000_000


def stamp(ns: int) -> bytes:
    """As the kubelet prints it."""
    moment = datetime.fromtimestamp(ns // NS, UTC).strftime("%Y-%m-%dT%H:%M:%S")
    return f"{moment}.{ns % NS:09d}Z".encode()


class Server:
    """The log endpoint of one container: everything from a whole second on, in file order."""

    def __init__(self, lines: list[tuple[int, bytes]], *, ended: bool = True) -> None:
        self.lines = lines
        self.ended = ended

    def body(self, since: int | None, *, upto: int | None = None) -> bytes:
        """What a request gives when the first ``upto`` lines were written."""
        shown = [
            stamp(at) + b" " + text
            for at, text in self.lines[: len(self.lines) if upto is None else upto]
            if since is None or at >= since * NS
        ]
        return b"".join(line + b"\n" for line in shown)

    def tail(self, count: int, *, upto: int) -> bytes:
        """The last so many lines of these."""
        return Server(self.lines[max(0, upto - count) : upto]).body(None)


def stored(folder: Path) -> dict[str, bytes]:
    """All streams by name."""
    return {path.name.removesuffix(".log"): path.read_bytes() for path in folder.glob("*.log")}


def expected(lines: list[tuple[int, bytes]]) -> dict[str, bytes]:
    """What must be stored of lines as the wrapper writes them."""
    found: dict[str, bytes] = {}
    for _, text in lines:
        name, own = "slot.out", text.removeprefix(b"[rank ?] ")
        if own == text and text.startswith(b"[rank "):
            number, _, own = text.removeprefix(b"[rank ").partition(b"] ")
            name = f"r{int(number)}.out"
        found[name] = found.get(name, b"") + own + b"\n"
    return found


def opened(folder: Path, *, now: int = START * NS) -> InstanceLog:
    return InstanceLog(folder, on_record=lambda _line, _at: False, now=lambda: now)


texts = st.binary(max_size=30).map(lambda b: b.replace(b"\n", b"").replace(b"\x1e", b"").replace(b"[", b"("))
line = st.builds(
    lambda rank, text: text if rank is None else (b"[rank ?] [rank 1] " if rank < 0 else b"[rank %d] " % rank) + text,
    st.one_of(st.none(), st.integers(-1, 3)),
    st.one_of(texts, st.just(b"same")),
)
# Steps between lines in nanoseconds: many lines share a stamp, some a second, some clocks step back.
steps = st.one_of(st.just(0), st.integers(0, 10), st.integers(0, 2 * NS), st.integers(-3 * NS, 0))


@st.composite
def logs(draw: st.DrawFn, *, back_s: int) -> list[tuple[int, bytes]]:
    """``back_s``: no line is older than the newest one before it by more than that, seconds: how far a clock may be set back."""
    at = top = START * NS
    found = []
    for text in draw(st.lists(line, max_size=40)):
        before, at = at, max(at + draw(steps), top - back_s * NS)
        while at < before and (at, text) in found:
            # A clock that is set back meets no earlier line's nanosecond.
            at += 1
        top = max(top, at)
        found.append((at, text))
    return found


@pytest.fixture(params=["lines", "chunks"])
def way(request, monkeypatch):
    """How lines are taken: one by one, as a few at once are, or by the chunk; then few are remembered, so that much is forgotten.

    Gives how far clocks may be set back, seconds."""
    if request.param == "lines":
        return MARGIN_S
    remember_little(monkeypatch)
    monkeypatch.setattr("rankfall.collect.pods.instance_log.LEAST", 1)
    return LITTLE_S


# Where little is remembered: what may be forgotten is, seconds.
LITTLE_S = 2


def remember_little(monkeypatch: pytest.MonkeyPatch) -> None:
    """As little as a log of thousands of lines a second leaves of its last seconds."""
    monkeypatch.setattr("rankfall.collect.pods.recent_lines.SEGMENT", 100)
    monkeypatch.setattr("rankfall.collect.pods.recent_lines.KEEP", 5)
    monkeypatch.setattr("rankfall.collect.pods.resume.MARGIN_S", LITTLE_S)


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_every_line_once_through_cuts_and_kills(way, data, tmp_path_factory):
    folder = tmp_path_factory.mktemp("log")
    # A log is joined by its newest lines, too, where no clock is set back to the very nanosecond of a line that looks the same.
    joined = data.draw(st.booleans())
    lines = data.draw(logs(back_s=0 if joined else way))
    server = Server(lines)
    log = opened(folder)
    written = 0
    try:
        for _ in range(data.draw(st.integers(0, 5))):
            written = data.draw(st.integers(written, len(lines)))
            count = data.draw(st.integers(1, 8)) if joined else 0
            newest = log.cursor.newest(count) or None if count else None
            log.opened(newest)
            body = server.tail(count, upto=written) if newest else server.body(log.cursor.since, upto=written)
            body = body[: data.draw(st.integers(0, len(body)))]
            if newest and log.joins(body) is not True:
                body = b""
            while body:
                size = data.draw(st.integers(1, len(body)))
                log.push(body[:size])
                body = body[size:]
            if data.draw(st.booleans()):
                # Killed: what was stored and not committed is there, and nobody closed anything.
                log.close()
                with (folder / "slot.out.log").open("ab") as file:
                    file.write(b"stored, not committed")
                log = opened(folder)
        log.opened()
        log.push(server.body(log.cursor.since))
        log.finish()
    finally:
        log.close()
    assert {name: text for name, text in stored(folder).items() if text} == expected(lines)
    assert (log.cursor.lines, log.cursor.gaps) == (len(lines), 0)


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    gaps=st.lists(st.integers(0, NS), min_size=3, max_size=60),
    again=st.integers(0, 50),
    times=st.integers(1, 3),
    sizes=st.lists(st.integers(1, 400), min_size=1, max_size=9),
    kill=st.booleans(),
)
def test_i19_a_file_that_a_kubelet_reads_twice_is_kept_once(way, tmp_path_factory, *, gaps, again, times, sizes, kill):
    """Whole files were left out; the next one comes again for each, in pieces of any size, and goes on. Two troubles: with a kill after it."""
    at, lines = START * NS, []
    for number, gap in enumerate(gaps):
        at += gap
        lines.append((at, b"[rank %d] number %d" % (number % 2, number)))
    begin = again % len(lines)
    server = Server(lines)
    read = len(lines) - 1 if len(lines) > begin + 1 else len(lines)
    body = server.body(None, upto=read)
    # It is no second reading where the clock cannot show it.
    twice = lines[begin][0] < lines[read - 1][0] - NS // 10
    if twice and (way == MARGIN_S or lines[begin][0] // NS > lines[read - 1][0] // NS - LITTLE_S):
        body += Server(lines[begin:read]).body(None) * times
    body += Server(lines[read:]).body(None)
    folder = tmp_path_factory.mktemp("twice")
    log = opened(folder)
    log.opened(followed=True)
    place = turn = 0
    while place < len(body):
        size = sizes[turn % len(sizes)]
        log.push(body[place : place + size])
        place, turn = place + size, turn + 1
    if kill:
        log.close()
        log = opened(folder)
        log.opened(followed=True)
        log.push(server.body(log.cursor.since))
    log.finish()
    log.close()
    assert stored(folder) == expected(lines)


@pytest.mark.parametrize("back_s", [0.5, 1.0, LITTLE_S])
@pytest.mark.parametrize("seen", [False, True], ids=["first", "again"])
def test_lines_of_a_clock_that_is_set_back_over_more_lines_than_are_kept_are_neither_lost_nor_repeated(
    tmp_path, monkeypatch, back_s, seen
):
    """Only lines of the newest second and the last few were known again: the next request began behind these, or brought older ones anew."""
    remember_little(monkeypatch)
    lines = [(START * NS + number * NS // 10, b"[rank 0] %d" % number) for number in range(60)]
    if seen:
        # It was set back before, too, while the log was open.
        lines += [(START * NS + 3 * NS + number, b"[rank 0] back %d" % number) for number in range(20)]
        lines += [(START * NS + 6 * NS + number, b"[rank 0] on %d" % number) for number in range(20)]
    server = Server(lines)
    log = opened(tmp_path)
    log.opened()
    for part in server.body(None).splitlines(keepends=True):
        log.push(part)
    top = max(at for at, _ in lines)
    lines += [(top - int(back_s * NS) + number, b"[rank 0] new %d" % number) for number in range(3)]
    log.opened()
    log.push(server.body(log.cursor.since))
    log.close()
    assert stored(tmp_path) == expected(lines)
    assert log.cursor.gaps == 0


def test_a_clock_that_is_set_back_further_than_is_remembered_leaves_a_gap_record(tmp_path, monkeypatch):
    """What the server gives again then cannot be told from new lines: it is kept, and it is said that something is wrong there."""
    remember_little(monkeypatch)
    gaps: list[tuple[int | None, int | None]] = []
    log = InstanceLog(
        tmp_path,
        on_record=lambda _line, _at: False,
        now=lambda: START * NS,
        on_gap=lambda after, before: gaps.append((after, before)),
    )
    lines = [(START * NS + number * NS // 10, b"[rank 0] %d" % number) for number in range(600)]
    lines += [(START * NS + 100, b"[rank 0] back")]
    server = Server(lines)
    for _ in range(2):
        log.opened()
        for part in server.body(log.cursor.since).splitlines(keepends=True):
            log.push(part)
    log.close()
    assert set(stored(tmp_path)["r0.out"].splitlines()) == {text[9:] for _, text in lines}
    assert gaps == [(START * NS + 100, START * NS)]


@pytest.mark.usefixtures("way")
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rate=st.integers(1, 3), most=st.integers(2, 9), seconds=st.integers(1, 20), kill=st.booleans())
def test_a_server_that_ends_each_stream_inside_what_was_taken_before_does_not_stop_the_log(
    rate, most, seconds, kill, tmp_path_factory
):
    """As long as it gives more than the lines of one second. ``most``: lines of a stream, in seconds of the log."""
    folder = tmp_path_factory.mktemp("log")
    lines = [(START * NS + number * NS // rate, b"[rank 0] %d" % number) for number in range(rate * seconds)]
    server = Server(lines, ended=False)
    log = opened(folder)
    streams = 0
    try:
        while log.cursor.lines < len(lines):
            log.opened()
            body = server.body(log.cursor.since).splitlines(keepends=True)
            # Not always at the same line: one that ended right where the new ones begin would look like a silent container.
            for line in body[: rate + most + streams % 2]:
                log.push(line)
            streams += 1
            assert streams < 20 + 5 * len(lines), "it goes on"
            if kill and streams == 10:
                log.close()
                log = opened(folder)
    finally:
        log.close()
    assert stored(folder) == expected(lines)
    assert log.cursor.gaps == 0


def test_a_line_that_came_in_part_is_taken_whole_when_the_log_is_opened_anew(tmp_path):
    server = Server([(START * NS, b"[rank 0] " + b"x" * (3 * MAX_PART)), (START * NS + 5, b"[rank 0] end")])
    log = opened(tmp_path)
    log.opened()
    body = server.body(None)
    log.push(body[: 2 * MAX_PART])
    assert (tmp_path / "r0.out.log").stat().st_size > MAX_PART
    log.opened()
    for begin in range(0, len(body), 65536):
        log.push(body[begin : begin + 65536])
    log.opened()
    log.push(server.body(log.cursor.since))
    log.close()
    assert (tmp_path / "r0.out.log").read_bytes() == b"x" * (3 * MAX_PART) + b"\nend\n"
    assert log.cursor.repeated == 2


def test_a_long_line_is_bounded_in_memory(tmp_path):
    log = opened(tmp_path)
    log.push(stamp(START * NS) + b" [rank 2] ")
    for _ in range(64):
        log.push(b"y" * 65536)
        assert len(log._rest) <= MAX_PART + 65536
    log.finish()
    log.close()
    assert (tmp_path / "r2.out.log").read_bytes() == b"y" * 65536 * 64


def test_the_rest_of_a_line_that_the_api_cuts_at_a_second_is_no_line(tmp_path):
    # One line in two pieces, the second of which was written in the next second: each piece has a stamp in the file.
    second = START + 1
    lines = [(second * NS + n, b"[rank 0] line %d" % n) for n in range(3)]
    log = opened(tmp_path)
    log.opened()
    log.push(stamp(START * NS) + b" [rank 0] " + b"x" * 40_000 + b"\n" + Server(lines).body(None))
    log.opened()
    lines.append((second * NS + 9, b"[rank 0] new"))
    log.push(stamp(second * NS) + b" " + b"x" * 20_000 + b"\n" + Server(lines).body(second))
    log.close()
    text = b"x" * 40_000 + b"\nline 0\nline 1\nline 2\nnew\n"
    assert (stored(tmp_path), log.cursor.gaps) == ({"r0.out": text}, 0)


def test_identical_lines_with_identical_stamps_are_told_apart_by_their_number(tmp_path):
    lines = [(START * NS + 1, b"same")] * 5
    log = opened(tmp_path)
    log.push(Server(lines[:3]).body(None))
    log.opened()
    log.push(Server(lines).body(log.cursor.since))
    log.close()
    assert (tmp_path / "slot.out.log").read_bytes() == b"same\n" * 5
    assert (log.cursor.lines, log.cursor.repeated) == (5, 3)


def test_lost_track_is_known_when_the_newest_line_does_not_come_again(tmp_path):
    log = opened(tmp_path)
    log.push(Server([(START * NS, b"one"), (START * NS + 1, b"two")]).body(None))
    log.opened()
    # Rotated: the file that is served now begins later.
    log.push(Server([(START * NS + 900, b"nine")]).body(log.cursor.since))
    assert log.cursor.lost_track
    log.opened()
    log.push(Server([(START * NS + 900, b"nine"), (START * NS + 901, b"ten")]).body(log.cursor.since))
    assert not log.cursor.lost_track
    log.close()
    assert (tmp_path / "slot.out.log").read_bytes() == b"one\ntwo\nnine\nten\n"


@pytest.mark.parametrize("ended", [False, True])
def test_a_log_is_whole_when_the_wrapper_said_its_last_word_though_the_server_gave_no_end(tmp_path, ended):
    log = InstanceLog(tmp_path, on_record=lambda line, at: True, now=lambda: 0, ended=lambda: ended)
    log.opened()
    log.push(stamp(START * NS) + b" one\n")
    assert log.leave() is ended
    log.close()


def test_a_log_is_joined_by_a_line_that_can_only_be_an_old_one(tmp_path):
    log = opened(tmp_path)
    log.opened()
    lines = [(START * NS + at, text) for at, text in ((1, b"a"), (2, b"b"), (3, b"c"), (3, b"d"))]
    server = Server(lines)
    log.push(server.body(None))
    newest = log.cursor.newest(3)
    assert len(newest) == 3
    log.opened(newest)
    one, two, three = (server.tail(count, upto=4) for count in (1, 2, 3))
    # Of the newest moment there may be another line that is alike.
    assert [log.joins(one), log.joins(two), log.joins(three)] == [False, False, True]
    assert log.joins(server.tail(4, upto=4)) is False
    assert log.joins(three[:40]) is True
    assert log.joins(three[:10]) is None
    assert log.joins(b"b\n") is False
    log.push(three + Server([(START * NS + 4, b"e")]).body(None))
    log.close()
    assert stored(tmp_path)["slot.out"] == b"a\nb\nc\nd\ne\n"
    assert (log.cursor.lines, log.cursor.repeated, log.cursor.gaps) == (5, 3, 0)


def test_lines_that_are_alike_do_not_tell_where_a_log_goes_on(tmp_path):
    log = opened(tmp_path)
    log.opened()
    log.push(Server([(START * NS, b"a"), (START * NS + 1, b"b"), (START * NS + 1, b"b")]).body(None))
    assert [len(log.cursor.newest(count)) for count in (1, 2, 3)] == [1, 0, 0]
    log.close()


def test_records_that_came_together_are_told_to_be_through_before_they_are_committed(tmp_path):
    told: list[int] = []
    log = InstanceLog(
        tmp_path,
        on_record=lambda _line, _at: True,
        on_records=lambda: told.append(len((tmp_path / "cursor.jsonl").read_bytes())),
        now=lambda: START * NS,
    )
    log.opened()
    log.push(Server([(START * NS, b"\x1erankfall/1 x")] * 3).body(None))
    log.close()
    assert told == [0]


def test_records_leave_the_stream_and_strangers_stay(tmp_path):
    seen = []

    def take(text: bytes, at: int | None) -> bool:
        seen.append((text, at))
        return b" good " in text

    log = InstanceLog(tmp_path, on_record=take, now=lambda: START * NS)
    log.push(
        Server(
            [
                (START * NS, b"\x1erankfall/1 good abc"),
                (START * NS, b"\x1erankfall/1 bad abc"),
                (START * NS, b"[rank ?] \x1erankfall/1 good abc"),
                (START * NS, b"[rank 1] \x1erankfall/1 good abc"),
            ]
        ).body(None)
    )
    log.close()
    assert [text for text, _ in seen] == [b"\x1erankfall/1 good abc", b"\x1erankfall/1 bad abc"]
    assert seen[0][1] == START * NS
    assert (tmp_path / "slot.out.log").read_bytes() == b"\x1erankfall/1 bad abc\n\x1erankfall/1 good abc\n"
    assert (tmp_path / "r1.out.log").read_bytes() == b"\x1erankfall/1 good abc\n"


@pytest.mark.parametrize("text", [b"[rank x] a", b"[rank 12345678901] a", b"[rank ] a", b"[rank -1] a", b"[rank 1]a"])
def test_what_only_looks_like_a_rank_stays_with_the_slot(text, tmp_path):
    log = opened(tmp_path)
    log.push(Server([(START * NS, text)]).body(None))
    log.close()
    assert stored(tmp_path) == {"slot.out": text + b"\n"}


def test_the_index_says_when_and_on_which_line(tmp_path):
    log = opened(tmp_path)
    log.push(Server([(START * NS + 7, b"[rank 0] a"), (START * NS + 9, b"[rank 0] b")]).body(None))
    log.push(Server([(START * NS + 2 * NS, b"[rank 0] c")]).body(None))
    log.close()
    rows = IndexReader(tmp_path / "r0.out.log").rows(0)
    assert [(row.offset, row.line, row.stamp, row.source) for row in rows] == [
        (0, 0, START * NS + 7, 2),
        (4, 2, START * NS + 2 * NS, 2),
    ]


def test_the_delay_is_the_least_one_and_negative_for_a_clock_that_is_ahead(tmp_path):
    log = opened(tmp_path, now=START * NS)
    log.push(Server([(START * NS - 5 * NS, b"old"), (START * NS + 90 * NS, b"from the future")]).body(None))
    log.close()
    assert log.delay_ns == -90 * NS


def test_a_damaged_cursor_is_read_up_to_the_damage(tmp_path):
    lines = [(START * NS + n, b"%d" % n) for n in range(6)]
    log = opened(tmp_path)
    for upto in (2, 4, 6):
        log.opened()
        log.push(Server(lines).body(log.cursor.since, upto=upto))
    log.close()
    path = tmp_path / CURSOR_NAME
    rows = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(rows[0] + rows[1][: len(rows[1]) // 2])
    log = opened(tmp_path)
    assert (tmp_path / "slot.out.log").read_bytes() == b"0\n1\n"
    log.opened()
    log.push(Server(lines).body(log.cursor.since))
    log.close()
    assert (tmp_path / "slot.out.log").read_bytes() == b"0\n1\n2\n3\n4\n5\n"


def test_the_cursor_file_stays_small(tmp_path, monkeypatch):
    monkeypatch.setattr("rankfall.collect.pods.resume._COMPACT", 5_000)
    cursor = Cursor(tmp_path)
    for number in range(800):
        cursor.take([(START + number, number)])
        cursor.commit({})
    assert (tmp_path / CURSOR_NAME).stat().st_size < 50_000
    cursor.close()
    again = Cursor(tmp_path)
    assert again.since == START + 799 - MARGIN_S
    again.expect_overlap()
    assert again.expecting
    again.close()


@given(
    seconds=st.integers(0, 4_000_000_000),
    digits=st.integers(0, 9),
    fraction=st.integers(0, NS - 1),
    offset=st.sampled_from([None, 0, 180, -330, 840]),
)
def test_any_rfc3339_stamp_is_read(seconds, digits, fraction, offset):
    fraction -= fraction % 10 ** (9 - digits)
    moment = datetime.fromtimestamp(seconds, UTC) + timedelta(minutes=offset or 0)
    zone = "Z" if offset is None else f"{'-' if offset < 0 else '+'}{abs(offset) // 60:02d}:{abs(offset) % 60:02d}"
    part = f".{fraction:09d}"[: digits + 1] if digits else ""
    text = f"{moment:%Y-%m-%dT%H:%M:%S}{part}{zone}".encode()
    assert StampParser().split(text + b" x") == (seconds * NS + fraction, len(text) + 1)


@given(st.binary(max_size=60))
def test_no_bytes_confuse_the_stamp(data):
    found, start = StampParser().split(data)
    assert 0 <= start <= len(data)
    assert (found is None) <= (start == 0)


def test_launch_s33_zones_of_one_job_are_one_time():
    texts = [b"2026-11-21T12:00:00.5Z x", b"2026-11-21T15:00:00.500000000+03:00 x", b"2026-11-21T12:00:00.50+00:00 x"]
    random.shuffle(texts)
    assert len({StampParser().split(text)[0] for text in texts}) == 1


def many(count: int, *, prefix: bytes = b"[rank 0] ") -> list[tuple[int, bytes]]:
    return [(START * NS + number * 1_000_000, prefix + b"line %06d" % number) for number in range(count)]


@pytest.mark.parametrize(
    "odd",
    [
        b"[rank 007] leading zeros are the same rank",
        b"[rank 12345678] too long for a rank",
        b"\x1erankfall/1 none of ours",
        b"[rank ?] [rank 1] a stranger",
        b"",
        b"[rank 7] carriage\rreturn",
    ],
)
def test_a_chunk_is_stored_as_its_lines_would_be(odd, tmp_path, monkeypatch):
    lines = many(100, prefix=b"[rank 7] ")
    lines[50:50] = [(lines[50][0], odd)]
    body = Server(lines).body(None)
    by_chunk = opened(tmp_path / "chunk")
    by_chunk.push(body)
    monkeypatch.setattr("rankfall.collect.pods.instance_log.LEAST", 1 << 30)
    by_line = opened(tmp_path / "line")
    by_line.push(body)
    for log in (by_chunk, by_line):
        log.close()
        assert log.cursor.lines == 101
    assert stored(tmp_path / "chunk") == stored(tmp_path / "line")


@pytest.mark.parametrize("torn", [b"no stamp at all\n", b"2026-13-01T00:00:00.000000000Z no such month\n"])
def test_a_chunk_with_a_line_without_stamp_is_gone_through_line_by_line(torn, tmp_path):
    body = Server(many(100)).body(None)
    log = opened(tmp_path)
    log.push(body + torn + body)
    log.close()
    assert stored(tmp_path)["slot.out"] == torn
    assert not list(tmp_path.glob("taken-*"))


def test_ranks_of_a_chunk_come_apart_in_order_with_the_stamp_of_their_own_first_line(tmp_path):
    lines = [
        (START * NS + number, (b"[rank %d] " % (number % 3) if number % 3 else b"") + b"line %06d" % number)
        for number in range(300)
    ]
    log = opened(tmp_path)
    log.push(Server(lines).body(None))
    log.close()
    assert stored(tmp_path) == expected(lines)
    (row,) = IndexReader(tmp_path / "r2.out.log").rows(0)
    assert row.stamp == START * NS + 2


def test_chunks_are_known_again_after_a_kill_and_their_files_go_with_the_log(tmp_path, monkeypatch):
    monkeypatch.setattr("rankfall.collect.pods.recent_lines.SEGMENT", 4_000)
    monkeypatch.setattr("rankfall.collect.pods.recent_lines.KEEP", 300)
    lines = many(2_000)
    server = Server(lines)
    log = opened(tmp_path)
    body = server.body(None)
    for begin in range(0, len(body) // 2, 5_000):
        log.push(body[begin : begin + 5_000])
    log.close()
    assert log.cursor.lines > 900
    assert len(list(tmp_path.glob("taken-*.raw"))) > 1
    again = opened(tmp_path)
    again.opened()
    assert again.cursor.expecting
    again.push(server.body(again.cursor.since))
    assert again.cursor.gaps == 0
    again.cursor.closed = "complete"
    again.cursor.commit({})
    again.close()
    assert stored(tmp_path) == expected(lines)
    assert not list(tmp_path.glob("taken-*.raw"))


def test_a_chunk_whose_file_is_gone_is_forgotten_and_not_asked_for_again(tmp_path):
    log = opened(tmp_path)
    log.push(Server(many(3_000)).body(None))
    log.close()
    for path in tmp_path.glob("taken-*.raw"):
        path.unlink()
    again = opened(tmp_path)
    again.opened()
    assert not again.cursor.expecting
    assert again.cursor.since == START + 2
    again.close()


def test_a_chunk_that_the_disk_does_not_take_comes_again(tmp_path, monkeypatch):
    log = opened(tmp_path)
    body = Server(many(100)).body(None)
    with monkeypatch.context() as patch:
        patch.setattr("os.pwrite", lambda *_: 0)
        with pytest.raises(OSError, match="No space"):
            log.push(body)
    log.close()
    again = opened(tmp_path)
    again.opened()
    again.push(body)
    again.close()
    assert stored(tmp_path) == expected(many(100))


def test_only_so_many_logs_keep_their_newest_file_open(tmp_path, monkeypatch):
    monkeypatch.setattr(recent_lines, "MOST_OPEN", 2)
    # Those of other tests may be open still.
    monkeypatch.setattr(Overlap, "_open", 0)
    before = len(list(Path("/proc/self/fd").iterdir()))
    made = [Overlap(tmp_path / str(number)) for number in range(4)]
    for number, one in enumerate(made):
        (tmp_path / str(number)).mkdir()
        for piece in (b"a\n", b"bc\n"):
            one.store(piece, lines=1, high=1, low=1)
        assert (tmp_path / str(number) / "taken-0.raw").read_bytes() == b"a\nbc\n"
    assert len(list(Path("/proc/self/fd").iterdir())) - before == 2
    for one in made:
        one.close()
        one.close()
        one.store(b"d\n", lines=1, high=1, low=1)
        one.clear()
    assert len(list(Path("/proc/self/fd").iterdir())) == before
