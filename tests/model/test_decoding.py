"""Values out of JSON, in whatever thread: msgspec's own way ends the process where a type is decoded for the first time by several at once."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankfall.model import JobSpec, Record, decoding
from support.patience import scaled

# Types that nobody has decoded, each of them by six threads at once. With msgspec's own functions this dies of a segmentation fault.
AT_ONCE = """
import sys, threading, types
import msgspec
from rankfall.model import decoding

sys.setswitchinterval(1e-6)
FIELDS = "".join(f"    f{n}: 'int | None' = None\\n" for n in range(20))
wrong = []
for number in range(100):
    module = types.ModuleType(f"made{number}")
    sys.modules[module.__name__] = module
    module.__dict__["msgspec"] = msgspec
    exec(f"class Inner(msgspec.Struct):\\n{FIELDS}class Outer(msgspec.Struct):\\n    one: Inner\\n    many: 'list[Inner]'\\n{FIELDS}", module.__dict__)
    for kind in (module.Inner, module.Outer):
        kind.__module__ = module.__name__
    ready = threading.Barrier(6)

    def first(way):
        ready.wait()
        try:
            if way % 2:
                made = decoding.decode(b'{"one": {"f1": 2}, "many": [{}]}', module.Outer)
            else:
                made = decoding.convert({"one": {"f1": 2}, "many": [{}]}, module.Outer)
            assert made == module.Outer(module.Inner(f1=2), [module.Inner()])
        except Exception as error:
            wrong.append(repr(error))

    threads = [threading.Thread(target=first, args=(way,)) for way in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
assert not wrong, wrong[:3]
"""


def test_a_type_may_be_decoded_for_the_first_time_by_many_threads_at_once():
    done = subprocess.run((sys.executable, "-c", AT_ONCE), capture_output=True, timeout=scaled(100), check=False)
    assert done.returncode == 0, done.stderr.decode()


def test_a_decoder_is_made_once_for_each_type():
    assert decoding.decoder(Record) is decoding.decoder(Record)
    assert decoding.decoder(list[Record]) is decoding.decoder(list[Record])
    assert decoding.decoder(list[Record]) is not decoding.decoder(Record)


def test_what_is_of_another_kind_is_refused_and_anything_is_taken_where_none_is_named():
    assert decoding.decode('{"a": [1]}') == {"a": [1]}
    with pytest.raises(msgspec.ValidationError):
        decoding.decode(b'["1"]', list[int])
    assert decoding.convert(["1"], list[int], strict=False) == [1]
    with pytest.raises(msgspec.ValidationError):
        decoding.convert(["1"], list[int])


class Loose(msgspec.Struct):
    """Holds a value without a type somewhere below."""

    name: str = ""
    rest: dict[str, list[Any]] = {}


class Tree(msgspec.Struct):
    """A type of its own kind."""

    below: list[Tree] = []


DAMAGED = [
    b"",
    b"{",
    b'{"x":',
    b"nul",
    b"NaN",
    b"[1e999]",
    b"9" * 5_000,
    b"-" + b"9" * 5_000,
    b'{"x":' * 3_000,
    b"[" * 100_000,
    b"[" * 100_000 + b"]" * 100_000,
    b"[" * 201 + b"]" * 201,
    b'"\xff"',
    b'{"\xff":1}',
    b'"\\ud800"',
    '["\ud800"]',
    '{"a":' * 300 + "1" + "}" * 300,
    b"\x00" * 100,
    b"[]" * 2,
    b'{"rest":{"a":[' + b"[" * 400 + b"]" * 400 + b"]}}",
    b'{"below":[' * 2_000 + b"]}" * 2_000,
]


@pytest.mark.parametrize("kind", [Any, list[Any], int, float, dict[str, int]])
@pytest.mark.parametrize("data", DAMAGED, ids=range(len(DAMAGED)))
def test_i18_p2_all_damage_is_one_exception(data, kind):
    with pytest.raises(msgspec.DecodeError) as raised:
        decoding.decode(data, kind)
    assert len(str(raised.value)) < 400


# A Struct steps over fields that it does not know.
@pytest.mark.parametrize("kind", [Loose, Tree, Record, JobSpec])
@pytest.mark.parametrize("data", DAMAGED, ids=range(len(DAMAGED)))
def test_i18_p2_all_damage_of_a_struct_is_one_exception(data, kind):
    try:
        made = decoding.decode(data, kind)
    except msgspec.DecodeError:
        return
    assert repr(made)
    assert msgspec.json.encode(made)


def test_i18_p2_what_passes_can_be_compared_printed_and_written():
    deep = b"[" * decoding.MAX_DEPTH + b"]" * decoding.MAX_DEPTH
    for data, kind in ((deep, Any), (b'{"rest":{"a":' + deep[3:-3] + b"}}", Loose), (msgspec.Raw(deep), Any)):
        made = decoding.decode(data, kind)
        assert repr(made)
        assert made == decoding.decode(data, kind)
        assert msgspec.json.encode(made)


def test_i18_p2_plain_data_that_is_nested_too_deeply_is_refused():
    tree: Any = {}
    for _ in range(5_000):
        tree = {"below": [tree]}
    with pytest.raises(msgspec.ValidationError):
        decoding.convert(tree, Tree)
    with pytest.raises(msgspec.ValidationError):
        decoding.convert("9" * 5_000, int, strict=False)


def test_a_wide_document_is_no_deep_one():
    wide = b'{"rest":{"a":[' + b",".join([b'[{"x":"[[[{{{\\"[["}]'] * 5_000) + b"]}}"
    assert len(decoding.decode(wide, Loose).rest["a"]) == 5_000
    assert len(decoding.decode(wide.decode())["rest"]["a"]) == 5_000


PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text('[]{}"\\,: \n\x00é☃'),
    lambda below: st.lists(below, max_size=4) | st.dictionaries(st.text('[]{}"\\é'), below, max_size=4),
    max_leaves=40,
)


@given(PLAIN, st.integers(0, 40))
def test_the_depth_of_a_document_is_counted_without_recursion(value, more):
    def real(each):
        if isinstance(each, dict):
            each = list(each.values())
        return 1 + max((real(below) for below in each), default=0) if isinstance(each, list) else 0

    for _ in range(more):
        value = {"[": value, "]": "]"}
    assert decoding.depth(msgspec.json.encode(value)) == real(value)
    assert decoding.decode(msgspec.json.encode(value)) == value


@given(st.binary(max_size=200))
def test_i18_p2_no_bytes_raise_anything_else(data):
    for kind in (Any, Loose, Record):
        with contextlib.suppress(msgspec.DecodeError):
            decoding.decode(data, kind)
