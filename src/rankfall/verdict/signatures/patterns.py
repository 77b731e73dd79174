"""Compiles patterns with google-re2, and finds words that a match must contain.

RE2 is linear-time, because bytes are hostile; ``never_nl`` limits matches to a line. No other module knows re2.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from itertools import product
from typing import Any, Final, NamedTuple

import re2

from rankfall.model import numbers
from rankfall.model.patterns import anchored, bounded

#: Bytes of the chunk automaton's cache; refilled when full.
SCAN_MEMORY = 96 << 20
#: Bytes of the line automaton.
SET_MEMORY = 32 << 20
_GROUP: Final = "(?P<"
_END: Final = bounded(rb"\$(?=[|)]|\Z)", limit=1 << 16)
_NAMED: Final = bounded(rb"\(\?P<\w{1,64}>", limit=1 << 16)
#: Maximum length of a pattern.
MAX_PATTERN = 2_000


class PatternError(ValueError):
    """RE2 refuses a pattern; the message gives the reason."""


@cache
def _options(*, memory: int, capture: bool) -> Any:
    options = re2.Options()
    options.encoding = re2.Options.Encoding.LATIN1
    options.never_nl = True
    options.log_errors = False
    options.never_capture = not capture
    options.max_mem = memory
    return options


def whole_line(pattern: str) -> bytes:
    """Returns RE2 bytes, with ``^`` and ``$`` as line ends."""
    return b"(?m:" + pattern.encode("utf-8") + b")"


def compile_one(pattern: str) -> Any:
    """Compiles one pattern with its named groups.

    Raises:
        PatternError: RE2 refuses it.
    """
    # Without groups RE2 needs no NFA, which costs a large pattern 0.1 ms and megabytes a search.
    return _compile(whole_line(pattern), memory=8 << 20, capture=_GROUP in pattern)


def compile_candidates(words: Iterable[bytes], patterns: Iterable[str]) -> Any:
    """Compiles one automaton of words and patterns, without groups."""
    parts = [re2.escape(each) for each in words]
    # RE2 captures named groups even with never_capture.
    # Lines are matched without the blanks at their end.
    parts += [_END.sub(rb"[ \\t\\r]*$", _NAMED.sub(b"(?:", whole_line(each))) for each in patterns]
    return _compile(b"|".join(parts), memory=SCAN_MEMORY, capture=False)


def compile_words(words: Iterable[bytes]) -> Any:
    """Compiles a set: ``Match(line)`` returns all words' indices."""
    return _compile_set(map(re2.escape, words))


def compile_set(patterns: Sequence[str]) -> Any:
    """Compiles a set: ``Match(line)`` returns the indices of all patterns found."""
    return _compile_set(map(whole_line, patterns))


def _compile_set(patterns: Iterable[bytes]) -> Any:
    compiled = re2.Set.SearchSet(_options(memory=SET_MEMORY, capture=False))
    for pattern in patterns:
        compiled.Add(pattern)
    compiled.Compile()
    return compiled


def find(compiled: Any, data: bytes, start: int) -> tuple[int, int] | None:
    """Returns begin and end of the first match, or None."""
    match = compiled.search(data, start)
    return None if match is None else match.span()


def _compile(pattern: bytes, *, memory: int, capture: bool) -> Any:
    try:
        return re2.compile(pattern, _options(memory=memory, capture=capture))
    except re2.error as error:
        reason = error.args[0] if error.args else "not RE2 syntax"
        raise PatternError(reason.decode("utf-8", "replace") if isinstance(reason, bytes) else str(reason)) from None


#: Shorter words match too many lines.
MIN_WORD: Final = 3
_MAX_EXACT: Final = 24

_NO_WIDTH: Final = frozenset("bBAz")
_CLASSES: Final = frozenset("dDwWsS")
_PLAIN: Final = {"t": "\t", "n": "\n", "r": "\r"}
# Characters of themselves, read at once: most of a pattern. The last may not be repeated.
_LITERAL: Final = anchored(r"[^\\.^$|()\[\]{}*+?]+(?![*+?{])", limit=1 << 16)


class _Info(NamedTuple):
    """Possible matches of a part of a pattern.

    ``exact``: all strings, if few. ``words``: each match contains one; empty = unknown.
    """

    exact: frozenset[str] | None
    words: frozenset[str]


_EMPTY: Final = _Info(frozenset({""}), frozenset())
_ANYTHING: Final = _Info(None, frozenset())


class _UnknownSyntaxError(Exception):
    pass


# Words of packaged patterns, by pattern.
_known_words: Final[dict[str, frozenset[str] | None]] = {}


def remember_words(words: Mapping[str, Iterable[str]]) -> None:
    """Keeps results of ``find_words``, so that they are not searched for again; no words = None."""
    _known_words.update((pattern, frozenset(found) or None) for pattern, found in words.items())


