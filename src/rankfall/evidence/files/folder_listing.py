"""Lists and opens the files of an untrusted folder: bounded, never outside it.

Files are opened name by name: no process can redirect by a link. Pipes, sockets, devices and archives stay closed.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

from rankfall.evidence.files.bounded_read import SUFFIXES
from rankfall.model import NotFound, numbers
from rankfall.model.patterns import bounded

# This many levels fit into the kernel's path limit of 4,096 bytes.
MAX_DEPTH: Final = 64
# Maximum entries, 300 bytes each: ten times the files read.
MAX_LISTED: Final = 200_000
# Maximum resolved links, some microseconds each.
MAX_LINKS: Final = 10_000
# Maximum single messages: a verdict lists 20 missing things.
MAX_PROBLEMS: Final = 8
MAX_NOTES: Final = 5
_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_FILE: Final = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
# Longest file name whose number is read.
_MAX_NAME: Final = 256
_ENDINGS: Final = (
    SUFFIXES,
    (".log", ".txt", ".out", ".err"),
    (".stdout", ".stderr", ".out", ".err"),
)
_NUMBER: Final = bounded(r"\d{1,6}\Z", limit=_MAX_NAME)
_LEADS: Final = bounded(r"(?i)(?:^|[^a-z])(?:master|chief|leader)(?:[^a-z]|$)", limit=_MAX_NAME)
_DIGITS: Final = bounded(r"\d+", limit=_MAX_NAME)
# Forms of host names: clusters have a few.
_MAX_FORMS: Final = 16
# Names of the kernel's files of one node: dmesg-gpu-02.log, gpu-02_kern.log; but not of a rank, a job or a day.
_NODE: Final = (
    r"(?!(?i:rank|local|job|slurm|run|attempt|try|task|step|proc|part|boot|log|file|old|new|before|after|gpu\d(?!\d)"
    r"|(?:jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]{0,6}-?\d))"
    r"([A-Za-z][A-Za-z-]{0,40}\d[A-Za-z\d-]{0,40})"
)
_OF_KERNEL: Final = r"(?:dmesg|kern(?:el)?)"
_KERNEL_FILE: Final = bounded(
    rf"\A(?:{_OF_KERNEL}[-_.]{_NODE}|{_NODE}[-_.]{_OF_KERNEL})(?:\.(?:log|txt|out))?\Z", limit=_MAX_NAME
)
_NO_RANKS: Final = "node|host|pod|slot|replica|attempt|restart|run|job|step|epoch|part"
_OF_NODES: Final = bounded(rf"(?:{_NO_RANKS})[^a-z]*$", limit=_MAX_NAME)
# Files that are no logs, archives by their names, and files that lie beside the only archive of a job's logs.
_NO_LOGS: Final = frozenset(
    {".idx", ".db", ".db-wal", ".db-shm", ".pt", ".pth", ".bin", ".safetensors", ".npy", ".npz", ".pyc"}
)
_ARCHIVES: Final = (".zip", ".tar", ".tgz", ".tar.gz", ".tbz2", ".tar.bz2", ".txz", ".tar.xz")
_BESIDE_LOGS: Final = frozenset({".py", ".sh", ".md", ".yaml", ".yml", ".toml", ".ini", ".cfg"})
_MAX_NAMED: Final = 3
_UNITS: Final = ((10**12, "TB"), (10**9, "GB"), (10**6, "MB"), (10**3, "kB"))


class Listed(NamedTuple):
    """One file.

    Attributes:
        path: For display.
        root: Where the path from the user is opened.
        parts: Names below ``root``; empty if the user named the file itself.
        inode: Device and number, common to hard links.
        pipe: Only the user may name one.
    """

    path: Path
    root: Path
    parts: tuple[str, ...]
    size: int
    inode: tuple[int, int]
    pipe: bool = False


class LeftOut:
    """Files that were not read, with reasons: messages for users, few enough to be displayed completely.

    ``unreadable``: first path that could not be read at all.
    """

    def __init__(self) -> None:
        self.unreadable: str | None = None
        self._texts: dict[str, None] = {}
        self._notes: dict[str, None] = {}
        self._more = 0
        self._files: dict[str, tuple[int, int]] = {}

    def add(self, text: str, *, unreadable: bool = False) -> None:
        """Adds one message, unless it was added before."""
        if unreadable and self.unreadable is None:
            self.unreadable = text
        self._keep(text, self._texts, MAX_PROBLEMS)

    def note(self, text: str) -> None:
        """Adds a message about many files, or about Rankfall itself."""
        self._keep(text, self._notes, MAX_NOTES)

    def _keep(self, text: str, texts: dict[str, None], most: int) -> None:
        if text not in texts and len(texts) >= most:
            self._more += 1
        else:
            texts[text] = None

    def unread(self, size: int, *, limit: str) -> None:
        """Counts a file that was not read because of a limit."""
        files, total = self._files.get(limit, (0, 0))
        self._files[limit] = files + 1, total + size

    def texts(self) -> list[str]:
        """Returns all messages: first about many files, last the number omitted."""
        limits = [
            f"{files:,} {'file' if files == 1 else 'files'} and {amount(size)} were not read: the limit of {limit} was reached;"
            " name fewer files"
            for limit, (files, size) in self._files.items()
        ]
        more = [f"{self._more:,} more such problems"] if self._more else []
        return [*limits, *self._notes, *self._texts, *more]


def amount(size: int) -> str:
    """Formats bytes for users: ``3.1 GB``."""
    for unit, name in _UNITS:
        if size >= unit:
            return f"{size / unit:.1f} {name}"
    return f"{size} bytes"


def printable(path: Path) -> str:
    """Returns a path as text; file names need not be UTF-8."""
    return os.fsencode(path).decode("utf-8", "replace")


def list_files(
    path: Path, left: LeftOut, *, skip: Callable[[str, set[str]], bool], within: Path = Path()
) -> Iterator[Listed]:
    """Yields the files of one path from the user, in the order of their names.

    ``skip`` gets a name and its neighbors' names. ``within``: folder of a relative path.

    Raises:
        NotFound: The path does not exist.
    """
    try:
        status = (within / path).stat()
    except (FileNotFoundError, NotADirectoryError):
        raise NotFound(
            f"{printable(path)} does not exist",
            hint="name a log file, a folder of logs, a run id, or - for text from a pipe",
        ) from None
    except OSError as error:
        left.add(f"{printable(path)} cannot be read: {error.strerror}", unreadable=True)
        return
    if stat.S_ISDIR(status.st_mode):
        yield from _Walk(path, within / path, left, skip).files()
    elif stat.S_ISREG(status.st_mode) or stat.S_ISFIFO(status.st_mode):
        pipe = stat.S_ISFIFO(status.st_mode)
        yield Listed(path, within / path, (), status.st_size, (status.st_dev, status.st_ino), pipe)
    else:
        left.add(
            f"{printable(path)} is a device or a socket and was not opened; pipe its text: ... | rankfall why -",
            unreadable=True,
        )


def no_log(name: str, neighbours: set[str]) -> bool:
    """True for a file to skip; of raw and compressed forms the raw one is read."""
    path = Path(name)
    return path.suffix in _NO_LOGS or (path.suffix in SUFFIXES and path.stem in neighbours)


def archives_of(folder: Path) -> list[Path]:
    """Archives in a folder and below it; none where it also holds logs, which are newer or the same."""
    walk = _Walk(folder, folder, LeftOut(), no_log)
    if any(file.size and file.path.suffix not in _BESIDE_LOGS for file in walk.files()):
        return []
    return sorted(folder.joinpath(*parts) for parts in walk.archives)


@contextmanager
def opened(file: Listed) -> Iterator[int]:
    """Opens a listed file, without waiting for a writer.

    Raises:
        OSError: Unopenable, or its type changed.
    """
    fd = _open_below(file.root, file.parts, _FILE) if file.parts else os.open(file.root, _FILE)
    try:
        mode = os.fstat(fd).st_mode
        if not (stat.S_ISREG(mode) or (file.pipe and stat.S_ISFIFO(mode))):
            raise OSError(errno.EINVAL, "is no longer a regular file")
        yield fd
    finally:
        os.close(fd)


def _open_below(root: Path, parts: tuple[str, ...], flags: int) -> int:
    fd = os.open(root, _FOLDER)
    try:
        for name in parts[:-1]:
            inner = os.open(name, _FOLDER | os.O_NOFOLLOW, dir_fd=fd)
            os.close(fd)
            fd = inner
        return os.open(parts[-1], flags | os.O_NOFOLLOW, dir_fd=fd) if parts else os.dup(fd)
    finally:
        os.close(fd)


class _Walk:
    def __init__(self, display: Path, root: Path, left: LeftOut, skip: Callable[[str, set[str]], bool]) -> None:
        self._display = display
        self._root = root
        self._real = Path(os.path.realpath(root))
        self._left = left
        self._skip = skip
        self.archives: list[tuple[str, ...]] = []
        self._listed = self._links = self._outside = self._deep = self._special = 0

    def files(self) -> Iterator[Listed]:
        folders: list[tuple[str, ...]] = [()]
        while folders and self._listed < MAX_LISTED:
            parts = folders.pop()
            inner: list[tuple[str, ...]] = []
            found: list[Listed] = []
            try:
                for entry, names in self._entries(parts):
                    self._sort(entry, parts, names, inner, found)
            except OSError as error:
                self._left.add(
                    f"{printable(self._display.joinpath(*parts))} cannot be read: {error.strerror}", unreadable=True
                )
            yield from sorted(found)
            # The last folder is listed next.
            folders += sorted(inner, reverse=True)
        self._say(len(folders))

    def _entries(self, parts: tuple[str, ...]) -> Iterator[tuple[os.DirEntry[str], set[str]]]:
        fd = _open_below(self._root, parts, _FOLDER)
        try:
            with os.scandir(fd) as scan:
                entries = []
                for entry in scan:
                    self._listed += 1
                    if self._listed > MAX_LISTED:
                        break
                    entries.append(entry)
            names = {entry.name for entry in entries}
            for entry in entries:
                yield entry, names
        finally:
            os.close(fd)

    def _sort(
        self,
        entry: os.DirEntry[str],
        parts: tuple[str, ...],
        names: set[str],
        inner: list[tuple[str, ...]],
        found: list[Listed],
    ) -> None:
        here = (*parts, entry.name)
        if entry.is_dir(follow_symlinks=False):
            if len(here) > MAX_DEPTH:
                self._deep += 1
            else:
                inner.append(here)
            return
        archive = entry.name.lower().endswith(_ARCHIVES)
        if archive and entry.is_file(follow_symlinks=False):
            self.archives.append(here)
            return
        if self._skip(entry.name, names):
            return
        path = self._display.joinpath(*here)
        if entry.is_symlink():
            # The archive of a link in the same folder is listed by its name.
            self._link(path, self._root.joinpath(*here), [] if archive else found)
            return
        try:
            status = entry.stat(follow_symlinks=False)
        except OSError:
            return  # deleted meanwhile
        if stat.S_ISREG(status.st_mode):
            found.append(Listed(path, self._root, here, status.st_size, (status.st_dev, status.st_ino)))
        else:
            self._special += 1

    def _link(self, path: Path, link: Path, found: list[Listed]) -> None:
        """Lists a link's target if it is a regular file of this folder."""
        self._links += 1
        if self._links > MAX_LINKS:
            self._outside += 1
            return
        target = Path(os.path.realpath(link))
        try:
            status = target.lstat()
        except OSError:
            return  # a dangling or circular link
        if not target.is_relative_to(self._real):
            self._outside += 1
        elif stat.S_ISREG(status.st_mode):
            parts = target.relative_to(self._real).parts
            found.append(Listed(path, self._root, parts, status.st_size, (status.st_dev, status.st_ino)))

    def _say(self, unlisted: int) -> None:
        root = printable(self._display)
        if unlisted or self._listed > MAX_LISTED:
            self._left.note(
                f"{root} holds more than {MAX_LISTED:,} entries; the others were not read; name fewer folders"
            )
        if self.archives:
            names = sorted(printable(Path(*parts)) for parts in self.archives)
            more = f" and {len(names) - _MAX_NAMED:,} more" if len(names) > _MAX_NAMED else ""
            which = ("1 archive", "was", "it") if len(names) == 1 else (f"{len(names):,} archives", "were", "them")
            self._left.note(
                f"{which[0]} in {root} {which[1]} not read; name {which[2]}: {', '.join(names[:_MAX_NAMED])}{more}"
            )
        if self._deep:
            self._left.note(
                f"{self._deep:,} folders more than {MAX_DEPTH} levels below {root} were not read; name them"
            )
        if self._outside:
            self._left.note(f"{self._outside:,} links out of {root} were not followed; name their targets")
        if self._special:
            self._left.note(f"{self._special:,} pipes, sockets and devices in {root} were not opened")


