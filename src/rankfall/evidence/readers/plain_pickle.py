"""Loads pickles of plain data only: containers, numbers, text.

Python's unpickler uses gigabytes for a hostile seven-byte file. Results may be circular: readers must bound
their walk.

Cost: about 0.15 s a MiB.
Memory: reading ends when an estimate of the created objects exceeds ``MAX_MEMORY``.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Callable
from functools import partial
from types import MappingProxyType
from typing import Any, Final

MAX_INSTRUCTIONS: Final = 16_000_000
#: Maximum bytes of created objects.
MAX_MEMORY: Final = 160 << 20
# Estimated bytes: container, reference, number, memo entry.
_CONTAINER: Final = 72
_REFERENCE: Final = 8
_NUMBER: Final = 32
_ENTRY: Final = 100
# A larger integer's hash is not the number: collisions take quadratic time.
_MAX_KEY: Final = 1 << 60
# Maximum bytes of a number; longer ones take quadratic time to print.
_MAX_LONG: Final = 16
_STOP: Final = ord(".")
_MARK: Final = object()
_FLOAT: Final = struct.Struct(">d")


class NotPlain(ValueError):
    """The pickle is damaged, or contains more than plain data."""


def load(data: bytes) -> Any:
    """Returns the content: containers, text, bytes, numbers, None.

    Raises:
        NotPlain: Other content, damaged, or too long.
    """
    machine = _Machine(data)
    try:
        for _ in range(MAX_INSTRUCTIONS):
            code = data[machine.at]
            machine.at += 1
            if code == _STOP:
                return machine.result()
            action = _ACTIONS.get(code)
            if action is None:
                where = f"byte {machine.at - 1}"
                raise NotPlain(f"instruction 0x{code:02x} at {where} creates something other than plain data")
            action(machine)
            if machine.memory > MAX_MEMORY:
                raise NotPlain(f"its objects take more than {MAX_MEMORY >> 20} MiB")
    except (IndexError, struct.error, KeyError, TypeError, UnicodeDecodeError) as error:
        raise NotPlain(f"it is damaged ({type(error).__name__})") from error
    raise NotPlain(f"it has more than {MAX_INSTRUCTIONS} instructions")


class _Machine:
    """The stack of values, and the memo of values for later use."""

    def __init__(self, data: bytes) -> None:
        self.at = 0
        self.memory = 0
        self._data = data
        self._stack: list[Any] = []
        self._memo: dict[int, Any] = {}

    def result(self) -> Any:
        found = self._stack.pop()
        if found is _MARK:
            raise IndexError
        return found

    def push(self, value: Any) -> None:
        self.memory += _REFERENCE
        self._stack.append(value)

    def empty(self, kind: type) -> None:
        self.memory += _CONTAINER + _REFERENCE
        self._stack.append(kind())

    def skip(self, width: int) -> None:
        self.at += width

    def number(self, width: int, *, signed: bool = False) -> None:
        self.memory += _NUMBER + _REFERENCE
        self._stack.append(int.from_bytes(self._take(width), "little", signed=signed))

    def long(self) -> None:
        width = self._size(1)
        if width > _MAX_LONG:
            raise NotPlain(f"a number of {width} bytes")
        self.number(width, signed=True)

    def real(self) -> None:
        self.memory += _NUMBER + _REFERENCE
        self._stack.append(_FLOAT.unpack(self._take(_FLOAT.size))[0])

    def text(self, width: int) -> None:
        self._add(self._take(self._size(width)).decode("utf-8", "surrogatepass"))

    def raw(self, width: int) -> None:
        self._add(self._take(self._size(width)))

    def put(self, width: int) -> None:
        self.memory += _ENTRY
        self._memo[self._size(width)] = self._stack[-1]

    def memoize(self) -> None:
        self.memory += _ENTRY
        self._memo[len(self._memo)] = self._stack[-1]

    def get(self, width: int) -> None:
        self.memory += _REFERENCE
        self._stack.append(self._memo[self._size(width)])

    def join(self, count: int) -> None:
        if len(self._stack) < count:
            raise IndexError
        self.memory += _CONTAINER + count * _REFERENCE
        self._stack[-count:] = [tuple(self._stack[-count:])]

    def join_marked(self) -> None:
        items = self._since_mark()
        self.memory += _CONTAINER + len(items) * _REFERENCE
        self._stack.append(tuple(items))

    def append(self) -> None:
        item = self._stack.pop()
        target = self._list()
        self.memory -= sys.getsizeof(target)
        target.append(item)
        self.memory += sys.getsizeof(target)

    def extend(self) -> None:
        items = self._since_mark()
        target = self._list()
        self.memory -= sys.getsizeof(target)
        target.extend(items)
        self.memory += sys.getsizeof(target)

    def set_one(self) -> None:
        value, key = self._stack.pop(), self._stack.pop()
        self._set([key, value])

    def set_many(self) -> None:
        self._set(self._since_mark())

    def _add(self, value: str | bytes) -> None:
        self.memory += sys.getsizeof(value) + _REFERENCE
        self._stack.append(value)

    def _take(self, width: int) -> bytes:
        taken = self._data[self.at : self.at + width]
        if len(taken) < width:
            raise NotPlain(f"{width} bytes are announced, but only {len(taken)} follow")
        self.at += width
        return taken

    def _size(self, width: int) -> int:
        return int.from_bytes(self._take(width), "little")

    def _since_mark(self) -> list[Any]:
        for index in range(len(self._stack) - 1, -1, -1):
            if self._stack[index] is _MARK:
                items = self._stack[index + 1 :]
                del self._stack[index:]
                return items
        raise IndexError

    def _set(self, items: list[Any]) -> None:
        target = self._stack[-1]
        if type(target) is not dict or len(items) % 2:
            raise TypeError
        self.memory -= sys.getsizeof(target)
        for key, value in zip(items[::2], items[1::2], strict=True):
            # Hashing a key of containers would recurse without bound.
            if not isinstance(key, (str, int, float, bytes)) and key is not None:
                raise TypeError
            if isinstance(key, int) and abs(key) >= _MAX_KEY:
                raise NotPlain("a key is a number of more than 60 bits")
            target[key] = value
        self.memory += sys.getsizeof(target)

    def _list(self) -> list[Any]:
        target = self._stack[-1]
        if type(target) is not list:
            raise TypeError
        return target


# Protocols 2 to 5; pickletools has their names.
_ACTIONS: Final = MappingProxyType[int, Callable[[_Machine], None]](
    {
        ord("("): partial(_Machine.push, value=_MARK),
        ord("N"): partial(_Machine.push, value=None),
        0x88: partial(_Machine.push, value=True),
        0x89: partial(_Machine.push, value=False),
        ord("}"): partial(_Machine.empty, kind=dict),
        ord("]"): partial(_Machine.empty, kind=list),
        ord(")"): partial(_Machine.empty, kind=tuple),
        0x80: partial(_Machine.skip, width=1),
        0x95: partial(_Machine.skip, width=8),
        ord("K"): partial(_Machine.number, width=1),
        ord("M"): partial(_Machine.number, width=2),
        ord("J"): partial(_Machine.number, width=4, signed=True),
        0x8A: _Machine.long,
        ord("G"): _Machine.real,
        0x8C: partial(_Machine.text, width=1),
        ord("X"): partial(_Machine.text, width=4),
        0x8D: partial(_Machine.text, width=8),
        ord("C"): partial(_Machine.raw, width=1),
        ord("B"): partial(_Machine.raw, width=4),
        0x8E: partial(_Machine.raw, width=8),
        ord("q"): partial(_Machine.put, width=1),
        ord("r"): partial(_Machine.put, width=4),
        0x94: _Machine.memoize,
        ord("h"): partial(_Machine.get, width=1),
        ord("j"): partial(_Machine.get, width=4),
        0x85: partial(_Machine.join, count=1),
        0x86: partial(_Machine.join, count=2),
        0x87: partial(_Machine.join, count=3),
        ord("t"): _Machine.join_marked,
        ord("a"): _Machine.append,
        ord("e"): _Machine.extend,
        ord("s"): _Machine.set_one,
        ord("u"): _Machine.set_many,
    }
)
