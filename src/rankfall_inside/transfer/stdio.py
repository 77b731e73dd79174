"""Pod side of a transfer: one tree over stdin and stdout, only inside its volume. Ends with its stdin."""

from __future__ import annotations

import os
import sys
import time

from rankfall_inside.transfer import frames
from rankfall_inside.transfer.frames import Channel, TransferError, TransferInterruptedError, printable
from rankfall_inside.transfer.receive import Receiver
from rankfall_inside.transfer.send import send
from rankfall_inside.transfer.tree import scan

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Sequence

_KEEP_ALIVE_S = 1.0
_FAILED = 1
_USAGE = 2
_WORDS = 5


class KeepAlive:
    """Creates a file on progress; process 1 removes it."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._due = 0.0

    def __call__(self) -> None:
        """Reports progress."""
        now = time.monotonic()
        if now >= self._due and self._path:
            self._due = now + _KEEP_ALIVE_S
            os.close(os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))


def main(argv: Sequence[str]) -> int:
    """Performs one transfer.

    Args:
        argv: ``send`` or ``receive``, owner, base and path (hex), keep-alive file; for ``send`` exclude patterns (hex).

    Returns:
        0 success, 1 failure (sent to the other side), 2 wrong usage.
    """
    if len(argv) < _WORDS or argv[0] not in ("send", "receive"):
        sys.stderr.write("usage: send|receive OWNER BASE PATH KEEP_ALIVE [EXCLUDE...]\n")
        return _USAGE
    verb, owner, base, below, keep_alive = argv[:_WORDS]
    channel = Channel(sys.stdin.buffer.read, _write, tick=KeepAlive(keep_alive), answers=True)
    try:
        place = inside(bytes.fromhex(base), bytes.fromhex(below))
        if verb == "receive":
            Receiver(channel, place, owner=owner).run()
        else:
            exclude = [os.fsdecode(bytes.fromhex(word)) for word in argv[_WORDS:]]
            send(scan(place, exclude=exclude), channel)
    except (TransferInterruptedError, ConnectionError):
        return _FAILED
    except TransferError as error:
        try:
            channel.put(frames.ERROR, str(error).encode("utf-8", "backslashreplace")[:4000])
        except OSError:
            pass  # other side closed
        return _FAILED
    return 0


def inside(base: bytes, below: bytes) -> bytes:
    """Returns the path ``below`` the folder ``base``.

    Raises:
        TransferError: Its text or links lead out of the folder.
    """
    if b"\0" in below or below.startswith(b"/") or b".." in below.split(b"/"):
        msg = f"{printable(below)}: not a path below {printable(base)}"
        raise TransferError(msg)
    place = os.path.normpath(os.path.join(base, below))
    root = os.path.realpath(base)
    real = os.path.realpath(place)
    if real != root and not real.startswith(root.rstrip(b"/") + b"/"):
        msg = f"{printable(below)}: leads out of {printable(base)}"
        raise TransferError(msg)
    return place


def _write(data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(1, view) :]
