"""Mutated kernel lines, and what each of them is by a second reader that shares nothing with the first.

The oracle walks the drivers' grammar by hand, one byte after the other, and tries the signatures of other kernel lines one by one with Python's own
engine, anchored, without the automaton of words. A code of the product that is not the oracle's is a wrong code: a number that the line does not
hold at its place, a word (fatal, an action) that it does not say, a signature that does not match from the line's first byte, or one that was missed.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from functools import cache
from typing import NamedTuple

from nodes.lines import HARMLESS, LINES
from rankfall.nodes.rules.kernel_lines import MAX_LINE, Recogniser
from rankfall.verdict.signatures.catalogue import FAMILIES, default_catalogue, parse, source
from rankfall.verdict.signatures.matcher import _ECHO

HEX = b"0123456789abcdefABCDEF"
DIGITS = b"0123456789"
# As RE2 has it: without the vertical tab.
SPACE = b" \t\n\r\f"
UPPER = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ"
ACTIONS = ("none", "gpu_reset", "node_reboot", "drain_p2p", "drain_and_reset", "recover_imex")


class _No(Exception):
    pass


class _Walk:
    """A place in a line."""

    def __init__(self, line: bytes, at: int = 0) -> None:
        self.line, self.at = line, at

    def word(self, *words: bytes) -> bytes:
        for each in words:
            if self.line.startswith(each, self.at):
                self.at += len(each)
                return each
        raise _No

    def maybe(self, word: bytes) -> bool:
        found = self.line.startswith(word, self.at)
        self.at += len(word) if found else 0
        return found

    def many(self, allowed: bytes, least: int, most: int) -> bytes:
        begin = self.at
        while self.at < len(self.line) and self.at - begin < most and self.line[self.at] in allowed:
            self.at += 1
        if self.at - begin < least:
            raise _No
        return self.line[begin : self.at]

    @property
    def ended(self) -> bool:
        return self.at == len(self.line)

    def device(self) -> None:
        self.maybe(b"PCI:")
        self.many(HEX, 4, 8)
        self.word(b":")
        self.many(HEX, 2, 2)
        self.word(b":")
        self.many(HEX, 2, 2)
        if self.line[self.at : self.at + 1] == b"." and self.line[self.at + 1 : self.at + 2] in {bytes((each,)) for each in HEX}:  # fmt: skip
            self.at += 2


def oracle(text: bytes) -> str | None:
    """The code of a line, for a reader that saw nothing before; None = nothing that concerns the node."""
    line = text[:MAX_LINE].split(b"\n", 1)[0]
    if line.startswith((b"NVRM: Xid", b"NVRM: xid")):
        return _read(_xid, line) or "xid/unreadable"
    return _read(_sxid, line) or _read(_lost, line) or _kernel(line)


def _read(reader: Callable[[_Walk], str], line: bytes) -> str | None:
    try:
        return reader(_Walk(line))
    except _No:
        return None


def _xid(walk: _Walk) -> str:
    walk.word(b"NVRM: Xid (", b"NVRM: xid (")
    walk.device()
    for _ in range(2):
        place = walk.at
        try:
            walk.word(b" GPU-I:", b" GPU-CI:")
            walk.many(DIGITS, 1, 3)
        except _No:
            walk.at = place
            break
    walk.word(b"): ")
    number = int(walk.many(DIGITS, 1, 5))
    if not walk.ended:
        walk.word(b",")
    rest = walk.line[walk.at :]
    word = None
    if number == 154:
        word = _recovery(rest)
    elif 144 <= number <= 150:
        word = _read(_nvlink, rest)
    return f"xid/{number}" + (f"/{word}" if word else "")


def _recovery(rest: bytes) -> str | None:
    literal = b"recovery action changed from 0x"
    place = rest.find(literal)
    while place >= 0:
        walk = _Walk(rest, place + len(literal))
        try:
            walk.many(HEX, 1, 8)
            walk.word(b" (")
            walk.at = rest.index(b")", walk.at, walk.at + 65)
            walk.word(b") to 0x")
            value = int(walk.many(HEX, 1, 8), 16)
            walk.word(b" ")
            return ACTIONS[value] if value < len(ACTIONS) else "other"
        except (_No, ValueError):
            place = rest.find(literal, place + 1)
    return None


def _nvlink(walk: _Walk) -> str:
    walk.many(SPACE, 0, MAX_LINE)
    walk.many(UPPER, 1, 1)
    walk.many(UPPER + DIGITS + b"_", 1, 40)
    walk.many(SPACE, 1, MAX_LINE)
    word = walk.word(*(a + b for a in (b"", b"Non", b"non", b"Non-", b"non-") for b in (b"Fatal", b"fatal")))
    walk.many(SPACE, 1, MAX_LINE)
    walk.word(b"XC")
    walk.many(DIGITS, 1, MAX_LINE)
    walk.word(b" i")
    walk.many(DIGITS, 1, MAX_LINE)
    walk.word(b" Link ")
    walk.many(DIGITS, 1, 3)
    return "fatal" if word.lower() == b"fatal" else "nonfatal"


def _sxid(walk: _Walk) -> str:
    walk.word(b"nvidia-nvswitch")
    walk.many(DIGITS, 1, 3)
    walk.word(b": SXid (")
    walk.device()
    walk.word(b"): ")
    number = int(walk.many(DIGITS, 1, 6))
    walk.word(b",")
    walk.many(SPACE, 0, MAX_LINE)
    rest = walk.line[walk.at :]
    if rest.startswith(b"Data {") or (rest.startswith(b"Severity ") and rest[9:10] in {bytes((each,)) for each in DIGITS}):  # fmt: skip
        raise _No
    for word, told in ((b"Fatal", "fatal"), (b"fatal", "fatal"), *((a + b, "nonfatal") for a in (b"Non-", b"non-") for b in (b"Fatal", b"fatal"))):  # fmt: skip
        after = rest[len(word) : len(word) + 1]
        if rest.startswith(word) and not (after.isalnum() or after == b"_"):
            return f"sxid/{number}/{told}"
    return f"sxid/{number}"


def _lost(walk: _Walk) -> str:
    tail = b"fallen off the bus and is not responding to commands."
    if walk.line.startswith((tail, b"NVRM: " + tail)):
        return "xid/79"
    if walk.maybe(b"NVRM: The NVIDIA GPU "):
        walk.device()
        walk.word(b"\\x0a")
        if 0 <= walk.line.find(tail, walk.at) <= walk.at + 200:
            return "xid/79"
        raise _No
    walk.word(b"NVRM: GPU ")
    walk.maybe(b"at ")
    walk.device()
    walk.word(b": GPU has fallen off the bus.")
    return "xid/79"


class _Sign(NamedTuple):
    rank: tuple[int, int, str]
    id: str
    pattern: re.Pattern[bytes]
    unless: re.Pattern[bytes] | None


@cache
def _signs() -> tuple[_Sign, ...]:
    order = {"primary": 0, "secondary": 1, "context": 2}
    return tuple(
        _Sign(
            (-each.specificity, order[each.role], each.id),
            each.id,
            re.compile(each.pattern.encode()),
            None if each.unless is None else re.compile(each.unless.encode()),
        )
        for each in default_catalogue().signatures
        if "kernel" in each.where and "line" not in each.where
    )


@cache
def _any() -> re.Pattern[bytes]:
    """Matches where any of them does: most lines need no second look."""
    return re.compile(b"|".join(b"(?:%s)" % re.sub(rb"\?P<\w+>", b"", each.pattern.pattern) for each in _signs()))


@cache
def _echo() -> re.Pattern[bytes]:
    return re.compile(_ECHO.encode())


def _kernel(line: bytes) -> str | None:
    if _any().match(line) is None:
        return None
    found = [each for each in _signs() if each.pattern.match(line) and not (each.unless and each.unless.search(line))]
    if not found or _echo().search(line):
        return None
    return f"kernel/{min(found).id}"


@cache
def examples() -> tuple[bytes, ...]:
    """Every example line of the catalogue, and of the drivers' forms."""
    lines = [each[0].encode() for each in LINES] + [each.encode() for each in HARMLESS]
    for family in FAMILIES:
        for sign in parse(source(family), origin=family):
            if "kernel" in sign.where:
                lines += [each.text.encode() for each in (*sign.example, *sign.miss)]
    return tuple(dict.fromkeys(lines))


