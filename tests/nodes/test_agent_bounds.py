"""What an agent keeps and prints has bounds, and the gravest is what stays; the whole of it, put together, in one process."""

from __future__ import annotations

import io
import json

import msgspec

from nodes.agent_world import BOOT, XID_79, World, record
from nodes.test_agent_publish import access
from nodes.test_agent_publish import server as api_server  # noqa: F401 - a fixture
from rankfall.model.node_health.kernel_reports import KernelLine
from rankfall.model.node_health.records import NodeFault
from rankfall.nodes.agent import main as agent_start
from rankfall.nodes.agent.deduplication import BURST, KINDS, Book, BurstLimiter
from rankfall.nodes.rules.fault_rules import packaged


def fault(seq: int, code: str, **more: object) -> NodeFault:
    given = {"id": f"kmsg:{BOOT}:{seq}", "node": "n1", "source": "kmsg", "trust": "kernel", "code": code, "seq": seq, "at": seq + 1}  # fmt: skip
    return msgspec.convert(given | more, NodeFault)


def test_the_gravest_kinds_stay_in_the_book_and_the_others_are_counted():
    book = Book(BOOT, rules=packaged(), injected=False)
    for number in range(40):
        assert book.add(fault(number, "xid/43", device=f"gpu {number}")) is not None
    book.add(fault(50, "xid/79"))
    book.add(fault(51, "xid/999"))
    report = book.report(51)
    assert (len(report.entries), report.more) == (32, 10)
    assert [each.code for each in report.entries[-2:]] == ["xid/999", "xid/79"]
    assert report.entries[0].device == "gpu 10"


def test_what_takes_a_fault_back_is_kept_as_what_it_takes_back():
    book = Book(BOOT, rules=packaged(), injected=False)
    for number in range(40):
        book.add(fault(number, "xid/43", device=f"gpu {number}"))
    book.add(fault(50, "xid/162"))
    for number in range(60, 80):
        book.add(fault(number, "xid/43", device=f"gpu {number}"))
    assert [each.code for each in book.report(None).entries if each.code != "xid/43"] == ["xid/162"]


def test_a_fault_of_no_record_is_not_in_the_book():
    book = Book(BOOT, rules=packaged(), injected=True)
    assert book.add(fault(1, "xid/79", trust="pod_text")) is None
    assert book.add(msgspec.structs.replace(fault(1, "xid/79"), at=None)) is None
    assert Book(BOOT, rules=packaged(), injected=False, report=book.report(3)).report(None).entries == ()


def test_more_kinds_than_fit_share_one_count_and_the_memory_stays_what_it_is():
    storm = BurstLimiter()
    lines = [KernelLine(kind="record", node="n", boot="b", seq=n, code="xid/79", device=f"gpu {n}") for n in range(KINDS + 100)]  # fmt: skip
    assert [storm.admit(each, now=0.0) for each in lines] == [True] * (KINDS + BURST) + [False] * (100 - BURST)
    assert len(storm._kinds) == KINDS + 1
    assert storm.next() == 60.0
    assert storm.due(now=59.0) == []
    (fold,) = storm.due(now=60.0)
    assert (fold.kind, fold.seq, fold.last_seq, fold.count) == ("fold", KINDS + BURST, KINDS + 99, 100 - BURST)
    assert storm.next() is None
    assert storm.admit(lines[0], now=61.0)


def test_put_together_it_reads_prints_keeps_and_writes(api_server, tmp_path):  # noqa: F811 - the fixture
    (tmp_path / "kmsg").write_bytes(record(7, XID_79))
    out = io.BytesIO()
    settings = agent_start.Settings(node="n1", device=tmp_path / "kmsg", state=tmp_path, once=True)
    said: list[str] = []
    assert agent_start.run(settings, access=access(api_server), out=out, say=said.append) == 0
    assert [json.loads(each)["kind"] for each in out.getvalue().splitlines()] == ["start", "record"]
    note = api_server.seen[-1][4] if api_server.seen[-1][0] == "PATCH" else api_server.seen[-2][4]
    assert '"xid/79"' in note["metadata"]["annotations"]["rankfall.dev/kernel-faults"]
    assert said == []


def test_a_writer_that_breaks_ends_the_agent_with_its_reason(api_server, tmp_path, monkeypatch):  # noqa: F811 - the fixture
    def broken(self) -> None:
        raise ZeroDivisionError("broken")

    monkeypatch.setattr("rankfall.nodes.agent.publisher.Publisher.run", broken)
    said: list[str] = []
    settings = agent_start.Settings(node="n1", device=tmp_path / "none")
    assert agent_start.run(settings, access=access(api_server), out=io.BytesIO(), say=said.append) == 74
    assert "ZeroDivisionError" in said[-1]


def test_an_event_that_a_kill_kept_back_is_sent_after_the_next_start(tmp_path):
    world = World(tmp_path)
    world.ring.write(record(1, XID_79))
    world.read()
    again = World(tmp_path, world.ring)
    again.read()
    assert [each.first.seq for each in again.shows.new] == [1]
