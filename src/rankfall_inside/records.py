"""Builds, bounds and writes ``rankfall.record/1`` records, one complete JSON file each.

Nothing raises into the job. ``import json`` would cost milliseconds.
"""

from __future__ import annotations

import os
import time

from rankfall_inside import private_files, untrusted

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Mapping


def _pure_quote(text: str) -> str:
    from json.encoder import py_encode_basestring_ascii

    return str(py_encode_basestring_ascii(text))


try:
    from _json import encode_basestring_ascii as _quote
except ImportError:  # no accelerator
    _quote = _pure_quote


def clean(text: str) -> str:
    """Returns ``text`` with unpaired surrogates escaped."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return text.encode("utf-8", "backslashreplace").decode("utf-8")
    return text


def dumps(value: Any) -> str:
    """Returns ASCII JSON of ``value``.

    Raises:
        TypeError: Unsupported type.
    """
    if value is None:
        return "null"
    if value is True:
        return "true"
    if value is False:
        return "false"
    if isinstance(value, str):
        return str(_quote(clean(str.__str__(value))))
    if isinstance(value, int):
        return int.__repr__(value)
    if isinstance(value, float):
        return float.__repr__(value) if value - value == 0 else "null"
    if isinstance(value, dict):
        return "{" + ",".join(_quote(clean(str(key))) + ":" + dumps(item) for key, item in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ",".join([dumps(item) for item in value]) + "]"
    raise TypeError(f"records hold no {type(value).__name__}")


SCHEMA = "rankfall.record/1"
# A thousand fit into one read.
MAX_RECORD = 256 * 1024
# Also of a ``chain`` item.
MAX_MESSAGE = 16 * 1024
MAX_TRACEBACK = 96 * 1024
# Log drivers cut longer lines.
MAX_LINE = 8 * 1024
# Record for ``notify``, and a piece: writes up to 4,096 bytes (PIPE_BUF) are atomic.
_MAX_SENT, _PIECE = 32 * 1024, 3900
# Fields that remain, and their longest value.
_CORE = (
    "schema",
    "id",
    "kind",
    "writer",
    "at_ns",
    "run",
    "attempt",
    "role",
    "slot",
    "rank",
    "ordinal",
    "pid",
    "truncated",
)
_MAX_CORE = 128
# File system block.
_PAGE = 4096
_MAX_ARGS = 64
_MAX_ARG = 512
# Parts of every secret-shaped text.
_SECRET_PARTS = (
    "hf_",
    "sk-",
    "gh",
    "glpat-",
    "AKIA",
    "ASIA",
    "xox",
    "eyJ",
    "PRIVATE KEY",
    "earer ",
    "word=",
    "oken=",
    "ecret=",
    "_key=",
)
_SECRET_WORDS = (
    "token",
    "secret",
    "password",
    "passwd",
    "api-key",
    "api_key",
    "apikey",
    "credential",
    "access-key",
    "access_key",
)


def cut(text: str, limit: int) -> tuple[str, bool]:
    """Returns ``text`` within ``limit`` characters, and True if shortened."""
    if len(text) <= limit:
        return text, False
    mark = f"\n... {len(text) - limit} characters omitted ...\n"
    head = max(0, (limit - len(mark)) // 2)
    tail = max(0, limit - len(mark) - head)
    return text[:head] + mark + text[len(text) - tail :], True


def safe_argv(argv: tuple[str, ...] | list[str]) -> list[str]:
    """Returns a bounded command line without secrets."""
    found: list[str] = []
    hide = False
    for arg in argv[:_MAX_ARGS]:
        name, equals, _ = arg.partition("=")
        sounds = any(word in name.lower() for word in _SECRET_WORDS) and (name.startswith("-") or bool(equals))
        if hide and not arg.startswith("-"):
            found.append("***")
        elif sounds and equals:
            found.append(name + "=***")
        elif "://" in arg and "@" in arg:
            found.append(arg.partition("://")[0] + "://***@" + arg.rpartition("@")[2])
        elif any(part in arg for part in _SECRET_PARTS):
            # Compiling the patterns costs milliseconds.
            from rankfall_inside.redact import redact

            found.append(cut(redact(arg, []), _MAX_ARG)[0])
        else:
            found.append(cut(arg, _MAX_ARG)[0])
        hide = sounds and not equals
    return found


def whole(environ: Mapping[str, str], name: str) -> int | None:
    """Returns the non-negative number in variable ``name``, or None."""
    return untrusted.whole(environ.get(name), 9)


def place(environ: Mapping[str, str]) -> dict[str, Any]:
    """Returns run, attempt, role, slot, node etc. as record fields."""
    return {
        "run": environ.get("RANKFALL_RUN"),
        "attempt": whole(environ, "RANKFALL_ATTEMPT"),
        "role": environ.get("RANKFALL_ROLE"),
        "slot": whole(environ, "RANKFALL_SLOT"),
        "instance": environ.get("RANKFALL_INSTANCE"),
        "node": environ.get("RANKFALL_NODE"),
        "host": os.uname().nodename,
        "pod": environ.get("RANKFALL_POD"),
        "pod_uid": environ.get("RANKFALL_POD_UID"),
    }


def new(kind: str, *, writer: str, fields: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a record of ``kind`` with the current time, without None fields."""
    record: dict[str, Any] = {"schema": SCHEMA, "id": os.urandom(16).hex(), "kind": kind, "writer": writer}
    record["at_ns"] = time.time_ns()
    record["mono_ns"] = time.monotonic_ns()
    record.update({name: value for name, value in fields.items() if value is not None and value not in ((), [])})
    return record


