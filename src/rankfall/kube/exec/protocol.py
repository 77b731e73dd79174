"""Frames of ``v4.channel.k8s.io`` and ``v5.channel.k8s.io``, their status channel, and the errors of exec.

A websocket message is one channel byte and data; version 5 can also close a channel, the only way to end a
command's stdin. A message that cannot be read is refused, never passed on as output. Does no input or output.
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
# In order of preference: the server takes the first one that it knows.
PROTOCOLS: Final = (V5, V4)

STDIN, STDOUT, STDERR, STATUS, CLOSE = 0, 1, 2, 3, 255
# A status is a few hundred bytes; a runtime's complaint about a command line can be longer.
MAX_STATUS: Final = 64 << 10
_MAX_CODE: Final = 255

Output = Literal["stdout", "stderr"]


class BadFrame(ValueError):  # noqa: N818 - reads as the answer that it is
    """A message that is none of the protocol."""


class Ended(msgspec.Struct, frozen=True):
    """The command ran and ended.

    Attributes:
        code: its exit code, 0 to 255; a signal is 128 and its number.
    """

    code: int


class NotRun(msgspec.Struct, frozen=True):
    """The command did not run, or nobody knows how it ended.

    Attributes:
        reason: of the Status, as ``InternalError``; empty when there was none.
        message: of the server; text of others, not bounded by the protocol.
        status: HTTP-like number, 0 when there was none.
    """

    reason: str
    message: str
    status: int = 0


def close_message(channel: int) -> bytes:
    """Says that this channel gets no more data (version 5 only)."""
    return bytes((CLOSE, channel))


def data_message(channel: int, data: bytes | bytearray | memoryview) -> bytes:
    """Data for a channel."""
    return bytes((channel,)) + data


def split(message: bytes) -> tuple[int, bytes]:
    """Channel and data of a message from the server.

    Raises:
        BadFrame: it is empty or of a channel that servers do not write on.
    """
    if not message:
        raise BadFrame("an empty message")
    channel = message[0]
    # A server of version 5 may say of a channel of its own that it has ended; nothing follows from it that the status does not say.
    if channel not in {STDOUT, STDERR, STATUS, CLOSE}:
        raise BadFrame(f"a message on channel {channel}")
    return channel, message[1:]


def longer_status(so_far: bytes, data: bytes) -> bytes:
    """A status that comes in several messages.

    Raises:
        BadFrame: it is longer than ``MAX_STATUS``.
    """
    if len(so_far) + len(data) > MAX_STATUS:
        raise BadFrame(f"a status of more than {MAX_STATUS} bytes")
    return so_far + data


def is_whole(status: bytes) -> bool:
    """Whether nothing of a status is missing; one that cannot become JSON any more is not whole either."""
    try:
        decoding.decode(status, kind=msgspec.Raw)
    except msgspec.DecodeError:
        return False
    return True


def read_status(data: bytes) -> Ended | NotRun:
    """What the status channel says, all of its data together.

    Raises:
        BadFrame: it is no Status, or one without the exit code it announces.
    """
    try:
        document: Any = decoding.decode(data)
    except msgspec.DecodeError as error:
        raise BadFrame(f"a status that is no JSON: {data[:200]!r}") from error
    if not isinstance(document, dict):
        raise BadFrame(f"a status that is no object: {data[:200]!r}")
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
            raise BadFrame(f"an exit code that is none: {text[:50]!r}")
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
        "the container does not run; its state in the pod tells why",
    ),
    (
        "no_program",
        bounded(
            r"executable file not found|no such file or directory|permission denied|is a directory|exec format error",
            limit=_MESSAGE,
        ),
        "the image has no such program, or it cannot be executed",
    ),
    (
        "no_node",
        bounded(r"error dialing backend|proxy error|connection refused|no route to host|i/o timeout", limit=_MESSAGE),
        "the API server does not reach the node's kubelet; try again, or look at the node",
    ),
)


class ExecFailed(KubeError):  # noqa: N818 - reads as the answer that it is
    """The command did not run.

    Args:
        why: ``no_container``: it does not run; ``no_program``: it cannot be started; ``no_node``: the kubelet cannot be reached.
        reason: of the Status, as ``InternalError``.
        status: of the Status; 0 = none.
    """

    def __init__(self, message: str, *, why: Why, reason: str, status: int, hint: str) -> None:
        super().__init__(message, hint=hint)
        self.why = why
        self.reason = reason
        self.status = status


class ExecLost(KubeError):  # noqa: N818 - reads as the answer that it is
    """The connection ended before the command did: how it ended, and whether it has, is not known."""

    advice: ClassVar[str] = "the command may still run in the container; look before it is started again"


class ExecTimeout(KubeError):  # noqa: N818 - reads as the answer that it is
    """The time given is over; the command may still run."""


class ExecTooMuch(KubeError):  # noqa: N818 - reads as the answer that it is
    """The command printed more than the caller wanted to keep."""


class ExecUnsupported(KubeError):  # noqa: N818 - reads as the answer that it is
    """The server cannot do this."""


def not_run(end: NotRun, *, what: str) -> ExecFailed:
    """The error for a status that has no exit code.

    Args:
        end: of the status channel.
        what: verb and object.
    """
    text = end.message[:_MESSAGE]
    known = ((why, hint) for why, pattern, hint in _TABLE if pattern.search(text))
    why, hint = next(known, ("other", "look at the pod, and at the kubelet's log on its node"))
    said = excerpt(end.message, limit=_MESSAGE) or end.reason or "no reason given"
    return ExecFailed(f"cannot {what}: {said}", why=why, reason=end.reason, status=end.status, hint=hint)
