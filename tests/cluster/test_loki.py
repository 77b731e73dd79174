"""Our cursor on the real Loki: pages that it cuts, lines that come late, limits that it enforces."""

from __future__ import annotations

import asyncio
import random
import time

import pytest

from cluster.loki_push import push
from rankfall.loki import logql
from rankfall.loki.client import Loki
from rankfall.loki.reader import Cursor, Reader, State
from rankfall.loki.settings import loki_settings
from testbed.ondemand import loki as lokis

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]
SECOND = 10**9
MOST = 50


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    with lokis.alone(tmp_path_factory.mktemp("loki"), say=print, max_entries_limit_per_query=MOST) as found:
        yield found


def passes(url: str, query: str, cursor: Cursor, end: int) -> tuple[list[str], list[int]]:
    async def story() -> tuple[list[str], list[int]]:
        stuck: list[int] = []
        async with Loki(loki_settings(url, {}), keys=("namespace", "pod")) as loki:
            reader = Reader(loki, query, cursor, trouble=print, on_stuck=stuck.append)
            return [one.text async for page in reader.read(end) for one in page], stuck

    return asyncio.run(story())


def test_each_line_of_many_pages_and_of_equal_stamps_comes_once_and_late_ones_too(url):
    """launch-logs: no loss and no repeat; node-health S14, S17, S45: equal stamps, late lines, a small maximum that nobody told us."""
    now = time.time_ns() - 600 * SECOND
    hostile = 'a"} |= ".*'
    rows = [(now + index // 30 * SECOND, f"line {index}") for index in range(300)]
    random.Random(7).shuffle(rows)
    for part in range(4):
        push(url, {"namespace": hostile, "pod": f"p{part % 2}"}, sorted(rows[part::4]))
    query = logql.selector({"namespace": hostile})
    cursor = Cursor(State.starting_at(now), limit=1000)
    end = now + 100 * SECOND
    found, stuck = passes(url, query, cursor, end)
    assert (sorted(found), stuck) == (sorted(text for _, text in rows), [])
    assert cursor.limit == MOST

    push(url, {"namespace": hostile, "pod": "p0"}, [(now + SECOND // 2, "late"), (now + 20 * SECOND, "new")])
    again = Cursor(cursor.state(), limit=1000)
    assert sorted(passes(url, query, again, end)[0]) == ["late", "new"]
    assert again.late == 2  # the first pass had asked up to the end
    assert passes(url, query, again, end) == ([], [])


def test_what_fits_into_no_page_is_said(url):
    now = time.time_ns() - 300 * SECOND
    push(url, {"namespace": "many"}, [(now, f"same {index}") for index in range(130)] + [(now + 1, "after")])
    found, stuck = passes(url, logql.selector({"namespace": "many"}), Cursor(State.starting_at(now)), now + SECOND)
    assert stuck == [now]
    assert (len(found), found[-1]) == (MOST + 1, "after")
