"""Tree of a transfer: files with exec bit, folders and symbolic links, as byte paths.

Refuses links out of the tree, devices, sockets and pipes.
"""

from __future__ import annotations

import fnmatch
import os
import stat
import struct

from rankfall_inside.transfer.frames import TransferError, printable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Iterable, Sequence

FILE, FOLDER, LINK = b"f", b"d", b"l"
# Kind, executable, size, length of path; path, target.
_HEAD = struct.Struct(">c?QI")
_MAX_PATH = 4096
_MAX_SIZE = 1 << 62
_MAX_ENTRIES = 5_000_000
# Kernel's limit for one path.
_MAX_HOPS = 40
PART_PREFIX, PART_SUFFIX = b".rankfall-", b".part"


class Entry:
    """One object of a tree.

    Attributes:
        path: Below the root; empty for the root.
        kind: ``FILE``, ``FOLDER`` or ``LINK``.
        size: Bytes of a file.
        executable: Exec bit of a file.
        target: Link target.
    """

    __slots__ = ("executable", "kind", "path", "size", "target")

    def __init__(
        self, path: bytes, kind: bytes, *, size: int = 0, executable: bool = False, target: bytes = b""
    ) -> None:
        self.path = path
        self.kind = kind
        self.size = size
        self.executable = executable
        self.target = target

    def encode(self) -> bytes:
        """Returns the body of a frame."""
        return _HEAD.pack(self.kind, self.executable, self.size, len(self.path)) + self.path + self.target

    @classmethod
    def decode(cls, body: bytes) -> Entry:
        """Parses the body of a frame.

        Raises:
            TransferError: The body is damaged.
        """
        try:
            kind, executable, size, length = _HEAD.unpack_from(body)
        except struct.error:
            raise TransferError("the list of files is damaged") from None
        path, target = body[_HEAD.size : _HEAD.size + length], body[_HEAD.size + length :]
        if len(path) < length:
            raise TransferError("the list of files is damaged")
        return cls(path, kind, size=size, executable=executable, target=target)


class Tree:
    """Entries to transfer and their paths.

    Attributes:
        name: Root's name in a target folder.
        entries: Root first, folders before content.
        places: Absolute paths of the entries.
    """

    def __init__(self, name: bytes, entries: Sequence[Entry], places: Sequence[bytes]) -> None:
        self.name = name
        self.entries = list(entries)
        self.places = list(places)

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(entry.size for entry in self.entries)


def scan(root: bytes, *, exclude: Iterable[str] = (), skip: bytes = b"") -> Tree:
    """Returns the tree at ``root``; follows a link only if ``root`` itself is one.

    ``exclude`` has shell patterns for names, or with a slash for paths.

    Raises:
        TransferError: Missing, unreadable or unsupported.
    """
    place = os.path.abspath(root)
    patterns = [os.fsencode(pattern.rstrip("/")) for pattern in exclude]
    try:
        found = os.stat(place)
        left_out = _identity(os.stat(skip)) if skip and os.path.isdir(skip) else None
    except OSError as error:
        msg = f"{printable(root)}: {error.strerror}"
        raise TransferError(msg) from None
    name = os.path.basename(place)
    if stat.S_ISREG(found.st_mode):
        return Tree(name, [_file(b"", found)], [place])
    if not stat.S_ISDIR(found.st_mode):
        msg = f"{printable(root)}: neither a file nor a folder"
        raise TransferError(msg)
    tree = Tree(name, [Entry(b"", FOLDER)], [place])
    waiting = [(b"", place)]
    while waiting:
        path, folder = waiting.pop()
        for child in _listed(folder, root=root):
            below = path + b"/" + child.name if path else child.name
            if _excluded(below, child.name, patterns):
                continue
            entry = _entry(below, child)
            if entry.kind == FOLDER and left_out is not None and _identity(child.stat()) == left_out:
                continue
            tree.entries.append(entry)
            tree.places.append(child.path)
            if entry.kind == FOLDER:
                waiting.append((below, child.path))
    check(tree.entries)
    return tree


