"""Trees that are carried: everything arrives as it was, a cut costs nothing but time, and nothing leads out of the destination."""

from __future__ import annotations

import hashlib
import os
import random
import socket
import threading
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rankfall_inside.transfer import frames, stdio
from rankfall_inside.transfer.frames import Channel, TransferError, TransferInterruptedError, frame
from rankfall_inside.transfer.pack import digest_of, pack, unpack
from rankfall_inside.transfer.receive import Receiver
from rankfall_inside.transfer.send import send
from rankfall_inside.transfer.tree import FILE, FOLDER, LINK, Entry, Tree, check, merged, scan
from support.carry_world import across, channel_to, picture, pod, send_to_pod
from support.patience import scaled

NAMES = st.binary(min_size=1, max_size=12).filter(lambda name: name not in {b".", b".."} and not {0, 47} & set(name))


def odd_tree(root: Path) -> Path:
    """Whatever a folder may hold."""
    for folder in (b"empty", b"a b/c\nd", b"bytes \xff\xfe"):
        (root / os.fsdecode(folder)).mkdir(parents=True)
    (root / "empty file").touch()
    (root / "run.sh").write_text("#!/bin/sh\necho hi\n")
    (root / "run.sh").chmod(0o755)
    (root / os.fsdecode(b"bytes \xff\xfe/\x80x")).write_bytes(bytes(range(256)) * 2000)
    (root / "a b" / "c\nd" / "$(touch x)").write_text("no shell")
    (root / "link").symlink_to("a b/c\nd")
    (root / "a b" / "up").symlink_to("../run.sh")
    (root / "dangling").symlink_to("a b/not there")
    return root


def test_a_tree_arrives_as_it_was(tmp_path: Path) -> None:
    source = odd_tree(tmp_path / "source")
    counts = across(scan(os.fsencode(source)), tmp_path / "dest")
    assert picture(tmp_path / "dest") == picture(source)
    assert (counts.files, counts.same) == (4, 0)


def test_what_is_there_is_not_sent_again_and_what_changed_is(tmp_path: Path) -> None:
    source, dest = odd_tree(tmp_path / "source"), tmp_path / "dest"
    across(scan(os.fsencode(source)), dest)
    (source / "run.sh").write_text("#!/bin/sh\necho HI\n")
    (dest / "other").write_text("stays")
    counts = across(scan(os.fsencode(source)), dest)
    assert (counts.sent, counts.same) == (18, 3)
    assert (dest / "run.sh").read_text() == "#!/bin/sh\necho HI\n"
    assert (dest / "other").exists()


def test_the_exec_bit_follows_where_the_bytes_are_the_same(tmp_path: Path) -> None:
    source, dest = odd_tree(tmp_path / "source"), tmp_path / "dest"
    across(scan(os.fsencode(source)), dest)
    (source / "run.sh").chmod(0o644)
    (source / "empty file").chmod(0o755)
    across(scan(os.fsencode(source)), dest)
    assert not (dest / "run.sh").stat().st_mode & 0o111
    assert (dest / "empty file").stat().st_mode & 0o100


def test_one_file_goes_to_a_name_or_into_a_folder(tmp_path: Path) -> None:
    file = tmp_path / "a"
    file.write_text("x")
    (tmp_path / "into").mkdir()
    across(scan(os.fsencode(file)), tmp_path / "new" / "name")
    across(scan(os.fsencode(file)), tmp_path / "into")
    assert (tmp_path / "new" / "name").read_text() == (tmp_path / "into" / "a").read_text() == "x"


def test_patterns_leave_out_names_and_paths(tmp_path: Path) -> None:
    for path in ("a/keep", "a/drop.pyc", ".git/x", "b/a/keep", "b/data/x"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).touch()
    found = scan(os.fsencode(tmp_path), exclude=["*.pyc", ".git/", "b/data"])
    assert {entry.path for entry in found.entries} == {b"", b"a", b"a/keep", b"b", b"b/a", b"b/a/keep"}


def test_a_folder_may_be_left_out_wherever_it_is(tmp_path: Path) -> None:
    (tmp_path / "home" / "runs").mkdir(parents=True)
    (tmp_path / "x").touch()
    found = scan(os.fsencode(tmp_path), skip=os.fsencode(tmp_path / "home"))
    assert {entry.path for entry in found.entries} == {b"", b"x"}


