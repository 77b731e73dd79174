"""The bench of node health: what it makes of what it measured, and the noise that it measures with."""

from __future__ import annotations

import asyncio
import http.server
import json
import socket
import subprocess
import sys
import threading
import uuid
from pathlib import Path
from typing import ClassVar

import pytest

from bench.common import ROOT, Row
from bench.health import flat, taint, taint_loki
from bench.health.__main__ import TOLD
from bench.health.controlling import KEY, POLICY, Controlling
from bench.health.figures import (
    PARTS,
    Load,
    Noise,
    failed,
    load_rows,
    numbers,
    page,
    quantile,
    rate_held,
    waits_row,
)
from bench.health.noise import HARMLESS, device, harmless, xid
from bench.health.processes import Speaker, lines, process, unheard
from bench.health.watching import Watching
from rankfall.kernellog.record import parse_record
from rankfall.model.node_health.kernel_reports import REPORT_ANNOTATION, KernelEntry, KernelReport, Place, encode_report
from rankfall.model.node_health.records import ANNOTATION, NodeHealth, encode_health
from rankfall.nodes.config import load_config
from rankfall.nodes.controller.metrics import Metrics, serving
from rankfall.nodes.controller.sources.loki import kernel_texts
from rankfall.nodes.rules.faults import of_record
from rankfall.nodes.rules.kernel_lines import Recogniser
from support.patience import scaled
from testbed.errors import StartError

LOUD = Noise(10_000, 1.0, 10_000)


def test_percentiles_of_few_values_are_the_next_above():
    assert quantile([3.0, 1.0, 2.0], 0.5) == 2.0
    assert quantile([float(each) for each in range(40)], 0.99) == 39.0
    assert quantile([float(each) for each in range(1_000)], 0.99) == 990.0
    with pytest.raises(ValueError, match="nothing was measured"):
        quantile([], 0.5)


def test_a_rate_is_held_from_95_percent_on():
    assert rate_held(9_500, 1.0, wanted=10_000)
    assert not rate_held(9_499, 1.0, wanted=10_000)
    assert not rate_held(0, 0.0, wanted=10_000)
    assert str(LOUD) == "10,000 harmless records a second"
    assert "less than the 10,000 that were meant" in str(Noise(10, 1.0, 10_000))


def waits(*found: float | None, noise: Noise = LOUD) -> Row:
    return waits_row("line until taint", found, noise, bound_s=1.0, bound="1 s", how="so")


def test_a_bound_holds_only_where_all_came_in_time_amid_the_noise_that_was_meant():
    row = waits(0.1, 0.2, 0.4)
    assert (row.figure, row.bound, row.holds) == ("200, 400, 400 ms", "p99 1 s", True)
    assert row.how == "so; 3 Xids, 0 missed, among 10,000 harmless records a second"
    assert waits(0.1, 1.0).holds is False
    assert waits(0.1, None).holds is False
    assert "2 Xids, 1 missed" in waits(0.1, None).how
    assert waits(0.1, noise=Noise(9_000, 1.0, 10_000)).holds is False
    assert waits(None).holds is False
    assert waits(None).figure == "none came"
    assert waits().holds is False


def load(nodes: int, *, cpu: float = 0.01, requests: float = 12.0, counted: int | None = None) -> Load:
    return Load(nodes, nodes + 2 if counted is None else counted, cpu, requests, 60.0, nodes / 5)


def test_a_controller_is_flat_where_more_nodes_cost_no_more():
    rows = load_rows([load(1_000, cpu=0.0149, requests=15.0), load(10), load(100)])
    assert [row.what for row in rows] == [f"controller, {count} healthy nodes" for count in ("10", "100", "1,000")]
    assert [row.holds for row in rows] == [None, True, True]
    assert rows[0].figure == "1.00% of a core, 12.0 requests a minute"


@pytest.mark.parametrize("other", [load(100, cpu=0.0151), load(100, requests=15.1), load(100, counted=99)])
def test_it_is_not_flat_where_they_do_or_were_not_seen(other):
    assert [row.holds for row in load_rows([load(10), other])] == [None, False]


def test_metrics_are_read_as_the_controller_writes_them():
    metrics = Metrics()
    metrics.replace("health_nodes", "state", {"healthy": 11, "quarantined": 1})
    metrics.set("health_requests_total", 345)
    found = numbers(metrics.text())
    assert found['rankfall_health_nodes{state="healthy"}'] == 11
    assert found[flat.REQUESTS] == 345


