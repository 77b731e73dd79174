"""JSON and numbers that a job may write to its wrapper."""

from __future__ import annotations

import contextlib
import json
import math
import statistics
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankfall_inside import untrusted
from rankfall_inside.delivery.console import Printed

DAMAGED = [
    "",
    "{",
    "[" * 4_096,
    '{"x":' * 100_000,
    "[" * 66 + "]" * 66,
    "9" * 5_000,
    '{"step":-' + "9" * 20 + "}",
    "[1e999]",
    "[NaN]",
    "[-Infinity]",
    "[1." + "0" * 50 + "]",
    b"\xff",
    b'"\xff"',
    b"\x00",
]


@pytest.mark.parametrize("data", DAMAGED, ids=range(len(DAMAGED)))
def test_i18_p2_all_damage_is_a_value_error(data):
    with pytest.raises(ValueError, match=r".+"):
        untrusted.loads(data)


PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**18), 10**18)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda below: st.lists(below) | st.dictionaries(st.text(), below),
    max_leaves=20,
)


@given(PLAIN)
def test_what_is_json_is_read(value):
    assert untrusted.loads(json.dumps(value)) == value
    assert untrusted.loads("[" * 40 + json.dumps(value) + "]" * 40)


@given(st.binary() | st.text())
def test_i18_p2_no_text_raises_anything_else(data):
    with contextlib.suppress(ValueError):
        untrusted.loads(data)
    number = untrusted.whole(data)
    assert number is None or 0 <= number < 10**19
    real = untrusted.real(data)
    assert real is None or math.isfinite(real)


def test_i18_p1_a_number_is_few_ascii_digits():
    assert untrusted.whole("0012") == untrusted.whole(b"12") == 12
    assert untrusted.whole("12", 1) is None
    assert untrusted.signed("-12") == untrusted.signed(b"-12") == -12
    assert untrusted.signed(b"3") == 3
    assert untrusted.signed("--1") is untrusted.signed("-") is untrusted.signed(None) is None
    for text in (None, "", "-1", "+1", " 1", "1_0", "\u0661", "²", "9" * 5_000):
        assert untrusted.whole(text) is None
    assert untrusted.real("1.5e3") == 1500.0
    assert untrusted.real(b"-2") == -2.0
    for text in (None, "", "nan", "inf", "1e999", ".", "1" * 41, "0x1"):
        assert untrusted.real(text) is None


@pytest.mark.parametrize("text", [b"\r", b"\r\r\nx", b"a\rb"])
def test_i18_p4_carriage_returns_are_counted_in_linear_time(text):
    def spent(size: int) -> float:
        data = text * (size // len(text)) + b"x"
        began = time.process_time()
        Printed().add(b"[rank 0] ", data)
        return time.process_time() - began

    # Of the square, 64 times the text would take 4096 times as long.
    assert spent(1 << 22) < 10 * 64 * statistics.median(spent(1 << 16) for _ in range(3))