def test_later_folders_lie_on_top(tmp_path: Path) -> None:
    for place, text in (("one/same", "1"), ("one/a/x", "1"), ("two/same", "2"), ("two/a/y", "2")):
        (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / place).write_text(text)
    trees = [scan(os.fsencode(tmp_path / name)) for name in ("one", "two")]
    across(merged(trees), tmp_path / "dest")
    assert {path: content for path, (kind, content, _) in picture(tmp_path / "dest").items() if kind == "file"} == {
        b"same": b"2",
        b"a/x": b"1",
        b"a/y": b"2",
    }
    (tmp_path / "three" / "same").mkdir(parents=True)
    with pytest.raises(TransferError, match="one is a folder"):
        merged([*trees, scan(os.fsencode(tmp_path / "three"))])


@pytest.mark.parametrize("target", ["/etc/passwd", "../x", "a/../../x", "in/../../x", "loop", "", "out"])
def test_links_that_point_outside_are_refused_before_anything_is_sent(target: str) -> None:
    entries = [
        Entry(b"", FOLDER),
        Entry(b"a", FOLDER),
        Entry(b"in", LINK, target=b"a"),
        Entry(b"loop", LINK, target=b"loop"),
        Entry(b"x", LINK, target=os.fsencode(target)),
    ]
    if target == "out":
        # A link over a link: a/up leads above the root only because a's own links are followed.
        entries[4] = Entry(b"x", LINK, target=b"a/up/..")
        entries.append(Entry(b"a/up", LINK, target=b".."))
    with pytest.raises(TransferError, match="points outside the copied files"):
        check(entries)


def test_pipes_and_missing_things_are_refused_by_name(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(TransferError, match=r"pipe: a device, socket or pipe"):
        scan(os.fsencode(tmp_path))
    with pytest.raises(TransferError, match="neither a file nor a folder"):
        scan(os.fsencode(tmp_path / "pipe"))
    with pytest.raises(TransferError, match="No such file"):
        scan(os.fsencode(tmp_path / "nothing"))


@pytest.mark.parametrize(
    "path", [b"../x", b"/x", b"a/../x", b"a//x", b".", b"a/.", b"x\0y", b"a" * 5000, b"nowhere/x", b"link/x", b"file/x"]
)
def test_hostile_names_never_lead_out_of_the_destination(path: bytes, tmp_path: Path) -> None:
    entries = [
        Entry(b"", FOLDER),
        Entry(b"a", FOLDER),
        Entry(b"link", LINK, target=b"a"),
        Entry(b"file", FILE),
        Entry(path, FILE, size=1),
    ]
    stream = b"".join(frame(frames.ENTRY, entry.encode()) for entry in entries)
    with pytest.raises(TransferError):
        _feed(stream + frame(frames.MANIFEST, b"x"), tmp_path / "dest")
    assert not (tmp_path / "x").exists()
    assert not (tmp_path / "dest").exists()


def _feed(stream: bytes, dest: Path) -> None:
    position = 0

    def read(size: int) -> bytes:
        nonlocal position
        position += size
        return stream[position - size : position]

    Receiver(Channel(read, lambda _: None), os.fsencode(dest), owner="t1").run()


def _list_of(*entries: Entry) -> bytes:
    listed = b"".join(frame(frames.ENTRY, entry.encode()) for entry in (Entry(b"", FOLDER), *entries))
    return listed + frame(frames.MANIFEST, b"root")


_START = frames.FILE
_X = Entry(b"x", FILE, size=2)
_GOOD = hashlib.sha256(b"ab").digest()
_NO_LANGUAGE = "unexpected frame|unknown kind of frame"


@pytest.mark.parametrize(
    ("stream", "words"),
    [
        (b"HTTP/1.1 400 Bad Request", _NO_LANGUAGE),
        (frame(frames.ERROR, b"no space left"), "no space left"),
        (frame(frames.ENTRY, b"short") + frame(frames.MANIFEST), "damaged"),
        (frame(frames.ENTRY, Entry(b"abc", FILE).encode()[:-1]), "damaged"),
        (frame(frames.MANIFEST), "no root"),
        (frame(frames.ALL), _NO_LANGUAGE),
        (_list_of(_X, _X), "damaged"),
        (_list_of(_X) + frame(frames.ALL), "not sent all"),
        (_list_of(_X) + frame(frames.READY), _NO_LANGUAGE),
        (_list_of(_X) + frame(_START, bytes(11) + b"\0"), "did not announce"),
        (_list_of(_X) + frame(frames.SAME, b"\0\0\0\1\0"), "omits a file"),
        (_list_of(_X) + frame(_START, b"\0\0\0\1" + bytes(7) + b"\1"), "at a wrong offset"),
        (_list_of(_X) + frame(_START, b"\0\0\0\1" + bytes(8)) + frame(frames.DATA, b"abc"), "more than"),
        (_list_of(_X) + frame(_START, b"\0\0\0\1" + bytes(8)) + frame(frames.SUM, _GOOD), "checksum"),
    ],
)
def test_a_sender_that_lies_is_refused(stream: bytes, words: str, tmp_path: Path) -> None:
    with pytest.raises(TransferError, match=words):
        _feed(stream, tmp_path / "dest")
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and path.name == "x"]


