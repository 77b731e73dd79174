"""Listing and opening files of folders that may be hostile: links, special files, depth, numbers, names; what is left out is said."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rankfall.evidence.files import folder_listing
from rankfall.evidence.files.folder_listing import LeftOut, amount, archives_of, list_files, opened, printable
from rankfall.model import NotFound
from rankfall.verdict.diagnose.document import MAX_MISSING
from support.hostile_inputs import INPUTS


def listed(path: Path, left: LeftOut | None = None) -> dict[str, bytes]:
    """The names of the files that are listed, and the beginning of each."""
    found = {}
    for file in list_files(path, left or LeftOut(), skip=lambda name, _: name.endswith(".pt")):
        with opened(file) as fd:
            found[str(file.path.relative_to(path))] = os.read(fd, 100)
    return found


def test_files_come_in_the_order_of_their_names_and_those_of_folders_after(tmp_path):
    for name in ("b.log", "a.log", "c/x.log", "c/d/y.log", "b/z.log", "skipped.pt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    names = list(listed(tmp_path))
    assert names == ["a.log", "b.log", "b/z.log", "c/x.log", "c/d/y.log"]


def test_i18_a_link_is_followed_to_a_file_of_the_same_folder_only(tmp_path):
    with INPUTS["links-out"].laid(tmp_path / "x") as folder:
        (folder / "data").mkdir()
        (folder / "data" / "blob").write_text("inside")
        (folder / "rank-0.log").symlink_to("data/blob")
        (folder / "again").symlink_to("data")
        left = LeftOut()
        found = listed(folder, left)
    assert found["rank-0.log"] == found["data/blob"] == b"inside"
    assert set(found) == {"rank-0.log", "data/blob", "honest.log"}
    assert any("4 links out of" in text and "name their targets" in text for text in left.texts())


@pytest.mark.parametrize("name", ["link-loops", "link-dangling", "link-long", "link-chain", "fifo", "socket"])
def test_i18_what_is_no_file_is_not_opened(name, tmp_path):
    with INPUTS[name].laid(tmp_path / "x") as folder:
        found = listed(folder)
    assert all(data.startswith(b"[rank5]") for data in found.values())
    assert "honest.log" in found


def test_i18_folders_inside_of_folders_have_an_end(tmp_path):
    with INPUTS["nested-1500"].laid(tmp_path / "x") as folder:
        left = LeftOut()
        assert len(listed(folder, left)) == 2
    assert any(f"more than {folder_listing.MAX_DEPTH} levels below" in text for text in left.texts())


def test_i18_a_folder_that_becomes_a_link_leads_nowhere(tmp_path):
    (tmp_path / "x" / "logs").mkdir(parents=True)
    (tmp_path / "x" / "logs" / "a.log").write_text("mine")
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "a.log").write_text("secret")
    (file,) = list_files(tmp_path / "x", LeftOut(), skip=lambda *_: False)
    (tmp_path / "x" / "logs").rename(tmp_path / "moved")
    (tmp_path / "x" / "logs").symlink_to(tmp_path / "secret")
    with pytest.raises(OSError, match="Not a directory"), opened(file):
        pass


def test_i18_a_file_that_becomes_a_pipe_or_a_link_is_not_read(tmp_path):
    path = tmp_path / "a.log"
    path.write_text("x")
    (file,) = list_files(tmp_path, LeftOut(), skip=lambda *_: False)
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(OSError, match="no longer a regular file"), opened(file):
        pass
    path.unlink()
    path.symlink_to("/dev/zero")
    with pytest.raises(OSError, match="symbolic links"), opened(file):
        pass


def test_i18_entries_of_folders_are_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr(folder_listing, "MAX_LISTED", 10)
    for number in range(25):
        (tmp_path / f"{number}").mkdir()
        (tmp_path / f"{number}" / "a.log").write_text("x")
    left = LeftOut()
    assert len(listed(tmp_path, left)) < 10
    assert any("more than 10 entries" in text for text in left.texts())


def test_links_are_resolved_up_to_a_number(tmp_path, monkeypatch):
    monkeypatch.setattr(folder_listing, "MAX_LINKS", 2)
    (tmp_path / "a.log").write_text("x")
    for number in range(5):
        (tmp_path / f"{number}").symlink_to("a.log")
    left = LeftOut()
    assert len(listed(tmp_path, left)) == 3
    assert any("3 links out of" in text for text in left.texts())


def test_what_a_person_names_may_be_a_link_or_a_pipe_and_no_device(tmp_path):
    (tmp_path / "a.log").write_text("x")
    (tmp_path / "link").symlink_to("a.log")
    os.mkfifo(tmp_path / "pipe")
    assert [file.size for file in list_files(tmp_path / "link", LeftOut(), skip=lambda *_: True)] == [1]
    assert [file.pipe for file in list_files(tmp_path / "pipe", LeftOut(), skip=lambda *_: True)] == [True]
    left = LeftOut()
    assert not list(list_files(Path("/dev/zero"), left, skip=lambda *_: False))
    assert "is a device" in left.texts()[0] == left.unreadable


@pytest.mark.parametrize("name", ["absent", "a.log/x"])
def test_a_path_that_is_not_there_says_what_to_do(name, tmp_path):
    (tmp_path / "a.log").write_text("x")
    with pytest.raises(NotFound, match="does not exist"):
        list(list_files(tmp_path / name, LeftOut(), skip=lambda *_: False))


def test_a_name_that_no_file_can_have_is_said(tmp_path):
    left = LeftOut()
    assert not list(list_files(tmp_path / ("x" * 5000), left, skip=lambda *_: False))
    assert "File name too long" in (left.unreadable or "")


def test_names_are_text_that_every_encoding_takes(tmp_path):
    with INPUTS["names-not-utf8"].laid(tmp_path / "x") as folder:
        for name in listed(folder):
            printable(Path(name)).encode()


def test_problems_are_counted_and_only_so_many_kept():
    left = LeftOut()
    for number in range(1000):
        left.add(f"problem {number}")
        left.add("problem 0")
    left.unread(3_100_000_000, limit="60 seconds")
    left.unread(0, limit="60 seconds")
    left.unread(5, limit="7 files")
    for number in range(10):
        left.note(f"of many {number}")
    texts = left.texts()
    assert texts[0] == "2 files and 3.1 GB were not read: the limit of 60 seconds was reached; name fewer files"
    assert texts[1] == "1 file and 5 bytes were not read: the limit of 7 files was reached; name fewer files"
    assert texts[2] == "of many 0"
    assert texts[-1] == "997 more such problems"
    # A verdict shows so many, and has some to add.
    assert len(texts) <= MAX_MISSING - 3


def test_sizes_are_for_people():
    assert [amount(size) for size in (0, 999, 1000, 5_600_000, 1 << 40)] == [
        "0 bytes",
        "999 bytes",
        "1.0 kB",
        "5.6 MB",
        "1.1 TB",
    ]


def test_archives_are_listed_only_of_folders_without_logs(tmp_path):
    (tmp_path / "in").mkdir()
    for name in ("b.ZIP", "in/a.tar.gz", "train.py", "weights.pt"):
        (tmp_path / name).write_bytes(b"x")
    (tmp_path / "empty.log").touch()
    (tmp_path / "folder.zip").mkdir()
    (tmp_path / "link.zip").symlink_to("b.ZIP")
    assert archives_of(tmp_path) == [tmp_path / "b.ZIP", tmp_path / "in/a.tar.gz"]
    (tmp_path / "in/job.out").write_text("step 1")
    assert archives_of(tmp_path) == []
    left = LeftOut()
    assert [file.path.name for file in list_files(tmp_path, left, skip=lambda name, names: name.endswith(".pt"))]
    assert left.texts() == [f"2 archives in {tmp_path} were not read; name them: b.ZIP, in/a.tar.gz"]
