"""Which pod a process of the node belongs to, by its control group: an Xid names a process, and a threshold counts different jobs.

The kernel prints process ids of the node itself, so the agent must see the node's processes (``hostPID``). A process that has ended already, or that
is in no pod, gives nothing: an unknown job counts as one and the same job.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from rankfall.model.patterns import bounded

PROC: Final = Path("/proc")
# Kubelets write the UID as it is (cgroupfs) or with underscores (systemd).
_POD: Final = bounded(r"[/-]pod([0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12})", limit=1 << 16)
_LARGEST: Final = 64 << 10


def pod_of(pid: int, *, proc: Path = PROC) -> str | None:
    """UID of the pod of a process; None = not known."""
    try:
        with (proc / str(pid) / "cgroup").open(encoding="utf-8", errors="replace") as file:
            found = _POD.search(file.read(_LARGEST))
    except OSError:
        return None
    return None if found is None else found[1].replace("_", "-")