_PIECES = (
    b"NVRM: Xid (PCI:0000:4e:00): 79, ", b"NVRM: ", b"Xid", b"SXid", b"): ", b" GPU-I:05", b" GPU-CI:00", b"PCI:", b"0000:01:00", b", pid=7, name=",
    b"'<unknown>'", b"Fatal", b"Non-fatal", b"Nonfatal", b" XC0 i0 Link 01", b"154, GPU recovery action changed from 0x0 (None) to 0x4 (Drain)",
    b"caused by previous Xid 94", b"GPU has fallen off the bus.", b"\\x0a", b"\n", b"\x00", b"\xff\xfe", b"\x1b[31m", b"\t", b"  ", b",", b":", b"(", b")",
    b"[Hardware Error]: ", b"EDAC MC0: ", b"mlx5_core 0000:3b:00.0: ", b"amdgpu 0000:68:00.0: ", b"nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 20034, ",
    b"Data {", b"Severity 1", b"<6>[ 1.000000] ", b"9" * 30, b"A" * 300,
)  # fmt: skip


def mutated(rng: random.Random) -> bytes:
    """A line of the examples, changed in one to four places; one in a hundred as it is."""
    lines = examples()
    line = bytearray(rng.choice(lines))
    if rng.random() < 0.01:
        return bytes(line)
    for _ in range(rng.randint(1, 4)):
        place = rng.randrange(len(line) + 1)
        # Two of three changes are where the grammar looks: near the beginning.
        if rng.random() < 0.66:
            place = min(place, rng.randrange(60))
        how = rng.randrange(9)
        if how == 0 and place < len(line):
            line[place] = rng.randrange(256)
        elif how == 1 and place < len(line):
            line[place] ^= 0x20
        elif how == 2:
            del line[place : place + rng.randint(1, 6)]
        elif how == 3:
            line[place:place] = rng.choice(_PIECES)
        elif how == 4:
            line[place : place + rng.randint(1, 12)] = rng.choice(_PIECES)
        elif how == 5:
            line[place:place] = bytes(rng.choices(DIGITS, k=rng.randint(1, 7)))
        elif how == 6 and place < len(line) and line[place] in DIGITS:
            line[place] = rng.choice(DIGITS)
        elif how == 7:
            other = rng.choice(lines)
            line[place:] = other[rng.randrange(len(other)) :]
        elif how == 8:
            line[place:place] = line[place : place + rng.randint(1, 40)]
    return bytes(line)