def test_a_name_for_a_file_that_goes_into_a_folder_is_looked_at(tmp_path: Path) -> None:
    stream = frame(frames.ENTRY, Entry(b"", FILE).encode()) + frame(frames.MANIFEST, b"../x")
    with pytest.raises(TransferError, match="not a name of a file"):
        _feed(stream, tmp_path)


def test_what_is_in_the_way_is_named(tmp_path: Path) -> None:
    source = odd_tree(tmp_path / "source")
    (tmp_path / "dest" / "run.sh").mkdir(parents=True)
    with pytest.raises(TransferError, match=r"run.sh: cannot become a file, because a folder has this name"):
        across(scan(os.fsencode(source)), tmp_path / "dest")
    (tmp_path / "file").touch()
    with pytest.raises(TransferError, match="cannot replace a file"):
        across(scan(os.fsencode(source)), tmp_path / "file")


def test_a_link_that_lies_in_the_way_is_not_followed(tmp_path: Path) -> None:
    source = odd_tree(tmp_path / "source")
    (tmp_path / "outside").mkdir()
    (tmp_path / "dest").mkdir()
    (tmp_path / "dest" / "a b").symlink_to(tmp_path / "outside")
    with pytest.raises(TransferError, match="cannot become a folder, because a file has this name"):
        across(scan(os.fsencode(source)), tmp_path / "dest")
    assert not list((tmp_path / "outside").iterdir())
    # A file's own name may be a link: it is replaced, and what it pointed to stays.
    (tmp_path / "dest" / "a b").unlink()
    (tmp_path / "victim").write_text("mine")
    (tmp_path / "dest" / "run.sh").symlink_to(tmp_path / "victim")
    across(scan(os.fsencode(source)), tmp_path / "dest")
    assert (tmp_path / "victim").read_text() == "mine"
    assert not (tmp_path / "dest" / "run.sh").is_symlink()


@pytest.mark.parametrize("size", [3, 7])
def test_a_file_that_changes_while_it_is_read_is_refused(size: int, tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"12345")
    tree = scan(os.fsencode(tmp_path / "x"))
    (tmp_path / "x").write_bytes(b"1" * size)
    with pytest.raises(TransferError, match="changed during"):
        send(tree, Channel(lambda _: b"", lambda _: None), ask=False)
    (tmp_path / "x").unlink()
    with pytest.raises(TransferError, match="No such file"):
        send(tree, Channel(lambda _: b"", lambda _: None), ask=False)


def test_a_cut_anywhere_is_gone_on_with_and_no_half_file_ever_bears_its_name(tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "sub").mkdir(parents=True)
    rng = random.Random(7)
    contents = {"a": 5, "big": 300_000, "sub/c": 40_000, "sub/empty": 0}
    for name, size in contents.items():
        (source / name).write_bytes(rng.randbytes(size))
    base = tmp_path / "volume"
    base.mkdir()
    tries = 0
    limits = iter([0, 20, 4096, 60_000, 90_000, 200_000])
    while (counts := send_to_pod(source, base, "code", cut=_after(next(limits, 10**9)))) is None:
        tries += 1
        for name in contents:
            found = base / "code" / name
            assert not found.exists() or found.read_bytes() == (source / name).read_bytes()
    assert tries == 6
    assert picture(base / "code") == picture(source)
    assert counts.sent < sum(contents.values()), "what was there before the last cut was not sent again"


def _after(limit: int):
    return lambda written: written >= limit


