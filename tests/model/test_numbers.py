"""Numbers out of text of others."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankfall.model import numbers

NO_NUMBERS = [
    None,
    "",
    "-",
    "+",
    "--1",
    "1_000",
    " 1",
    "1 ",
    "1\n",
    "\u0661\u0662",
    "\u00b2",
    "0x10",
    "1.5",
    "1" * 20,
    "9223372036854775808",
    "9" * 5_000,
    "-" + "9" * 5_000,
    "nan",
    "\ud800",
]


@pytest.mark.parametrize("text", NO_NUMBERS, ids=range(len(NO_NUMBERS)))
def test_i18_p1_what_is_no_whole_number_of_few_digits_is_none(text):
    assert numbers.whole(text) is None
    if text is not None and text.isascii():
        assert numbers.whole(text.encode()) is None
    assert numbers.clamped(text, least=0, most=10**6) is None


def test_the_digits_may_be_fewer():
    assert numbers.whole("1234", digits=4) == 1234
    assert numbers.whole("-1234", digits=4) == -1234
    assert numbers.whole("12345", digits=4) is None
    assert numbers.clamped(b"7", least=0, most=7) == 7
    assert numbers.clamped(b"8", least=0, most=7) is None


@given(st.integers(-numbers.MOST, numbers.MOST))
def test_every_number_of_64_bits_is_read(number):
    assert numbers.whole(str(number)) == number
    assert numbers.whole(str(number).encode()) == number


@given(st.text() | st.binary())
def test_i18_p1_no_text_raises(text):
    made = numbers.whole(text)
    assert made is None or abs(made) <= numbers.MOST
    number = numbers.real(text)
    assert number is None or math.isfinite(number)


@pytest.mark.parametrize(
    "text", [None, "", "nan", "inf", "-inf", "Infinity", "1e999", "1_0", "e", ".", "\u0661", " 1", "1" * 41, b"NaN"]
)
def test_i18_p1_what_is_no_finite_number_is_none(text):
    assert numbers.real(text) is None


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_every_finite_number_is_read(number):
    assert numbers.real(repr(number)) == number
    assert numbers.real(repr(number).encode()) == number


def test_what_a_pattern_has_matched_is_a_number_in_any_case():
    assert numbers.matched("0012") == 12
    assert numbers.matched(b"0012") == 12
    assert numbers.matched(None) == numbers.matched("") == numbers.matched("x") == 0
    assert numbers.matched("9" * 5_000) == numbers.MOST
    assert numbers.matched("12345", most=4) == 9999
    assert numbers.matched("18446744073709551615", most=20) == 2**64 - 1
    assert numbers.matched("1" * 21, most=20) == 10**20 - 1


def test_hexadecimal_digits_are_few_too():
    assert numbers.hexadecimal("0x1F") == numbers.hexadecimal(b"1f") == 31
    assert numbers.hexadecimal("f" * 16) == 2**64 - 1
    for text in (None, "", "0x", "f" * 17, "g", "-1", "1_0", "\u0661"):
        assert numbers.hexadecimal(text) is None
