"""Lines of a watch: however the body is cut into chunks, the same lines; never half a line, never more than the bound."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankfall.kube.watch.watcher import Lines, LineTooLong


@given(body=st.lists(st.sampled_from([b"\n", b"a", b'{"x": "\r"}', b"\xff\x00"])).map(b"".join), data=st.data())
def test_lines_do_not_depend_on_how_the_body_is_cut(body, data):
    lines, found, rest = Lines(), [], body
    while rest:
        size = data.draw(st.integers(1, len(rest)))
        found += lines.push(rest[:size])
        rest = rest[size:]
    *whole, half = body.split(b"\n")
    assert found == [line for line in whole if line]
    assert lines.held == len(half)


@given(size=st.integers(0, 40), chunk=st.integers(1, 50))
def test_a_line_is_refused_exactly_above_the_bound(size, chunk):
    body = b"x" * size + b"\n"
    lines = Lines(limit=20)

    def read() -> list[bytes]:
        return [line for at in range(0, len(body), chunk) for line in lines.push(body[at : at + chunk])]

    if size <= 20:
        assert read() == ([b"x" * size] if size else [])
    else:
        with pytest.raises(LineTooLong, match="more than 20 bytes"):
            read()
        assert lines.held == 0


def test_a_line_that_never_ends_is_refused_before_it_fills_the_memory():
    lines = Lines(limit=1000)
    for _ in range(15):
        assert lines.push(b"y" * 64) == []
    with pytest.raises(LineTooLong):
        lines.push(b"y" * 64)
