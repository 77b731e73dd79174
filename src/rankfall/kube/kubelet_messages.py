"""Recognizes the kubelet's messages in a container log, as of Kubernetes 1.25 to 1.34. Pure.

These messages end a body, without LF. Lines with a timestamp never count: a job may print the same.
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from rankfall.model.patterns import bounded

Kind = Literal["gone", "limits", "runtime", "file"]

# The kubelet's timestamp before every line.
STAMP: Final = bounded(rb"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|[+-]\d\d:\d\d) ", limit=8_192)
# A path and an error number: a few hundred bytes.
MAX_COMPLAINT: Final = 4096

_PATH: Final = rb'"(?:[^"\\]|\\.)*"'
_TABLE: Final[tuple[tuple[Kind, bytes], ...]] = (
    ("gone", rb"unable to retrieve container logs for \S+"),
    ("gone", rb"failed to try resolving symlinks in path " + _PATH + rb": .*"),
    ("gone", rb"failed to open log file " + _PATH + rb": .*"),
    ("limits", rb"failed to create fsnotify watcher: .*"),
    ("limits", rb"failed to watch (?:directory|file) " + _PATH + rb": .*"),
    ("file", rb"failed to (?:tail -?\d+ lines of|seek -?\d+ in|read|reset seek in) log file " + _PATH + rb": .*"),
    ("file", rb"failed to get parse function: .*"),
    ("file", rb"container status is nil"),
    ("runtime", rb"rpc error: code = \w+ desc = .*"),
    ("runtime", rb"context cancell?ed"),
)
_COMPLAINTS: Final = tuple((kind, bounded(pattern, limit=8_192)) for kind, pattern in _TABLE)


class Complaint(msgspec.Struct, frozen=True):
    """Error message of the kubelet in place of a log line.

    Attributes:
        kind: ``gone``: no log; ``limits``: no inotify watch left, retry later; ``runtime``: runtime
            unreachable; ``file``: unreadable log.
        text: Message of the kubelet.
    """

    kind: Kind
    text: str


def complaint(piece: bytes) -> Complaint | None:
    """Returns the kubelet's message at the end of a body, or None."""
    if not piece or len(piece) > MAX_COMPLAINT or b"\n" in piece or STAMP.match(piece):
        return None
    for kind, pattern in _COMPLAINTS:
        if pattern.fullmatch(piece):
            return Complaint(kind=kind, text=piece.decode("utf-8", "replace"))
    return None


# Rankfall's messages end with the status in parentheses.
_WAITS: Final = bounded(
    r'container "[^"]*" in pod "[^"]*" is waiting to start(?:: (?P<why>[^\n]*?)| - no logs yet)(?: \(\d{3}(?: \w+)?\))?$',
    limit=8_192,
)
_NOT_THERE: Final = bounded(
    r'container "[^"]*" in pod "[^"]*" is not available|pod "[^"]*" cannot be found - no logs available', limit=8_192
)


def not_started(message: str) -> str | None:
    """Returns from a 400 message why a container has no log yet, as ``ContainerCreating``, or None.

    Such a container is a state to wait in.
    """
    found = _WAITS.search(message)
    if found:
        return found["why"] or ""
    return "" if _NOT_THERE.search(message) else None
