"""Causes as exit codes 200-219: which code tells which cause, and of which the wrapper can be sure inside a pod.

Kubernetes' own rules see nothing of a failed container but its code, and torchrun's is always 1.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Final

from rankfall.model import catalogue
from rankfall.model.exit_codes import CAUSE_CODES, USER_RETRYABLE

# Causes with a group of their own; all others are told by their family's.
_GROUPS: Final = MappingProxyType(
    {
        "import_error": "import_error",
        "retryable_exception": "user_retryable",
        "segfault": "native_crash",
        "native_abort": "native_crash",
        "entrypoint_missing": "startup",
        "command_not_found": "startup",
        "permission_denied": "startup",
        "gpu_oom": "gpu_oom",
        "gpu_oom_foreign": "gpu_oom",
        "peer_lost": "peer",
        "disk_full": "disk_full",
        "preempted": "preempted",
        "cancelled": "cancelled",
        "rank_stuck": "hang",
        "killed_unknown": "killed",
    }
)
# What the wrapper can be sure of by itself; any other end keeps the command's own code.
_SURE_GROUPS: Final = (
    *("user", "import_error", "user_retryable", "memory", "gpu_oom", "disk_full", "native_crash", "killed", "startup"),
)
SURE: Final = frozenset(CAUSE_CODES[group] for group in _SURE_GROUPS)
# Ends by these signals, as bare codes, and the one code that the wrapper makes of them.
TOLD: Final = (
    (frozenset({128 + 9}), CAUSE_CODES["killed"]),
    (frozenset({USER_RETRYABLE}), CAUSE_CODES["user_retryable"]),
    (frozenset({128 + 4, 128 + 7, 128 + 8, 128 + 11}), CAUSE_CODES["native_crash"]),
)


def code_of(slug: str) -> int:
    """The exit code 200-219 that tells this cause."""
    return CAUSE_CODES[_GROUPS.get(slug) or catalogue()[slug].family]


def slugs_of(cause: str) -> frozenset[str]:
    """The causes that a slug or a family means."""
    return frozenset(slug for slug, info in catalogue().items() if cause in {slug, info.family})
