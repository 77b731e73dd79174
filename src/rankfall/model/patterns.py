r"""The one way to patterns that meet text of others: RE2, or ``re`` behind a bound on the length of the text.

``re`` backtracks, so its time can grow with the square of the text and worse. ``bounded`` makes a pattern of it that never sees more than
``limit`` characters of one text; the fast choice for single lines (0.2 us a call; RE2's wrapper for Python takes 1 to 2 us). ``linear`` makes a
pattern of RE2, for whole files: its time is linear in the text, and it knows no look-around and no back references.

Every pattern is registered: a test drives each of them with text made of its own parts (tests/model/test_patterns.py).
"""

from __future__ import annotations

import re
import weakref
from collections.abc import Callable, Iterator
from typing import Any, AnyStr, Final, Generic

#: Every pattern that there is, for the test.
REGISTERED: Final[weakref.WeakSet[Anchored[Any] | Linear[Any]]] = weakref.WeakSet()


class Anchored(Generic[AnyStr]):
    """A pattern of ``re`` for the beginning of a text, or all of it; it sees at most ``limit`` characters. ``anchored`` makes it.

    Args:
        pattern: its source.
        limit: the most characters of a text that it sees, from where it begins.
        flags: of ``re``.
    """

    __slots__ = ("__weakref__", "compiled", "limit", "pattern")

    def __init__(self, pattern: AnyStr, *, limit: int, flags: int) -> None:
        self.pattern: AnyStr = pattern
        self.limit = limit
        self.compiled: re.Pattern[AnyStr] = re.compile(pattern, flags)
        REGISTERED.add(self)

    def match(self, text: AnyStr, start: int = 0) -> re.Match[AnyStr] | None:
        """A match at ``start``; the text ends ``limit`` characters later."""
        return self.compiled.match(text, start, start + self.limit)

    def fullmatch(self, text: AnyStr) -> re.Match[AnyStr] | None:
        """A match of the whole text; None where it is longer than ``limit``."""
        return None if len(text) > self.limit else self.compiled.fullmatch(text)


class Bounded(Anchored[AnyStr]):
    """A pattern of ``re`` that sees at most ``limit`` characters of one text. ``bounded`` makes it."""

    __slots__ = ()

    def search(self, text: AnyStr, start: int = 0) -> re.Match[AnyStr] | None:
        """The first match at or after ``start``; the text ends ``limit`` characters later."""
        return self.compiled.search(text, start, start + self.limit)

    def finditer(self, text: AnyStr, start: int = 0) -> Iterator[re.Match[AnyStr]]:
        """All matches at or after ``start``; the text ends ``limit`` characters later."""
        return self.compiled.finditer(text, start, start + self.limit)

    def findall(self, text: AnyStr) -> list[Any]:
        """As ``re``'s; the text ends after ``limit`` characters."""
        return self.compiled.findall(text, 0, self.limit)

    def split(self, text: AnyStr) -> list[Any]:
        """As ``re``'s; what comes after ``limit`` characters is not split."""
        *parts, last = self.compiled.split(text[: self.limit])
        return [*parts, last + text[self.limit :]]

    def sub(
        self, replacement: AnyStr | Callable[[re.Match[AnyStr]], AnyStr], text: AnyStr, *, count: int = 0
    ) -> AnyStr:
        """The text with its matches replaced, all or the first ``count``; what comes after ``limit`` characters stays as it is."""
        if len(text) <= self.limit:
            return self.compiled.sub(replacement, text, count=count)
        return self.compiled.sub(replacement, text[: self.limit], count=count) + text[self.limit :]


class Linear(Generic[AnyStr]):
    """A pattern of RE2, compiled when it is used first. ``linear`` makes it.

    One call takes time linear in the text. Calls in a loop with a growing ``start`` do so for bytes alone: a ``str`` is encoded whole each time.

    Args:
        pattern: its source; flags stand in it, as ``(?im)``.
    """

    __slots__ = ("__weakref__", "_compiled", "pattern")

    def __init__(self, pattern: AnyStr) -> None:
        self.pattern: AnyStr = pattern
        self._compiled: Any = None
        REGISTERED.add(self)

    def match(self, text: AnyStr, start: int = 0) -> re.Match[AnyStr] | None:
        """A match at ``start``."""
        return self._made().match(_sound(text), start)  # type: ignore[no-any-return] # re2 has no types; its matches have the methods of re's

    def search(self, text: AnyStr, start: int = 0) -> re.Match[AnyStr] | None:
        """The first match at or after ``start``."""
        return self._made().search(_sound(text), start)  # type: ignore[no-any-return] # as above

    def fullmatch(self, text: AnyStr) -> re.Match[AnyStr] | None:
        """A match of the whole text."""
        return self._made().fullmatch(_sound(text))  # type: ignore[no-any-return] # as above

    def finditer(self, text: AnyStr, start: int = 0) -> Iterator[re.Match[AnyStr]]:
        """All matches at or after ``start``."""
        return self._made().finditer(_sound(text), start)  # type: ignore[no-any-return] # as above

    def _made(self) -> Any:
        if self._compiled is None:
            import re2  # noqa: PLC0415 - only where such a pattern is used: start-up stays cheap

            options = re2.Options()
            options.log_errors = False
            options.max_mem = 32 << 20
            if isinstance(self.pattern, bytes):
                options.encoding = re2.Options.Encoding.LATIN1
            self._compiled = re2.compile(self.pattern, options)
        return self._compiled


def _sound(text: Any) -> Any:
    """The text without surrogates, of the same length: RE2 takes what UTF-8 can hold."""
    if isinstance(text, str) and not text.isascii():
        return text.encode("utf-8", "replace").decode("utf-8")
    return text


def bounded(pattern: AnyStr, *, limit: int, flags: int = 0) -> Bounded[AnyStr]:
    """A pattern of ``re`` that sees at most ``limit`` characters of one text: longer text is cut there, ``fullmatch`` refuses it.

    Args:
        pattern: its source.
        limit: the most characters of a text, from where it begins to look.
        flags: of ``re``, as ``re.IGNORECASE``.
    """
    return Bounded(pattern, limit=limit, flags=flags)


def anchored(pattern: AnyStr, *, limit: int, flags: int = 0) -> Anchored[AnyStr]:
    """As :func:`bounded`, for a pattern that is tried at one place of a text only, which makes one cheap that would be slow to search with.

    Args:
        pattern: its source.
        limit: the most characters of a text, from where it begins.
        flags: of ``re``, as ``re.IGNORECASE``.
    """
    return Anchored(pattern, limit=limit, flags=flags)


def linear(pattern: AnyStr) -> Linear[AnyStr]:
    """A pattern of RE2, which takes time linear in the text; a test compiles it.

    Args:
        pattern: its source, in RE2's syntax; flags stand in it, as ``(?im)``.
    """
    return Linear(pattern)
