r"""The one place that knows google-re2: options, compiling, and what a pattern of a signature file may be.

Patterns run over bytes of hostile text, so they are RE2 (time linear in the text, no back-references, no look-around).
Newlines are taken out of every pattern (``never_nl``): a match never leaves its line, whatever a class like ``\s`` holds.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import re2

#: Memory of the automaton that looks through whole chunks. It is a cache: a full one is dropped and filled again.
SCAN_MEMORY = 96 << 20
#: Memory of the automaton that names the words of one line.
SET_MEMORY = 32 << 20
#: Longest pattern that a file may hold.
MAX_PATTERN = 2_000


class PatternError(ValueError):
    """RE2 refuses a pattern; the text says why."""


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
    r"""The pattern as RE2 bytes, with ``^`` and ``$`` meaning the ends of the line."""
    return b"(?m:" + pattern.encode("utf-8") + b")"


def compile_one(pattern: str) -> Any:
    """Compile one pattern with its groups.

    Raises:
        PatternError: RE2 refuses it.
    """
    return _compile(whole_line(pattern), memory=8 << 20, capture=True)


def compile_candidates(words: Sequence[str], patterns: Sequence[str]) -> Any:
    """Compile one automaton that matches where any of the words stands or any of the patterns matches."""
    parts = [re2.escape(each.encode("utf-8")) for each in words] + [whole_line(each) for each in patterns]
    return _compile(b"|".join(parts), memory=SCAN_MEMORY, capture=False)


def compile_words(words: Sequence[str]) -> Any:
    """Compile a set whose ``Match(line)`` gives the indices of all words that stand in the line."""
    compiled = re2.Set.SearchSet(_options(memory=SET_MEMORY, capture=False))
    for word in words:
        compiled.Add(re2.escape(word.encode("utf-8")))
    compiled.Compile()
    return compiled


def find(compiled: Any, data: bytes, start: int) -> tuple[int, int] | None:
    """Begin and end of the first match at or after ``start``; None = there is none."""
    match = compiled.search(data, start)
    return None if match is None else match.span()


def _compile(pattern: bytes, *, memory: int, capture: bool) -> Any:
    try:
        return re2.compile(pattern, _options(memory=memory, capture=capture))
    except re2.error as error:
        reason = error.args[0] if error.args else "not RE2 syntax"
        raise PatternError(reason.decode("utf-8", "replace") if isinstance(reason, bytes) else str(reason)) from None
