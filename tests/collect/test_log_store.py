"""Copies out of a log store: each byte once, however the copy is killed and the store grows; nothing outside of the store is read."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankfall.collect.stores.log_store import MARK, StoreCopies, StoreCopy, Volume, is_store_folder_name
from rankfall.rundir.streams.files import IndexReader
from rankfall_inside.delivery import log_store_backends

NAME = "run-1/attempt-1/worker-0/uid-1-a"


class Written:
    """A folder of a store, written by the product's own writer, step by step."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.folder = root / NAME
        self.folder.mkdir(parents=True)
        self.files: dict[str, log_store_backends.Files] = {}
        self.want: dict[str, bytes] = {}
        self.stamp = 1000

    def write(self, stream: str, data: bytes) -> None:
        files = self.files.setdefault(stream, log_store_backends.Files(str(self.folder / stream)))
        self.stamp += 10
        files.write(data, self.stamp)
        self.want[stream] = self.want.get(stream, b"") + data

    def end(self) -> None:
        for files in self.files.values():
            files.close()
        sizes = {stream: len(data) for stream, data in self.want.items()}
        (self.folder / "end.json").write_text(json.dumps({"sizes": sizes, "lost": {}}))

    def close(self) -> None:
        for files in self.files.values():
            files.close()


def held(target: Path) -> dict[str, bytes]:
    return {path.name.removesuffix(".log"): path.read_bytes() for path in target.glob("*.log")}


STEPS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["0.out", "1.err"]), st.binary(min_size=1, max_size=60)),
        st.sampled_from(["poll", "killed"]),
    ),
    max_size=30,
)


@given(STEPS)
def test_a_copy_has_every_byte_once_whenever_it_is_made_and_killed(tmp_path_factory, steps):
    base = tmp_path_factory.mktemp("store")
    given_segment = log_store_backends.SEGMENT
    log_store_backends.SEGMENT = 70
    written = Written(base / "root")
    target = base / "target"
    target.mkdir()
    copy = StoreCopy(written.root, NAME, target)
    try:
        for step in steps:
            if step == "killed":
                copy = StoreCopy(written.root, NAME, target)
            elif step != "poll":
                written.write(*step)
                continue
            copy.poll()
            assert held(target) == written.want
            assert not copy.complete
        written.end()
        copy.poll()
    finally:
        log_store_backends.SEGMENT = given_segment
        written.close()
    assert held(target) == written.want
    assert copy.complete
    assert copy.poll() == 0
    for stream, data in written.want.items():
        stamps = [row.stamp for row in IndexReader(target / f"{stream}.log").rows(0)]
        assert stamps == sorted(stamps)
        assert data == b"" or stamps


def test_lines_keep_the_times_at_which_they_came(tmp_path):
    written = Written(tmp_path / "root")
    for number in range(5):
        written.write("0.out", b"line %d\n" % number)
    target = tmp_path / "target"
    target.mkdir()
    StoreCopy(written.root, NAME, target).poll()
    written.close()
    rows = IndexReader(target / "0.out.log").rows(0)
    assert [(row.offset, row.stamp, row.line) for row in rows] == [(7 * n, 1010 + 10 * n, n) for n in range(5)]


def test_a_file_that_is_missing_between_is_waited_for_and_never_jumped_over(tmp_path, monkeypatch):
    monkeypatch.setattr(log_store_backends, "SEGMENT", 10)
    written = Written(tmp_path / "root")
    for _ in range(3):
        written.write("0.out", b"0123456789ab")
    second = written.folder / "0.out-000000000000012.log"
    second.rename(written.folder / "away")
    target = tmp_path / "target"
    target.mkdir()
    copy = StoreCopy(written.root, NAME, target)
    assert copy.poll() == 12
    written.end()
    assert (copy.poll(), copy.complete) == (0, False)
    (written.folder / "away").rename(second)
    assert (copy.poll(), copy.complete) == (24, True)
    written.close()


@pytest.mark.parametrize(
    "name", ["../x/y/z", "/etc/a/b/c", "a/b/c", "a/b/c/d/e", "a/../c/d", "a/b//d", "a/b/c/.d", "a b/c/d/e", "a/" * 300]
)
def test_a_name_that_no_wrapper_gives_is_refused(tmp_path, name):
    assert not is_store_folder_name(name)
    copies = StoreCopies(tmp_path, Volume(tmp_path))
    copies.add(tmp_path, name)
    assert copies.open == []


def test_links_that_lead_out_of_the_store_are_not_followed(tmp_path):
    outside = Written(tmp_path / "outside")
    outside.write("0.out", b"secret\n")
    outside.close()
    root, target = tmp_path / "root", tmp_path / "target"
    target.mkdir()
    (root / "run-1/attempt-1/worker-0").mkdir(parents=True)
    (root / NAME).symlink_to(outside.folder)
    assert StoreCopy(root, NAME, target).poll() == 0
    (root / NAME).unlink()
    (root / NAME).mkdir()
    (root / NAME / "0.out-000000000000000.log").symlink_to(outside.folder / "0.out-000000000000000.log")
    with pytest.raises(OSError, match=r"0\.out"):
        StoreCopy(root, NAME, target).poll()
    (root / NAME / "0.out-000000000000000.log").unlink()
    os.mkfifo(root / NAME / "0.out-000000000000000.log")
    with pytest.raises(OSError, match=r"0\.out"):
        StoreCopy(root, NAME, target).poll()
    assert b"secret" not in b"".join(held(target).values())


def test_what_was_begun_is_taken_up_and_what_is_done_is_not_read_again(tmp_path):
    written = Written(tmp_path / "root")
    written.write("0.out", b"x\n")
    logs = tmp_path / "logs"
    target = logs / "worker-0" / "0"
    target.mkdir(parents=True)
    first = StoreCopies(logs, Volume(written.root))
    first.add(target, NAME)
    first.add(target, NAME)
    assert [first.poll_one(copy) for copy in first.open] == [2]
    written.end()
    again = StoreCopies(logs, Volume(written.root))
    again.load()
    assert [again.poll_one(copy) for copy in again.open] == [0]
    assert again.open == []
    last = StoreCopies(logs, None)
    last.load()
    assert (last.visible, last.open) == (False, [])
    (target / MARK).write_text("nonsense")
    damaged = StoreCopies(logs, Volume(written.root))
    damaged.load()
    assert damaged.of(target) is None
    written.close()


def test_an_end_that_is_damaged_is_none(tmp_path):
    written = Written(tmp_path / "root")
    written.write("0.out", b"x\n")
    (written.folder / "end.json").write_text("{")
    target = tmp_path / "target"
    target.mkdir()
    copy = StoreCopy(written.root, NAME, target)
    assert (copy.poll(), copy.complete) == (2, False)
    written.close()
