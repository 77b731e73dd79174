"""Patterns for foreign text: RE2, or ``re`` with a bounded text length.

``re`` can need quadratic time or worse. ``bounded`` limits its text, for single lines (0.2 us a call; RE2's Python
wrapper needs 1 to 2 us). ``linear`` is RE2 for whole files: linear time, no lookaround or back references.

A test runs every pattern on its parts (tests/model/test_patterns.py).
"""

from __future__ import annotations

import re
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any, AnyStr, Final, Generic

#: All patterns, for the test.
REGISTERED: Final[weakref.WeakSet[_Pattern]] = weakref.WeakSet()


class _Pattern(ABC):
    """A source, and what ``_compile`` makes of it at the first use."""

    __slots__ = ("__weakref__", "compiled", "pattern")

    def __init__(self, pattern: Any) -> None:
        self.pattern: Any = pattern
        REGISTERED.add(self)

    def __getattr__(self, name: str) -> Any:
        # Runs only while the slot is empty, so that a match costs no check.
        if name != "compiled":
            raise AttributeError(name)
        self.compiled = self._compile()
        return self.compiled

    @abstractmethod
    def _compile(self) -> Any: ...


class Anchored(_Pattern, Generic[AnyStr]):
    """An ``re`` pattern for the beginning or all of a text. ``anchored`` makes it.

    Args:
        pattern: Source.
        limit: Most characters examined, from the start position.
        flags: Flags of ``re``.
    """

    __slots__ = ("flags", "limit")

    pattern: AnyStr
    compiled: re.Pattern[AnyStr]

    def __init__(self, pattern: AnyStr, *, limit: int, flags: int) -> None:
        super().__init__(pattern)
        self.limit = limit
        self.flags = flags

    def _compile(self) -> re.Pattern[AnyStr]:
        return re.compile(self.pattern, self.flags)

    def match(self, text: AnyStr, start: int = 0) -> re.Match[AnyStr] | None:
        """Matches at ``start``; the text ends ``limit`` characters later."""
        return self.compiled.match(text, start, start + self.limit)

    def fullmatch(self, text: AnyStr) -> re.Match[AnyStr] | None:
        """Matches the whole text; None if longer than ``limit``."""
        return None if len(text) > self.limit else self.compiled.fullmatch(text)


class Bounded(Anchored[AnyStr]):
    """An ``re`` pattern that examines at most ``limit`` characters. ``bounded`` makes it."""

    __slots__ = ()

    def search(self, text: AnyStr, start: int = 0) -> re.Match[AnyStr] | None:
        """Returns the first match from ``start`` within ``limit`` characters."""
        return self.compiled.search(text, start, start + self.limit)

    def finditer(self, text: AnyStr, start: int = 0) -> Iterator[re.Match[AnyStr]]:
        """Yields all matches from ``start`` within ``limit`` characters."""
        return self.compiled.finditer(text, start, start + self.limit)

    def findall(self, text: AnyStr) -> list[Any]:
        """Works as in ``re`` on the first ``limit`` characters."""
        return self.compiled.findall(text, 0, self.limit)

    def split(self, text: AnyStr) -> list[Any]:
        """Works as in ``re``; text after ``limit`` characters stays whole."""
        *parts, last = self.compiled.split(text[: self.limit])
        return [*parts, last + text[self.limit :]]

    def sub(
        self, replacement: AnyStr | Callable[[re.Match[AnyStr]], AnyStr], text: AnyStr, *, count: int = 0
    ) -> AnyStr:
        """Replaces all or ``count`` matches; text after ``limit`` characters stays unchanged."""
        if len(text) <= self.limit:
            return self.compiled.sub(replacement, text, count=count)
        return self.compiled.sub(replacement, text[: self.limit], count=count) + text[self.limit :]


class Linear(_Pattern, Generic[AnyStr]):
    """An RE2 pattern. ``linear`` makes it.

    A call takes linear time. Loops with a growing ``start`` do only for bytes: each call encodes a whole ``str``.

    Args:
        pattern: Source, with inline flags as ``(?im)``.
    """

    __slots__ = ()

    pattern: AnyStr

    def __init__(self, pattern: AnyStr) -> None:
        super().__init__(pattern)

    def match(self, text: AnyStr, start: int = 0) -> re.Match[AnyStr] | None:
        """Matches at ``start``."""
        return self.compiled.match(_sound(text), start)  # type: ignore[no-any-return] # re2 has no types; its matches have the methods of re's

    def search(self, text: AnyStr, start: int = 0) -> re.Match[AnyStr] | None:
        """Returns the first match from ``start``."""
        return self.compiled.search(_sound(text), start)  # type: ignore[no-any-return] # as above

    def fullmatch(self, text: AnyStr) -> re.Match[AnyStr] | None:
        """Matches the whole text."""
        return self.compiled.fullmatch(_sound(text))  # type: ignore[no-any-return] # as above

    def finditer(self, text: AnyStr, start: int = 0) -> Iterator[re.Match[AnyStr]]:
        """Yields all matches from ``start``."""
        return self.compiled.finditer(_sound(text), start)  # type: ignore[no-any-return] # as above

    def _compile(self) -> Any:
        import re2  # noqa: PLC0415

        options = re2.Options()
        options.log_errors = False
        options.max_mem = 32 << 20
        if isinstance(self.pattern, bytes):
            options.encoding = re2.Options.Encoding.LATIN1
        return re2.compile(self.pattern, options)


def _sound(text: Any) -> Any:
    """Replaces surrogates, same length: RE2 needs valid UTF-8."""
    if isinstance(text, str) and not text.isascii():
        return text.encode("utf-8", "replace").decode("utf-8")
    return text


def bounded(pattern: AnyStr, *, limit: int, flags: int = 0) -> Bounded[AnyStr]:
    """Makes an ``re`` pattern that examines ``limit`` characters; ``fullmatch`` refuses longer text.

    Args:
        pattern: Source.
        limit: Most characters examined, from the start position.
        flags: Flags of ``re``.
    """
    return Bounded(pattern, limit=limit, flags=flags)


def anchored(pattern: AnyStr, *, limit: int, flags: int = 0) -> Anchored[AnyStr]:
    """Makes an ``re`` pattern tried at one position only, cheap even if searching is slow.

    Args:
        pattern: Source.
        limit: Most characters examined, from the start position.
        flags: Flags of ``re``.
    """
    return Anchored(pattern, limit=limit, flags=flags)


def linear(pattern: AnyStr) -> Linear[AnyStr]:
    """Makes an RE2 pattern of linear time; a test compiles it.

    Args:
        pattern: Source in RE2 syntax, with inline flags as ``(?im)``.
    """
    return Linear(pattern)
