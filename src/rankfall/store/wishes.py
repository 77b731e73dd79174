"""Files of requests in a run directory that only grow, a line each: anybody may ask, the supervisor or the next one carries it out.

What cannot be read is left out: a line that was torn by a full disk must not hide the others.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from rankfall.model import StoreError, decoding
from rankfall.store.fs import private

T = TypeVar("T", bound=msgspec.Struct)

_MAX_FILE: Final = 1 << 20


def read_wishes(path: Path, kind: type[T]) -> list[T]:
    """All requests, oldest first."""
    try:
        with path.open("rb") as file:
            lines = file.read(_MAX_FILE).split(b"\n")
    except OSError:
        return []
    found = []
    for line in lines:
        try:
            found.append(decoding.decode(line, kind=kind))
        except msgspec.MsgspecError:
            continue
    return found


def append_wish(path: Path, wish: msgspec.Struct, *, verb: str) -> None:
    """Add a request; one appended line, so that two who ask at once lose nothing.

    Args:
        path: of the file, in the run directory.
        wish: the request.
        verb: what is asked for, for the error's words.

    Raises:
        StoreError: it cannot be written.
    """
    try:
        fd = private(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        try:
            os.write(fd, b"\n" + msgspec.json.encode(wish) + b"\n")
            os.fsync(fd)
        finally:
            os.close(fd)
    except OSError as error:
        raise StoreError(
            f"cannot {verb} {path.parent.name}: {error.strerror or error}", hint="free space in the run directory"
        ) from error