def numbered_siblings(names: Iterable[str]) -> Iterator[dict[int, list[str]]]:
    """Yields files that differ only in a number from 0 on, as ``2.log`` or ``worker-2.txt``, by that number.

    Numbers of nodes, attempts and the like do not count; neither do those of workers beside a master, which is rank 0.
    """
    names = [*names]
    if any(_LEADS.search(name.rpartition("/")[2][:_MAX_NAME]) for name in names):
        return
    groups: dict[tuple[str, str], dict[int, list[str]]] = {}
    for path in names:
        folder, _, name = path.rpartition("/")
        stem = name.lower()[:_MAX_NAME]
        for endings in _ENDINGS:
            stem = next((stem.removesuffix(one) for one in endings if stem.endswith(one)), stem)
        found = _NUMBER.search(stem)
        number = numbers.matched(found[0]) if found else None
        if found is None or number is None or stem == name.lower() or _OF_NODES.search(stem[: found.start()]):
            continue
        groups.setdefault((folder, stem[: found.start()]), {}).setdefault(number, []).append(path)
    for group in groups.values():
        if len(group) > 1 and set(group) == set(range(len(group))):
            yield group


def host_in_name(path: str, hosts: Iterable[str]) -> str | None:
    """Host that a file is named after: one of the given ones, another of their form, or that of a kernel's file.

    ``gpu-01`` has the form of ``gpu-02``; ``dmesg-gpu-02.log`` is a kernel's file.
    """
    name = path.rpartition("/")[2][:_MAX_NAME]
    forms = {_form(host.partition(".")[0][:_MAX_NAME]) for host in hosts}
    for form in sorted(forms)[:_MAX_FORMS]:
        if found := bounded(rf"(?<![A-Za-z\d]){form}(?!\d)", limit=_MAX_NAME).search(name):
            return found[0]
    found = None if forms else _KERNEL_FILE.search(name)
    return found and (found[1] or found[2])


def _form(host: str) -> str:
    """Pattern of hosts that differ only in numbers."""
    ends = [0, *(end for match in _DIGITS.finditer(host) for end in match.span()), len(host)]
    return r"\d{1,9}".join(re.escape(host[a:b]) for a, b in zip(ends[::2], ends[1::2], strict=True))
