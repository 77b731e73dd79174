"""Every number of every rank once, whatever breaks between the ranks and the record: connections, servers, kubelets, the recorder itself."""

from __future__ import annotations

import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster import awkward_text
from cluster.logs_world import COUNT, COUNT_ON, SELECTOR, Recording, counting, marked, recording, stamps, wrapped
from cluster.programs import pod
from rankfall.rundir.cluster.clock_bounds import read_clocks
from rankfall.rundir.cluster.pod_facts import stamp_ns
from support.helpers import wait_until
from testbed import clock, faults
from testbed.bed import Bed
from testbed.client import Kubectl
from testbed.proxy import Answer, Cut, EndStream, HalfOpen, Match, Place, Proxy, Slow, When

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]
NS = 1_000_000_000


@pytest.fixture
def record(bed: Bed, kubectl: Kubectl, proxy: Proxy, namespace: str, tmp_path: Path) -> Iterator[Recording]:
    with recording(bed, kubectl, proxy, home=tmp_path / "home", namespace=namespace, slots=4) as made:
        yield made


@pytest.mark.parametrize("seconds", [25, pytest.param(300, marks=pytest.mark.timeout(600))])
def test_logs_s20_s32_every_number_once_while_all_breaks(bed, record, seconds):
    """Connections are cut at random and some die without a word; credentials change; API server, kubelet and recorder are killed in between."""
    # Seldom enough that the kubelet does not rotate at 10 MiB, however long a slow machine takes: that is another scenario.
    rate = 200 if seconds < 100 else 100
    lines = rate * seconds
    proxy, space = record.proxy, record.namespace
    proxy.add("cut", Cut(at=When(mean_life_s=1.0 if seconds < 100 else 3.0)), Match(follow=True))
    torn = EndStream(at=When(random_bytes=(1000, 60000)), place=Place.INSIDE)
    proxy.add("torn", torn, Match(follow=True, probability=0.2))
    record.kubectl.apply(
        [
            counting(slot, space, lines=lines, rate=rate, program=COUNT_ON, nodeName=f"n{slot % 2 + 1}")
            for slot in range(4)
        ]
    )
    record.start()
    for slot in range(4):
        record.hears(slot, 20)
    record.kill()
    record.start()
    record.log_in()
    with faults.part_down(bed, "kube-apiserver"):
        pass
    with faults.kubelet_down(bed, 1):
        record.kill()
        record.start()

    # Both strike each follow of one pod until one was hit: a certain one may be refused by a server that is just coming back.
    soon = EndStream(at=When(random_bytes=(200, 2000)), place=Place.INSIDE)
    proxy.add("torn soon", soon, Match(follow=True, path="/numbers-2/log"))
    proxy.add("dead", HalfOpen(at=When(after_bytes=2000)), Match(follow=True, path="/numbers-3/log"))
    # On a slow machine the ranks speak for longer.
    for rule, times in (("torn soon", 1), ("dead", 1), ("cut", seconds // 3)):
        wait_until(
            lambda rule=rule, times=times: proxy.counters().by_rule.get(rule, 0) >= times,
            timeout=seconds + 60,
            what=f"strokes of {rule}",
        )
        if rule != "cut":
            proxy.remove(rule)
    for slot in range(4):
        record.tell(slot)
    for slot in range(4):
        fact = record.closed(slot, timeout=seconds + 90)
        assert (fact.log, fact.main is not None) == ("complete", True)
        said = int(fact.main.message)
        assert said >= lines
        record.whole(slot, lines=said)
    assert record.gaps() == []


# Fails once, and counts to the end again when it is started anew in place.
AGAIN = """
import os, sys

again = os.path.exists("/kept/failed")
if not again:
    open("/kept/failed", "w").close()
sys.argv[4] = "0" if again else "3"
"""
# "2026-11-21T10:37:44.119843665Z " and "[rank N] number 000000" with its line feed, twice.
LINE_BYTES = 2 * (31 + 23)


def test_logs_s22_s26_s27_ends_at_the_moment_of_a_cut_lose_nothing(record):
    """One ends 50 ms after its last line, one is started again in place, one is deleted by force: each just when its connection breaks."""
    lines = 300
    proxy, space = record.proxy, record.namespace
    # The last five bytes of what it says never come by the first stream.
    last = Cut(at=When(after_bytes=lines * LINE_BYTES - 5))
    proxy.add("last", last, Match(path="/numbers-0/log", follow=True, times=1))
    # The first stream dies some lines before the container does, and the next ones are refused until another container runs.
    proxy.add("early", Cut(at=When(after_bytes=(lines - 60) * LINE_BYTES)), Match(path="/numbers-1/log", times=1))
    proxy.add("refused", Answer(status=503), Match(path="/numbers-1/log", nth=2))
    volume = {"volumes": [{"name": "kept", "emptyDir": {}}]}
    again = counting(1, space, lines=lines, program=AGAIN + COUNT, restartPolicy="OnFailure", **volume)
    again["spec"]["containers"][0]["volumeMounts"] = [{"name": "kept", "mountPath": "/kept"}]
    record.kubectl.apply([counting(2, space, lines=100_000)])
    record.start()
    record.hears(2, 50)
    # From here on it follows; started together with it, they could have ended before it looked.
    record.kubectl.apply([counting(0, space, lines=lines), again])
    record.kubectl("delete", "pod", "numbers-2", "-n", space, "--force", "--grace-period=0")
    gone = record.closed(2)
    assert (gone.gone, gone.node is not None) == (True, True)
    for rank in (4, 5):
        found = record.numbers(2, rank)
        assert found == list(range(len(found)))
        assert len(found) > 50
    assert [gap.slot for gap in record.gaps()] == [2] * (gone.log == "lost")
    assert record.closed(0).log == "complete"
    record.whole(0, lines=lines)
    record.hears(1, lines - 1, instance=1)
    fact = record.closed(1)
    assert fact.main is not None
    assert (fact.log, fact.main.restarts, fact.main.exit_code) == ("complete", 1, 0)
    for instance in (0, 1):
        record.whole(1, lines=lines, instance=instance)
    assert {"last", "early", "refused"} <= proxy.counters().by_rule.keys()


def test_logs_s21_s23_a_log_that_is_replayed_slowly_loses_nothing_beside_one_that_is_live(record):
    """All connections are cut while one pod is thousands of lines behind; one stream of the other ends in order though its container runs."""
    proxy, space = record.proxy, record.namespace
    behind, live = 8_000, 1500
    proxy.add("slow", Slow(bytes_per_second=100_000), Match(path="/numbers-0/log"))
    proxy.add("end", EndStream(at=When(called=True)), Match(path="/numbers-1/log"))
    record.kubectl.apply([counting(0, space, lines=behind, rate=1e9), counting(1, space, lines=live)])
    record.start()
    record.hears(1, 100)
    proxy.fire("end")
    for slot, number in ((0, 500), (1, 600), (0, 3000)):
        record.hears(slot, number)
        proxy.cut_all()
    for slot, lines in ((0, behind), (1, live)):
        assert record.closed(slot).log == "complete"
        record.whole(slot, lines=lines)
    assert record.gaps() == []
    assert {"slow", "end"} <= proxy.counters().by_rule.keys()


def test_logs_s20_logs_with_a_past_are_read_to_their_end_and_followed_from_there(record):
    """One goes on slowly meanwhile, one goes on fast, and of one the reading is cut in its middle."""
    proxy, space = record.proxy, record.namespace
    rates = (200, 1000, 200)
    proxy.add("cut", Cut(at=When(after_bytes=100_000)), Match(path="/numbers-2/log", times=1))
    record.kubectl.apply(
        [counting(slot, space, lines=3000, rate=rate, program=COUNT_ON) for slot, rate in enumerate(rates)]
    )

    def old() -> bool:
        pods = record.kubectl.get("pods", "-n", space, "-l", SELECTOR)["items"]
        states = [one["state"].get("running") for item in pods for one in item["status"].get("containerStatuses", ())]
        began = [stamp_ns(state["startedAt"]) or time.time_ns() for state in states if state]
        return len(began) == len(rates) and time.time_ns() - max(began) > 15 * NS

    wait_until(old, timeout=120, what="containers that have run for a while")
    record.start()
    for slot in range(len(rates)):
        record.hears(slot, 2500)
        record.tell(slot)
    for slot in range(len(rates)):
        fact = record.closed(slot)
        assert (fact.log, fact.main is not None) == ("complete", True)
        record.whole(slot, lines=int(fact.main.message))
    assert record.gaps() == []
    asked = {
        slot: [one.query for one in proxy.log() if one.path.endswith(f"/numbers-{slot}/log")]
        for slot in range(len(rates))
    }
    for queries in asked.values():
        assert "follow" not in queries[0]
    # One reading, one follow, one look for what came after it; one more where the container's end becomes known late.
    assert len(asked[0]) in {3, 4}
    assert "tailLines=250" in asked[0][1]
    assert "follow=true" in asked[0][1]
    assert "tailLines" not in asked[2][1]
    assert "follow=true" in asked[2][1]
    assert "cut" in proxy.counters().by_rule


def test_logs_s28_s29_a_late_pod_and_one_that_never_starts_disturb_nobody(record):
    lines = 1000
    space = record.namespace
    never = marked(1, pod("numbers-1", space, "true", image="rankfall.test/nothing:1"))
    record.kubectl.apply([counting(0, space, lines=lines), never])
    record.start()
    record.hears(0, 20)
    record.kubectl.apply([counting(2, space, lines=lines)])
    record.hears(2, 20)
    fact = record.fact(2)
    assert fact is not None
    assert fact.main is not None
    began = stamp_ns(fact.main.started)
    assert began is not None
    # The kubelet gives the beginning in whole seconds.
    assert time.time_ns() - began < (5 + 1) * NS
    for slot in (0, 2):
        assert record.closed(slot).log == "complete"
        record.whole(slot, lines=lines)
    waiting = record.fact(1)
    assert waiting is not None
    assert waiting.main is not None
    assert (waiting.main.state, waiting.main.reason, waiting.log) == ("waiting", "ErrImageNeverPull", "open")
    # One stream from the first line to the last, and a look for what came after it; none for the pod that has no container.
    asked = Counter(one.path.split("/")[-2] for one in record.proxy.log() if one.path.endswith("/log"))
    assert asked["numbers-0"] <= 2
    assert asked["numbers-2"] <= 2
    assert asked["numbers-1"] == 0


@pytest.mark.parametrize(
    ("size", "rate", "lines"),
    # Not in CI: at a rotation a kubelet that is short of CPU leaves out lines of a log that is open, too.
    [("100Ki", 800, 16_000), ("10Mi", 20_000, 800_000)],
)
def test_logs_s24_what_is_rotated_away_during_a_cut_is_a_gap_with_its_exact_bounds(bed, record, size, rate, lines):
    """The log that is open all the time loses nothing of the same rotations."""
    proxy, space = record.proxy, record.namespace
    logs = bed.node(1).folder / "pod-logs"

    def rotated() -> int:
        return len(list(logs.glob(f"{space}_numbers-0_*/main/0.log.*")))

    with faults.kubelet_config(bed, 1, containerLogMaxSize=size, containerLogMonitorInterval="3s"):
        proxy.add("cut", Cut(at=When(called=True)), Match(path="/numbers-0/log"))
        record.start()
        # The first file is gone after some seconds: the recorder is to be there before it.
        wait_until(lambda: any("watch=" in one.query for one in proxy.log()), timeout=60, what="a watch of the pods")
        record.kubectl.apply([counting(slot, space, lines=lines, rate=rate, nodeName="n1") for slot in (0, 1)])
        record.hears(0, 200)
        control = record.run.path / "control"
        command = record.kubectl.command("logs", "-f", "--timestamps", "-n", space, "numbers-0")
        with control.open("wb") as file, subprocess.Popen(command, stdout=file) as follow:
            proxy.add("away", Answer(status=503), Match(path="/numbers-0/log"))
            proxy.fire("cut")
            before = rotated()
            wait_until(lambda: rotated() >= before + 2, timeout=60, what="two rotations")
            proxy.remove("away")
            proxy.remove("cut")
            for slot in (0, 1):
                # A kubelet and a recorder without a core of their own are slower than the pods.
                assert record.closed(slot, timeout=120 + lines // 4_000).log == "complete"
            follow.wait(60)
    when = stamps(control.read_text())
    missed = {}
    for slot in (0, 1):
        numbers = {rank: record.numbers(slot, rank) for rank in (2 * slot, 2 * slot + 1)}
        kept = {(rank, number) for rank, found in numbers.items() for number in found}
        assert len(kept) == sum(map(len, numbers.values()))
        said = [(rank, number) for number in range(lines) for rank in numbers]
        # Pieces that are missing, each by the lines on both sides of it.
        inner = [at for at in range(1, lines * 2 - 1) if said[at] not in kept]
        begins = [at - 1 for at in inner if said[at - 1] in kept]
        ends = [at + 1 for at in inner if said[at + 1] in kept]
        missed[slot] = [(said[begin], said[end]) for begin, end in zip(begins, ends, strict=True)]
    assert missed[0]
    notes = {slot: [note for gap in record.gaps() if gap.slot == slot for note in gap.notes] for slot in (0, 1)}
    for one, other in missed[0]:
        # The kubelet may have left out a bound for kubectl.
        after, before = (when.get(f"[rank {rank}] number {number:06d}", "") for rank, number in (one, other))
        begins, ends = f"lines of slot 0 may be missing: between {after}", f"{before} of its log"
        assert any(note.startswith(begins) and note.endswith(ends) for note in notes[0])
    assert len(notes[0]) >= len(missed[0])
    # Of the log that was always open, the kubelet leaves out whole files at most; what it did not leave out is no gap.
    assert len(notes[1]) >= len(missed[1])


def test_logs_s24_what_is_stored_and_what_the_gaps_count_is_all_that_was_printed(bed, record):
    """Whatever the kubelet leaves out, also of the log that is open all the time: the wrappers counted what they printed."""
    space, run, lines = record.namespace, record.run.id, 8_000
    logs = bed.node(1).folder / "pod-logs"

    def rotated() -> int:
        return len(list(logs.glob(f"{space}_numbers-0_*/main/0.log.*")))

    with faults.kubelet_config(bed, 1, containerLogMaxSize="100Ki", containerLogMonitorInterval="3s"):
        pods = [wrapped(slot, space, run, slots=2, lines=lines, rate=800, nodeName="n1") for slot in (0, 1)]
        record.proxy.add("cut", Cut(at=When(called=True)), Match(path="/numbers-0/log"))
        record.start()
        record.kubectl.apply([pods[0][0], *(made for _, made in pods)])
        record.hears(0, 200)
        record.proxy.add("away", Answer(status=503), Match(path="/numbers-0/log"))
        record.proxy.fire("cut")
        wait_until(lambda: rotated() >= 2, timeout=60, what="two rotations")
        record.proxy.remove("away")
        record.proxy.remove("cut")
        for slot in (0, 1):
            assert record.closed(slot, timeout=200).log == "complete"
    printed = {one.slot: one.printed for one in record.records("slot_end")}
    counted = {(gap.slot, gap.lost.stream): gap.lost for gap in record.gaps() if gap.lost and gap.lost.stream}
    width = len(b"number 000000\n")
    missing = {}
    for slot in (0, 1):
        assert printed[slot] == {f"r{rank}": (lines, lines * width) for rank in (2 * slot, 2 * slot + 1)}
        for rank in (2 * slot, 2 * slot + 1):
            found = record.numbers(slot, rank)
            assert found == sorted(set(found))
            lost = counted.get((slot, f"r{rank}"))
            missing[slot, rank] = (lost.lines, lost.bytes) if lost is not None else (0, 0)
            assert (lines - len(found), (lines - len(found)) * width) == missing[slot, rank]
    assert missing[0, 0] > (0, 0) < missing[0, 1]


@pytest.mark.parametrize("seconds", [90.0, -90.0])
def test_logs_s39_node_clocks_90_s_apart_lose_and_repeat_nothing(bed, kubectl, namespace, tmp_path, seconds):
    lines = 1500
    with clock.shifted(bed, 1, seconds=seconds) as wrong:
        wrong.proxy.add("cut", Cut(at=When(mean_life_s=1.0)), Match(follow=True))
        pods = [counting(slot, namespace, lines=lines, nodeName=f"n{slot + 1}") for slot in (0, 1)]
        pods[0]["spec"] = wrong.wear(pods[0]["spec"])
        home = tmp_path / "home"
        with recording(bed, kubectl, wrong.proxy, home=home, namespace=namespace, slots=2) as record:
            kubectl.apply(pods)
            record.start()
            for slot in (0, 1):
                assert record.closed(slot).log == "complete"
                record.whole(slot, lines=lines)
            assert record.gaps() == []
            ahead = read_clocks(record.run.path, 1).get(0, 0)
            assert abs(ahead + 90 * NS) < 5 * NS if seconds > 0 else ahead >= 0
        assert wrong.proxy.counters().by_rule["cut"] >= 4


@pytest.mark.parametrize("cut", [False, True], ids=["calm", "cut"])
def test_logs_s34_s35_s36_s37_bytes_of_a_real_kubelet_are_kept_as_they_were_written(record, cut):
    if cut:
        # Again and again, most of the time inside a line of a mebibyte.
        proxy_cut = Cut(at=When(random_bytes=(100_000, 6_000_000)))
        record.proxy.add("cut", proxy_cut, Match(path="/log", times=8))
    program = Path(awkward_text.__file__).read_text()
    record.kubectl.apply([marked(0, pod("text-0", record.namespace, "python3", "-c", program))])
    record.start()
    assert record.closed(0).log == "complete"
    assert record.text(0, "slot") == awkward_text.awkward()
    assert record.gaps() == []
