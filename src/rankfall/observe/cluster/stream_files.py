"""The files of one container instance's streams, opened when their first bytes come."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from rankfall.store import StreamAppender
from rankfall.store.append import Mark


class StreamFiles:
    """Files by the name of the stream, as ``r3.out``.

    Args:
        folder: of the instance.
        on_stream: called when the first bytes of a stream are stored.
    """

    def __init__(self, folder: Path, on_stream: Callable[[], None]) -> None:
        self._folder = folder
        self._on_stream = on_stream
        self._files: dict[str, StreamAppender] = {}

    def append(self, name: str, data: bytes, marks: Iterable[Mark], *, lines: int | None = None) -> dict[str, int]:
        """Append to a stream.

        Args:
            name: of the stream.
            data: may be nothing.
            marks: stamps of its lines.
            lines: newlines in it, where they were counted already.

        Returns:
            Length of each file of the stream, by the file's name.

        Raises:
            OSError: it was not stored as a whole; the files are as before.
        """
        file = self.file(name)
        if data:
            fresh = not file.size
            file.write_marked(data, marks, lines=lines)
            if fresh:
                self._on_stream()
        return {f"{name}.log": file.size, f"{name}.idx": file.index_size}

    def file(self, name: str) -> StreamAppender:
        """The files of a stream, opened or made.

        Raises:
            OSError: that cannot be.
        """
        file = self._files.get(name)
        if file is None:
            file = self._files[name] = StreamAppender(self._folder / name)
        return file

    def close(self) -> None:
        """Let go of all; may be called again."""
        for file in self._files.values():
            file.close()