def test_a_half_of_another_content_is_begun_anew(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "big").write_bytes(b"1" * 400_000)
    base = tmp_path / "volume"
    base.mkdir()
    assert send_to_pod(source, base, "code", cut=_after(200_000)) is None
    (half,) = (base / "code").iterdir()
    assert half.stat().st_size > 0
    (source / "big").write_bytes(b"2" * 400_000)
    counts = send_to_pod(source, base, "code", cut=_after(10**9))
    assert counts is not None
    assert counts.sent == 400_000
    assert picture(base / "code") == picture(source)


def test_a_whole_half_only_needs_its_name(tmp_path: Path) -> None:
    source, base = tmp_path / "source", tmp_path / "volume"
    source.mkdir()
    base.mkdir()
    (source / "big").write_bytes(b"1" * 300_000)
    (source / "big").chmod(0o755)
    listed = len(frame(frames.ENTRY, Entry(b"big", FILE).encode())) * 2
    assert send_to_pod(source, base, "code", cut=lambda written: written >= 300_000 + listed) is None
    counts = send_to_pod(source, base, "code", cut=_after(10**9))
    assert counts is not None
    assert counts.sent < 300_000
    assert picture(base / "code") == picture(source)


def test_two_transfers_of_one_name_never_share_a_half(tmp_path: Path) -> None:
    base = tmp_path / "volume"
    base.mkdir()
    sources = []
    for number in (1, 2):
        folder = tmp_path / f"s{number}"
        folder.mkdir()
        (folder / "x").write_bytes(bytes((number,)) * 300_000)
        sources.append(folder)
    # The first is cut and leaves its half; the second neither goes on with it nor takes it away.
    assert send_to_pod(sources[0], base, "code", owner="one", cut=_after(150_000)) is None
    assert send_to_pod(sources[1], base, "code", owner="two", cut=_after(10**9)) is not None
    assert (base / "code" / "x").read_bytes() == bytes((2,)) * 300_000
    counts = send_to_pod(sources[0], base, "code", owner="one", cut=_after(10**9))
    assert counts is not None
    assert counts.sent < 300_000
    assert (base / "code" / "x").read_bytes() == bytes((1,)) * 300_000
    assert len(list((base / "code").iterdir())) == 1


