"""What the bench of logs counts, and that its tables stand where they are said to stand."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.logs import clients, speed
from bench.logs.numbers import Seen, count, said, total
from bench.logs.page import PUBLISHED, Loss, loss_table, replaced, section

ROOT = Path(__file__).resolve().parents[2]
KUBECTL = "[pod/bench-logs-a1-0-x/main] 2026-11-21T23:04:19.123456789Z [rank 0] "


def printed(lines: list[tuple[int, int]], *, prefix: str = KUBECTL) -> bytes:
    return "".join(f"{prefix}{said(writer, number, length=40)}\n" for writer, number in lines).encode()


def test_all_lines_of_all_writers_are_seen_once():
    lines = [(writer, number) for writer in range(3) for number in range(5)]
    assert count(printed(lines), writers=3, lines=5) == Seen(written=15, seen=15, repeated=0, strange=0)


@given(
    lost=st.sets(st.tuples(st.integers(0, 2), st.integers(0, 9))),
    again=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 9)), max_size=20),
    prefix=st.sampled_from(["", KUBECTL, "[pod-1] "]),
)
def test_losses_and_repeats_are_counted_apart(lost, again, prefix):
    lines = [(writer, number) for writer in range(3) for number in range(10)]
    arrived = [one for one in lines if one not in lost]
    repeated = [one for one in again if one not in lost]
    found = count(printed([*arrived, *repeated], prefix=prefix), writers=3, lines=10)
    assert (found.written, found.seen, found.lost, found.repeated) == (30, 30 - len(lost), len(lost), len(repeated))
    assert found.strange == 0


def test_half_a_line_is_not_seen_and_not_passed_over():
    text = printed([(0, 0), (0, 1)])
    torn = text.replace(b"count 0 1|", b"count 0 ")
    assert count(torn, writers=1, lines=2) == Seen(written=2, seen=1, repeated=0, strange=1)
    glued = text.replace(b"\n", b"", 1)
    assert count(glued, writers=1, lines=2).strange == 1
    assert count(printed([(7, 0)]), writers=1, lines=1) == Seen(written=1, seen=0, repeated=0, strange=1)
    assert count(b"error: stream lost\n", writers=1, lines=1) == Seen(written=1, seen=0, repeated=0, strange=0)


def test_counts_add_up():
    one = Seen(written=2, seen=1, repeated=3, strange=1)
    assert total([one, one]) == Seen(written=4, seen=2, repeated=6, strange=2)


def test_the_table_says_what_was_lost():
    row = Loss("reset", "Rankfall", Seen(written=6000, seen=5990, repeated=2, strange=1), "exit 0")
    assert loss_table([row]).splitlines()[-1] == "| reset | Rankfall | 6,000 | 5,990 | 10 | 2, 1 torn | exit 0 |"


def test_a_part_of_the_page_is_replaced_alone():
    page = "<!-- part speed -->\nold\n<!-- /part speed -->\n<!-- part fleet -->\nkept\n<!-- /part fleet -->\n"
    again = replaced(page, "speed", section("new\n", "Now."))
    assert (
        again
        == "<!-- part speed -->\nnew\n\nNow.\n<!-- /part speed -->\n<!-- part fleet -->\nkept\n<!-- /part fleet -->\n"
    )
    with pytest.raises(ValueError, match="no part latency"):
        replaced(page, "latency", "")


def test_the_page_shows_a_table_without_losses_of_rankfall():
    page = (ROOT / "docs/results/bench-logs.md").read_text()
    table = page.partition("<!-- part loss -->\n")[2].partition("<!-- /part loss -->")[0]
    # Every tool under every condition, and nothing of ours lost or repeated.
    ours = [row.split("|") for row in table.splitlines() if "| `rankfall " in row]
    assert {row[2].strip() for row in ours} == {"`rankfall wait`", "`rankfall logs -f`"}
    assert len(ours) >= 6
    assert all(row[3] == row[4] and row[5].strip() == row[6].strip() == "0" for row in ours)
    assert PUBLISHED in page


WRITES = """
import sys, time
out = open(sys.argv[1], "ab", buffering=0)
while time.process_time() < 0.05:  # the kernel counts in hundredths
    pass
for pause in (0.0, 0.6, 0.1):
    time.sleep(pause)
    out.write(b"line\\n")
time.sleep(100)
"""


def test_a_client_is_measured_until_it_has_all_lines_also_when_it_pauses(tmp_path, monkeypatch):
    monkeypatch.setattr(clients, "AFTER_S", 0.2)
    asked = []

    def whole(text: bytes) -> bool:
        asked.append(text)
        return text.count(b"\n") == 3

    made = []
    for name in ("a", "b"):
        path = tmp_path / name
        path.touch()
        process = subprocess.Popen([sys.executable, "-c", WRITES, str(path)])
        made.append(clients.Client(name, process, lambda path=path: path.stat().st_size, path.read_bytes))
    try:
        costs = clients.measured(made, until=whole, least=1, limit_s=60.0)
    finally:
        for one in made:
            one.end()
    assert asked[-1] == b"line\n" * 3
    assert all(cost.cpu_s > 0 and cost.peak_kib > 0 for cost in costs)


def test_rates_are_compared_by_their_medians_and_the_pairs_are_told():
    ours, kubectl = [900.0, 450.0, 1000.0], [300.0, 150.0, 500.0]
    assert speed.times_kubectl(ours, kubectl) == (3.0, " (2.00 to 3.00 in 3 pairs)")
    assert speed.times_kubectl(kubectl, kubectl) == (1.0, "")
    assert speed.times_kubectl([450.0], kubectl) == (1.5, "")
    assert speed.times_kubectl([450.0], [150.0]) == (3.0, "")


def test_each_run_of_ours_follows_one_of_kubectl():
    order = [tool for _, tool in speed._turns() if tool != "official"]
    assert order == ["kubectl", "ours", "typed"] * speed.ROUNDS
    assert [tool for _, tool in speed._turns()].count("official") == 1


def test_a_client_that_ends_before_it_has_all_lines_is_said_to_have(tmp_path):
    process = subprocess.Popen([sys.executable, "-c", "raise SystemExit(3)"])
    process.wait()
    one = clients.Client("a", process, lambda: 0, lambda: b"")
    with pytest.raises(RuntimeError, match="ended with 3"):
        clients.measured([one], until=lambda _: True, least=1, limit_s=60.0)
