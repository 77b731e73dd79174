"""Finds signatures: one automaton of words over chunks, then patterns on lines with a word.

Source code that a traceback echoes is never evidence.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import msgspec

from rankfall.model.patterns import bounded
from rankfall.verdict.signatures import patterns
from rankfall.verdict.signatures.patterns import required_words

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from rankfall.verdict.signatures.catalogue import Signature, Where

#: Lines of Slurm's programs, whose ``--label`` names no speaker.
SLURM: Final = bounded(r"\A(?: {0,5}\d{1,6}: )?(?:slurmstepd[\w.-]{0,253}|srun|salloc): ", limit=300)
#: Maximum bytes of a group.
MAX_GROUP: Final = 512

# A source line in a traceback: indented by two spaces, then a statement; or an import. "#003: " begins a row of HDF5's
# stack of errors, no comment.
_ECHO: Final = (
    r"""(?:^|[\]>:|] ?)[ \t]{2,}(?:raise |assert |return |if |elif |except\b|with |warnings\.warn\(|"""
    r"""(?:self\.)?(?:logger|logging|log|_logger|LOG)\.\w+\(|print\(|[fr]['"]|#(?:\D|$|\d+(?:[^\d:]|$))|"[^"]*"\)?$|File "[^"]*", line \d+(?:, in .*)?$)"""
    r"""|^(?:from [\w.]+ import |import [\w.]+(?: as \w+)?$)"""
)
# Maximum cached automata.
_MAX_FEWER: Final = 8
# Bytes in which words are found by their beginnings: an automaton of all takes as long to compile.
_FEW: Final = 64 << 10
_START: Final = 6
# Lines with the same words before one set searches their patterns; maximum sets and counts.
_OFTEN: Final = 32
_MAX_SETS: Final = 64
_MAX_COUNTS: Final = 4096
_ROLE_ORDER: Final = {"primary": 0, "secondary": 1, "context": 2}


class Hit(msgspec.Struct, frozen=True):
    """One signature found in one line.

    Attributes:
        signature: Its signature.
        start, end: Bytes of the match.
        line_start, line_end: Bytes of the line, without newline.
        groups: Named groups, decoded, each at most 512 bytes.
    """

    signature: Signature
    start: int
    end: int
    line_start: int
    line_end: int
    groups: dict[str, str]


class Words:
    """Required words of all signatures of a catalogue, which its matchers search for in a line."""

    def __init__(self, signatures: Iterable[Signature]) -> None:
        #: Number of each word.
        self.numbers: dict[str, int] = {}
        for signature in signatures:
            for word in required_words(signature.pattern) or ():
                self.numbers.setdefault(word, len(self.numbers))
        self._set: Any = None
        self._searched = 0

    def within(self, line: bytes) -> Iterable[int]:
        """Returns the numbers of all words that a line contains."""
        if self._set is None:
            self._searched += len(line)
            if self._searched <= _FEW:
                return self._begun(line)
            self._set = patterns.compile_words(word.encode() for word in self.numbers)
        return self._set.Match(line) or ()  # None without a word

    def _begun(self, line: bytes) -> set[int]:
        short, by_start = self._starts
        found = {number for number, word in short if word in line}
        for at in range(len(line) - _START + 1):
            for number, word in by_start.get(line[at : at + _START], ()):
                if line.startswith(word, at):
                    found.add(number)
        return found

    @cached_property
    def _starts(self) -> tuple[list[tuple[int, bytes]], dict[bytes, list[tuple[int, bytes]]]]:
        """Short words, and the others by their first bytes; a job without an error needs none."""
        short: list[tuple[int, bytes]] = []
        by_start: dict[bytes, list[tuple[int, bytes]]] = {}
        for word, number in self.numbers.items():
            text = word.encode()
            same = by_start.setdefault(text[:_START], []) if len(text) >= _START else short
            same.append((number, text))
        return short, by_start


class Matcher:
    """All signatures of one kind of text, compiled on first use.

    Their order is that of hits within a line. ``words``: those of a catalogue with all of these signatures.
    """

    def __init__(self, signatures: Sequence[Signature], words: Words) -> None:
        self.signatures = tuple(signatures)
        self.words = words
        self._ready = False
        self._candidates: Any = None
        # Signatures that require a word, by its number.
        self._owners: dict[int, tuple[int, ...]] = {}
        self._always: tuple[int, ...] = ()
        self._one: dict[str, Any] = {}
        self._all_words: tuple[bytes, ...] = ()
        self._patterns: list[str] = []
        self._fewer: dict[frozenset[bytes], Any] = {}
        self._counts: dict[tuple[int, ...], int] = {}
        self._sets: dict[tuple[int, ...], Any] = {}

    def scan(self, data: bytes) -> Iterator[Hit]:
        """Yields the hits of whole lines in order; the last newline may be absent."""
        for start, end in self.candidates(data):
            yield from self._line(data[start:end], start)

    def candidates(self, data: bytes) -> Iterator[tuple[int, int]]:
        """Yields begin and end of lines that may contain a hit."""
        position, size = 0, len(data)
        while position < size and (line := self.candidate(data, position)) is not None:
            yield line[:2]
            position = line[1] + 1

    def candidate(
        self, data: bytes, position: int, *, without: frozenset[bytes] = frozenset()
    ) -> tuple[int, int, bytes] | None:
        """Returns begin, end and word of the next possible line, or None.

        ``position`` begins a line; words in ``without`` are skipped.
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
        """Automaton of other words; the newest are cached."""
        if words not in self._fewer:
            if len(self._fewer) >= _MAX_FEWER:
                self._fewer.clear()
            self._fewer[words] = self._automaton([word for word in self._all_words if word not in words])
        return self._fewer[words]

    def _automaton(self, words: Sequence[bytes]) -> Any:
        return patterns.compile_candidates(words, self._patterns) if words or self._patterns else None

    def match_line(self, line: bytes) -> list[Hit]:
        """Returns the hits of one line."""
        self._ordered()
        return list(self._line(line.removesuffix(b"\n"), 0))

    def prepare(self) -> None:
        """Compiles what a scan needs, once."""
        self._ordered()
        if self._candidates is None:
            self._candidates = self._automaton(self._all_words)

    def _ordered(self) -> None:
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
        self._owners = {self.words.numbers[word]: tuple(each) for word, each in owners.items()}
        self._always = tuple(always)
        self._all_words = tuple(word.encode() for word in owners)
        self._patterns = [self.signatures[each].pattern for each in always]
        self._ready = True

    def _line(self, line: bytes, offset: int) -> Iterator[Hit]:
        # Terminals and Windows end lines with more than a newline.
        size, line = len(line), bytes(line).rstrip(b" \t\r")
        chosen = set(self._always)
        if self._owners:
            for word in self.words.within(line):
                chosen.update(self._owners.get(word, ()))
        echo: bool | None = None
        for index in self._likely(line, tuple(sorted(chosen))):
            signature = self.signatures[index]
            match = self._compiled(signature.pattern).search(line)
            if match is None or (signature.unless is not None and self._compiled(signature.unless).search(line)):
                continue
            if echo is None:
                echo = self._compiled(_ECHO).search(line) is not None
            if echo:
                return
            groups = {
                name.decode(): value[:MAX_GROUP].decode("utf-8", "replace")
                for name, value in match.groupdict().items()
                if value is not None
            }
            yield Hit(signature, offset + match.start(), offset + match.end(), offset, offset + size, groups)

    def _likely(self, line: bytes, chosen: tuple[int, ...]) -> Iterable[int]:
        """Returns those of the chosen signatures whose patterns match, or all if their words are rare."""
        compiled = self._sets.get(chosen)
        if compiled is None:
            count = self._counts[chosen] = self._counts.get(chosen, 0) + 1
            if len(self._counts) > _MAX_COUNTS:
                self._counts.clear()
            if count < _OFTEN or len(chosen) <= 1 or len(self._sets) >= _MAX_SETS:
                return chosen
            compiled = self._sets[chosen] = patterns.compile_set([self.signatures[each].pattern for each in chosen])
        return [chosen[each] for each in sorted(compiled.Match(line) or ())]

    def _compiled(self, pattern: str) -> Any:
        compiled = self._one.get(pattern)
        if compiled is None:
            compiled = self._one[pattern] = patterns.compile_one(pattern)
        return compiled


def best(hits: Iterable[Hit]) -> Hit | None:
    """Returns the best hit by specificity, role (primary first), ID; None without hits."""
    return min(hits, key=_weight, default=None)


def _weight(hit: Hit) -> tuple[int, int, str]:
    signature = hit.signature
    return -signature.specificity, _ROLE_ORDER[signature.role], signature.id


def kinds(where: Where | Iterable[Where]) -> frozenset[Where]:
    """Returns kinds as a set; ``line`` includes ``launcher``."""
    chosen: set[Where] = {where} if isinstance(where, str) else set(where)
    if "line" in chosen:
        chosen.add("launcher")
    return frozenset(chosen)
