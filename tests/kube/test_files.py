"""Files that are swapped under us: each way in which they change is noticed, and a moment without one is bridged."""

from __future__ import annotations

import os
import threading

import pytest

from rankfall.kube.auth import key_material
from rankfall.kube.auth.key_material import WatchedFile
from rankfall.kube.errors import CredentialsError

OLD_NS = 1_000_000_000_000_000_000


@pytest.fixture
def old(tmp_path):
    """A file that has been the same for long."""
    path = tmp_path / "token"
    path.write_text("one")
    os.utime(path, ns=(OLD_NS, OLD_NS))
    return path


def watched(path):
    return WatchedFile(str(path), what="token of user 'bob'")


def test_content_written_in_place(old):
    file = watched(old)
    assert file.read() == b"one"
    old.write_text("two")
    assert file.read() == b"two"


def test_replaced_with_the_same_size_and_time(old, tmp_path):
    file = watched(old)
    assert file.read() == b"one"
    other = tmp_path / "other"
    other.write_text("two")
    os.utime(other, ns=(OLD_NS, OLD_NS))
    other.rename(old)
    assert file.read() == b"two"


def test_written_in_place_with_the_time_set_back(old):
    file = watched(old)
    assert file.read() == b"one"
    old.write_text("two")
    os.utime(old, ns=(OLD_NS, OLD_NS))
    assert file.read() == b"two"


def test_the_link_swap_of_a_mounted_secret(tmp_path):
    for version in ("one", "two"):
        (tmp_path / version).mkdir()
        (tmp_path / version / "token").write_text(version)
    (tmp_path / "..data").symlink_to("one")
    (tmp_path / "token").symlink_to("..data/token")
    file = watched(tmp_path / "token")
    assert file.read() == b"one"
    (tmp_path / "..tmp").symlink_to("two")
    (tmp_path / "..tmp").rename(tmp_path / "..data")
    assert file.read() == b"two"


def test_what_was_stable_is_not_read_again_before_its_time(old, monkeypatch):
    ages_ago = old.stat().st_ctime_ns + 3600 * 10**9
    monkeypatch.setattr(key_material.time, "time_ns", lambda: ages_ago)
    now = [100.0]
    monkeypatch.setattr(key_material.time, "monotonic", lambda: now[0])
    file = watched(old)
    reads = []
    content = file._content
    monkeypatch.setattr(file, "_content", lambda mode: reads.append(mode) or content(mode))
    assert [file.read(), file.read()] == [b"one", b"one"]
    assert len(reads) == 1
    # A file system that caches what stat says is not believed for ever.
    now[0] += 60
    file.read()
    assert len(reads) == 2
    file.read(anew=True)
    assert len(reads) == 3


@pytest.mark.parametrize("gap", ["gone", "empty"])
def test_the_last_content_stands_while_a_file_is_replaced(old, gap):
    file = watched(old)
    assert file.read() == b"one"
    if gap == "gone":
        old.unlink()
    else:
        old.write_text("\n")
    assert file.read() == b"one"
    # After a 401 nothing old will do.
    with pytest.raises(CredentialsError, match="token of user 'bob'"):
        file.read(anew=True)
    old.write_text("two")
    assert file.read() == b"two"


def test_what_is_no_file_of_credentials(tmp_path):
    with pytest.raises(CredentialsError, match="No such file"):
        watched(tmp_path / "none").read()
    with pytest.raises(CredentialsError, match="not a regular file"):
        watched(tmp_path).read()
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(CredentialsError, match="not a regular file"):
        watched(tmp_path / "pipe").read()
    (tmp_path / "big").write_bytes(b"x" * ((1 << 20) + 1))
    with pytest.raises(CredentialsError, match="larger than"):
        watched(tmp_path / "big").read()


def test_a_reader_never_sees_half_a_file_that_is_replaced(old):
    """Thousands of replacements by rename: each read is one of the versions, and the last one is seen."""
    file = watched(old)
    versions = {(f"{number:04}" * 200).encode() for number in range(300)} | {b"one"}
    done = threading.Event()

    def replace():
        for number in range(300):
            other = old.with_name("next")
            other.write_text(f"{number:04}" * 200)
            other.rename(old)
        done.set()

    writer = threading.Thread(target=replace)
    writer.start()
    while not done.is_set():
        assert file.read() in versions
    writer.join()
    assert file.read() == ("0299" * 200).encode()
