"""Control groups of the bed's nodes, version 1 and 2. Kubelets must not share a root: each would kill the other's pods as orphans."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

from testbed import process

TOP = Path("/sys/fs/cgroup")
_V2_CONTROLLERS = ("cpuset", "cpu", "io", "memory", "hugetlb", "pids")
_CPUSET = ("cpuset.cpus", "cpuset.mems")


def unified() -> bool:
    """Whether this machine has version 2 alone."""
    return (TOP / "cgroup.controllers").exists()


def hierarchies() -> tuple[Path, ...]:
    """Folder of each hierarchy."""
    if unified():
        return (TOP,)
    return tuple(
        sorted(entry for entry in TOP.iterdir() if (entry / "cgroup.procs").exists() and not entry.is_symlink())
    )


def make(name: str) -> None:
    """A group ``name`` at the top of every hierarchy, ready for a kubelet to make others in it."""
    for top in hierarchies():
        group = top / name
        group.mkdir(exist_ok=True)
        if unified():
            offered = (top / "cgroup.controllers").read_text().split()
            wanted = " ".join(f"+{item}" for item in _V2_CONTROLLERS if item in offered)
            (top / "cgroup.subtree_control").write_text(wanted)
            (group / "cgroup.subtree_control").write_text(wanted)
        for file in _CPUSET:
            # A new cpuset of version 1 is empty, and no process can enter it.
            if (group / file).exists() and not unified():
                (group / file).write_text((top / file).read_text())


def remove(prefix: str) -> None:
    """Remove all top groups whose name starts with ``prefix``, with what is in them; their processes are killed."""
    for top in hierarchies():
        for group in sorted(top.glob(f"{prefix}*")):
            if group.is_dir():
                _empty(group)
                for inner in _bottom_up(group):
                    process.poll(lambda folder=inner: _gone(folder), 5.0)  # type: ignore[misc]


def processes(group: Path) -> list[int]:
    """Ids of all processes in a group and below."""
    found = []
    for inner in _bottom_up(group):
        try:
            found += [int(pid) for pid in (inner / "cgroup.procs").read_text().split()]
        except OSError:
            continue
    return found


def _empty(group: Path) -> None:
    def none_left() -> bool:
        left = processes(group)
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        return not left

    process.poll(none_left, 10.0)


def _bottom_up(group: Path) -> Iterator[Path]:
    for folder, inner, _ in os.walk(group, topdown=False):
        del inner
        yield Path(folder)


def _gone(folder: Path) -> bool:
    try:
        folder.rmdir()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True
