"""Reads the OOM counter of the process's cgroup (v1 and v2).

It is ``oom_kill`` of ``memory.events`` (v2) or of ``memory.oom_control`` (v1). Only a difference between two
readings means anything; a counter that cannot be read is None, never 0.
"""

from __future__ import annotations

import os

from rankfall_inside import untrusted
from rankfall_inside.procfs import read_bounded

_MOUNT = "/sys/fs/cgroup"


def oom_counter_path() -> str | None:
    """The file that holds the counter of this process's cgroup, or None."""
    paths = {}
    for line in (read_bounded("/proc/self/cgroup", 1 << 14) or b"").decode("utf-8", "replace").splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if "memory" in controllers.split(","):
            paths["v1"] = path
        elif number == "0" and not controllers:
            paths["v2"] = path
    for version, base, name in (
        ("v1", _MOUNT + "/memory", "memory.oom_control"),
        ("v2", _MOUNT, "memory.events"),
        ("v2", _MOUNT + "/unified", "memory.events"),
    ):
        if version in paths:
            # Inside a container the path may be the host's: the mount's own root is then ours.
            for candidate in (base + paths[version].rstrip("/") + "/" + name, base + "/" + name):
                if read(candidate) is not None:
                    return candidate
    return None


def read(path: str | None) -> int | None:
    """The counter's value, or None."""
    if path is None or not os.path.isabs(path):
        return None
    for line in (read_bounded(path, 1 << 14) or b"").splitlines():
        words = line.split()
        if len(words) == 2 and words[0] == b"oom_kill":  # noqa: PLR2004 - name and value
            return untrusted.whole(words[1])
    return None
