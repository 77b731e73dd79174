"""Why a command in a container has no exit code: it did not run, its connection was lost, its time was over.

``KubeError``'s other branches (no such pod, no answer) are raised as they are.
"""

from __future__ import annotations

from typing import ClassVar, Final, Literal

from rankfall.kube.errors import KubeError
from rankfall.kube.exec_frames import NotRun
from rankfall.kube.secret import excerpt
from rankfall.model.patterns import Bounded, bounded

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
