"""Copies out of a bucket: each byte once, however the copy is killed and the bucket grows; what no recorder writes is named, never followed."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path

import obstore
import pytest
from hypothesis import given
from hypothesis import strategies as st
from obstore.store import MemoryStore

from rankfall.collect.stores import log_bucket
from rankfall.collect.stores.log_bucket import PartsCopy
from rankfall.collect.stores.log_store import Bucket, StoreCopies
from rankfall.rundir.streams.files import IndexReader
from rankfall_inside.delivery.bucket import Bucket as Put
from rankfall_inside.delivery.log_store_backends import Parts
from support.object_store import put_many, s3_server

NAME = "run-1/attempt-1/worker-0/uid-1-a"
STAMP = 10**18


class Written:
    """A folder of a bucket, written by the product's own writer, step by step."""

    def __init__(self, monkeypatch) -> None:
        self.bucket = MemoryStore()
        monkeypatch.setattr(Put, "__init__", lambda *_: None)
        monkeypatch.setattr(Put, "put", lambda _, key, data: obstore.put(self.bucket, key, data))
        self.parts = Parts("s3://logs", NAME, {})
        self.want: dict[str, bytes] = {}
        self.stamp = STAMP

    def write(self, stream: str, data: bytes) -> None:
        self.stamp += 10_000_000
        self.parts.write(stream, data, self.stamp, 0)
        self.want[stream] = self.want.get(stream, b"") + data

    def copy(self, target: Path, at: int = 0) -> PartsCopy:
        return PartsCopy(lambda: self.bucket, NAME, target, at=at)


def held(target: Path) -> dict[str, bytes]:
    return {path.name.removesuffix(".log"): path.read_bytes() for path in target.glob("*.log")}


STEPS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["0.out", "1.err"]), st.binary(min_size=1, max_size=60)),
        st.sampled_from(["put", "poll"]),
        # Killed before it wrote down how far it was: it goes on at any part that it had begun.
        st.integers(min_value=0, max_value=5),
    ),
    max_size=40,
)


@given(STEPS)
def test_a_copy_has_every_byte_once_whenever_it_is_made_and_killed(tmp_path_factory, steps):
    with pytest.MonkeyPatch.context() as patch:
        written = Written(patch)
        target = tmp_path_factory.mktemp("target")
        copy = written.copy(target)
        begun, stored = [0], {}
        for step in steps:
            if isinstance(step, tuple):
                written.write(*step)
                continue
            if step == "put":
                written.parts.flush()
                stored = dict(written.want)
                continue
            if isinstance(step, int):
                copy = written.copy(target, at=begun[-min(step, len(begun))])
            copy.poll()
            if copy.at not in begun:
                begun.append(copy.at)
            assert held(target) == stored
            assert not copy.complete
        assert written.parts.end()
        copy.poll()
    assert held(target) == written.want
    assert copy.complete
    assert copy.poll() == 0
    again = PartsCopy(lambda: written.bucket, NAME, target, at=copy.at)
    assert (again.poll(), again.complete) == (0, True)
    for stream in written.want:
        stamps = [row.stamp for row in IndexReader(target / f"{stream}.log").rows(0)]
        assert stamps == sorted(stamps)
        assert stamps[0] > STAMP


@pytest.fixture
def written(monkeypatch):
    return Written(monkeypatch)


def put(written: Written, key: str, data: bytes) -> None:
    obstore.put(written.bucket, f"{NAME}/{key}", data)


def part(pieces: list[object], data: bytes, schema: str = "rankfall.log-part/1") -> bytes:
    return json.dumps({"schema": schema, "pieces": pieces}).encode() + b"\n" + data


HOSTILE = {
    "no head": b"x" * 100,
    "empty": b"",
    "another schema": part([["0.out", 0, 1, 1]], b"x", "rankfall.log-part/9"),
    "a name that leads out": part([["../../evil.out", 0, 1, 1]], b"x"),
    "a name of no rank": part([["slot.out", 0, 1, 1]], b"x"),
    "more bytes than it says": part([["0.out", 0, 1, 1]], b"xyz"),
    "fewer bytes than it says": part([["0.out", 0, 100, 1]], b"xyz"),
    "negative sizes": part([["0.out", 0, -1, 1], ["0.out", 0, 2, 1]], b"x"),
    "nothing": part([], b""),
    "numbers that are none": part([["0.out", "0", 1, 1]], b"x"),
    "a deep nest": b"[" * 100_000 + b"\n",
    "no utf-8": b'{"schema": "\xff"}\n',
    "a place far ahead": part([["0.out", 10**12, 1, 1]], b"x"),
    "too many pieces": part([["0.out", n, 1, 1] for n in range(20_000)], b"x" * 20_000),
}


