"""The container's termination message, which the kubelet keeps when the log is gone: at most 4,096 bytes.

Two JSON lines: the first error record (without traceback; of its frames the user's own, as room allows), then
``slot_end``, each with the id that it has on the other channels. However much is left out, each line stays
valid JSON.
"""

from __future__ import annotations

import os

from rankfall_inside import exit_codes, records
from rankfall_inside import records as tinyjson
from rankfall_inside.delivery import console

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Mapping

# The kubelet cuts longer ones, in the middle of whatever is there.
LIMIT = 4096
VARIABLE = "RANKFALL_TERMINATION_LOG"
DEFAULT_PATH = "/dev/termination-log"
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


def write(path: str, error: dict[str, Any] | None, end: dict[str, Any]) -> bool:
    """Write the message into ``path``; False where that is no file or takes nothing.

    Args:
        path: made by the kubelet, so it is never created here.
        error: the slot's first error record, or None.
        end: the ``slot_end`` record.
    """
    try:
        fd = os.open(path, os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        os.write(fd, text(error, end))
    except OSError:
        return False
    finally:
        os.close(fd)
    return True


def text(error: dict[str, Any] | None, end: dict[str, Any]) -> bytes:
    """The message: JSON lines within :data:`LIMIT` bytes."""
    end = dict(end)
    if "printed" in end:
        end["printed"] = console.few(end["printed"], console.MOST_IN_MESSAGE)
    last = records.encode(end, limit=_END_LIMIT) + b"\n"
    if error is None:
        return last
    return _error_line(error, LIMIT - len(last)) + last


def _error_line(record: Mapping[str, Any], room: int) -> bytes:
    error = record.get("error")
    said: Mapping[str, Any] = error if isinstance(error, dict) else {}
    short = {name: _small(record[name]) for name in _FIELDS if name in record}
    info = {name: _small(said[name]) for name in _ERROR_FIELDS if name in said}
    types = [_masked(name)[:_MAX_TYPE] for name in exit_codes.texts(said.get("types"))]
    message = _masked(str(said.get("message", "")))
    size = _MAX_MESSAGE
    frames: list[dict[str, Any]] = []
    while True:
        shown = dict(info, types=types[: max(1, min(_MAX_TYPES, size // 64))], message=records.cut(message, size)[0])
        line = _line(short, shown, frames)
        if len(line) <= room or not size:
            break
        size = size * 3 // 4
    if len(line) > room:
        # Not even that: who and what kind, from texts that were bounded above.
        few = {name: short[name] for name in ("id", "kind", "rank") if isinstance(short.get(name), (int, str))}
        line = _line(few, {"types": [name[:32] for name in types[:1]]}, [])
        return line if len(line) <= room else b""
    for frame in _user_frames(said.get("frames")):
        longer = _line(short, shown, [frame, *frames])
        if len(longer) > room:
            break
        frames.insert(0, frame)
        line = longer
    return line


def _line(short: Mapping[str, Any], info: Mapping[str, Any], frames: list[dict[str, Any]]) -> bytes:
    error = dict(info, frames=frames) if frames else dict(info)
    # The whole record is on the log channel.
    return tinyjson.dumps(dict(short, error=error, truncated=True)).encode("ascii") + b"\n"


def _user_frames(frames: Any) -> list[dict[str, Any]]:
    """Frames of the user's own code, the innermost first."""
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
    """A number as it is, a text bounded and masked, nothing else."""
    if isinstance(value, str):
        return _masked(value)[:_MAX_TYPE]
    return value if isinstance(value, (bool, int, float)) else None


def _masked(value: str) -> str:
    try:
        from rankfall_inside import redact

        return redact.redact(value[: records.MAX_MESSAGE])
    except Exception:
        return "(text withheld: it could not be searched for secrets)"
