"""The log channel: each record of the slot once more as a line of the container's stdout, for a supervisor that shares no files with it.

Active where ``RANKFALL_TOKEN`` is set. The token is known to nobody in the job: it is taken out of the environment before the command
starts, and masked in whatever the job prints or records. A line that carries it was written here.
"""

from __future__ import annotations

import ctypes
import os

from rankfall_inside import records

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from rankfall_inside.console import Console

_MASK = "***"
# Of an output that takes nothing any more: what comes after this is only counted.
_MAX_WAITING = 16 << 20


class Channel:
    """Writes records as lines. Without a token it writes none.

    Args:
        console: where lines go; it keeps them whole.
        token: of this attempt; "" switches the channel off.
    """

    def __init__(self, console: Console | None, token: str) -> None:
        self._console = console if token else None
        self._token = token
        # Records that found no room.
        self.lost = 0

    @property
    def active(self) -> bool:
        """Whether records are written at all."""
        return self._console is not None

    def send(self, record: dict[str, Any], *, first: bool = False) -> bool:
        """Write ``record``; False where there is no channel, or no room on it.

        Args:
            record: stays as it is; the line is shortened to 8 KiB.
            first: before all that waits to be written.
        """
        if self._console is None:
            return False
        if self._console.waiting > _MAX_WAITING:
            self.lost += 1
            return False
        self._console.line(records.line(_without(record, self._token), self._token), first=first)
        return True


def _without(value: Any, token: str) -> Any:
    """A copy of ``value`` in which no text holds the token."""
    if isinstance(value, str):
        return value.replace(token, _MASK) if token in value else value
    if isinstance(value, dict):
        return {name: _without(item, token) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_without(item, token) for item in value]
    return value


def take_token() -> str:
    """The token from the environment, which no longer has it afterwards; "" without one.

    ``/proc/PID/environ`` shows the environment a process began with for as long as it lives, to whoever has the same user: the bytes
    there are overwritten too.
    """
    token = os.environ.get("RANKFALL_TOKEN", "")
    if token:
        try:
            libc = ctypes.CDLL(None)
            libc.getenv.restype = ctypes.c_void_p
            libc.getenv.argtypes = [ctypes.c_char_p]
            address = libc.getenv(b"RANKFALL_TOKEN")
            if address:
                ctypes.memset(address, ord("*"), len(os.fsencode(token)))
        except Exception:
            pass  # a libc without it: the variable is removed all the same
    os.environ.pop("RANKFALL_TOKEN", None)
    # A line of the channel is made of words.
    return token if token.isascii() and token.isprintable() and " " not in token else ""