@pytest.mark.parametrize("data", HOSTILE.values(), ids=HOSTILE.keys())
def test_a_part_that_no_recorder_writes_is_named_and_nothing_of_it_kept(written, tmp_path, data):
    put(written, "000000000000000.part", data)
    put(written, "end.json", b'{"sizes": {"0.out": 1}}')
    copy = written.copy(tmp_path)
    for _ in range(2):
        with pytest.raises(OSError, match="part 000000000000000"):
            copy.poll()
    assert b"".join(held(tmp_path).values()) == b""
    assert (copy.at, copy.complete) == (0, False)
    assert not list(tmp_path.parent.rglob("evil*"))


def test_a_part_of_200_mb_is_named_and_costs_no_memory(written, tmp_path):
    put(written, "000000000000000.part", bytes(200 << 20))
    tracemalloc.start()
    try:
        with pytest.raises(OSError, match=f"has {200 << 20} bytes, more than {log_bucket.MAX_PART}"):
            written.copy(tmp_path).poll()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < log_bucket.MAX_PART


def test_what_others_put_beside_the_parts_and_into_other_folders_is_never_looked_at(written, tmp_path):
    written.write("0.out", b"mine\n")
    assert written.parts.end()
    for key in ("000000000000003.part", "../evil.part", "x/000000000000005.part", "zzz", "000000000000005.part.bak"):
        obstore.put(written.bucket, f"{NAME}/{key}".replace("/../", "/%2E%2E/"), b"not mine")
    obstore.put(written.bucket, "run-2/attempt-1/worker-0/uid-1-a/000000000000005.part", b"not mine")
    copy = written.copy(tmp_path)
    assert (copy.poll(), copy.complete) == (5, True)
    assert held(tmp_path) == {"0.out": b"mine\n"}


@pytest.mark.parametrize("end", [b"{", b'{"sizes": {"0.out": -1, "../x": 9}}', b"[]", b"\xff", bytes(2 << 20)])
def test_an_end_that_is_damaged_is_none(written, tmp_path, end):
    written.write("0.out", b"x\n")
    written.parts.flush()
    put(written, "end.json", end)
    copy = written.copy(tmp_path)
    try:
        copy.poll()
    except OSError as error:
        assert "bytes, more than" in str(error)  # noqa: PT017 - only the one that is too large
    assert not copy.complete
    assert held(tmp_path) == {"0.out": b"x\n"}


def test_too_many_streams_are_not_made(written, tmp_path, monkeypatch):
    monkeypatch.setattr(log_bucket, "MAX_STREAMS", 2)
    put(written, "000000000000000.part", part([[f"{n}.out", 0, 1, 1] for n in range(3)], b"xyz"))
    with pytest.raises(OSError, match="more than 2 streams"):
        written.copy(tmp_path).poll()
    assert held(tmp_path) == {}


def test_a_real_bucket_among_thousands_of_strange_objects_is_read_on_where_a_killed_copy_stopped(tmp_path, monkeypatch):
    with s3_server("logs") as environ:
        for name, value in environ.items():
            monkeypatch.setenv(name, value)
        parts = Parts("s3://logs/team", NAME, environ)
        assert parts.refusal() == ""
        put_many("logs", (f"team/{NAME}/{n:015d}.strange" for n in range(3000)), b"x")
        parts.write("0.out", b"one\n", STAMP, 0)
        assert parts.flush()
        logs = tmp_path / "logs"
        target = logs / "worker-0" / "0"
        target.mkdir(parents=True)
        copies = StoreCopies(logs, Bucket("s3://logs/team"))
        copies.add(target, NAME)
        assert [copies.poll_one(copy) for copy in copies.open] == [4]
        parts.write("0.out", b"two\n", STAMP + 10**9, 0)
        assert parts.end()
        again = StoreCopies(logs, Bucket("s3://logs/team"))
        again.load()
        assert [copy.at for copy in again.open] == [4]
        assert [again.poll_one(copy) for copy in again.open] == [4]
        assert again.open == []
        (elsewhere,) = [Bucket("s3://no-such-bucket").copy(NAME, target, at=0)]
        assert elsewhere.poll() == 0
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    with pytest.raises(OSError, match="the store does not return"):
        Bucket("s3://logs/team").copy(NAME, target, at=0).poll()
    assert held(target) == {"0.out": b"one\ntwo\n"}


def test_a_machine_without_the_library_does_not_see_the_bucket(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "obstore", None)
    copies = StoreCopies(tmp_path, Bucket("s3://logs"))
    assert not copies.visible
    target = tmp_path / "worker-0" / "0"
    target.mkdir(parents=True)
    copies.add(target, NAME)
    assert copies.unseen(target)
    assert copies.open == []
