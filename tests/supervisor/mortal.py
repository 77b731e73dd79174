"""Supervises a run and dies by SIGKILL right before or after the N-th thing it does that lasts: ``mortal.py RUN N before|after``.

``after-NAME`` counts only the things of that name.
What lasts: each write to the store, each start of a slot, each line into a slot's ``ctl``. Prints how many there were when it lives on.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rankfall.backends.local import processes
from rankfall.rundir import RunDir, Writer
from rankfall.supervisor.supervise import supervise

WRITES = (
    "set_run",
    "begin_attempt",
    "end_attempt",
    "put_slots",
    "put_ranks",
    "put_streams",
    "add_evidence",
    "add_verdict",
    "add_decision",
    "decision_done",
)


def main() -> None:
    run, moment, when = sys.argv[1:4]
    count = 0
    names: list[str] = []

    def mortal(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            nonlocal count
            names.append(name)
            if "-" in when and when != f"after-{name}":
                return real(*args, **kwargs)
            count += 1
            if count == int(moment) and when == "before":
                os.kill(os.getpid(), signal.SIGKILL)
            result = real(*args, **kwargs)
            if count == int(moment) and when.startswith("after"):
                os.kill(os.getpid(), signal.SIGKILL)
            return result

        return call

    for name in WRITES:
        setattr(Writer, name, mortal(name, getattr(Writer, name)))
    processes.start = mortal("start", processes.start)
    processes.tell = mortal("tell", processes.tell)
    outcome = supervise(RunDir(Path(run)))
    print(outcome.state, count, ",".join(names))


if __name__ == "__main__":
    main()
