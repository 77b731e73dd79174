"""Decodes JSON and plain data into structs. The only place that calls msgspec's own decoders.

msgspec attaches a type's information before it is complete when the type is decoded for the first time; a
second thread that comes meanwhile ends the process with a segmentation fault (seen with msgspec 0.22). Here
it is made under one lock, once for each type.
"""

from __future__ import annotations

import operator
import threading
from itertools import accumulate, count
from typing import Any, Final, Generic, TypeVar, overload

import msgspec

T = TypeVar("T")

#: Deepest nesting of a value without a type. Kubernetes objects have about 15 levels.
MAX_DEPTH: Final = 200

_MAKING: Final = threading.Lock()
_MADE: Final[dict[Any, Decoder[Any]]] = {}

_AS_SQUARE: Final = bytes.maketrans(b"{}", b"[]")
_NEITHER: Final = bytes(set(range(256)) - set(b'[]{}"'))
# Rounds of depth() that take away one level each; what is deeper is counted bracket by bracket.
_ROUNDS: Final = 16


class Decoder(Generic[T]):
    """Decodes JSON into one type; any thread may use it. ``decoder`` makes it.

    Args:
        kind: the type.
    """

    __slots__ = ("_decode", "_kind", "_open")

    def __init__(self, kind: Any) -> None:
        self._kind = kind
        self._decode = msgspec.json.Decoder(kind).decode
        self._open: bool | None = True if kind is Any else None

    def decode(self, data: bytes | str) -> T:
        """A value of the type.

        Raises:
            msgspec.DecodeError: it is no JSON, no UTF-8, nested too deeply, or (``msgspec.ValidationError``) not of this type.
        """
        try:
            if self._open is not False and _brackets(data) > MAX_DEPTH:
                self._check_depth(data)
            return self._decode(data)  # type: ignore[no-any-return] # the stub knows Any alone
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
    """The decoder of a type; any thread may use it.

    Args:
        kind: a Struct, or a type made of such, as ``list[Record]``.
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
    """A value out of JSON.

    Args:
        data: the text.
        kind: what it has to be; anything by default.

    Raises:
        msgspec.DecodeError: it is no JSON, no UTF-8, nested too deeply, or (``msgspec.ValidationError``) not of this type.
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
        msgspec.ValidationError: it is not of this kind, or nested too deeply.
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
    """Nesting of JSON, in time linear in its length and without recursion; of text that is no JSON, any number.

    Brackets and quotes are kept, then brackets outside strings. Then each round removes the innermost pairs of brackets.
    """
    if b"\\" in data:
        data = data.replace(b"\\\\", b"").replace(b'\\"', b"")
    brackets = data.translate(_AS_SQUARE, _NEITHER).replace(b'""', b"")
    if b'"' in brackets:  # a string holds brackets
        brackets = b"".join(brackets.split(b'"')[::2])
    for rounds in range(_ROUNDS):
        if not brackets:
            return rounds
        brackets = brackets.replace(b"[]", b"")
    # The code of "[" is 91 and of "]" 93: at the n-th bracket, 92 * n less the sum of all codes so far is the number of open ones.
    return _ROUNDS + max(map(operator.sub, count(92, 92), accumulate(brackets)), default=0)


def _brackets(data: bytes | str) -> int:
    """Number of opening brackets, which no nesting exceeds."""
    if isinstance(data, str):
        return data.count("[") + data.count("{")
    plain = _octets(data)
    return plain.count(b"[") + plain.count(b"{")


def _octets(data: bytes | str) -> bytes:
    """The text as bytes; a copy for ``str`` and ``msgspec.Raw`` alone."""
    return data.encode("utf-8", "replace") if isinstance(data, str) else bytes(data)


def _holds_any(kind: Any) -> bool:
    """Whether a value of the type may hold one without a type."""
    import msgspec.inspect  # noqa: PLC0415 - loaded only for documents of many brackets

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