def encode(record: dict[str, Any], *, limit: int = MAX_RECORD) -> bytes:
    """Returns JSON within ``limit`` bytes; shortens texts, then lists, then drops fields."""
    data = dumps(record).encode("ascii")
    size = limit * 2
    while len(data) > limit and size:
        # A character may need twelve bytes in ASCII JSON.
        size = size * 3 // 4
        record["truncated"] = True
        _shrink(record, size)
        data = dumps(record).encode("ascii")
    if len(data) > limit:
        kept = {name: record[name] for name in _CORE if isinstance(record.get(name), (str, int))}
        data = dumps({name: value for name, value in kept.items() if len(str(value)) <= _MAX_CORE}).encode("ascii")
    return data


def _shrink(record: dict[str, Any], size: int) -> None:
    error = record.get("error")
    if isinstance(error, dict):
        error["traceback"] = cut(error.get("traceback", ""), size // 2)[0]
        error["message"] = cut(error.get("message", ""), size // 8)[0]
        error["chain"] = [cut(text, size // 32)[0] for text in error.get("chain", ())][:16]
        error["types"] = [cut(text, min(256, size // 16))[0] for text in error.get("types", ())][
            : min(32, 1 + size // 256)
        ]
        error["frames"] = list(error.get("frames", ()))[-max(4, size // 2048) :] if size > _MAX_CORE else []
    for name, value in list(record.items()):
        if isinstance(value, str):
            record[name] = cut(value, max(64, size // 2))[0]
    for name in ("argv", "notes"):
        if name in record:
            record[name] = [cut(text, max(32, size // 64))[0] for text in record[name]][:8]


def name_prefix(kind: str, place: Mapping[str, Any]) -> str:
    """Returns the file name prefix for records of ``kind`` from one slot."""

    def word(value: Any) -> str:
        text = str(value) if value is not None else "x"
        return "".join(c if c.isalnum() or c in "-_." else "_" for c in text)[:64]

    return f"{kind}-a{word(place.get('attempt'))}-{word(place.get('role'))}-{word(place.get('slot'))}-"


def _name(record: Mapping[str, Any]) -> str:
    return f"{name_prefix(record['kind'], record)}{record['id']}.json"


class Reserve:
    """At most ``count`` preallocated one-page files for records when the disk is full."""

    def __init__(self, folder: str, count: int) -> None:
        self._paths: list[str] = []
        for number in range(count):
            path = os.path.join(folder, f".reserve-{number}")
            try:
                fd = private_files.open_file(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            except OSError:
                break
            self._paths.append(path)
            try:
                # Zeros may become a hole.
                written = os.write(fd, b" " * _PAGE)
            except OSError:
                written = 0
            finally:
                os.close(fd)
            if written < _PAGE:
                _remove(self._paths.pop())
                break

    def write(self, data: bytes, path: str) -> bool:
        """Stores ``data`` (at most a page) as ``path``; False on failure."""
        if not self._paths:
            return False
        spare = self._paths.pop()
        try:
            fd = os.open(spare, os.O_WRONLY | os.O_CLOEXEC)
            try:
                # In place: needs no new block.
                written = os.write(fd, data)
                os.ftruncate(fd, len(data))
                os.fsync(fd)
            finally:
                os.close(fd)
            if written == len(data):
                os.rename(spare, path)
                return True
        except OSError:
            pass
        _remove(spare)
        return False

    def store(self, record: dict[str, Any], folder: str) -> bool:
        """Writes a record, shortened to a page; False on failure."""
        return self.write(encode(_copy(record), limit=_PAGE), os.path.join(folder, _name(record)))

    def close(self) -> None:
        """Removes unused files."""
        while self._paths:
            _remove(self._paths.pop())


def write(record: dict[str, Any], folder: str, *, sync: bool) -> bool:
    """Writes ``record`` into ``folder``; False on failure. ``sync`` waits for the disk."""
    if not folder:
        return False
    name = _name(record)
    temporary = os.path.join(folder, "." + name + ".tmp")
    try:
        data = encode(record)
        fd = private_files.open_file(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    except Exception:
        return False
    try:
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(fd, view) :]
            if sync:
                os.fsync(fd)
        finally:
            os.close(fd)
        _publish(temporary, os.path.join(folder, name))
    except OSError:
        _remove(temporary)
        return False
    return True


def _publish(temporary: str, name: str) -> None:
    try:
        os.link(temporary, name)
    except OSError:
        # The random name overwrites nothing.
        os.rename(temporary, name)
    else:
        _remove(temporary)


def _remove(path: str) -> None:
    try:
        os.unlink(path)
    except OSError:
        pass


def line(record: dict[str, Any], token: str) -> bytes:
    """Returns ``record`` as a log channel line of at most 8 KiB, with the same id."""
    import base64

    head = b"\x1erankfall/1 " + token.encode("utf-8", "replace") + b" "
    room = (MAX_LINE - len(head) - 8) * 3 // 4
    return head + base64.urlsafe_b64encode(encode(_copy(record), limit=room)) + b"\n"


def pieces(record: dict[str, Any]) -> list[bytes]:
    """Returns ``record`` as lines for ``notify``, short enough for atomic writes."""
    import base64

    data = base64.urlsafe_b64encode(encode(_copy(record), limit=_MAX_SENT))
    parts = [data[start : start + _PIECE] for start in range(0, len(data), _PIECE)]
    head = f"part {record['id']}"
    return [f"{head} {index} {len(parts)} ".encode("ascii") + part + b"\n" for index, part in enumerate(parts)]


def _copy(record: dict[str, Any]) -> dict[str, Any]:
    """Returns a copy that may be shortened; lists are replaced, never changed."""
    error = record.get("error")
    return dict(record, error=dict(error)) if isinstance(error, dict) else dict(record)
