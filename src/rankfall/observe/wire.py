"""Protocol buffers' wire format, as much of it as a small message needs: numbers, texts and messages inside messages.

A reader of our own and not the protobuf library: two small messages are read, the bytes come from jobs, and a strict walk of a hundred lines
that is bounded by the size of its input is less to trust than a compiled parser and its descriptors. Fields that are not known are passed
over, as newer writers need; damaged bytes are refused as a whole and never half used.

Cost: time linear in the bytes of a message; memory that of one field.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

VARINT, FIXED64, LENGTH, FIXED32 = 0, 1, 2, 5
# A varint holds 64 bits, seven a byte.
_MAX_VARINT: Final = 10
_MAX_FIELD: Final = (1 << 29) - 1


class Malformed(ValueError):  # noqa: N818 - says what the bytes are
    """The bytes are no message."""


def fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """The fields of a message in their order: number, and an unsigned number or the bytes of a text or message.

    Raises:
        Malformed: the bytes end inside a field, or hold what no message holds (field 0, groups, reserved types).
    """
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        number, kind = key >> 3, key & 7
        if not 0 < number <= _MAX_FIELD:
            raise Malformed(f"field {number} cannot be")
        value: int | bytes
        if kind == VARINT:
            value, at = _varint(data, at)
        elif kind == LENGTH:
            length, at = _varint(data, at)
            value, at = _bytes(data, at, length)
        elif kind in {FIXED64, FIXED32}:
            taken, at = _bytes(data, at, 8 if kind == FIXED64 else 4)
            value = int.from_bytes(taken, "little")
        else:
            raise Malformed(f"field {number} has wire type {kind}, which is not used")
        yield number, value


def number_of(value: int | bytes) -> int:
    """``value`` as a signed 64-bit number.

    Raises:
        Malformed: it is a text or a message.
    """
    if isinstance(value, bytes):
        raise Malformed("a text stands where a number belongs")
    return value - (1 << 64) if value >= 1 << 63 else value


def bytes_of(value: int | bytes) -> bytes:
    """``value`` as the bytes of a text or message.

    Raises:
        Malformed: it is a number.
    """
    if isinstance(value, int):
        raise Malformed("a number stands where a text belongs")
    return value


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for index, byte in enumerate(data[at : at + _MAX_VARINT]):
        value |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:  # noqa: PLR2004 - the highest bit says that more follows
            if value >= 1 << 64:
                break
            return value, at + index + 1
    raise Malformed(f"no whole number stands at byte {at}")


def _bytes(data: bytes, at: int, length: int) -> tuple[bytes, int]:
    if length > len(data) - at:
        raise Malformed(f"{length} bytes are announced at byte {at} and {len(data) - at} are there")
    return data[at : at + length], at + length
