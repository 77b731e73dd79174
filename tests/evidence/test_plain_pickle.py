"""Plain data comes through as Python's own pickle wrote it; everything else is refused, and costs no more than its bytes."""

from __future__ import annotations

import collections
import contextlib
import datetime as dt
import pickle
import struct
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankfall.evidence.readers import plain_pickle
from rankfall.evidence.readers.plain_pickle import NotPlain, load

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 90), 1 << 90) | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: (
        st.lists(inner)
        | st.dictionaries(st.text() | st.integers(0, 9), inner)
        | st.tuples(inner)
        | st.tuples(inner, inner, inner, inner)
    ),
    max_leaves=30,
)


@given(PLAIN, st.sampled_from([3, 4, 5]))
def test_plain_data_of_any_protocol_is_read_as_python_reads_it(value, protocol):
    assert load(pickle.dumps(value, protocol=protocol)) == value


def test_shared_and_circular_references_stay_what_they_are():
    inner = [1]
    ring: list[object] = [inner, inner]
    ring.append(ring)
    found = load(pickle.dumps({"a": ring, "many": [[str(n)] for n in range(600)] * 2}))
    assert found["a"][0] is found["a"][1]
    assert found["a"][2] is found["a"]
    assert len(found["many"]) == 1200


@given(st.binary(max_size=400))
def test_any_bytes_are_read_or_refused(data):
    with contextlib.suppress(NotPlain):
        load(data)


@given(st.integers(0, 400), PLAIN)
def test_what_is_cut_is_refused(length, value):
    whole = pickle.dumps([value, "end"])
    if length < len(whole):
        with pytest.raises(NotPlain):
            load(whole[:length])


@pytest.mark.parametrize(
    "data",
    [
        pickle.dumps(print),
        pickle.dumps(dt.datetime(2026, 1, 1, tzinfo=dt.UTC)),
        pickle.dumps(collections.OrderedDict(a=1)),
        pickle.dumps({1, 2}),
        b"\x80\x02cos\nsystem\n(X\x04\x00\x00\x00echotR.",
        b"\x80\x04\x8c\x02os\x8c\x06system\x93\x8c\x04echo\x85R.",
        b"\x80\x02\x82\x01.",  # an extension
        b"\x80\x02X\x01\x00\x00\x00xQ.",  # a reference outside
        b"\x80\x02}]K\x01s.",  # a list as a key
        b"\x80\x02}K\x01a.",  # a dict appended to
        b"\x80\x02](K\x01K\x02u.",  # a list with keys
        b"\x80\x02}(K\x01u.",  # a key without value
        b"\x80\x02K\x01\x87.",  # three of one
        b"\x80\x02(.",
        b"\x80\x02e.",
        b"\x80\x02\x8a\x20" + b"\x01" * 32 + b".",  # an endless number
    ],
)
def test_everything_else_is_refused_and_nothing_runs(data, capfd):
    with pytest.raises(NotPlain):
        load(data)
    assert capfd.readouterr().out == ""


@pytest.mark.parametrize(
    "data",
    [
        b"\x80\x02Nr" + struct.pack("<I", (1 << 32) - 1) + b".",  # Python's own reader fills 64 GiB for this
        b"\x80\x04\x8e" + struct.pack("<Q", 1 << 40) + b"x.",
        b"\x80\x05\x95" + struct.pack("<Q", 1 << 60) + b"N.",
    ],
)
def test_errors_s15_a_few_bytes_never_take_much_memory(data):
    tracemalloc.start()
    with contextlib.suppress(NotPlain):
        load(data)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 << 20


def test_instructions_are_bounded(monkeypatch):
    monkeypatch.setattr(plain_pickle, "MAX_INSTRUCTIONS", 10)
    with pytest.raises(NotPlain, match="more than 10"):
        load(pickle.dumps(list(range(100))))
