"""Exit codes: what a bare code of a rank says, and the codes 200-219 that carry a cause through torchrun's eternal 1.

The seed's table is the default: 1, 2, 126, 127, 128, 139 permanent; 130, 137, 143 retryable; 138 retryable as the user's own.
A proven cause beats a bare code.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Literal

ExitClass = Literal["success", "permanent", "retryable", "user_retryable"]

SUCCESS = 0
USAGE = 2
NOT_FOUND = 66
INFRASTRUCTURE = 69
EVIDENCE_LOST = 74
CANCELLED = 130
USER_RETRYABLE = 138

_RETRYABLE = frozenset({130, 137, 143})

# One code per group of causes; used only where native rules of a platform must see the cause.
CAUSE_CODES = MappingProxyType(
    {
        "user": 200,
        "import_error": 201,
        "user_retryable": 202,
        "data": 203,
        "memory": 204,
        "gpu_oom": 205,
        "gpu": 206,
        "network": 207,
        "peer": 208,
        "storage": 209,
        "disk_full": 210,
        "platform": 211,
        "preempted": 212,
        "control": 213,
        "cancelled": 214,
        "hang": 215,
        "native_crash": 216,
        "killed": 217,
        "startup": 218,
        "unknown": 219,
    }
)


def exit_class(code: int) -> ExitClass:
    """The class of a bare exit code 0-255; each code is in exactly one class.

    Raises:
        ValueError: the code is outside 0-255.
    """
    if not 0 <= code <= 255:  # noqa: PLR2004 - the range of a POSIX exit status
        raise ValueError(f"exit code {code} is outside 0-255")
    if code == SUCCESS:
        return "success"
    if code == USER_RETRYABLE:
        return "user_retryable"
    return "retryable" if code in _RETRYABLE else "permanent"


def shell_code(*, code: int | None, signal: int | None) -> int | None:
    """The code a shell would report: 128+n for a signal, the code itself otherwise; None when neither is known."""
    return 128 + signal if signal is not None else code
