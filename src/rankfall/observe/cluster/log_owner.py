"""Whose log a folder of streams holds, as the file beside them says. Written by the recorder, read by observers of any run: cheap to import."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec

from rankfall.model import decoding

OWNER_NAME: Final = "instance.json"


class Identity(msgspec.Struct, frozen=True, kw_only=True):
    """Whose log a folder holds: UID of the pod and number of the container's restart."""

    uid: str
    number: int


def identity_of(folder: Path) -> Identity | None:
    """Whose log a folder holds; None where that cannot be read."""
    try:
        return decoding.decode((folder / OWNER_NAME).read_bytes(), kind=Identity)
    except (OSError, msgspec.DecodeError):
        return None