def test_two_transfers_of_one_owner_at_once_end_whole(tmp_path: Path) -> None:
    source, base = tmp_path / "source", tmp_path / "volume"
    source.mkdir()
    base.mkdir()
    (source / "x").write_bytes(os.urandom(3_000_000))
    done = []
    threads = [
        threading.Thread(target=lambda: done.append(send_to_pod(source, base, "code", cut=_after(10**9))))
        for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(done)
    assert len(done) == 3
    assert picture(base / "code") == picture(source)


def test_from_a_pod_and_it_beats_while_something_moves(tmp_path: Path) -> None:
    base = tmp_path / "volume"
    odd_tree(base / "out")
    beat = tmp_path / "beat"
    with pod("send", base, "out", beat=str(beat)) as process:
        channel = channel_to(process)
        channel.put(frames.PING)
        Receiver(channel, os.fsencode(tmp_path / "dest"), owner="t1").run()
    assert process.returncode == 0
    assert beat.exists()
    assert picture(tmp_path / "dest") == picture(base / "out")


@pytest.mark.parametrize("below", ["../x", "/etc", "a/../../x", "out/passwd"])
def test_the_side_in_the_pod_never_leaves_its_volume(below: str, tmp_path: Path) -> None:
    base = tmp_path / "volume"
    base.mkdir()
    (base / "out").symlink_to("/etc")
    with pod("send", base, below) as process, pytest.raises(TransferError, match=r"not a path below|leads out of"):
        Receiver(channel_to(process), os.fsencode(tmp_path / "dest"), owner="t1").run()
    assert process.returncode == 1


def test_words_that_make_no_sense_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert stdio.main(["give", "x"]) == 2
    assert "usage: send|receive" in capsys.readouterr().err


def test_a_client_that_is_gone_ends_the_side_in_the_pod(tmp_path: Path) -> None:
    with pod("receive", tmp_path, "x") as process:
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(scaled(20)) == 1


def test_a_file_of_more_than_two_gibibytes(tmp_path: Path) -> None:
    size = (2 << 30) + 4097
    with (tmp_path / "big").open("wb") as file:
        file.truncate(size)
    entry = scan(os.fsencode(tmp_path / "big")).entries[0]
    assert Entry.decode(entry.encode()).size == size


def test_a_pack_is_whole_or_nothing(tmp_path: Path) -> None:
    source = odd_tree(tmp_path / "source")
    packed = pack(scan(os.fsencode(source)))
    assert packed == pack(scan(os.fsencode(source)))
    (tmp_path / "pack").write_bytes(packed)
    (tmp_path / "to").mkdir()
    (tmp_path / "to" / "old").touch()
    unpack(str(tmp_path / "pack"), digest=digest_of(packed), to=str(tmp_path / "to"))
    assert picture(tmp_path / "to") == picture(source)
    (tmp_path / "pack").write_bytes(packed[:-3])
    with pytest.raises(TransferError, match="checksum is wrong"):
        unpack(str(tmp_path / "pack"), digest=digest_of(packed), to=str(tmp_path / "other"))
    with pytest.raises(TransferError):
        unpack(str(tmp_path / "pack"), digest=digest_of(packed[:-3]), to=str(tmp_path / "other"))
    with pytest.raises(TransferError):
        unpack(str(tmp_path / "none"), digest="", to=str(tmp_path / "other"))
    assert not (tmp_path / "other").exists()


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(NAMES, min_size=1, max_size=4), max_size=12), st.data())
def test_any_tree_survives_its_encoding_and_none_leads_out(paths: list[list[bytes]], data: st.DataObject) -> None:
    kinds: dict[bytes, bytes] = {b"": FOLDER}
    for parts in paths:
        for depth in range(1, len(parts) + 1):
            kinds.setdefault(b"/".join(parts[:depth]), FOLDER)
    entries = []
    for path in sorted(kinds, key=lambda one: one.split(b"/") if one else []):
        if path and not any(other.startswith(path + b"/") for other in kinds):
            kind = data.draw(st.sampled_from([FILE, FOLDER, LINK]))
            target = data.draw(st.lists(st.sampled_from([b"..", b".", b"x", *kinds]), max_size=5).map(b"/".join))
            entries.append(Entry(path, kind, size=data.draw(st.integers(0, 1 << 40)), target=target))
        else:
            entries.append(Entry(path, FOLDER))
    again = [Entry.decode(entry.encode()) for entry in entries]
    assert [(e.path, e.kind, e.size, e.target) for e in again] == [(e.path, e.kind, e.size, e.target) for e in entries]
    try:
        check(again)
    except TransferError:
        return
    for entry in again:
        if entry.kind == LINK:
            assert not entry.target.startswith(b"/")
            links = {other.path for other in again if other.kind == LINK}
            steps = [os.path.normpath(entry.path + b"/../" + entry.target)]
            assert not steps[0].startswith(b"..") or len(links) > 1


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=200))
def test_any_bytes_are_refused_or_cut_and_nothing_is_written(noise: bytes) -> None:
    one, two = socket.socketpair()
    with one, two, two.makefile("rb") as file:
        one.sendall(noise)
        one.shutdown(socket.SHUT_WR)
        with pytest.raises((TransferError, TransferInterruptedError)):
            Receiver(Channel(file.read, lambda _: None), b"/nonexistent/never", owner="t1").run()


def test_a_sender_hears_of_a_receiver_that_makes_no_sense(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("x")
    tree = Tree(b"x", [Entry(b"", FILE, size=1)], [os.fsencode(tmp_path / "x")])
    answers = frame(frames.DATA)
    with pytest.raises(TransferError, match=_NO_LANGUAGE):
        send(tree, Channel(lambda size: answers[:size], lambda _: None))
    stream = [frame(frames.READY) + frame(frames.DONE, bytes(24))]

    def read(size: int) -> bytes:
        data, stream[0] = stream[0][:size], stream[0][size:]
        return data

    with pytest.raises(TransferError, match="did not get all"):
        send(tree, Channel(read, lambda _: None))


def test_the_last_frame_counts_also_when_nothing_can_come_any_more() -> None:
    def gone() -> None:
        if not stream[0]:
            raise TransferInterruptedError("gone")

    stream = [frame(frames.DONE, b"x")]

    def read(size: int) -> bytes:
        data, stream[0] = stream[0][:size], stream[0][size:]
        return data

    assert Channel(read, lambda _: None, tick=gone).get() == (frames.DONE, b"x")
