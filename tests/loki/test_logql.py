"""Hostile names stay text: no name or text of a job changes what a query asks for."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankfall.loki import logql
from rankfall.model import UsageError

TEXTS = st.text(st.characters(exclude_categories=("Cs",)))
# A quoted text of Go: no bare quote, no newline, only escapes that we write.
GO_TEXT = re.compile(r'"(?:[^"\\\x00-\x1f\x7f]|\\["\\]|\\u00[0-9a-f]{2})*"')


def unquoted(text: str) -> str:
    return re.sub(
        r"\\(u[0-9a-f]{4}|.)", lambda one: chr(int(one[1][1:], 16)) if one[1][0] == "u" else one[1], text[1:-1]
    )


@given(TEXTS)
def test_any_text_is_one_quoted_text_and_reads_the_same(text):
    found = logql.quoted(text)
    assert GO_TEXT.fullmatch(found)
    assert unquoted(found) == text


@given(TEXTS)
def test_a_literal_matches_itself(text):
    assert re.fullmatch(logql.literal(text), text, re.DOTALL)


def test_a_selector_cannot_be_left():
    hostile = 'x"} |= "" or {a=~".*'
    assert logql.selector({"pod": hostile}) == r'{pod="x\"} |= \"\" or {a=~\".*"}'
    assert logql.selector({"namespace": "a"}, like={"pod": "b-.*"}) == '{namespace="a",pod=~"b-.*"}'
    assert logql.containing(["a", 'b"']) == r' |= "a" or "b\""'
    assert logql.containing([]) == ""
    assert logql.having("k8s_node_name", "n1") == ' | k8s_node_name="n1"'


@pytest.mark.parametrize("name", ["", "a.b", "1a", 'a="', "ä", "a b", "a\n"])
def test_a_name_that_no_label_has_is_refused(name):
    with pytest.raises(UsageError, match="not the name of a label"):
        logql.selector({name: "x"})


def test_what_loki_could_not_take_is_refused():
    with pytest.raises(UsageError, match="half a surrogate pair"):
        logql.quoted("\ud83d")
    with pytest.raises(UsageError, match="names no stream"):
        logql.selector({"pod": ""})