#: As many lines as an agent looks at together.
_CHUNK = 1_000


class Outcome(NamedTuple):
    """Of many lines: how many there were, how many had each kind of code (``none`` = no code), and the first wrong ones."""

    lines: int
    kinds: dict[str, int]
    wrong: list[str]


def run(seed: int, count: int) -> Outcome:
    """Read ``count`` mutated lines of one seed, each as the first line that a reader sees; an agent passes over those that one look calls not worth reading."""
    rng = random.Random(seed)
    reader = Recogniser()
    kinds: dict[str, int] = {}
    found: list[str] = []
    lines: list[bytes] = []
    worth: set[int] = set()
    for number in range(count):
        place = number % _CHUNK
        if place == 0:
            lines = [mutated(rng) for _ in range(min(_CHUNK, count - number))]
            worth = reader.worth(lines)
        line = lines[place]
        told = reader.fresh().read(line)
        code = None if told is None else told.code
        if code is not None and place not in worth and len(found) < 20:
            found.append(f"{line!r}: {code}, and it would not have been read")
        # A vertical tab is a space for Python's engine and none for RE2.
        expected = code if b"\x0b" in line else oracle(line)
        if code != expected and len(found) < 20:
            found.append(f"{line!r}: {code}, and it is {expected}")
        kind = "none" if code is None else code.partition("/")[0]
        kinds[kind] = kinds.get(kind, 0) + 1
    return Outcome(count, kinds, found)
