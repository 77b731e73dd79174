"""Writes streams and indexes in the wrapper's format, with stamps that the test chooses."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from pathlib import Path

from rankfall.rundir import RunDir, StreamRow

ROW = struct.Struct("<QQqQB7x")
MAGIC = b"RFIDX1\0\0"


class FakeStream:
    """One stream; ``write`` appends a chunk and its row."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self.data = b""
        path.write_bytes(b"")
        self.index = path.with_suffix(".idx")
        self.index.write_bytes(MAGIC)

    def write(self, data: bytes, *, at: int) -> None:
        first = self.data.count(b"\n") + (0 if not self.data or self.data.endswith(b"\n") else 1)
        with self.path.open("ab") as file:
            file.write(data)
        with self.index.open("ab") as file:
            file.write(ROW.pack(len(self.data), first, at, 0, 1))
        self.data += data

    def write_all(self, chunks: Iterable[tuple[int, bytes]]) -> None:
        for at, data in chunks:
            self.write(data, at=at)


def stream(run_dir: RunDir, local: int | str = 0, *, slot: int = 0, attempt: int = 1, out: bool = True) -> FakeStream:
    kind = "out" if out else "err"
    return FakeStream(run_dir.stream_dir(attempt, "worker", slot) / f"{local}.{kind}.log")


def row(run_dir: RunDir, found: FakeStream, rank: int | None, *, first: int = 0, end: int | None = None) -> StreamRow:
    parts = found.path.relative_to(run_dir.path).parts
    return StreamRow(
        stream="/".join(parts),
        attempt=int(parts[1].removeprefix("attempt-")),
        role="worker",
        slot=int(parts[2].removeprefix("worker-")),
        local=parts[4].split(".")[0],
        rank=rank,
        from_byte=first,
        to_byte=end,
        proof="test",
    )


def opened(folder: Path) -> None:
    """Let other users read what is below a folder, as its owner may."""
    for path in [folder, *folder.rglob("*")]:
        path.chmod(0o755 if path.is_dir() else 0o644)
