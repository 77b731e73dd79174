"""Recognises the kubelet's own messages in the body of a container log. Pure.

The kubelet answers 200 before it opens the log and writes later errors into the body as plain text: at the
start or after the lines sent so far, always last and without LF. The texts are those of Kubernetes 1.25 to
1.34 (``cri-client/pkg/logs``, ``kuberuntime``). A line with a timestamp is never taken for one, because a job
may print such a sentence itself; without timestamps the two cannot be told apart.
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from rankfall.model.patterns import bounded

Kind = Literal["gone", "limits", "runtime", "file"]

# What the stamp of a log line looks like; the kubelet writes one before every line when asked to.
STAMP: Final = bounded(rb"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|[+-]\d\d:\d\d) ", limit=8_192)
# A path and an error number make a few hundred bytes.
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
    """What the kubelet says instead of a line.

    Attributes:
        kind: ``gone``: the log is no longer there; ``limits``: the node has no room for one more follow (inotify), try again later;
            ``runtime``: its container runtime did not answer; ``file``: the log cannot be read.
        text: of the kubelet.
    """

    kind: Kind
    text: str


def complaint(piece: bytes) -> Complaint | None:
    """Whether the end of a body is the kubelet's, and what it says.

    Args:
        piece: what follows the last LF of a body that has ended; the whole body where it has none.
    """
    if not piece or len(piece) > MAX_COMPLAINT or b"\n" in piece or STAMP.match(piece):
        return None
    for kind, pattern in _COMPLAINTS:
        if pattern.fullmatch(piece):
            return Complaint(kind=kind, text=piece.decode("utf-8", "replace"))
    return None


# Our own messages end with the status in parentheses.
_WAITS: Final = bounded(
    r'container "[^"]*" in pod "[^"]*" is waiting to start(?:: (?P<why>[^\n]*?)| - no logs yet)(?: \(\d{3}(?: \w+)?\))?$',
    limit=8_192,
)
_NOT_THERE: Final = bounded(
    r'container "[^"]*" in pod "[^"]*" is not available|pod "[^"]*" cannot be found - no logs available', limit=8_192
)


def not_started(message: str) -> str | None:
    """Why there is no log yet, out of the message of an answer 400; None = it speaks of something else.

    A container that has not started is a state to wait in, not an error.

    Returns:
        The reason, as ``ContainerCreating``; empty where the kubelet gives none.
    """
    found = _WAITS.search(message)
    if found:
        return found["why"] or ""
    return "" if _NOT_THERE.search(message) else None
