"""A pause of a fast log, in which a kubelet may have left out a whole file: it is checked, and a gap is noted unless the file proves that none is missing."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kube.apiserver import Handler, answer, body, refuse, serving
from rankfall.collect.pods.instance_log import InstanceLog
from rankfall.collect.pods.log_gaps import Pauses
from rankfall.collect.pods.log_tailer import LogTailer
from rankfall.kube.client import Kube
from rankfall.rundir.cluster.log_routes import stamp_text
from support.patience import scaled

NS = 1_000_000_000
BEGAN = 1_700_000_000 * NS
MIB = 1 << 20


def fed(pauses: Pauses, lines: list[tuple[int, int]], *, chunk: int = 20) -> list[tuple[int, int]]:
    """All suspicions that lines of (moment, bytes) raise; each is settled by a file that contains them all."""
    found, after = [], None
    for at in range(0, len(lines), chunk):
        part = lines[at : at + chunk]
        moments = [moment for moment, _ in part]
        size = sum(size for _, size in part)
        pauses.take(size, after=after, newest=moments[-1], moments=moments, sent=True)
        after = moments[-1]
        if pauses.suspected is not None:
            found.append(pauses.suspected)
            pauses.settle(BEGAN)
    return found


@given(
    rate=st.integers(20_000, 5_000_000),
    limit=st.sampled_from([100_000, MIB, 10 * MIB]),
    every=st.sampled_from([3, 10]),
    lost=st.integers(1, 3),
    chunk=st.integers(1, 300),
)
def test_a_file_that_a_steady_log_lacks_is_always_suspected(rate, limit, every, lost, chunk):
    """Files end at a check of the kubelet, each ``every`` seconds, after ``limit`` bytes."""
    width = max(100, rate // 50)
    step = width * NS // rate
    files: list[list[tuple[int, int]]] = [[]]
    checked, now = BEGAN, BEGAN
    while len(files) <= lost + 1 and now < BEGAN + 600 * NS:
        now += step
        if now - checked >= every * NS:
            checked = now
            if sum(size for _, size in files[-1]) >= limit:
                files.append([])
        files[-1].append((now, width))
    if len(files) <= lost + 1:
        return
    before, after = files[lost - 1], files[lost + 1]
    lines = [line for file in files[:lost] for line in file] + after
    assert (before[-1][0], after[0][0]) in fed(Pauses(), lines, chunk=chunk)


@given(
    st.lists(st.tuples(st.integers(5, 600), st.integers(10, 300)), min_size=1, max_size=200), st.integers(0, 200_000)
)
def test_a_slow_log_is_hardly_ever_suspected_however_long_it_is_silent(lines, start):
    """Also after a start with much output: only the first pauses after it count, and those of minutes."""
    found = [(BEGAN + number * NS // 10, start // 10) for number in range(10)]
    moment = BEGAN + NS
    for seconds, size in lines:
        moment += seconds * NS
        found.append((moment, size))
    assert len(fed(Pauses(), found, chunk=1)) <= 12 + sum(seconds > 200 for seconds, _ in lines)


def test_lines_of_one_file_are_never_suspected():
    pauses = Pauses()
    for second in (0, 1, 2, 100):
        at = BEGAN + second * NS
        pauses.take(MIB, after=at - NS if second < 100 else BEGAN + 2 * NS, newest=at, moments=[at], sent=False)
    assert (pauses.suspected, pauses.rate > 0) == (None, True)


@pytest.mark.parametrize(
    ("begin", "missing"), [(BEGAN, False), (BEGAN + 2 * NS, False), (BEGAN + 9 * NS, True), (None, True)]
)
def test_only_a_file_that_contains_the_line_before_proves_that_none_is_missing(begin, missing):
    pauses = Pauses()
    for half in range(5):
        at = BEGAN + half * NS // 2
        pauses.take(MIB, after=at - NS // 2, newest=at, moments=[at], sent=True)
    pauses.take(100, after=BEGAN + 2 * NS, newest=BEGAN + 9 * NS, moments=[BEGAN + 9 * NS], sent=True)
    pause = (BEGAN + 2 * NS, BEGAN + 9 * NS)
    assert pauses.suspected == pause
    assert pauses.settle(begin) == (pause if missing else None)
    assert pauses.suspected is None


def text(first: int, count: int, *, second: int) -> bytes:
    """``count`` lines of 200 bytes within this second."""
    step = NS // count
    return b"".join(
        f"{stamp_text(BEGAN + second * NS + number * step)} [rank 0] number {first + number:06d} {'x' * 150}\n".encode()
        for number in range(count)
    )


Gap = tuple[int | None, int | None]


def tailed(folder: Path, answers: Handler) -> list[Gap]:
    """Gaps of a log that is tailed to its end in ``folder / "log"``; its container ends with its first followed stream."""
    gaps: list[Gap] = []

    async def story() -> None:
        async with serving(folder, tls=False) as server, Kube(server.access()) as kube, asyncio.timeout(scaled(20)):
            log = InstanceLog(
                folder / "log",
                on_record=lambda _line, _at: False,
                now=lambda: BEGAN,
                on_gap=lambda after, before: gaps.append((after, before)),
            )

            async def refresh() -> bool:
                return True

            server.default = answers
            tailer = LogTailer(
                kube, pod="p", namespace="n", container="main", log=log, refresh=refresh,
                state=lambda: "ended" if log.at_end else "running", trouble=lambda *_: None, gather_s=0.01,
            )  # fmt: skip
            assert await tailer.run() == "complete"
            log.close()

    asyncio.run(story())
    return gaps


def checked(folder: Path, stream: bytes, heads: list[Handler]) -> list[Gap]:
    """Gaps of a log that one followed stream sends, its end included; ``heads`` answer the checks of its beginning."""
    ended = False

    async def handle(request):
        nonlocal ended
        if "limitBytes" in request.query:
            return await heads.pop(0)(request)
        if request.query.get("follow") == "true":
            return await body(*stream.splitlines(keepends=True))(request)
        ended = True
        return await body(stream)(request)

    gaps = tailed(folder, handle)
    assert ended
    assert not heads
    return gaps


def test_logs_s24_a_file_that_the_kubelet_left_out_is_a_gap(tmp_path):
    before, after = text(0, 1000, second=0) + text(1000, 1000, second=1), text(9000, 100, second=8)
    pause = (BEGAN + NS + 999 * NS // 1000, BEGAN + 8 * NS)
    for number, (head, gaps) in enumerate(((after, [pause]), (before, []))):
        folder = tmp_path / str(number)
        folder.mkdir()
        assert checked(folder, before + after, [answer(200, head[:64])]) == gaps


def test_logs_s24_a_check_that_is_refused_is_made_again(tmp_path, monkeypatch):
    monkeypatch.setattr("rankfall.collect.pods.log_tailer._MOST_S", 0.0)
    before, after = text(0, 1000, second=0) + text(1000, 1000, second=1), text(9000, 100, second=8)
    assert checked(tmp_path, before + after, [refuse(403), answer(200, before[:64])]) == []


def test_logs_s24_what_could_not_be_checked_until_the_end_is_a_gap(tmp_path):
    before, after = text(0, 1000, second=0) + text(1000, 1000, second=1), text(9000, 1, second=8)
    gaps = checked(tmp_path, before + after, [refuse(403)])
    assert gaps == [(BEGAN + NS + 999 * NS // 1000, BEGAN + 8 * NS)]


def test_a_fast_log_that_was_away_is_read_to_its_end_before_it_is_followed(tmp_path, monkeypatch):
    monkeypatch.setattr("rankfall.collect.pods.log_tailer._MUCH", 1)
    first, more = text(0, 1000, second=0) + text(1000, 1000, second=1), text(2000, 1000, second=2)
    asked: list[dict[str, str]] = []

    async def handle(request):
        asked.append(dict(request.query))
        whole = first + more
        if len(asked) == 1:
            return await body(first, end="cut")(request)
        if "tailLines" in request.query:
            return await body(b"".join(whole.splitlines(keepends=True)[-250:]))(request)
        return await body(whole)(request)

    tailed(tmp_path, handle)
    stored = (tmp_path / "log" / "r0.out.log").read_bytes().splitlines()
    assert [int(line.split()[1]) for line in stored] == list(range(3000))
    ways = [("follow" in query, "tailLines" in query) for query in asked]
    assert ways[:3] == [(True, False), (False, False), (True, True)]