def merged(trees: Sequence[Tree]) -> Tree:
    """Merges folders; later ones win.

    Raises:
        TransferError: A file collides with a folder, or a link leads out.
    """
    found: dict[bytes, tuple[Entry, bytes]] = {}
    for tree in trees:
        for entry, place in zip(tree.entries, tree.places):
            old = found.get(entry.path)
            if old is not None and (old[0].kind == FOLDER) != (entry.kind == FOLDER):
                msg = f"{printable(old[1])} and {printable(place)}: one is a folder, the other is not"
                raise TransferError(msg)
            found[entry.path] = (entry, place)
    # A folder sorts before its content.
    ordered = sorted(found.values(), key=lambda one: one[0].path.split(b"/") if one[0].path else [])
    whole = Tree(trees[0].name, [entry for entry, _ in ordered], [place for _, place in ordered])
    check(whole.entries)
    return whole


def check(entries: Sequence[Entry]) -> None:
    """Refuses a tree with a name that leads out.

    Raises:
        TransferError: Names the first such entry.
    """
    if not entries or entries[0].path or entries[0].kind == LINK:
        raise TransferError("the list of files has no root")
    if len(entries) > _MAX_ENTRIES:
        msg = f"more than {_MAX_ENTRIES} files in one transfer"
        raise TransferError(msg)
    kinds: dict[bytes, bytes] = {}
    links: dict[bytes, bytes] = {}
    for entry in entries:
        path = entry.path
        if entry.kind not in (FILE, FOLDER, LINK) or entry.size > _MAX_SIZE or path in kinds:
            msg = f"{printable(path)}: the list of files is damaged"
            raise TransferError(msg)
        if path and not _plain(path):
            msg = f"{printable(path)}: not a path below a folder"
            raise TransferError(msg)
        if path and kinds.get(path.rpartition(b"/")[0]) != FOLDER:
            msg = f"{printable(path)}: is not in a folder of this transfer"
            raise TransferError(msg)
        kinds[path] = entry.kind
        if entry.kind == LINK:
            links[path] = entry.target
    for path, target in links.items():
        if not _inside(path, target, links):
            msg = f"{printable(path)} -> {printable(target)}: the link points outside the copied files; make it relative and inside, or exclude it"
            raise TransferError(msg)


def _plain(path: bytes) -> bool:
    parts = path.split(b"/")
    return len(path) <= _MAX_PATH and b"\0" not in path and not any(part in (b"", b".", b"..") for part in parts)


def _inside(path: bytes, target: bytes, links: dict[bytes, bytes]) -> bool:
    """Returns True if a link stays below the root; resolves links like the kernel."""
    if not target or len(target) > _MAX_PATH or b"\0" in target:
        return False
    at = path.split(b"/")[:-1]
    todo = target.split(b"/")[::-1]
    hops = 0
    if target.startswith(b"/"):
        return False
    while todo:
        part = todo.pop()
        if part in (b"", b"."):
            continue
        if part == b"..":
            if not at:
                return False
            at.pop()
            continue
        at.append(part)
        further = links.get(b"/".join(at))
        if further is not None:
            hops += 1
            if further.startswith(b"/") or hops > _MAX_HOPS:
                return False
            at.pop()
            todo += further.split(b"/")[::-1]
    return True


def _excluded(path: bytes, name: bytes, patterns: Sequence[bytes]) -> bool:
    if name.startswith(PART_PREFIX) and name.endswith(PART_SUFFIX):
        # Unfinished part of another transfer.
        return True
    return any(fnmatch.fnmatchcase(path if b"/" in one else name, one) for one in patterns)


def _listed(folder: bytes, *, root: bytes) -> list[os.DirEntry[bytes]]:
    try:
        with os.scandir(folder) as found:
            return sorted(found, key=lambda one: one.name)
    except OSError as error:
        msg = f"{printable(folder or root)}: {error.strerror}"
        raise TransferError(msg) from None


def _entry(path: bytes, child: os.DirEntry[bytes]) -> Entry:
    try:
        found = child.stat(follow_symlinks=False)
        if stat.S_ISLNK(found.st_mode):
            return Entry(path, LINK, target=os.readlink(child.path))
    except OSError as error:
        msg = f"{printable(child.path)}: {error.strerror}"
        raise TransferError(msg) from None
    if stat.S_ISDIR(found.st_mode):
        return Entry(path, FOLDER)
    if stat.S_ISREG(found.st_mode):
        return _file(path, found)
    msg = f"{printable(child.path)}: a device, socket or pipe cannot be copied; exclude it"
    raise TransferError(msg)


def _file(path: bytes, found: os.stat_result) -> Entry:
    return Entry(path, FILE, size=found.st_size, executable=bool(found.st_mode & stat.S_IXUSR))


def _identity(found: os.stat_result) -> tuple[int, int]:
    return found.st_dev, found.st_ino