def test_the_page_tells_what_was_not_measured_and_keeps_nothing_of_it():
    row = Row("what", "1 ms", "2 s", holds=True, how="so")
    text = page({"agent": [row], "loki": [], "kmsg": [row]}, {"loki": "OSError, see", "kmsg": "so"}, head="Written then.", told=TOLD)  # fmt: skip
    parts = dict(zip(["head", *PARTS], text.split("\n## "), strict=True))
    assert "| what | 1 ms | 2 s | yes | so |" in parts["agent"]
    assert TOLD["agent"] in parts["agent"]
    assert parts["rest"] == "The agent at rest\n\nNot measured in this run (`--only rest` measures it alone).\n"
    assert "**This part did not come to its end**: OSError, see." in parts["loki"]
    assert "Not measured" not in parts["loki"]
    assert "**This part" in parts["kmsg"]
    assert "1 ms" in parts["kmsg"]
    assert set(TOLD) == set(PARTS)


def test_a_bound_that_is_broken_or_a_part_that_failed_fails_the_bench():
    good, bad = (Row("", "", "", holds=holds, how="") for holds in (True, False))
    told = Row("", "", "", None, "")
    assert not failed({"agent": [good, told]}, {})
    assert failed({"agent": [good], "rest": [bad]}, {})
    assert failed({"agent": [good]}, {"rest": "so"})


def test_its_policy_never_holds_a_node_back(tmp_path):
    path = tmp_path / "policy.toml"
    path.write_text(POLICY)
    policy = load_config(path).policy
    assert policy.key == KEY
    assert policy.budget.percent == 100
    most = 1 + taint.COUNT + taint_loki.COUNT
    assert most < min(policy.rate_nodes, policy.breaker_nodes, policy.budget.nodes)


def test_the_noise_is_harmless_to_whoever_reads_it_and_its_xid_is_not():
    assert not [each for each in HARMLESS for text in kernel_texts() if text in each]
    texts = [*(harmless(number) for number in range(20)), xid(device(300, salt=0x8000))]
    found = []
    for number, text in enumerate(texts):
        record = parse_record(f"6,{number},1,-;{text}\n".encode())
        assert record is not None
        found.append(of_record(record, node="n1", boot="b", boot_at=0, uncertainty=1.0, reader=Recogniser()))
    assert found[:-1] == [None] * 20
    assert found[-1] is not None
    assert (found[-1].code, found[-1].device) == ("xid/79", "gpu 8001:2c:00")


def test_noise_gives_an_xid_for_each_order_and_tells_what_it_gave(tmp_path):
    path = tmp_path / "socket"
    words = [sys.executable, "-m", "bench.health.noise", str(path), "200", "0", "60", "boot-fake-0"]
    pipe = subprocess.PIPE
    with subprocess.Popen(words, stdin=pipe, stdout=pipe, text=True, cwd=ROOT) as made:
        assert made.stdout is not None
        assert made.stdout.readline() == "ready\n"
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as reader:
            reader.settimeout(20)
            reader.connect(str(path))
            assert reader.recv(256) == b"boot-fake-0"

            async def story() -> tuple[float, float, Noise]:
                speaker = Speaker(made)
                return await speaker.give(), await speaker.give(), await speaker.end()

            first, second, said = asyncio.run(story())
            assert first <= second
            records = []
            while len(records) < said.records:
                records.append(reader.recv(16 << 10))
        assert made.wait(scaled(20)) == 0
    assert [int(each.split(b",")[1]) for each in records] == list(range(said.records))
    assert [each.partition(b"(PCI:")[2][:10] for each in records if b"Xid" in each] == [b"0000:00:00", b"0000:01:00"]


def test_what_ended_by_itself_was_not_measured():
    with pytest.raises(RuntimeError, match="ended with 3"), unheard("-c", "raise SystemExit(3)") as made:
        made.wait(scaled(20))
    with unheard("-c", "import time; time.sleep(60)") as made:
        assert made.poll() is None
    assert made.returncode is not None


class Taking(http.server.BaseHTTPRequestHandler):
    """Takes lines as Loki does."""

    taken: ClassVar[list[tuple[str, int, str]]] = []

    def do_POST(self) -> None:
        for stream in json.loads(self.rfile.read(int(self.headers["Content-Length"])))["streams"]:
            self.taken += [(stream["stream"]["k8s_node_name"], int(at), text) for at, text in stream["values"]]
        self.send_response(204)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


def test_noise_to_loki_counts_what_was_taken_and_each_line_has_its_own_stamp():
    Taking.taken.clear()
    with http.server.HTTPServer(("127.0.0.1", 0), Taking) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        with process("-m", "bench.health.loki_noise", url, "500", "60", "fake-0", "fake-1") as made:
            assert lines(made, "ready") == ["ready\n"]
            said = asyncio.run(Speaker(made).end())
        server.shutdown()
    assert len(Taking.taken) == said.records > 0
    assert {node for node, _, _ in Taking.taken} == {"fake-0", "fake-1"}
    assert len({at for _, at, _ in Taking.taken}) == said.records
    assert not [text for _, _, text in Taking.taken for word in kernel_texts() if word in text]


