"""Structs out of JSON and out of plain data: the one way to them, because msgspec's own is not safe where threads come at once.

msgspec makes what it needs to know of a Struct type when the type is decoded for the first time, and hangs it on the type before it is
whole. A second thread that comes meanwhile takes the half of it, and the process dies of a segmentation fault (msgspec 0.22: seen).
A supervisor, its feed and the readers of a log store do meet there. So what is needed is made under one lock, here, once for each type.
"""

from __future__ import annotations

import threading
from typing import Any, Final, TypeVar, overload

import msgspec

T = TypeVar("T")

_MAKING: Final = threading.Lock()
_MADE: Final[dict[Any, msgspec.json.Decoder[Any]]] = {}


def decoder(kind: type[T]) -> msgspec.json.Decoder[T]:
    """The decoder of a type; any thread may use it.

    Args:
        kind: a Struct, or a type made of such, as ``list[Record]``.
    """
    made = _MADE.get(kind)
    if made is None:
        with _MAKING:
            made = _MADE.get(kind)
            if made is None:
                made = _MADE[kind] = msgspec.json.Decoder(kind)
    return made


@overload
def decode(data: bytes | str) -> Any: ...


@overload
def decode(data: bytes | str, kind: type[T]) -> T: ...


def decode(data: bytes | str, kind: Any = Any) -> Any:
    """A value out of JSON.

    Args:
        data: the text.
        kind: what it has to be; anything by default.

    Raises:
        msgspec.DecodeError: it is no JSON, or (``msgspec.ValidationError``) not of this kind.
        UnicodeDecodeError: it is no UTF-8.
    """
    return decoder(kind).decode(data)


@overload
def convert(given: object, kind: type[T], *, strict: bool = ...) -> T: ...


# A Literal, or a union: nobody can say so in types.
@overload
def convert(given: object, kind: Any, *, strict: bool = ...) -> Any: ...


def convert(given: object, kind: Any, *, strict: bool = True) -> Any:
    """A value out of dicts, lists, text and numbers.

    Args:
        given: what is there.
        kind: what it has to be.
        strict: false = text that reads as a number is one.

    Raises:
        msgspec.ValidationError: it is not of this kind.
    """
    decoder(kind)
    return msgspec.convert(given, kind, strict=strict)
