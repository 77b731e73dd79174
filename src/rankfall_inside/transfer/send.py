"""Sending side of a transfer: sends missing files, each with its checksum.

Resumes half files if checksums match. Refuses a file that changes meanwhile.
"""

from __future__ import annotations

import hashlib
import os
import struct

from rankfall_inside.transfer import frames
from rankfall_inside.transfer.frames import Channel, TransferError, printable
from rankfall_inside.transfer.tree import FILE, Tree

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import BinaryIO, Protocol

if TYPE_CHECKING:

    class Digest(Protocol):
        """Computes a checksum."""

        def update(self, data: bytes, /) -> None:
            """Adds data."""

        def digest(self) -> bytes:
            """Returns the checksum of all data."""


# Index, size, half file, checksum.
HAVE = struct.Struct(">IQ?32s")
SAME = struct.Struct(">I?")
START = struct.Struct(">IQ")
COUNTS = struct.Struct(">QQQ")


class Counts:
    """Result of a transfer: all files, bytes sent, files already present."""

    def __init__(self, files: int, sent: int, same: int) -> None:
        self.files = files
        self.sent = sent
        self.same = same


def send(tree: Tree, channel: Channel, *, ask: bool = True) -> Counts:
    """Sends a tree; without ``ask`` it sends everything, instead of only what the receiver lacks.

    Raises:
        TransferError: A file is unreadable or changed, or the receiver failed.
        TransferInterruptedError: The receiver ended.
    """
    for entry in tree.entries:
        channel.put(frames.ENTRY, entry.encode())
        channel.tick()
    channel.put(frames.MANIFEST, tree.name)
    held = _held(channel) if ask else {}
    files = sent = same = 0
    for index, entry in enumerate(tree.entries):
        if entry.kind != FILE:
            continue
        files += 1
        moved = _send_file(index, tree, channel, held.get(index, []))
        if moved is None:
            same += 1
        else:
            sent += moved
    channel.put(frames.ALL)
    if ask:
        kind, body = channel.get()
        if kind != frames.DONE or COUNTS.unpack(body)[0] != files:
            raise TransferError("the receiver did not get all files")
    return Counts(files, sent, same)


class Held:
    """The part of a file that the receiver has: size, half or whole, checksum."""

    def __init__(self, size: int, half: bool, digest: bytes) -> None:  # noqa: FBT001 - fields of a frame
        self.size = size
        self.half = half
        self.digest = digest


def _held(channel: Channel) -> dict[int, list[Held]]:
    found: dict[int, list[Held]] = {}
    while True:
        kind, body = channel.get()
        if kind == frames.READY:
            return found
        if kind != frames.HAVE:
            raise TransferError("the receiver sent an unexpected frame")
        index, size, half, digest = HAVE.unpack(body)
        found.setdefault(index, []).append(Held(size, half, digest))


def _send_file(index: int, tree: Tree, channel: Channel, held: list[Held]) -> int | None:
    """Bytes sent; None if the receiver has the file."""
    entry, place = tree.entries[index], tree.places[index]
    try:
        with open(place, "rb") as file:
            agreed, digest = _agreed(file, held, channel)
            if agreed is not None and agreed.size == entry.size:
                channel.put(frames.SAME, SAME.pack(index, agreed.half))
                return None
            offset = agreed.size if agreed is not None else 0
            channel.put(frames.FILE, START.pack(index, offset))
            sent = 0
            # One byte more, to detect growth.
            while data := file.read(min(frames.DATA_BYTES, entry.size - offset - sent + 1)):
                sent += len(data)
                if offset + sent > entry.size:
                    break
                digest.update(data)
                channel.put(frames.DATA, data)
                channel.tick()
    except OSError as error:
        if isinstance(error, ConnectionError):
            raise
        raise TransferError(f"{printable(place)}: {error.strerror}") from None
    if offset + sent != entry.size:
        raise TransferError(f"{printable(place)}: changed during the copy; copy it again when no process writes to it")
    channel.put(frames.SUM, digest.digest())
    return sent


def _agreed(file: BinaryIO, held: list[Held], channel: Channel) -> tuple[Held | None, Digest]:
    """Receiver's part if it matches the file's start, else None; and the checksum so far."""
    for one in held:
        file.seek(0)
        digest = hash_of(file, one.size, channel)
        if digest.digest() == one.digest:
            return one, digest
    file.seek(0)
    return None, hashlib.sha256()


def hash_of(file: BinaryIO, size: int, channel: Channel) -> Digest:
    """Returns SHA-256 of the next ``size`` bytes; pings every 64 MiB."""
    digest = hashlib.sha256()
    left = size
    since = 0
    while left > 0 and (data := file.read(min(1 << 20, left))):
        digest.update(data)
        left -= len(data)
        since += len(data)
        if since >= 64 << 20:
            since = 0
            channel.put(frames.PING)
            channel.tick()
    return digest


def path_of(root: bytes, below: bytes) -> bytes:
    """Returns the path under a root."""
    return os.path.join(root, below) if below else root
