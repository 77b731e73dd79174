"""Patterns that meet text of others: each of them, driven with text made of its own parts, takes time linear in the text."""

from __future__ import annotations

import functools
import importlib
import pkgutil
import re
import statistics
import time
from collections.abc import Iterator
from itertools import pairwise
from re import _constants, _parser  # type: ignore[attr-defined]

import pytest

import rankfall
from rankfall.model import patterns
from rankfall.model.patterns import Anchored, Linear, anchored, bounded, linear

# A character that costs more steps of a backtracking matcher than this is slow; a step takes some nanoseconds, measured in the run.
SLOW_STEPS = 600
# What a call itself takes, on a busy machine.
NOISE_S = 5e-4
# Four times the text may take four times as long, a square sixteen times.
GROWTH = 9
# The first lengths find what grows by powers before it takes for ever.
LENGTHS = (16, 20, 24, 64, 512, 2_048, 8_192, 32_768)
GENERIC = (
    " ",
    "\n",
    "\t",
    "\r\n",
    "a",
    "0",
    "9 ",
    "/",
    "a/",
    ".",
    "a.",
    "[",
    "{",
    "(",
    '"',
    "'",
    "-",
    ":",
    "_",
    "\\",
    "\x1b[",
    "aA0_",
    "  File ",
    "= ",
)


def test_text_beyond_the_limit_is_not_seen():
    pattern = bounded(r"(a+)b$", limit=8)
    assert pattern.search("aaab").group(1) == "aaa"
    assert pattern.search("xxxxxaaab") is None
    assert pattern.search("xxxxxaaab", 1).span() == (5, 9)
    assert pattern.match("aaab").end() == 4
    assert pattern.match("xaaab", 1).start() == 1
    assert pattern.fullmatch("aaab")
    assert pattern.fullmatch("aaaaaaaab") is None
    digits = bounded(rb"\d", limit=4)
    assert [each.start() for each in digits.finditer(b"1a2b3")] == [0, 2]
    assert [each.start() for each in digits.finditer(b"1a2b3", 1)] == [2, 4]
    assert digits.sub(b"#", b"1a2b3") == b"#a#b3"
    assert digits.sub(lambda _: b"#", b"12") == b"##"
    assert digits.sub(b"#", b"1234567", count=2) == b"##34567"
    assert digits.findall(b"1a2b3") == [b"1", b"2"]
    assert digits.split(b"a1b2c3d4") == [b"a", b"b", b"c3d4"]
    whole = anchored("a+", limit=4)
    assert whole.match("xaaaaaa", 1).span() == (1, 5)
    assert whole.fullmatch("aaaaa") is None


def test_a_linear_pattern_takes_text_of_every_kind():
    pattern = linear(r"(?i)(\w+)-é")
    assert pattern.search("x \ud800 AB-é").group(1) == "AB"
    assert pattern.search("x \ud800 AB-É").start() == 4
    assert pattern.match("ab-é")
    assert pattern.fullmatch("ab-é ") is None
    assert [each.group(1) for each in pattern.finditer("a-é b-é")] == ["a", "b"]
    lines = linear(rb"(?m)^x(\d+)$")
    assert [each.group(1) for each in lines.finditer(b"x1\nx\xff\nx22")] == [b"1", b"22"]
    assert lines.search(b"x1\nx22", 1).span() == (3, 6)


def test_every_pattern_is_registered():
    mine = [anchored("a", limit=1), bounded("a", limit=1), linear("a")]
    assert all(each in patterns.REGISTERED for each in mine)


