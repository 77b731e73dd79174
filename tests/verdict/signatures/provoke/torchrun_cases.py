"""Words of torchrun and its report. The workers are plain Python, so that only the launcher needs its time to load."""

from __future__ import annotations

import sys
from pathlib import Path

from cases import case, main, run

TORCHRUN = (sys.executable, "-m", "torch.distributed.run")
WORKER = """
import os, signal, sys
if os.environ['RANK'] == '1' or sys.argv[1] == 'all':
    exec(sys.argv[2])
else:
    signal.pause()
"""


def launch(statement: str, *, ranks: str = "one") -> None:
    Path("work.py").write_text(WORKER)
    run([*TORCHRUN, "--standalone", "--nproc-per-node", "2", "work.py", ranks, statement])


@case("user_exit")
def exit_code() -> None:
    launch("os._exit(3)")


@case("killed_unknown")
def killed() -> None:
    launch("os.kill(os.getpid(), 9)")


@case("segfault")
def segfault() -> None:
    launch("os.kill(os.getpid(), 11)")


@case("external_signal")
def launcher_stopped() -> None:
    launch("os.kill(os.getppid(), 15); signal.pause()")


@case("rdzv_closed")
def member_missing() -> None:
    rendezvous = ["--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0", "--rdzv-id", "x"]
    limits = ["--rdzv-conf", "join_timeout=2,last_call_timeout=1"]
    run([*TORCHRUN, "--nnodes", "2", *rendezvous, *limits, "work.py"])


@case("bad_arguments")
def unknown_flag() -> None:
    run([*TORCHRUN, "--nnods", "1", "work.py"])


if __name__ == "__main__":
    main()