def required_words(pattern: str) -> frozenset[str] | None:
    """Returns words of which every match contains one, or None."""
    return _known_words[pattern] if pattern in _known_words else find_words(pattern)


def find_words(pattern: str) -> frozenset[str] | None:
    """Searches a pattern for the words of ``required_words``."""
    reader = _Reader(pattern)
    try:
        info = reader.alternation()
        if reader.at < len(pattern):
            return None
    except (_UnknownSyntaxError, IndexError, ValueError):
        return None
    return _words(info) or None


def _words(info: _Info) -> frozenset[str]:
    exact = info.exact or frozenset()
    best = exact if _worth(exact) >= _worth(info.words) else info.words
    return best if _worth(best) >= MIN_WORD else frozenset()


def _worth(words: frozenset[str]) -> int:
    return min(map(len, words), default=0)


class _Reader:
    def __init__(self, pattern: str) -> None:
        self.pattern = pattern
        self.at = 0

    def alternation(self) -> _Info:
        branches = [self.concatenation()]
        while self.peek() == "|":
            self.at += 1
            branches.append(self.concatenation())
        if len(branches) == 1:
            return branches[0]
        if all(each.exact is not None for each in branches):
            exact = frozenset[str]().union(*(each.exact or () for each in branches))
            if len(exact) <= _MAX_EXACT:
                return _Info(exact, frozenset())
        sets = [_words(each) for each in branches]
        return _Info(None, frozenset().union(*sets) if all(sets) else frozenset())

    def concatenation(self) -> _Info:
        run, best, broken = frozenset({""}), frozenset[str](), False
        while self.peek() not in ("|", ")", ""):
            if (plain := _LITERAL.match(self.pattern, self.at)) is not None:
                run, self.at = frozenset(each + plain[0] for each in run), plain.end()
                continue
            item = self.repeated()
            if item.exact is not None and len(item.exact) * len(run) <= _MAX_EXACT:
                run = frozenset(a + b for a, b in product(run, item.exact))
                continue
            best = max(best, run, _words(item), key=_worth)
            run, broken = item.exact if item.exact is not None else frozenset({""}), True
        return _Info(None, max(best, run, key=_worth)) if broken else _Info(run, frozenset())

    def repeated(self) -> _Info:
        item = self.single()
        mark = self.peek()
        if mark == "{":
            end = self.pattern.index("}", self.at)
            low, comma, high = self.pattern[self.at + 1 : end].partition(",")
            least = numbers.matched(low)
            most = numbers.whole(high) if high else None if comma else least
            self.at = end + 1
        elif mark and mark in "*+?":
            least, most = (1 if mark == "+" else 0), (1 if mark == "?" else None)
            self.at += 1
        else:
            return item
        if self.peek() == "?":
            self.at += 1
        if least == 0:
            few = most == 1 and item.exact is not None
            return _Info((item.exact or frozenset()) | {""}, frozenset()) if few else _ANYTHING
        return _Info(None, _words(item)) if (least, most) != (1, 1) else item

    def single(self) -> _Info:
        char = self.take()
        if char == "(":
            return self.group()
        if char == "[":
            return self.bracket()
        if char == ".":
            return _ANYTHING
        if char in "^$":
            return _EMPTY
        if char == "\\":
            escaped = self.take()
            if escaped in _NO_WIDTH:
                return _EMPTY
            if escaped in _CLASSES:
                return _ANYTHING
            if escaped.isalnum() and escaped not in _PLAIN:
                raise _UnknownSyntaxError
            return _Info(frozenset({_PLAIN.get(escaped, escaped)}), frozenset())
        if char in "*+?{":
            raise _UnknownSyntaxError
        return _Info(frozenset({char}), frozenset())

    def group(self) -> _Info:
        if self.peek() == "?":
            if self.pattern.startswith("?P<", self.at):
                self.at = self.pattern.index(">", self.at) + 1
            elif self.pattern.startswith("?:", self.at):
                self.at += 2
            else:
                raise _UnknownSyntaxError
        inner = self.alternation()
        if self.take() != ")":
            raise _UnknownSyntaxError
        return inner

    def bracket(self) -> _Info:
        """Reads a class; a small one is the set of its characters."""
        negated = self.peek() == "^"
        self.at += negated
        members: list[str] = []
        plain = not negated
        while (char := self.take()) != "]" or not members:
            if char == "\\":
                char = self.take()
                plain = plain and not char.isalnum()
            if not char.isascii():
                raise _UnknownSyntaxError
            if char == "[" or (char == "-" and members and self.peek() != "]"):
                plain = False
            members.append(char)
        return _Info(frozenset(members), frozenset()) if plain and len(members) <= _MAX_EXACT else _ANYTHING

    def peek(self) -> str:
        return self.pattern[self.at : self.at + 1]

    def take(self) -> str:
        char = self.pattern[self.at]
        self.at += 1
        return char