def parts(pattern: str | bytes, flags: int) -> Iterator[str]:
    """Text that the parts of a pattern take: each literal, a few characters of each class, and the parts one after the other."""
    source = pattern.decode("latin-1") if isinstance(pattern, bytes) else pattern
    whole: list[str] = []

    def walk(tree: object) -> Iterator[str]:
        for code, value in tree:  # type: ignore[attr-defined]
            if code is _constants.LITERAL:
                whole.append(chr(value))
                yield chr(value)
            elif code in {_constants.NOT_LITERAL, _constants.ANY}:
                whole.append("x")
                yield "x"
            elif code is _constants.IN:
                found = [each for each in map(one_of, value) if each]
                whole.extend(found[:1])
                yield from found
            elif code is _constants.BRANCH:
                for each in value[1]:
                    yield from walk(each)
            elif code in {_constants.MAX_REPEAT, _constants.MIN_REPEAT}:
                yield from walk(value[2])
            elif code is _constants.SUBPATTERN:
                yield from walk(value[3])
            elif code in {_constants.ASSERT, _constants.ASSERT_NOT}:
                yield from walk(value[1])

    yield from walk(_parser.parse(source.replace(r"\z", r"\Z"), flags))
    yield "".join(whole)
    for cut in range(1, len(whole), max(1, len(whole) // 8)):
        yield "".join(whole[:cut])


def one_of(part: tuple[object, object]) -> str:
    code, value = part
    if code is _constants.LITERAL:
        return chr(value)  # type: ignore[arg-type]
    if code is _constants.RANGE:
        return chr(value[0])  # type: ignore[index]
    return {_constants.CATEGORY_DIGIT: "7", _constants.CATEGORY_SPACE: " ", _constants.CATEGORY_WORD: "w"}.get(
        value, "x"
    )


def texts(pattern: Anchored | Linear) -> list[str]:
    flags = pattern.compiled.flags & ~32 if isinstance(pattern, Anchored) else 0
    own = list(dict.fromkeys(each for each in parts(pattern.pattern, flags) if each))
    heads = ["", max(own, key=len, default="")]
    return [(head, pump) for pump in dict.fromkeys([*own, *GENERIC]) for head in heads]  # type: ignore[misc]


@functools.cache
def step_s() -> float:
    """Seconds of this process for a step of a backtracking matcher; the median of nine."""
    pattern, text = re.compile("(?:x|y)*z"), "x" * LENGTHS[-1]
    spent = []
    for _ in range(9):
        began = time.process_time()
        pattern.match(text)
        spent.append(time.process_time() - began)
    return statistics.median(spent) / len(text)


def cost(pattern: Anchored | Linear, head: str, pump: str, length: int, *, again: bool = False) -> float:
    """Seconds of this process that the slowest way to use the pattern takes on such a text; the least of three.

    One is enough for a fast text, unless ``again``: what others are compared with must not be a busy moment.
    """
    text: str | bytes = (head + pump * (length // len(pump) + 1))[:length]
    if isinstance(pattern.pattern, bytes):
        text = text.encode("latin-1", "replace")
    best = float("inf")
    for _ in range(3):
        began = time.process_time()
        pattern.match(text)
        pattern.fullmatch(text)
        if not anchored_only(pattern):
            pattern.search(text)
            for _found in pattern.finditer(text):
                pass
        best = min(best, time.process_time() - began)
        if not again and best / length < SLOW_STEPS * step_s():
            break
    return best


def anchored_only(pattern: Anchored | Linear) -> bool:
    return not hasattr(pattern, "search")


def blows_up(pattern: Anchored | Linear, longest: int = LENGTHS[-1]) -> str | None:
    """The text of at most ``longest`` characters on which a pattern takes more than linear time and is slow, if there is one."""
    most = min(pattern.limit, longest) if isinstance(pattern, Anchored) else longest
    lengths = [*(each for each in LENGTHS if each < most), most]
    for head, pump in texts(pattern):
        before = None
        for shorter, length in pairwise([0, *lengths]):
            spent = cost(pattern, head, pump, length)
            if before is not None and steps(spent, length) > SLOW_STEPS:
                before = cost(pattern, head, pump, shorter, again=True)
            if more_than_linear(spent, before, length) and stays_so(pattern, head, pump, shorter, length):
                return f"{length} characters of {head!r} and {pump!r} take {spent * 1e3:.1f} ms"
            before = spent
    return None


def steps(spent: float, length: int) -> float:
    return spent / length / step_s() if spent > NOISE_S else 0.0


def more_than_linear(spent: float, before: float | None, length: int) -> bool:
    grew = before is not None and spent > GROWTH * max(before, 1e-4) and steps(spent, length) > SLOW_STEPS
    return steps(spent, length) > SLOW_STEPS * 4 or grew


def stays_so(pattern: Anchored | Linear, head: str, pump: str, shorter: int, length: int) -> bool:
    """Whether a text is slow each time; a slow moment of the machine is measured again beside a step of that moment."""
    for _ in range(3):
        step_s.cache_clear()
        before = cost(pattern, head, pump, shorter, again=True) if shorter else None
        if not more_than_linear(cost(pattern, head, pump, length), before, length):
            return False
    return True


def test_i18_p4_the_driver_finds_what_is_not_linear():
    assert blows_up(bounded(r"(?m)\n\s*User error\.\s*\Z", limit=60_000))
    assert blows_up(bounded(r"(a+)+b", limit=40))
    assert blows_up(bounded(rb"x*y", limit=30_000))
    assert blows_up(bounded(rb"x*y", limit=30_000), LENGTHS[-3])
    assert blows_up(bounded(rb"x*y", limit=300)) is None
    assert blows_up(anchored(rb"x*y", limit=30_000)) is None
    assert blows_up(anchored(rb"(x*)*y", limit=40))
    assert blows_up(linear(r"(?m)\n\s*User error\.\s*\z")) is None


def all_patterns() -> list[Anchored | Linear]:
    for module in pkgutil.walk_packages(rankfall.__path__, "rankfall."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    return sorted(patterns.REGISTERED, key=lambda each: str(each.pattern))


# The shorter text already shows whatever takes the square of its length.
@pytest.mark.parametrize("longest", [LENGTHS[-3], pytest.param(LENGTHS[-1], marks=pytest.mark.full)])
def test_i18_p4_every_pattern_takes_linear_time(longest):
    slow = {str(each.pattern): found for each in all_patterns() if (found := blows_up(each, longest))}
    assert not slow, "\n".join(f"{pattern}: {found}" for pattern, found in slow.items())


@pytest.mark.parametrize("source", ["(", r"(?=a)", r"(a)\1"])
def test_i18_p4_what_re2_does_not_know_is_refused(source):
    with pytest.raises(Exception, match=r"missing|invalid"):
        linear(source).search("a")
