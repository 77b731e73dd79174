"""Encodes and decodes messages of the exec protocols ``v4.channel.k8s.io`` and ``v5.channel.k8s.io``. Pure.

A message is one byte that names the channel, then data. One channel has the command's status. Only version 5 can close
the command's stdin.
"""

from __future__ import annotations

from typing import Any, ClassVar, Final, Literal

import msgspec

from rankfall.kube.errors import KubeError
from rankfall.kube.secret import excerpt
from rankfall.model import decoding, numbers
from rankfall.model.patterns import Bounded, bounded

V5: Final = "v5.channel.k8s.io"
V4: Final = "v4.channel.k8s.io"
# In order of preference; the server chooses.
PROTOCOLS: Final = (V5, V4)

STDIN, STDOUT, STDERR, STATUS, CLOSE = 0, 1, 2, 3, 255
# A status has a few hundred bytes, sometimes more.
MAX_STATUS: Final = 64 << 10
_MAX_CODE: Final = 255

Output = Literal["stdout", "stderr"]


class BadFrame(ValueError):
    """A message that violates the protocol."""


class Ended(msgspec.Struct, frozen=True):
    """The command ended with an exit code; signals are 128 plus number."""

    code: int


class NotRun(msgspec.Struct, frozen=True):
    """The command did not run, or its end is unknown."""

    reason: str
    message: str
    status: int = 0


def close_message(channel: int) -> bytes:
    """Message that closes a channel (version 5 only)."""
    return bytes((CLOSE, channel))


def data_message(channel: int, data: bytes | bytearray | memoryview) -> bytes:
    """Returns a message with data for a channel."""
    return bytes((channel,)) + data


def split(message: bytes) -> tuple[int, bytes]:
    """Returns channel and data of a message from the server.

    Raises:
        BadFrame: Empty, or not a server's channel.
    """
    if not message:
        raise BadFrame("an empty message")
    channel = message[0]
    # Only the status matters; version 5 may close channels.
    if channel not in {STDOUT, STDERR, STATUS, CLOSE}:
        raise BadFrame(f"a message on channel {channel}")
    return channel, message[1:]


def longer_status(so_far: bytes, data: bytes) -> bytes:
    """Returns the status text ``so_far`` plus ``data``; a status may span several messages.

    Raises:
        BadFrame: Longer than ``MAX_STATUS``.
    """
    if len(so_far) + len(data) > MAX_STATUS:
        raise BadFrame(f"a status of more than {MAX_STATUS} bytes")
    return so_far + data


def is_whole(status: bytes) -> bool:
    """True if the status is complete, valid JSON."""
    try:
        decoding.decode(status, kind=msgspec.Raw)
    except msgspec.DecodeError:
        return False
    return True


def read_status(data: bytes) -> Ended | NotRun:
    """Parses all data of the status channel.

    Raises:
        BadFrame: Not a Status, or without exit code.
    """
    try:
        document: Any = decoding.decode(data)
    except msgspec.DecodeError as error:
        raise BadFrame(f"a status that is not JSON: {data[:200]!r}") from error
    if not isinstance(document, dict):
        raise BadFrame(f"a status that is not an object: {data[:200]!r}")
    if document.get("status") == "Success":
        return Ended(code=0)
    reason = _text(document.get("reason"))
    if reason == "NonZeroExitCode":
        return Ended(code=_exit_code(document))
    number = document.get("code")
    status = number if isinstance(number, int) and not isinstance(number, bool) else 0
    return NotRun(reason=reason, message=_text(document.get("message")), status=status)


def _exit_code(document: dict[str, Any]) -> int:
    details = document.get("details")
    causes = details.get("causes") if isinstance(details, dict) else None
    for cause in causes if isinstance(causes, list) else ():
        if isinstance(cause, dict) and cause.get("reason") == "ExitCode":
            text = _text(cause.get("message"))
            code = numbers.whole(text, digits=3)
            if code is not None and 0 <= code <= _MAX_CODE and text.isdigit():
                return code
            raise BadFrame(f"an invalid exit code: {text[:50]!r}")
    raise BadFrame("a failed command without its exit code")


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


Why = Literal["no_container", "no_program", "no_node", "other"]

_MESSAGE: Final = 1000
_TABLE: Final[tuple[tuple[Why, Bounded[str], str], ...]] = (
    (
        "no_container",
        bounded(
            r"container not found|is not created or running|container .* (?:is )?not running|task .* not found|in a stopped state",
            limit=_MESSAGE,
        ),
        "read the reason in the container's state in the pod: it does not run",
    ),
    (
        "no_program",
        bounded(
            r"executable file not found|no such file or directory|permission denied|is a directory|exec format error",
            limit=_MESSAGE,
        ),
        "check the image: it has no such program, or it cannot be executed",
    ),
    (
        "no_node",
        bounded(r"error dialing backend|proxy error|connection refused|no route to host|i/o timeout", limit=_MESSAGE),
        "try again, or check the node: the API server does not reach its kubelet",
    ),
)


class ExecFailed(KubeError):
    """The command did not run.

    ``why``: ``no_container`` (not running), ``no_program`` (cannot start), ``no_node`` (kubelet unreachable).
    """

    def __init__(self, message: str, *, why: Why, reason: str, status: int, hint: str) -> None:
        super().__init__(message, hint=hint)
        self.why = why
        self.reason = reason
        self.status = status


class ExecLost(KubeError):
    """The connection ended first; the command's state is unknown."""

    advice: ClassVar[str] = "check the container before you start the command again: it may still run"


class ExecTimeout(KubeError):
    """The time-out expired; the command may still run."""


class ExecTooMuch(KubeError):
    """The command printed more than the caller's limit."""


class ExecUnsupported(KubeError):
    """The server lacks this feature."""


def not_run(end: NotRun, *, what: str) -> ExecFailed:
    """Error for a status without an exit code."""
    text = end.message[:_MESSAGE]
    known = ((why, hint) for why, pattern, hint in _TABLE if pattern.search(text))
    why, hint = next(known, ("other", "check the pod, and the kubelet's log on its node"))
    reason = excerpt(end.message, limit=_MESSAGE) or end.reason or "no reason given"
    return ExecFailed(f"cannot {what}: {reason}", why=why, reason=end.reason, status=end.status, hint=hint)