@pytest.mark.parametrize("program", ["raise SystemExit(3)", "input(); raise SystemExit(3)"])
def test_noise_that_died_is_told(program):
    with process("-c", program) as made, pytest.raises(RuntimeError, match="the noise ended with 3"):
        asyncio.run(Speaker(made).give())


def node(name: str, *, taints: tuple[str, ...] = (), record: bool | None = None, report: KernelReport | None = None) -> dict:  # fmt: skip
    notes = {} if record is None else {ANNOTATION: encode_health(NodeHealth(tainted=record))}
    if report is not None:
        notes[REPORT_ANNOTATION] = encode_report(report)
    spec = {"taints": [{"key": key, "effect": "NoSchedule"} for key in taints]} if taints else {}
    return {"metadata": {"name": name, "annotations": notes}, "spec": spec}


def test_the_watch_knows_since_when_a_node_is_tainted_and_when_it_is_clean_again():
    watch = Watching(Path("none"))
    event = {"type": "MODIFIED"}
    watch._take({"type": "ADDED", "object": node("n1", taints=("theirs",))}, 1.0)
    assert (watch.tainted, watch.open) == ({}, set())
    watch._take(event | {"object": node("n1", taints=("theirs", KEY), record=True)}, 2.0)
    watch._take(event | {"object": node("n1", taints=("theirs", KEY), record=True)}, 3.0)
    assert (watch.tainted, watch.open) == ({"n1": 2.0}, {"n1"})
    watch._take(event | {"object": node("n1", record=True)}, 4.0)
    assert (watch.tainted, watch.open) == ({}, {"n1"})
    watch._take(event | {"object": node("n1", record=False)}, 5.0)
    assert (watch.tainted, watch.open, watch.names, watch.events) == ({}, set(), {"n1"}, 5)
    watch._take({"type": "DELETED", "object": node("n1", taints=(KEY,), record=True)}, 6.0)
    assert (watch.tainted, watch.names) == ({}, set())


def test_the_watch_knows_what_an_agent_showed_first_when_and_lost():
    place = Place(4, 1)
    entry = KernelEntry(code="xid/79", trust="kernel", device="gpu 0000:01:00", seen=(place,), first=place, text="")
    watch = Watching(Path("none"))
    for at in (1.0, 2.0):
        shown = node("n1", report=KernelReport(boot=str(uuid.uuid4()), seq=4, lost=7, entries=(entry,)))
        watch._take(json.loads(json.dumps({"type": "MODIFIED", "object": shown})), at)
    assert watch.devices == {("n1", "0000:01:00"): 1.0}
    assert watch.lost == {"n1": 7}


def test_who_waits_for_a_watch_that_ended_is_told():
    async def story() -> None:
        async with Watching(Path("/nowhere")):
            raise AssertionError("it cannot have begun")

    with pytest.raises(RuntimeError, match="the watch of the Nodes ended"):
        asyncio.run(story())


def test_nodes_are_taken_away_by_labels_of_which_each_has_one():
    tiers = []
    for index in (0, 9, 10, 99, 100, 999):
        made = {"metadata": {"name": f"fake-{index}", "labels": {}}}
        flat.tiered(index, made)
        tiers.append(made["metadata"]["labels"]["rankfall.test/tier"])
    assert tiers == ["10", "10", "100", "100", "1000", "1000"]


def test_the_numbers_of_a_controller_are_read_from_where_its_log_says(tmp_path):
    log = tmp_path / "log"
    log.write_text("")
    metrics = Metrics()
    metrics.replace("health_nodes", "state", {"healthy": 11, "quarantined": 1})

    async def story() -> tuple[int, int]:
        with process("-c", "input()") as made:
            found = Controlling(made, log)
            before = await asyncio.to_thread(found.nodes)
            async with serving(("127.0.0.1", 0), text=metrics.text) as port:
                log.write_text(f"[I 11-22 20:00:00 main.py:138] metrics and probes on port {port}\n")
                await asyncio.to_thread(found.await_turn)
                return before, await asyncio.to_thread(found.nodes)

    assert asyncio.run(story()) == (0, 12)


def test_a_controller_that_ended_is_told_with_its_last_words(tmp_path):
    log = tmp_path / "log"
    log.write_text("it may not\n")
    with process("-c", "pass") as made:
        made.wait(scaled(20))
        with pytest.raises(StartError, match="it may not"):
            Controlling(made, log).await_turn()
