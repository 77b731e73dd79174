"""Dumps of the flight recorder, as pickles and as JSON, and files of stacks."""

from __future__ import annotations

import json
import pickle
import struct
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from support.hostile_inputs.error_files import DEEP
from support.hostile_inputs.shapes import Hostile, Kind
from support.hostile_inputs.texts import NINES

_CALL: dict[str, Any] = {
    "pg_name": "0",
    "process_group": ("0", "default_pg"),
    "collective_seq_id": 1,
    "profiling_name": "nccl:all_reduce",
    "input_sizes": [[1]],
    "state": "scheduled",
}


def _document(**more: object) -> dict[str, Any]:
    return {"version": "2.4", "entries": [_CALL], "pg_config": {}} | more


def _pickled(build: Callable[[int], object]) -> Callable[[int], Iterator[bytes]]:
    def make(size: int) -> Iterator[bytes]:
        yield pickle.dumps(build(size), protocol=4)

    return make


def _json(build: Callable[[int], object]) -> Callable[[int], Iterator[bytes]]:
    def make(size: int) -> Iterator[bytes]:
        yield json.dumps(build(size)).encode()

    return make


def _raw(build: Callable[[int], bytes]) -> Callable[[int], Iterator[bytes]]:
    def make(size: int) -> Iterator[bytes]:
        yield build(size)

    return make


