from __future__ import annotations

import unicodedata

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rankfall.render.escape import clean, clean_line, one_line, shorten

ALLOWED = {"\n", "\t"}


def dangerous(char: str) -> bool:
    return unicodedata.category(char) in {"Cc", "Cf", "Cs", "Zl", "Zp"} and char not in {"\n", "\t", "\u200c", "\u200d"}


@given(st.text() | st.binary())
@example("\x1b]0;title\x07")
@example("\x1b[31")
@example("\x9b31m")
@example(b"\xff\x1b[2J")
@example("\u202egnirts")
@example("\ud800")
def test_clean_holds_no_control_bytes_but_newline_and_tab(text: str | bytes) -> None:
    out = clean(text)
    assert not [char for char in out if dangerous(char)]
    assert not [byte for byte in out.encode() if byte < 0x20 and chr(byte) not in ALLOWED]
    assert "\x7f" not in out
    assert not [char for char in out if 0x80 <= ord(char) <= 0x9F]


@given(st.text() | st.binary())
def test_one_line_and_clean_line_hold_no_line_break(text: str | bytes) -> None:
    for out in (clean_line(text), one_line(text, width=80)):
        assert "\n" not in out
        assert not [char for char in out if dangerous(char)]


@given(st.text(alphabet=st.characters(categories=("L", "N", "P", "S", "Zs")), max_size=200))
def test_harmless_text_stays_as_it_is(text: str) -> None:
    # Fillers that look like nothing are the one exception among letters.
    if not set(text) & set("\u115f\u1160\u3164\uffa0"):
        assert clean(text) == text


@pytest.mark.parametrize(
    ("hostile", "shown"),
    [
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x1b[2K\x1b[1A50%", "50%"),
        ("\x1b]0;owned\x07", "\\x1b]0;owned\\x07"),
        ("\x1b]8;;http://x\x1b\\link", "\\x1b]8;;http://x\\x1b\\link"),
        ("\x1bP1$r\x1b\\", "\\x1bP1$r\\x1b\\"),
        ("a\x07b\x08c\x00d", "a\\x07b\\x08c\\x00d"),
        ("\u202eevil\u2066", "\\u202eevil\\u2066"),
        ("a\u2028b", "a\\u2028b"),
        ("zero\u200bwidth\ufeff", "zero\\u200bwidth\\ufeff"),
        ("tag\U000e0041", "tag\\U000e0041"),
        (b"caf\xc3\xa9 \xff", "caf\u00e9 \\xff"),
        ("👩\u200d🔬", "👩\u200d🔬"),
    ],
)
def test_hostile_text_becomes_visible(hostile: str | bytes, shown: str) -> None:
    assert clean(hostile) == shown


def test_long_lines_are_cut_and_counted() -> None:
    assert clean("x" * 50, max_line=10) == "xxxxxxxxxx… [40 more characters]"


def test_long_text_is_cut_and_said() -> None:
    out = clean("line\n" * 100, max_text=20)
    assert out.startswith("line\nline\n")
    assert out.endswith("… [more than 20 characters; the rest is hidden]")


def test_large_bytes_are_cut_before_they_are_decoded() -> None:
    assert len(clean(b"a" * 10_000_000, max_text=100, max_line=100)) < 300


def test_a_progress_bar_shows_its_last_state_and_that_something_was_there() -> None:
    assert clean_line(b"10%\r50%\r100%\r\n") == "… 100%"
    assert clean_line(b"plain\r\n") == "plain"


def test_shorten_marks_the_cut() -> None:
    assert shorten("abcdef", 4) == "abc…"
    assert shorten("abc", 3) == "abc"
