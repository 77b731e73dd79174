"""Process 1 of a node: makes the node's mount table, then reaps. Killing it kills the whole node at once, as a power cut does.

Standard library only; started as a program inside new mount, pid and network namespaces.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path


def main(folder: str) -> None:
    """Set up and reap for ever.

    Args:
        folder: the node's folder; it must not lie below /run or /var.
    """
    # Nothing that the node mounts is seen outside, and what its kubelet mounts is seen by its containers.
    _mount("--make-rprivate", "/")
    _mount("--make-rshared", "/")
    _mount("-t", "proc", "proc", "/proc")
    # Runtime state that programs keep under fixed names (sockets, network namespaces, caches, links to logs) stays the node's own.
    _mount("-t", "tmpfs", "tmpfs", "/run")
    for name in ("netns", "containerd", "lock"):
        Path("/run", name).mkdir()
    upper, work = Path(folder, "var"), Path(folder, "var-work")
    for own in (upper, work):
        own.mkdir(parents=True, exist_ok=True)
    _mount("-t", "overlay", "overlay", "-o", f"lowerdir=/var,upperdir={upper},workdir={work}", "/var")
    (Path(folder) / "ready").touch()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    while True:
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            signal.sigtimedwait([signal.SIGCHLD], 1.0)


def _mount(*words: str) -> None:
    subprocess.run(("mount", *words), check=True)


if __name__ == "__main__":
    main(sys.argv[1])