def _shared_members(size: int) -> object:
    """Many groups that share one long list of members."""
    ranks = list(range(size // 8))
    return _document(pg_config={str(number): {"ranks": ranks} for number in range(size // 32)})


def _shared_members_text(size: int) -> object:
    """Many groups that share one long text of members."""
    ranks = str(list(range(size // 16)))
    return _document(pg_config={str(number): {"ranks": ranks} for number in range(size // 32)})


def _shared_calls(size: int) -> object:
    return _document(entries=[_CALL] * min(size // 3, 199_000))


def _shared_shapes(size: int) -> object:
    shape: Any = ["x" * 10_000]
    for _ in range(60):
        shape = [shape] * 100
    return _document(entries=[_CALL | {"input_sizes": shape, "collective_seq_id": n} for n in range(size // 64)])


def _many_calls(size: int) -> object:
    return _document(entries=[_CALL | {"collective_seq_id": n, "pg_name": str(n)} for n in range(size // 32)])


def _many_groups(size: int) -> object:
    calls = [_CALL | {"process_group": (f"group {n}", ""), "collective_seq_id": n} for n in range(size // 64)]
    return _document(entries=calls, pg_config={f"group {n}": {"ranks": [0, n]} for n in range(size // 64)})


def _cycle(_: int) -> object:
    shape: list[Any] = []
    shape.append(shape)
    document = _document(entries=[_CALL | {"input_sizes": shape}])
    document["self"] = document
    return document


# PROTO 2, an empty list, and in the memo.
_LIST = b"\x80\x02]q\x00"

# fmt: off
_PICKLES: tuple[tuple[str, str, Callable[[int], Iterable[bytes]]], ...] = (
    ("pickle-shared-members", "shared references that are copied", _pickled(_shared_members)),
    ("pickle-shared-members-text", "shared references that are read again", _pickled(_shared_members_text)),
    ("pickle-shared-calls", "one call shared many times", _pickled(_shared_calls)),
    ("pickle-shared-shapes", "a maze of references", _pickled(_shared_shapes)),
    ("pickle-many-calls", "many calls", _pickled(_many_calls)),
    ("pickle-many-groups", "many groups", _pickled(_many_groups)),
    ("pickle-cycle", "a list that holds itself", _pickled(_cycle)),
    ("pickle-memo-doubling", "a memo that doubles", _raw(lambda _: b"\x80\x02" + b"".join(b"]q" + bytes([n]) + (b"(h" + bytes([n - 1]) + b"h" + bytes([n - 1]) + b"e" if n else b"") for n in range(200)) + b".")),
    ("pickle-memo-index", "a memo index of 4 billion", _raw(lambda _: _LIST + b"r\xff\xff\xff\xff.")),
    ("pickle-memo-flood", "a memo entry a byte", _raw(lambda size: b"\x80\x04]" + b"\x94" * size + b".")),
    ("pickle-deep", "lists inside of lists", _raw(lambda size: b"\x80\x02" + b"]" * (size // 2) + b"a" * (size // 2 - 1) + b".")),
    ("pickle-deep-tuples", "tuples inside of tuples", _raw(lambda size: b"\x80\x02)" + b"\x85" * size + b".")),
    ("pickle-deep-entries", "depth in a field that is read", _raw(lambda size: b"\x80\x02}(X\x07\0\0\0entries]X\x09\0\0\0pg_config" + b")" + b"\x85" * size + b"u.")),
    ("pickle-marks", "a mark a byte", _raw(lambda size: b"\x80\x02" + b"(" * size + b".")),
    ("pickle-marks-popped", "searches for a mark", _raw(lambda size: b"\x80\x02(" + b"N" * (size // 3) + b"\x85" * (size // 3) + b"t" * (size // 3) + b".")),
    ("pickle-tuples-of-marks", "tuples since a mark", _raw(lambda size: b"\x80\x02" + b"(t" * (size // 2) + b".")),
    ("pickle-numbers", "a number a byte pair", _raw(lambda size: b"\x80\x02](" + b"K\x01" * (size // 2) + b"e.")),
    ("pickle-long-1", "a number of 255 bytes", _raw(lambda _: b"\x80\x02\x8a\xff" + b"\xff" * 255 + b".")),
    ("pickle-long-4", "a number of a million bytes", _raw(lambda size: b"\x80\x02\x8b" + struct.pack("<i", size) + b"\xff" * size + b".")),
    ("pickle-long-4-negative", "a number of a negative size", _raw(lambda _: b"\x80\x02\x8b" + struct.pack("<i", -7) + b".")),
    ("pickle-int-text", "a number as text", _raw(lambda size: b"I" + b"9" * size + b"\n.")),
    ("pickle-global", "a class", _raw(lambda _: b"cos\nsystem\n(S'exit 7'\ntR.")),
    ("pickle-reduce", "a call", _raw(lambda _: b"\x80\x04\x8c\x02os\x8c\x06system\x93\x8c\x06exit 7\x85R.")),
    ("pickle-build", "a state", _raw(lambda _: b"\x80\x02]}b.")),
    ("pickle-persistent", "a reference outside", _raw(lambda _: b"\x80\x02X\x01\0\0\0xQ.")),
    ("pickle-extension", "a class by its number", _raw(lambda _: b"\x80\x02\x82\x01.")),
    ("pickle-announced", "4 GiB that are not there", _raw(lambda _: b"\x80\x02X\xff\xff\xff\xffx.")),
    ("pickle-announced-8", "a text of 2^63 bytes", _raw(lambda _: b"\x80\x04\x8d" + b"\xff" * 8 + b"x.")),
    ("pickle-frame", "a frame of 2^63 bytes", _raw(lambda _: b"\x80\x04\x95" + b"\xff" * 7 + b"\x7f].")),
    ("pickle-cut", "a dump that is cut", _raw(lambda size: pickle.dumps(_many_calls(size), protocol=2)[:-100])),
    ("pickle-empty", "no byte", _raw(lambda _: b"")),
    ("pickle-number", "a number instead of a dump", _pickled(lambda _: 7)),
    ("pickle-entries-number", "calls of a wrong type", _pickled(lambda _: _document(entries=7))),
    ("pickle-entries-text", "calls of a wrong type", _pickled(lambda size: _document(entries="x" * size))),
    ("pickle-entries-mixed", "calls of wrong types", _pickled(lambda _: _document(entries=[_CALL, None, 7, "x", []]))),
    ("pickle-seq-digits", "int() of a call's number", _pickled(lambda _: _document(entries=[_CALL | {"collective_seq_id": NINES.decode()}]))),
    ("pickle-seq-infinity", "int() of an infinite number", _pickled(lambda _: _document(entries=[_CALL | {"collective_seq_id": float("inf")}]))),
    ("pickle-seq-nan", "int() of no number", _pickled(lambda _: _document(entries=[_CALL | {"collective_seq_id": float("nan")}]))),
    ("pickle-seq-negative", "calls with negative numbers", _pickled(lambda _: _document(entries=[_CALL | {"collective_seq_id": -(1 << 62)}]))),
    ("pickle-surrogates", "surrogates in names", _pickled(lambda _: _document(entries=[_CALL | {"profiling_name": "\ud800\udfff"}], pg_config={"\ud800": {"ranks": "[0, 1]"}}))),
    ("pickle-escapes", "escape codes in names", _pickled(lambda _: _document(entries=[_CALL | {"profiling_name": "\x1b[2J\n" * 100, "process_group": ("\x1b]0;x\x07", "y")}]))),
    ("pickle-ranks-nested", "members of a wrong type", _pickled(lambda _: _document(pg_config={"0": {"ranks": [[[1]]]}}))),
    ("pickle-ranks-huge", "members that no job has", _pickled(lambda _: _document(pg_config={"0": {"ranks": [1 << 100, -7]}}))),
    ("pickle-random", "random bytes", _raw(lambda size: bytes(n * n % 251 for n in range(size // 8)))),
)

_JSONS: tuple[tuple[str, str, Callable[[int], Iterable[bytes]]], ...] = (
    ("dump-json-deep", "JSON of great depth", _raw(lambda _: b'{"entries":' + b"[" * DEEP)),
    ("dump-json-deep-shape", "depth in a field that is read", _raw(lambda _: b'{"entries":[{"input_sizes":' + b"[" * 900 + b"]" * 900 + b"}]}")),
    ("dump-json-number", "a number of many digits", _raw(lambda size: b'{"entries":[{"seq_id":' + b"9" * size + b"}]}")),
    ("dump-json-digits", "int() of digits", _json(lambda _: _document(entries=[_CALL | {"collective_seq_id": NINES.decode()}]))),
    ("dump-json-ranks-text", "a long text of members", _json(lambda size: _document(pg_config={"0": {"ranks": "1," * (size // 2)}}))),
    ("dump-json-groups", "many groups of many members", _json(lambda size: _document(pg_config={str(n): {"ranks": list(range(300))} for n in range(size // 1500)}))),
    ("dump-json-nan", "what is no JSON", _raw(lambda _: b'{"entries":[{"seq_id":NaN}]}')),
    ("dump-json-list", "calls of a wrong type", _raw(lambda _: b'{"entries":{"a":{}},"pg_config":[]}')),
    ("dump-json-empty-calls", "many empty calls", _raw(lambda size: b'{"entries":[' + b"{}," * (size // 3) + b"{}]}")),
)

_STACKS: tuple[tuple[str, str, Callable[[int], Iterable[bytes]]], ...] = (
    ("stacks-json-deep", "JSON of great depth", _raw(lambda _: b"[" * DEEP)),
    ("stacks-json-line", "int() of a line", _raw(lambda _: b'[{"thread_id":1,"frames":[{"name":"f","filename":"x.py","line":"' + NINES + b'"}]}]')),
    ("stacks-json-infinity", "int() of an infinite line", _raw(lambda _: b'[{"thread_id":1,"frames":[{"name":"f","filename":"x.py","line":1e400}]}]')),
    ("stacks-json-frames", "many frames", _raw(lambda size: b'[{"thread_id":1,"thread_name":"MainThread","frames":[' + b'{"name":"f","filename":"x.py","line":1},' * (size // 40) + b'{"name":"g","filename":"x.py","line":1}]}]')),
    ("stacks-json-threads", "many threads", _raw(lambda size: b"[" + b'{"thread_id":1,"frames":[]},' * (size // 28) + b'{"thread_id":1,"frames":[]}]')),
    ("stacks-json-names", "names without an end", _json(lambda size: [{"thread_id": "\n" * 1000, "frames": [{"name": "(" * (size // 2), "filename": "\n)" * (size // 4), "line": 1}]}])),
    ("stacks-json-wrong", "fields of wrong types", _raw(lambda _: b'[{"thread_id":{},"frames":{"name":1}},7,null]')),
)
# fmt: on

_FILES: tuple[tuple[str, str, tuple[tuple[str, str, Callable[[int], Iterable[bytes]]], ...]], ...] = (
    ("nccl_trace_rank_0", "nccl_trace_rank_1", _PICKLES),
    ("nccl_trace_rank_0.json", "nccl_trace_rank_1.json", _JSONS),
    ("rank-0.json", "rank-1.json", _STACKS),
)

DUMPS: tuple[Hostile, ...] = tuple(
    Hostile(name=name, attacks=attacks, kind=Kind.DUMP, file=file, twin=twin, make=make)
    for file, twin, rows in _FILES
    for name, attacks, make in rows
)
