"""The last word of a log store's writer (``end.json``): how long each stream of one start of a container is in all."""

from __future__ import annotations

from typing import Final

import msgspec

from rankfall.model import decoding

END: Final = "end.json"
MAX_END: Final = 1 << 20


class End(msgspec.Struct, frozen=True, kw_only=True):
    """What it says.

    Attributes:
        sizes: bytes of each stream, by its name.
    """

    sizes: dict[str, int]


def decode_end(data: bytes) -> End | None:
    """What it says; None = it is damaged, so nothing is known of the end."""
    try:
        return decoding.decode(data, kind=End)
    except msgspec.DecodeError:
        return None
