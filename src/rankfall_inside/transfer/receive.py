"""Receiving side of a transfer: writes part files, compares checksums, renames whole files.

A ``.rankfall-<owner>-<path's hash>.part`` resumes only for its owner. Names that lead out are refused.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import stat

from rankfall_inside import private_files
from rankfall_inside.transfer import frames
from rankfall_inside.transfer import tree as trees
from rankfall_inside.transfer.frames import Channel, TransferError, printable
from rankfall_inside.transfer.send import COUNTS, HAVE, SAME, START, Counts, hash_of, path_of
from rankfall_inside.transfer.tree import FILE, FOLDER, LINK, Entry

TYPE_CHECKING = False
if TYPE_CHECKING:
    from rankfall_inside.transfer.send import Digest

_MAX_ENTRIES = 5_000_000


class Part:
    """Part file that is open for writing."""

    def __init__(self, fd: int, path: bytes) -> None:
        self.fd = fd
        self.path = path
        self.size = os.fstat(fd).st_size
        self.digest: Digest = hashlib.sha256()


class Receiver:
    """Receives one tree into ``dest``; a single file goes into ``dest`` if that is a folder.

    ``owner`` (letters and digits) identifies the transfer whose part files it resumes; ``alone`` = private modes
    instead of umask.
    """

    def __init__(self, channel: Channel, dest: bytes, *, owner: str, answer: bool = True, alone: bool = False) -> None:
        self._channel = channel
        self._dest = os.path.abspath(dest)
        self._owner = owner.encode("ascii")
        self._answer = answer
        self._file_mode, self._folder_mode = (private_files.FILE, private_files.FOLDER) if alone else (0o666, 0o777)
        self._entries: list[Entry] = []
        self._parts: dict[int, Part] = {}
        self._whole_ones: set[int] = set()
        self._done: set[int] = set()
        self._sent = self._same = 0

    def run(self) -> Counts:
        """Receives everything.

        Raises:
            TransferError: Unusable data, or not as listed.
            TransferInterruptedError: The sender ended; parts remain for the next try.
        """
        try:
            self._manifest()
            self._folders()
            if self._answer:
                self._tell()
            self._files()
            self._links()
        except OSError as error:
            if isinstance(error, ConnectionError):
                raise
            where = error.filename if isinstance(error.filename, bytes) else self._dest
            msg = f"{printable(where)}: {error.strerror}"
            raise TransferError(msg) from None
        finally:
            for part in self._parts.values():
                os.close(part.fd)
        files = sum(entry.kind == FILE for entry in self._entries)
        if self._answer:
            self._channel.put(frames.DONE, COUNTS.pack(files, self._sent, self._same))
        return Counts(files, self._sent, self._same)

    def _manifest(self) -> None:
        while True:
            kind, body = self._channel.get()
            if kind == frames.MANIFEST:
                break
            if kind != frames.ENTRY or len(self._entries) >= _MAX_ENTRIES:
                raise TransferError("the sender sent an unexpected frame")
            self._entries.append(Entry.decode(body))
        trees.check(self._entries)
        if self._entries[0].kind == FILE and os.path.isdir(self._dest):
            if body in (b"", b".", b"..") or b"/" in body or b"\0" in body:
                msg = f"{printable(body)}: not a name of a file"
                raise TransferError(msg)
            self._dest = os.path.join(self._dest, body)

    def _folders(self) -> None:
        if self._entries[0].kind == FOLDER:
            if os.path.lexists(self._dest) and not os.path.isdir(self._dest):
                msg = f"{printable(self._dest)}: a folder cannot replace a file"
                raise TransferError(msg)
            os.makedirs(self._dest, self._folder_mode, exist_ok=True)
        else:
            os.makedirs(os.path.dirname(self._dest), self._folder_mode, exist_ok=True)
        for entry in self._entries[1:]:
            place = path_of(self._dest, entry.path)
            mode = _mode(place)
            if entry.kind == FOLDER:
                if mode is None:
                    os.mkdir(place, self._folder_mode)
                elif not stat.S_ISDIR(mode):
                    msg = f"{printable(place)}: cannot become a folder, because a file has this name"
                    raise TransferError(msg)
            elif mode is not None and stat.S_ISDIR(mode):
                msg = f"{printable(place)}: cannot become a file, because a folder has this name"
                raise TransferError(msg)

    def _tell(self) -> None:
        """Reports to the sender which files exist whole or in part."""
        for index, entry in enumerate(self._entries):
            if entry.kind == FILE:
                if (whole := self._whole(entry)) is not None:
                    self._whole_ones.add(index)
                    self._channel.put(frames.HAVE, HAVE.pack(index, entry.size, False, whole))
                if (half := self._half(index, entry)) is not None:
                    self._channel.put(frames.HAVE, HAVE.pack(index, half.size, True, half.digest.digest()))
            self._channel.tick()
        self._channel.put(frames.READY)

    def _whole(self, entry: Entry) -> bytes | None:
        place = path_of(self._dest, entry.path)
        try:
            fd = os.open(place, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            return None
        with open(fd, "rb") as file:
            found = os.fstat(fd)
            if not stat.S_ISREG(found.st_mode) or found.st_size != entry.size:
                return None
            return hash_of(file, entry.size, self._channel).digest()

    def _half(self, index: int, entry: Entry) -> Part | None:
        path = self._part_path(entry)
        if _mode(path) is None:
            return None
        part = self._open(path)
        if part is None:
            return None
        if not 0 < part.size <= entry.size:
            os.ftruncate(part.fd, 0)
            part.size = 0
        self._parts[index] = part
        with open(os.dup(part.fd), "rb") as file:
            file.seek(0)
            part.digest = hash_of(file, part.size, self._channel)
        return part

    def _part_path(self, entry: Entry) -> bytes:
        folder = os.path.dirname(path_of(self._dest, entry.path))
        mark = hashlib.sha256(entry.path).hexdigest()[:16].encode("ascii")
        return os.path.join(folder, trees.PART_PREFIX + self._owner + b"-" + mark + trees.PART_SUFFIX)

    def _open(self, path: bytes) -> Part | None:
        """Opens and locks a part; None if another transfer has it."""
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, self._file_mode)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            return None
        except OSError:
            pass  # no locks here: the owner's name separates transfers
        return Part(fd, path)

    def _files(self) -> None:
        while True:
            kind, body = self._channel.get()
            if kind == frames.ALL:
                break
            if kind == frames.FILE:
                index, offset = START.unpack(body)
                self._take(self._expected(index), offset)
            elif kind == frames.SAME:
                index, half = SAME.unpack(body)
                self._keep(self._expected(index), half=half)
            else:
                raise TransferError("the sender sent an unexpected frame")
        if len(self._done) != sum(entry.kind == FILE for entry in self._entries):
            raise TransferError("the sender has not sent all announced files")

    def _expected(self, index: int) -> int:
        if index >= len(self._entries) or self._entries[index].kind != FILE or index in self._done:
            raise TransferError("the sender sends a file that it did not announce")
        self._done.add(index)
        return index

    def _take(self, index: int, offset: int) -> None:
        entry = self._entries[index]
        part = self._parts.pop(index, None)
        if part is None:
            path = self._part_path(entry)
            part = self._open(path) or self._open(_other(path))
            if part is None:
                msg = f"{printable(path)}: another transfer writes it"
                raise TransferError(msg)
        try:
            if offset not in (0, part.size):
                raise TransferError("the sender resumes at a wrong offset")
            if offset == 0:
                part.digest = hashlib.sha256()
            os.ftruncate(part.fd, offset)
            os.lseek(part.fd, offset, os.SEEK_SET)
            self._sent += self._fill(part, entry, offset)
            os.fsync(part.fd)
            os.fchmod(part.fd, _with_exec_bit(os.fstat(part.fd).st_mode, executable=entry.executable))
            os.replace(part.path, path_of(self._dest, entry.path))
        finally:
            os.close(part.fd)

    def _fill(self, part: Part, entry: Entry, offset: int) -> int:
        at = offset
        while True:
            kind, body = self._channel.get()
            if kind == frames.SUM:
                break
            if kind != frames.DATA or at + len(body) > entry.size:
                raise TransferError("the sender sends more than announced")
            part.digest.update(body)
            at += len(body)
            view = memoryview(body)
            while view:
                view = view[os.write(part.fd, view) :]
        if at != entry.size or part.digest.digest() != body:
            os.unlink(part.path)
            msg = f"{printable(entry.path)}: its checksum is wrong after the copy; copy it again"
            raise TransferError(msg)
        return at - offset

    def _keep(self, index: int, *, half: bool) -> None:
        """Accepts an existing file that the sender confirmed."""
        entry = self._entries[index]
        place = path_of(self._dest, entry.path)
        part = self._parts.pop(index, None)
        if part is None if half else index not in self._whole_ones:
            raise TransferError("the sender omits a file that the receiver does not have")
        if part is not None:
            if half:
                os.fsync(part.fd)
                os.replace(part.path, place)
            else:
                os.unlink(part.path)
            os.close(part.fd)
        now = os.lstat(place).st_mode
        if bool(now & stat.S_IXUSR) != entry.executable:
            os.chmod(place, _with_exec_bit(now, executable=entry.executable))
        self._same += 1

    def _links(self) -> None:
        """Creates symbolic links last, when their targets exist."""
        for entry in self._entries:
            if entry.kind != LINK:
                continue
            place = path_of(self._dest, entry.path)
            fresh = self._part_path(entry)
            if _mode(fresh) is not None:
                os.unlink(fresh)
            os.symlink(entry.target, fresh)
            os.replace(fresh, place)


def _other(path: bytes) -> bytes:
    return path[: -len(trees.PART_SUFFIX)] + b"-" + os.urandom(6).hex().encode("ascii") + trees.PART_SUFFIX


def _mode(path: bytes) -> int | None:
    try:
        return os.lstat(path).st_mode
    except FileNotFoundError:
        return None


def _with_exec_bit(mode: int, *, executable: bool) -> int:
    plain = stat.S_IMODE(mode) & ~0o111
    return plain | ((plain & 0o444) >> 2) if executable else plain
