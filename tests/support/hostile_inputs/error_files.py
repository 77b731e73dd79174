"""Error files and records: torchelastic's ``error.json``, Flyte's ``error.pb``, and JSON of every wrong shape."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from support.hostile_inputs.shapes import MIB, Hostile, Kind
from support.hostile_inputs.texts import FILE, HEAD, NINES

DEEP = 100_000


def _wrapped(begin: bytes, unit: bytes, end: bytes) -> Callable[[int], Iterator[bytes]]:
    """Begin, ``unit`` as often as needed, end: a whole document of at most ``size`` bytes."""

    def make(size: int) -> Iterator[bytes]:
        yield begin
        yield unit * max(1, (size - len(begin) - len(end)) // len(unit))
        yield end

    return make


def _as_it_is(data: bytes) -> Callable[[int], Iterator[bytes]]:
    def make(_: int) -> Iterator[bytes]:
        yield data

    return make


def varint(number: int) -> bytes:
    """A number as protocol buffers write it."""
    found = b""
    while number > 0x7F:
        found += bytes([number & 0x7F | 0x80])
        number >>= 7
    return found + bytes([number])


def field(number: int, data: bytes) -> bytes:
    """A text or a message as protocol buffers write it."""
    return varint(number << 3 | 2) + varint(len(data)) + data


def _flyte(message: Callable[[int], bytes], *, code: bytes = b"USER:ValueError") -> Callable[[int], Iterator[bytes]]:
    def make(size: int) -> Iterator[bytes]:
        yield field(1, field(1, code) + field(2, message(size - 64)))

    return make


def _nested(size: int) -> Iterator[bytes]:
    data = b"x"
    for _ in range(min(size // 8, 2000)):
        data = field(1, data)
    yield data


_MESSAGE = b'{"message": {"message": "'
_STACK = b'{"message": {"message": "ValueError: x", "extraInfo": {"timestamp": "1790000000", "py_callstack": "'
_LINE = HEAD.replace(b"\n", b"\\n")
_FRAME = FILE.replace(b'"', b'\\"').replace(b"\n", b"\\n")
_TIME = b'{"message": {"message": "ValueError: x", "extraInfo": {"timestamp": '

# name, what it attacks, its bytes; all are an ``error.json``, which a reader of records gets as well.
# fmt: off
_JSON: tuple[tuple[str, str, Callable[[int], Iterable[bytes]]], ...] = (
    ("json-deep-list", "a decoder that recurses", _wrapped(b"", b"[", b"")),
    ("json-deep-object", "a decoder that recurses", _wrapped(b"", b'{"x":', b"")),
    ("json-deep-record", "1 KB of depth", _as_it_is(b'{"x":' + b"[" * 1019)),
    ("json-deep-closed", "depth that is valid JSON", _as_it_is(b'{"message": ' + b"[" * 3000 + b"]" * 3000 + b"}")),
    ("json-deep-message", "depth in a field that is read", _wrapped(b'{"message": {"message": ', b'{"message":', b"")),
    ("json-number", "a number of a million digits", _wrapped(b'{"message": ', b"9", b"}")),
    ("json-number-float", "a number of many digits", _wrapped(b'{"message": "ValueError: x", "timestamp": 0.', b"9", b"e999}")),
    ("json-number-exponent", "a huge exponent", _as_it_is(b'{"message": "ValueError: x", "timestamp": 1e999999999999}')),
    ("json-nan", "what is no JSON", _as_it_is(b'{"message": NaN, "timestamp": Infinity}')),
    ("json-infinity", "what is no JSON", _as_it_is(b'{"message": "ValueError: x", "timestamp": -Infinity}')),
    ("json-time-digits", "int() of a time", _as_it_is(_TIME + b'"' + NINES + b'"}}}')),
    ("json-time-infinity", "int() of an infinite time", _as_it_is(_TIME + b'"inf"}}}')),
    ("json-time-exponent", "int() of a huge time", _as_it_is(_TIME + b'"1e999999"}}}')),
    ("json-time-underscores", "what only Python calls a number", _as_it_is(_TIME + b'"1_7_9_0"}}}')),
    ("json-time-list", "a time of a wrong type", _as_it_is(_TIME + b"[[1]]}}}")),
    ("json-surrogate", "half of a pair", _as_it_is(b'{"message": "ValueError: \\ud800 x", "timestamp": 1790000000}')),
    ("json-surrogate-stack", "half of a pair", _as_it_is(_STACK + _LINE + b'\\udcff\\nValueError: \\udfff"}}}')),
    ("json-bom", "a byte order mark", _as_it_is(b'\xef\xbb\xbf{"message": "ValueError: x"}')),
    ("json-utf16", "UTF-16", _as_it_is('{"message": "ValueError: x"}'.encode("utf-16"))),
    ("json-not-utf8", "bytes that no UTF-8 holds", _as_it_is(b'{"message": "ValueError: \xff\xfe x"}')),
    ("json-nul", "NUL bytes", _wrapped(b"", b"\0", b"")),
    ("json-keys", "one key again and again", _wrapped(b"{", b'"message": 1, ', b'"message": "ValueError: x"}')),
    ("json-many-keys", "many short values", _wrapped(b'{"message": [', b"{},", b"{}]}")),
    ("json-list", "a list", _as_it_is(b'["message"]')),
    ("json-text", "a text", _as_it_is(b'"message"')),
    ("json-null", "nothing", _as_it_is(b"null")),
    ("json-empty", "no byte", _as_it_is(b"")),
    ("json-blank", "blanks", _wrapped(b"", b" \n", b"")),
    ("json-cut", "a document that is cut", _as_it_is(b'{"message": {"message": "ValueError: x", "extraInfo": {"ti')),
    ("json-trailing", "more than one document", _as_it_is(b'{"message": "ValueError: x"}' * 1000)),
    ("json-message-number", "a message of a wrong type", _as_it_is(b'{"message": 3}')),
    ("json-message-null", "a message of a wrong type", _as_it_is(b'{"message": {"message": null, "extraInfo": []}}')),
    ("json-message-lists", "a message of a wrong type", _as_it_is(b'{"message": {"message": ["x"], "extraInfo": {"py_callstack": {}}}}')),
    ("json-message-newlines", "a message of newlines", _wrapped(_MESSAGE, b"\\n", b'"}}')),
    ("json-message-spaces", "a message of spaces", _wrapped(_MESSAGE + b"Error:", b" ", b'"}}')),
    ("json-message-colons", "a message of colons", _wrapped(_MESSAGE, b"a: ", b'"}}')),
    ("json-message-dots", "a name of dots", _wrapped(_MESSAGE, b"a.", b': x"}}')),
    ("json-message-escapes", "escape codes", _wrapped(_MESSAGE + b"ValueError: ", b"\\u001b[2J", b'"}}')),
    ("json-stack-heads", "heads of tracebacks", _wrapped(_STACK, _LINE, b'"}}}')),
    ("json-stack-chain", "a chain without an end", _wrapped(_STACK, _LINE + _FRAME + b"ValueError: x\\n\\nDuring handling of the above exception, another exception occurred:\\n\\n", b'"}}}')),
    ("json-stack-frames", "one stack without an end", _wrapped(_STACK + _LINE, _FRAME, b'ValueError: x\\n"}}}')),
    ("json-stack-newlines", "a stack of newlines", _wrapped(_STACK + _LINE, b"\\n", b'"}}}')),
    ("json-record-wrong", "a record whose fields have wrong types", _as_it_is(b'{"schema":"rankfall.record/1","id":[],"kind":{},"rank":-1,"slot":1e99,"at_ns":"x","error":[]}')),
    ("json-record-numbers", "a record whose numbers are huge", _as_it_is(b'{"schema":"rankfall.record/1","id":"x","kind":"error","rank":' + NINES + b',"at_ns":-' + NINES + b"}")),
)

_FLYTE: tuple[tuple[str, str, Callable[[int], Iterable[bytes]]], ...] = (
    ("flyte-newlines", "a pattern that takes quadratic time", _flyte(lambda size: b"\n" * size)),
    ("flyte-spaces", "a pattern that takes quadratic time", _flyte(lambda size: b" \n\t" * (size // 3))),
    ("flyte-message-heads", "lines that say Message", _flyte(lambda size: b"\nMessage:\n \n" * (size // 12))),
    ("flyte-closings", "closing lines", _flyte(lambda size: b"\n\nUser error.\n System error." * (size // 27))),
    ("flyte-heads", "heads of tracebacks", _flyte(lambda size: HEAD * (size // len(HEAD)))),
    ("flyte-stack", "one stack without an end", _flyte(lambda size: HEAD + FILE * (size // len(FILE)) + b"ValueError: x")),
    ("flyte-type", "a name without an end", _flyte(lambda size: b"a." * (size // 2) + b": x")),
    ("flyte-code", "a code without an end", _flyte(lambda _: b"x", code=b":" * 100_000 + b"a" * 100_000)),
    ("flyte-surrogates", "text that no UTF-8 holds", _flyte(lambda size: b"\xed\xa0\x80\xff" * (size // 4))),
    ("flyte-nested", "messages inside of messages", _nested),
    ("flyte-fields", "many fields", _wrapped(b"", field(1, field(2, b"x")), b"")),
    ("flyte-unknown-fields", "fields of a newer writer", _wrapped(b"", field(99, b""), b"")),
    ("flyte-length", "a length that is not there", _as_it_is(b"\x0a" + varint(1 << 62) + b"x")),
    ("flyte-varint", "a number without an end", _wrapped(b"\x08", b"\xff", b"")),
    ("flyte-groups", "types that are not used", _wrapped(b"", b"\x0b", b"")),
    ("flyte-time", "a time beyond all clocks", _as_it_is(field(1, field(2, b"ValueError: x") + field(5, b"\x08" + varint((1 << 64) - 1) + b"\x10" + varint(1 << 63))))),
    ("flyte-kinds", "kinds of a newer writer", _as_it_is(field(1, field(2, b"ValueError: x") + b"\x18" + varint((1 << 64) - 1) + b"\x20" + varint(1 << 63)))),
    ("flyte-wrong-types", "a number where a text belongs", _as_it_is(field(1, b"\x08\x01\x10\x02"))),
    ("flyte-worker", "a worker's name of escape codes", _as_it_is(field(1, field(2, b"ValueError: x") + field(6, b"\x1b[2J\n" * 10_000)))),
    ("flyte-cut", "a document that is cut", _as_it_is(field(1, field(2, b"ValueError: x"))[:-3])),
    ("flyte-empty", "no byte", _as_it_is(b"")),
)
# fmt: on

_JSON_NAME, _FLYTE_NAME = "error.json", "error-a1b2.pb"

ERROR_FILES: tuple[Hostile, ...] = tuple(
    Hostile(name=name, attacks=attacks, kind=Kind.ERROR_FILE, file=file, make=make, size=MIB - 1)
    for file, rows in ((_JSON_NAME, _JSON), (_FLYTE_NAME, _FLYTE))
    for name, attacks, make in rows
)
