"""Decodes JSON and plain data; only this module calls msgspec's decoders.

msgspec publishes a type's information too early; a second thread then dies with a segmentation fault (seen with msgspec
0.22). A lock guards each type's first use.
"""

from __future__ import annotations

import operator
import threading
from itertools import accumulate, count
from typing import Any, Final, Generic, TypeVar, overload

import msgspec

T = TypeVar("T")

#: Deepest nesting of an untyped value; Kubernetes objects have about 15 levels.
MAX_DEPTH: Final = 200

_MAKING: Final = threading.Lock()
_MADE: Final[dict[Any, Decoder[Any]]] = {}

_AS_SQUARE: Final = bytes.maketrans(b"{}", b"[]")
_NEITHER: Final = bytes(set(range(256)) - set(b'[]{}"'))
# Levels that depth() removes by replacing; it counts deeper ones.
_ROUNDS: Final = 16


class Decoder(Generic[T]):
    """Decodes JSON into one type; thread-safe. :func:`decoder` makes it."""

    __slots__ = ("_decode", "_kind", "_open")

    def __init__(self, kind: Any) -> None:
        self._kind = kind
        self._decode = msgspec.json.Decoder(kind).decode
        self._open: bool | None = True if kind is Any else None

    def decode(self, data: bytes | str) -> T:
        """Returns a value of the type.

        Raises:
            msgspec.DecodeError: Not JSON, not UTF-8, too deep, or of another type (``msgspec.ValidationError``).
        """
        try:
            if self._open is not False and _brackets(data) > MAX_DEPTH:
                self._check_depth(data)
            return self._decode(data)  # type: ignore[no-any-return] # the stub returns Any
        except msgspec.DecodeError:
            raise
        except RecursionError:
            raise msgspec.DecodeError("JSON is nested too deeply") from None
        except (ValueError, OverflowError) as error:
            raise msgspec.DecodeError(f"JSON cannot be decoded: {str(error)[:200]}") from None

    def _check_depth(self, data: bytes | str) -> None:
        if self._open is None:
            self._open = _holds_any(self._kind)
        if self._open and depth(_octets(data)) > MAX_DEPTH:
            raise msgspec.DecodeError(f"JSON is nested more than {MAX_DEPTH} levels deep")


def decoder(kind: type[T]) -> Decoder[T]:
    """Returns the cached, thread-safe decoder of a type.

    Args:
        kind: A Struct or a composite, as ``list[Record]``.
    """
    made = _MADE.get(kind)
    if made is None:
        with _MAKING:
            made = _MADE.get(kind)
            if made is None:
                made = _MADE[kind] = Decoder(kind)
    return made


@overload
def decode(data: bytes | str) -> Any: ...


@overload
def decode(data: bytes | str, kind: type[T]) -> T: ...


def decode(data: bytes | str, kind: Any = Any) -> Any:
    """Decodes JSON into a value of ``kind``.

    Raises:
        msgspec.DecodeError: Not JSON, not UTF-8, too deep, or of another type (``msgspec.ValidationError``).
    """
    return decoder(kind).decode(data)


@overload
def convert(given: object, kind: type[T], *, strict: bool = ...) -> T: ...


# No type expresses a Literal or a union.
@overload
def convert(given: object, kind: Any, *, strict: bool = ...) -> Any: ...


def convert(given: object, kind: Any, *, strict: bool = True) -> Any:
    """Converts dicts, lists, text and numbers into ``kind``; if not ``strict``, numeric text too.

    Raises:
        msgspec.ValidationError: Another type, or too deep.
    """
    decoder(kind)
    try:
        return msgspec.convert(given, kind, strict=strict)
    except msgspec.ValidationError:
        raise
    except RecursionError:
        raise msgspec.ValidationError("the value is nested too deeply") from None
    except (ValueError, OverflowError) as error:
        raise msgspec.ValidationError(f"the value cannot be converted: {str(error)[:200]}") from None


def depth(data: bytes) -> int:
    """Returns the nesting of JSON, in linear time without recursion; undefined for other text.

    Keeps brackets outside strings, then removes the innermost pairs level by level.
    """
    if b"\\" in data:
        data = data.replace(b"\\\\", b"").replace(b'\\"', b"")
    brackets = data.translate(_AS_SQUARE, _NEITHER).replace(b'""', b"")
    if b'"' in brackets:
        brackets = b"".join(brackets.split(b'"')[::2])
    for rounds in range(_ROUNDS):
        if not brackets:
            return rounds
        brackets = brackets.replace(b"[]", b"")
    # "[" is 91, "]" 93: after n brackets, ``92 * n`` minus the sum of codes are open.
    return _ROUNDS + max(map(operator.sub, count(92, 92), accumulate(brackets)), default=0)


def _brackets(data: bytes | str) -> int:
    """Number of opening brackets, an upper bound of the nesting."""
    if isinstance(data, str):
        return data.count("[") + data.count("{")
    plain = _octets(data)
    return plain.count(b"[") + plain.count(b"{")


def _octets(data: bytes | str) -> bytes:
    """Text as bytes; copies only ``str`` and ``msgspec.Raw``."""
    return data.encode("utf-8", "replace") if isinstance(data, str) else bytes(data)


def _holds_any(kind: Any) -> bool:
    """True if the type may contain an untyped value."""
    import msgspec.inspect  # noqa: PLC0415

    seen: set[int] = set()
    waiting: list[object] = [msgspec.inspect.type_info(kind)]
    while waiting:
        each = waiting.pop()
        if isinstance(each, msgspec.inspect.AnyType):
            return True
        if isinstance(each, list | tuple):
            waiting += each
        elif isinstance(each, msgspec.Struct) and id(each) not in seen:
            seen.add(id(each))
            waiting += [getattr(each, name) for name in each.__struct_fields__]
    return False
