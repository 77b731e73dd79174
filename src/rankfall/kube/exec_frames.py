"""Frames of the exec protocols ``v4.channel.k8s.io`` and ``v5.channel.k8s.io``, and what their status channel says.

A message of the websocket is one byte, the channel, and data. Version 5 has one more channel, on which the client says that another one
has ended: the only way to end a command's stdin. It refuses a message it cannot read instead of passing it on as output.
"""

from __future__ import annotations

from typing import Any, Final, Literal

import msgspec

from rankfall.model import decoding, numbers

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
