"""Reports a slot's end for platforms: error files and the termination message.

The error file is torchelastic's ``error.json`` or Flyte's ``error.pb``; the message has two JSON lines.
"""

from __future__ import annotations

import os

from rankfall_inside import exit_codes, procfs, records, untrusted
from rankfall_inside.delivery import console

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Mapping

ERROR_FILE_VARIABLE = "RANKFALL_ERROR_FILE"
_NS = 1_000_000_000
_MAX_TRACE = 64 * 1024
# flyteidl core/execution.proto: origin USER; core/errors.proto: kind RECOVERABLE.
_USER, _RECOVERABLE = 1, 1


def write_error_file(path: str, record: Mapping[str, Any] | None, *, folder: str = "") -> bool:
    """Writes an error record to ``path``; False if impossible or the file exists.

    ``*`` in ``path`` becomes the record's id; ``folder`` has its traceback.
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
            # Fails for an existing name, unlike rename.
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
    """Returns JSON like torchelastic's ``record`` decorator."""
    text, trace, at = _said(record)
    extra = {"py_callstack": trace, "timestamp": str(at // _NS)}
    return records.dumps({"message": {"message": text, "extraInfo": extra}}).encode("ascii")


def container_error(record: Mapping[str, Any]) -> bytes:
    """Returns Flyte's ``ErrorDocument`` with time and worker."""
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
    return _field(field, records.clean(text).encode("utf-8", "replace"))


# The kubelet cuts longer messages anywhere.
LIMIT = 4096
TERMINATION_VARIABLE = "RANKFALL_TERMINATION_LOG"
TERMINATION_PATH = "/dev/termination-log"
_END_LIMIT = 1536
_FIELDS = (
    "schema",
    "id",
    "kind",
    "writer",
    "run",
    "attempt",
    "role",
    "slot",
    "instance",
    "node",
    "pod",
    "pod_uid",
    "rank",
    "local_rank",
    "world_size",
    "ordinal",
    "pid",
    "at_ns",
    "phase",
    "step",
)
_ERROR_FIELDS = ("mark", "marked_by", "raised_ns", "thread", "exit_code", "handled")
_MAX_MESSAGE, _MAX_TYPES, _MAX_TYPE, _MAX_FRAMES = 1024, 6, 128, 12


def write_termination_message(path: str, error: dict[str, Any] | None, end: dict[str, Any]) -> bool:
    """Writes the message into the kubelet's file; False if impossible. Never creates the file."""
    try:
        fd = os.open(path, os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        os.write(fd, termination_message(error, end))
    except OSError:
        return False
    finally:
        os.close(fd)
    return True


def termination_message(error: dict[str, Any] | None, end: dict[str, Any]) -> bytes:
    """Returns JSON lines within :data:`LIMIT` bytes."""
    end = dict(end)
    if "printed" in end:
        end["printed"] = console.few(end["printed"], console.MOST_IN_MESSAGE)
    last = records.encode(end, limit=_END_LIMIT) + b"\n"
    if error is None:
        return last
    return _error_line(error, LIMIT - len(last)) + last


def _error_line(record: Mapping[str, Any], room: int) -> bytes:
    error = record.get("error")
    fields: Mapping[str, Any] = error if isinstance(error, dict) else {}
    short = {name: _small(record[name]) for name in _FIELDS if name in record}
    info = {name: _small(fields[name]) for name in _ERROR_FIELDS if name in fields}
    types = [_masked(name)[:_MAX_TYPE] for name in exit_codes.texts(fields.get("types"))]
    message = _masked(str(fields.get("message", "")))
    size = _MAX_MESSAGE
    frames: list[dict[str, Any]] = []
    while True:
        shortened = dict(
            info, types=types[: max(1, min(_MAX_TYPES, size // 64))], message=records.cut(message, size)[0]
        )
        line = _line(short, shortened, frames)
        if len(line) <= room or not size:
            break
        size = size * 3 // 4
    if len(line) > room:
        few = {name: short[name] for name in ("id", "kind", "rank") if isinstance(short.get(name), (int, str))}
        line = _line(few, {"types": [name[:32] for name in types[:1]]}, [])
        return line if len(line) <= room else b""
    for frame in _user_frames(fields.get("frames")):
        longer = _line(short, shortened, [frame, *frames])
        if len(longer) > room:
            break
        frames.insert(0, frame)
        line = longer
    return line


def _line(short: Mapping[str, Any], info: Mapping[str, Any], frames: list[dict[str, Any]]) -> bytes:
    error = dict(info, frames=frames) if frames else dict(info)
    # The log channel has the whole record.
    return records.dumps(dict(short, error=error, truncated=True)).encode("ascii") + b"\n"


def _user_frames(frames: Any) -> list[dict[str, Any]]:
    items = frames if isinstance(frames, (list, tuple)) else ()
    found = [frame for frame in items if isinstance(frame, dict) and frame.get("user") is True]
    return [
        {
            "file": str(frame.get("file", ""))[-256:],
            "line": frame["line"] if isinstance(frame.get("line"), int) else 0,
            "func": str(frame.get("func", ""))[:128],
            "user": True,
        }
        for frame in found[: -_MAX_FRAMES - 1 : -1]
    ]


def _small(value: Any) -> Any:
    if isinstance(value, str):
        return _masked(value)[:_MAX_TYPE]
    return value if isinstance(value, (bool, int, float)) else None


def _masked(value: str) -> str:
    try:
        from rankfall_inside import redact

        return redact.redact(value[: records.MAX_MESSAGE])
    except Exception:
        return "(text withheld: it could not be searched for secrets)"
