"""Streams of ranks in a bucket: parts that are put once, tried until they are there, and a job that never waits for them."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading

import obstore
import pytest

from inside.conftest import channel, text_lines
from rankfall.collect.stores.log_bucket import PartsCopy
from rankfall.collect.stores.record_store import open_bucket
from rankfall_inside.delivery import log_store_backends
from rankfall_inside.delivery.bucket import Bucket, RefusedError
from rankfall_inside.delivery.log_store import LogStore
from support.helpers import wait_until
from support.object_store import s3_server
from support.patience import scaled

# Loading moto takes seconds, on a busy machine many.
pytestmark = pytest.mark.timeout(150)
NAME = "r-1/attempt-1/worker-0/u-1"


class Memory:
    """A bucket that keeps what is put, and fails as it is told."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.failing: list[Exception] = []
        self.open = threading.Event()
        self.open.set()

    def put(self, key, data):
        assert self.open.wait(scaled(20))
        if key.endswith(".part"):
            # A name is never given to other bytes.
            assert self.objects.setdefault(key, data) == data
            if self.failing:
                raise self.failing.pop()
        self.objects[key] = data

    def parts(self) -> dict[str, bytes]:
        return {key.rpartition("/")[2]: data for key, data in self.objects.items() if key.endswith(".part")}


@pytest.fixture
def memory(monkeypatch):
    made = Memory()
    monkeypatch.setattr(Bucket, "__init__", lambda *_: None)
    monkeypatch.setattr(Bucket, "put", lambda _, key, data: made.put(key, data))
    monkeypatch.setattr(log_store_backends, "_FIRST_PAUSE_S", 0.001)
    return made


def store() -> LogStore:
    made = LogStore("s3://logs/team/", NAME, {})
    assert made.refusal() == ""
    return made


def test_a_part_says_whose_bytes_it_holds_and_its_name_how_many_came_before(memory, monkeypatch):
    monkeypatch.setattr(log_store_backends, "PART", 10)
    made = store()
    for stream, data in (("0.out", b"first line\n"), ("1.err", b"x"), ("0.out", b"second")):
        made.sink(stream).write(data)
        wait_until(lambda: not made._queued.get(stream), timeout=20, what="an empty queue")  # noqa: B023 - asked at once
    assert made.finish(20.0) == []
    assert made.done
    parts = memory.parts()
    assert list(parts) == ["000000000000000.part", "000000000000011.part"]
    head, _, data = parts["000000000000011.part"].partition(b"\n")
    pieces = json.loads(head)["pieces"]
    assert [(stream, start, size) for stream, start, size, _ in pieces] == [("1.err", 0, 1), ("0.out", 11, 6)]
    assert data == b"xsecond"
    end = json.loads(memory.objects[f"team/{NAME}/end.json"])
    assert end == {"sizes": {"0.out": 17, "1.err": 1}, "lost": {"0.out": 0, "1.err": 0}}
    assert set(memory.objects) == {f"team/{NAME}/{name}" for name in ("begin.json", "end.json", *parts)}


def test_ranks_that_print_nothing_have_an_end_too(memory, tmp_path):
    made = store()
    assert made.finish(20.0) == []
    assert json.loads(memory.objects[f"team/{NAME}/end.json"]) == {"sizes": {}, "lost": {}}
    folder = LogStore(str(tmp_path), NAME)
    assert folder.finish(20.0) == []
    assert json.loads((tmp_path / NAME / "end.json").read_bytes()) == {"sizes": {}, "lost": {}}


def test_a_part_that_is_not_taken_or_whose_answer_is_lost_is_put_again_and_never_another_one(memory, monkeypatch):
    monkeypatch.setattr(log_store_backends, "PART", 1)
    memory.failing = [OSError("cut"), RefusedError("it answered 403"), OSError("no answer")]
    made = store()
    sink = made.sink("0.out")
    for number in range(20):
        sink.write(b"line %d\n" % number)
    assert made.finish(20.0) == []
    assert made.trouble == ""
    data = b"".join(part.partition(b"\n")[2] for _, part in sorted(memory.parts().items()))
    assert data == b"".join(b"line %d\n" % number for number in range(20))


def test_what_waits_at_the_end_is_counted_and_said_and_no_end_is_written(memory):
    memory.failing = [OSError("the endpoint is away")] * 100_000
    made = store()
    made.sink("0.out").write(b"one\ntwo\n")
    made.sink("1.out").write(b"x\n")
    wait_until(lambda: made.finish(0.0) and made.trouble, timeout=20, what="an attempt that failed")
    made.give_up()
    missing = dict(made.finish(0.0))
    assert not made.done
    assert (missing["0.out"].offset, missing["0.out"].lost) == (0, 8)
    assert "the endpoint is away" in missing["1.out"].reason
    assert f"team/{NAME}/end.json" not in memory.objects


