"""Finds signatures in text: one automaton of words over chunks, exact patterns on the lines it finds.

Bytes are matched as they came, with colour codes and launcher prefixes: patterns are not anchored. Source
code that a traceback echoes is never evidence.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from rankfall.verdict.signatures import patterns
from rankfall.verdict.signatures.patterns import required_words

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from rankfall.verdict.signatures.catalogue import Signature, Where

#: Longest text of a group that is kept, in bytes; text from jobs has no bound of its own.
MAX_GROUP: Final = 512

# A line of source, as a traceback echoes it after any prefix: indented by at least two spaces, then the beginning of a
# statement; or an import.
_ECHO: Final = (
    r"""(?:^|[\]>:|] ?)[ \t]{2,}(?:raise |assert |return |if |elif |except\b|with |warnings\.warn\(|"""
    r"""(?:self\.)?(?:logger|logging|log|_logger|LOG)\.\w+\(|print\(|[fr]['"]|#|"[^"]*"\)?$|File "[^"]*", line \d+(?:, in .*)?$)"""
    r"""|^(?:from [\w.]+ import |import [\w.]+(?: as \w+)?$)"""
)
# Automata of all words but a few that are kept.
_MAX_FEWER: Final = 8
_ROLE_ORDER: Final = {"primary": 0, "secondary": 1, "context": 2}


class Hit(msgspec.Struct, frozen=True):
    """One signature found in one line.

    Attributes:
        signature: what was found.
        start, end: bytes of the match in the scanned data.
        line_start, line_end: bytes of the line, without its newline.
        groups: named groups that took part, decoded, each at most 512 bytes.
    """

    signature: Signature
    start: int
    end: int
    line_start: int
    line_end: int
    groups: dict[str, str]


class Matcher:
    """All signatures of one kind of text, compiled on first use.

    Three steps, each on far fewer bytes: words over the whole chunk, words of one line, exact patterns of those words.

    Args:
        signatures: those that are tried; their order is the order of hits within a line.
    """

    def __init__(self, signatures: Sequence[Signature]) -> None:
        self.signatures = tuple(signatures)
        self._ready = False
        self._candidates: Any = None
        self._words: Any = None
        self._echo: Any = None
        self._owners: list[tuple[int, ...]] = []
        self._always: tuple[int, ...] = ()
        self._one: dict[str, Any] = {}
        self._all_words: tuple[str, ...] = ()
        self._patterns: list[str] = []
        self._fewer: dict[frozenset[bytes], Any] = {}

    def scan(self, data: bytes) -> Iterator[Hit]:
        """Yield the hits of all lines in order; ``data`` consists of whole lines (the last newline may be absent)."""
        for start, end in self.candidates(data):
            yield from self._line(data[start:end], start)

    def candidates(self, data: bytes) -> Iterator[tuple[int, int]]:
        """Yield where the lines stand, begin and end, outside of which there is no hit."""
        position, size = 0, len(data)
        while position < size and (line := self.candidate(data, position)) is not None:
            yield line[:2]
            position = line[1] + 1

    def candidate(
        self, data: bytes, position: int, *, without: frozenset[bytes] = frozenset()
    ) -> tuple[int, int, bytes] | None:
        """The next line that may hold a hit: begin, end, and the word of a signature that stands in it. None = there is none.

        Args:
            data: whole lines.
            position: the beginning of a line.
            without: words that are not looked for.
        """
        self.prepare()
        compiled = self._without(without) if without else self._candidates
        span = None if compiled is None else patterns.find(compiled, data, position)
        if span is None:
            return None
        end = data.find(b"\n", span[0])
        begin = data.rfind(b"\n", position, span[0]) + 1 or position
        return begin, len(data) if end < 0 else end, data[span[0] : min(span[1], span[0] + MAX_GROUP)]

    def _without(self, words: frozenset[bytes]) -> Any:
        """The automaton of all other words; the newest few are kept."""
        if words not in self._fewer:
            if len(self._fewer) >= _MAX_FEWER:
                self._fewer.clear()
            left = [word for word in self._all_words if word.encode() not in words]
            self._fewer[words] = patterns.compile_candidates(left, self._patterns) if left or self._patterns else None
        return self._fewer[words]

    def match_line(self, line: bytes) -> list[Hit]:
        """The hits of one line, which holds no newline (one at its end is allowed)."""
        self.prepare()
        return list(self._line(line.removesuffix(b"\n"), 0))

    def prepare(self) -> None:
        """Compile; what is compiled already is kept."""
        if self._ready:
            return
        owners: dict[str, list[int]] = {}
        always = []
        for index, signature in enumerate(self.signatures):
            words = required_words(signature.pattern)
            if words is None:
                always.append(index)
            for word in words or ():
                owners.setdefault(word, []).append(index)
        self._owners = [tuple(each) for each in owners.values()]
        self._always = tuple(always)
        if owners:
            self._words = patterns.compile_words(list(owners))
        if self.signatures:
            self._all_words, self._patterns = tuple(owners), [self.signatures[each].pattern for each in always]
            self._candidates = patterns.compile_candidates(self._all_words, self._patterns)
        self._echo = patterns.compile_one(_ECHO)
        self._ready = True

    def _line(self, line: bytes, offset: int) -> Iterator[Hit]:
        chosen = set(self._always)
        if self._words is not None:
            for word in self._words.Match(line) or ():  # None when no word stands in the line
                chosen.update(self._owners[word])
        echo: bool | None = None
        for index in sorted(chosen):
            signature = self.signatures[index]
            match = self._compiled(signature.pattern).search(line)
            if match is None or (signature.unless is not None and self._compiled(signature.unless).search(line)):
                continue
            if echo is None:
                echo = self._echo.search(line) is not None
            if echo:
                return
            groups = {
                name.decode(): value[:MAX_GROUP].decode("utf-8", "replace")
                for name, value in match.groupdict().items()
                if value is not None
            }
            yield Hit(signature, offset + match.start(), offset + match.end(), offset, offset + len(line), groups)

    def _compiled(self, pattern: str) -> Any:
        compiled = self._one.get(pattern)
        if compiled is None:
            compiled = self._one[pattern] = patterns.compile_one(pattern)
        return compiled


def best(hits: Iterable[Hit]) -> Hit | None:
    """The hit that says most: highest specificity, then primary before secondary before context, then the id."""
    return min(hits, key=_weight, default=None)


def _weight(hit: Hit) -> tuple[int, int, str]:
    signature = hit.signature
    return -signature.specificity, _ROLE_ORDER[signature.role], signature.id


def kinds(where: Where | Iterable[Where]) -> frozenset[Where]:
    """The kinds of ``where`` as a set; a launcher's report is a line too, so ``line`` brings ``launcher`` along."""
    chosen: set[Where] = {where} if isinstance(where, str) else set(where)
    if "line" in chosen:
        chosen.add("launcher")
    return frozenset(chosen)
