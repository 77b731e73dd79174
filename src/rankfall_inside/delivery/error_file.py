"""Writes the slot's first error as torchelastic's ``error.json`` or Flyte's ``error.pb``.

For platforms that look for such a file and know nothing of records. An existing file is kept: its writer was
first. A ``*`` in the name becomes the record's id, so that many workers may write into one folder.
"""

from __future__ import annotations

import os

from rankfall_inside import procfs, records, untrusted
from rankfall_inside import records as tinyjson

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Mapping

VARIABLE = "RANKFALL_ERROR_FILE"
_NS = 1_000_000_000
_MAX_TRACE = 64 * 1024
# flyteidl core/execution.proto: origin USER; core/errors.proto: kind RECOVERABLE.
_USER, _RECOVERABLE = 1, 1


def write(path: str, record: Mapping[str, Any] | None, *, folder: str = "") -> bool:
    """Write an error record to ``path``; False where there is nothing to write or no room, or a file is there.

    Args:
        path: ends with ``.json`` or ``.pb``.
        record: may lack its traceback, which is then taken from the record's own file.
        folder: of records.
    """
    if not path or record is None:
        return False
    path = path.replace("*", str(record.get("id", "error"))[:64])
    record = _whole(record, folder)
    temporary = f"{path}.{os.getpid()}.tmp"
    try:
        data = container_error(record) if path.endswith(".pb") else elastic(record)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(temporary, "wb") as file:
            file.write(data)
        try:
            # Fails where the name is taken, which a rename would not.
            os.link(temporary, path)
        finally:
            os.unlink(temporary)
    except Exception:
        return False
    return True


def _whole(record: Mapping[str, Any], folder: str) -> Mapping[str, Any]:
    try:
        name = f"{records.name_prefix('error', record)}{record['id']}.json"
        with open(os.path.join(folder, name), "rb", opener=procfs.at_once) as file:
            found: dict[str, Any] = untrusted.loads(file.read(records.MAX_RECORD))
    except Exception:
        return record
    return found


def elastic(record: Mapping[str, Any]) -> bytes:
    """As torchelastic's ``record`` decorator writes it: the time is text, in whole seconds."""
    text, trace, at = _said(record)
    extra = {"py_callstack": trace, "timestamp": str(at // _NS)}
    return tinyjson.dumps({"message": {"message": text, "extraInfo": extra}}).encode("ascii")


def container_error(record: Mapping[str, Any]) -> bytes:
    """An ``ErrorDocument`` of Flyte's, with time and worker."""
    text, trace, at = _said(record)
    error: Mapping[str, Any] = record.get("error") or {}
    types = error.get("types") or ("Error",)
    body = _text(1, f"USER:{types[0]}") + _text(2, f"{trace}\n\nMessage:\n\n{text}" if trace else text)
    if error.get("mark") == "retryable":
        body += _number(3, _RECOVERABLE)
    body += _number(4, _USER) + _field(5, _number(1, at // _NS) + _number(2, at % _NS))
    worker = record.get("pod") or f"{record.get('role')}-{record.get('slot')}"
    return _field(1, body + _text(6, str(worker)))


def _said(record: Mapping[str, Any]) -> tuple[str, str, int]:
    error: Mapping[str, Any] = record.get("error") or {}
    types = error.get("types") or ("Error",)
    text = records.cut(str(error.get("message", "")), records.MAX_MESSAGE)[0]
    at = error.get("raised_ns") or record.get("at_ns") or 0
    at = at if isinstance(at, int) and 0 <= at < 1 << 63 else 0
    trace = records.cut(str(error.get("traceback", "")), _MAX_TRACE)[0]
    return f"{types[0]}: {text}" if text else str(types[0]), trace, at


def _varint(value: int) -> bytes:
    found = bytearray()
    while value > 0x7F:  # noqa: PLR2004 - seven bits a byte
        found.append(value & 0x7F | 0x80)
        value >>= 7
    found.append(value)
    return bytes(found)


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _field(field: int, data: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(data)) + data


def _text(field: int, text: str) -> bytes:
    return _field(field, tinyjson.clean(text).encode("utf-8", "replace"))