def test_a_bucket_that_hangs_costs_whole_lines_past_the_limit_and_no_time(memory, monkeypatch):
    """launch-logs S44, for a bucket."""
    monkeypatch.setattr("rankfall_inside.delivery.log_store.MAX_WAITING", 100)
    monkeypatch.setattr(log_store_backends, "PART", 1)
    made = store()
    memory.open.clear()
    sink = made.sink("0.out")
    sink.write(b"a" * 60 + b"\n")
    sink.write(b"b" * 60 + b"\n")
    sink.write(b"c" * 60 + b"\n")
    memory.open.set()
    wait_until(lambda: made._waiting == 0, timeout=20, what="an empty queue")
    sink.write(b"d\nwhole again\n")
    sink.close()
    missing = made.finish(20.0)
    data = b"".join(part.partition(b"\n")[2] for _, part in sorted(memory.parts().items()))
    # Which of them found room depends on how far the thread was; each is there or counted.
    assert made.lost + len(data) == 3 * 61 + 14
    assert made.lost >= 61
    assert data.endswith(b"\nwhole again\n")
    assert sum(gap.lost for _, gap in missing) == made.lost


RANKS = """
import os, sys
for number in range(500):
    print("rank", os.environ["RANK"], "line", number, flush=True)
print("to stderr", file=sys.stderr)
"""


def words(place: str, nproc: int = 1) -> tuple[str, ...]:
    return ("--launcher", "plain", "--nproc", str(nproc), "--log-store", place)


def test_a_whole_slot_stores_its_ranks_in_a_bucket(pod, tmp_path, monkeypatch):
    with s3_server("logs") as environ:
        done = pod.run("python3", pod.script(RANKS), options=words("s3://logs/team", 2), **environ)
        assert done.returncode == 0, done.stderr
        records = channel(done.stdout)
        (start,) = [one for one in records if one.kind == "slot_start"]
        assert text_lines(done.stdout) == []
        assert f"lines of ranks go to the log store: s3://logs/team/{start.log_store}" in done.stderr.decode()
        assert environ["AWS_SECRET_ACCESS_KEY"] not in done.stderr.decode()
        for name, value in environ.items():
            monkeypatch.setenv(name, value)
        copy = PartsCopy(lambda: open_bucket("s3://logs/team"), start.log_store, tmp_path)
        assert copy.poll() > 0
        assert copy.complete
    ordinals = {one.ordinal: one.rank for one in records if one.kind == "start"}
    assert len(ordinals) == 2
    for ordinal, rank in ordinals.items():
        want = b"".join(b"rank %d line %d\n" % (rank, number) for number in range(500))
        assert (tmp_path / f"{ordinal}.out.log").read_bytes() == want
        assert (tmp_path / f"{ordinal}.err.log").read_bytes() == b"to stderr\n"


def test_what_was_put_outlives_a_wrapper_that_is_killed_and_another_start_has_its_own_folder(pod, monkeypatch):
    text = "print('hello', flush=True)\nimport time\ntime.sleep(60)"
    with s3_server("killed") as environ:
        for name, value in environ.items():
            monkeypatch.setenv(name, value)
        bucket = open_bucket("s3://killed")

        def keys() -> list[str]:
            return [one["path"] for page in obstore.list(bucket) for one in page]

        process = pod.start("python3", pod.script(text), options=words("s3://killed"), **environ)
        wait_until(lambda: any(key.endswith(".part") for key in keys()), timeout=30, what="the line")
        os.kill(process.pid, signal.SIGKILL)
        process.communicate(timeout=scaled(30))
        (key,) = [key for key in keys() if key.endswith(".part")]
        assert bytes(obstore.get(bucket, key).bytes()).endswith(b"\nhello\n")
        assert not any(key.endswith("end.json") for key in keys())
        done = pod.run("python3", pod.script("print('again')"), options=words("s3://killed"), **environ)
        assert done.returncode == 0
        assert len({key.rpartition("/")[0] for key in keys()}) == 2


@pytest.mark.parametrize(
    ("keys", "said"),
    [({"AWS_ACCESS_KEY_ID": ""}, "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY are not set"), (None, "it answered 404")],
)
def test_where_nothing_can_be_stored_the_lines_stay_on_stdout_and_that_is_said(pod, keys, said):
    with contextlib.nullcontext(keys) if keys else s3_server("logs") as environ:
        done = pod.run("python3", pod.script("print('hello')"), options=words("s3://other"), **environ)
    assert done.returncode == 0
    assert text_lines(done.stdout) == [b"[rank 1] hello"]
    (start,) = [one for one in channel(done.stdout) if one.kind == "slot_start"]
    assert start.log_store is None
    assert any("remain on stdout" in note and said in note for note in start.notes)


def test_an_endpoint_that_is_away_to_the_end_costs_its_lines_by_number_and_no_exit_code(pod, tmp_path):
    environ = {"AWS_ACCESS_KEY_ID": "k", "AWS_SECRET_ACCESS_KEY": "s", "AWS_ENDPOINT_URL": "http://127.0.0.1:1"}
    printed = tmp_path / "printed"
    text = f"print('hello', flush=True)\nopen({str(printed)!r}, 'w').close()\nimport time\ntime.sleep(60)"
    process = pod.start("python3", pod.script(text), options=(*words("s3://logs"), "--grace", "1"), **environ)
    wait_until(printed.exists, timeout=30, what="the line")
    # Whoever wants the end does not wait a minute for the store.
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=scaled(50))
    assert process.returncode == 128 + signal.SIGTERM
    assert "cannot be written: " in err.decode()
    gaps = [note for one in channel(out) if one.kind == "gap" for note in one.notes]
    assert any("6 bytes after offset 0 not stored" in note for note in gaps), (gaps, err)
