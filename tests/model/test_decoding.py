"""Values out of JSON, in whatever thread: msgspec's own way ends the process where a type is decoded for the first time by several at once."""

from __future__ import annotations

import subprocess
import sys

import msgspec
import pytest

from rankfall.model import Record, decoding

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
    done = subprocess.run((sys.executable, "-c", AT_ONCE), capture_output=True, timeout=100, check=False)
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
