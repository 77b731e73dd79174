"""Exit codes 200-219, which show causes to platform rules.

torchrun always exits with 1. Only certain causes get a code, never consequences.
"""

from __future__ import annotations

import signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Mapping, Sequence

# Same as rankfall.model.exit_codes.CAUSE_CODES (tested).
CODES = {
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
# A program's request for a retry.
_USER_RETRYABLE = 138
_IMPORT = frozenset({"ImportError", "ModuleNotFoundError", "SyntaxError", "IndentationError", "TabError"})
# Errors that never come from another machine.
_USER = frozenset(
    {
        "ArithmeticError",
        "AssertionError",
        "AttributeError",
        "FloatingPointError",
        "IndexError",
        "KeyError",
        "LookupError",
        "NameError",
        "NotImplementedError",
        "OverflowError",
        "RecursionError",
        "TypeError",
        "UnboundLocalError",
        "ValueError",
        "ZeroDivisionError",
    }
)
_GPU_OOM_TEXTS = ("CUDA out of memory", "HIP out of memory")
# ENOSPC and EDQUOT.
_DISK_FULL_TEXTS = ("[Errno 28]", "[Errno 122]")
# NCCL's watchdog uses SIGABRT on consequences of a time-out.
_CRASHES = frozenset({signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE})


def of_error(error: Mapping[str, Any]) -> str | None:
    """Returns the group of a recorded error (``ErrorInfo`` fields), or None if uncertain."""
    types = texts(error.get("types"))
    texts_of_error = [*texts(error.get("chain")), *texts([error.get("message")])]
    mark = error.get("mark")
    if mark in ("retryable", "final"):
        return "user_retryable" if mark == "retryable" else "user"
    last = [name.rpartition(".")[2] for name in types]
    if "OutOfMemoryError" in last or any(word in text for word in _GPU_OOM_TEXTS for text in texts_of_error):
        return "gpu_oom"
    if "OSError" in types and any(word in text for word in _DISK_FULL_TEXTS for text in texts_of_error):
        return "disk_full"
    if any("DataLoader worker" in text and "Bus error" in text for text in texts_of_error):
        # The worker's /dev/shm is full.
        return "memory"
    if last[:1] in (["MemoryError"], ["_ArrayMemoryError"]):
        return "memory"
    if types[:1] and types[0] in _IMPORT:
        return "import_error"
    # Other types may come from outside.
    if types and types[0] in _USER and all(name in _USER or name.startswith("__main__.") for name in types):
        return "user"
    return None


def of_exit(*, code: int | None, signum: int | None, oom_kills: int | None) -> str | None:
    """Returns the group of an exit that Rankfall did not cause, or None if uncertain.

    ``oom_kills``: OOM kills in the cgroup since the slot's start.
    """
    if oom_kills and (code or signum is not None):
        return "memory"
    if signum == signal.SIGKILL:
        return "killed"
    if signum in _CRASHES:
        return "native_crash"
    return "user_retryable" if code == _USER_RETRYABLE else None


def texts(values: Any) -> list[str]:
    """Returns the strings of an untrusted list."""
    items: Sequence[Any] = values if isinstance(values, (list, tuple)) else ()
    return [item for item in items if isinstance(item, str)]
