"""Words of the kernel: the memory killer of a cgroup (version 1), a segmentation fault. Run by hand, as root."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from cases import case, main, run

GROUP = Path("/sys/fs/cgroup/memory") / f"rankfall-provoke-{os.getpid()}"


def kernel_tail(lines: int) -> None:
    run(["sh", "-c", f"dmesg | tail -n {lines}"])


@case("host_oom")
def memory_limit() -> None:
    GROUP.mkdir()
    try:
        (GROUP / "memory.limit_in_bytes").write_text("40M")
        eat = "x = bytearray(200 << 20); [x.__setitem__(i, 1) for i in range(0, len(x), 4096)]"
        run(["sh", "-c", f"echo $$ > {GROUP}/cgroup.procs; exec {sys.executable} -c '{eat}'"])
    finally:
        GROUP.rmdir()
    kernel_tail(3)


@case("segfault")
def fault() -> None:
    run([sys.executable, "-c", "import ctypes; ctypes.string_at(8)"])
    kernel_tail(2)


if __name__ == "__main__":
    main()
