"""``python -m rankfall.supervisor [--detach] [--wait S] RUN_DIRECTORY``: the supervisor process.

SIGTERM and SIGINT cancel the run; SIGHUP hands it to a detached supervisor.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from rankfall.model import LockHeld, RankfallError, numbers
from rankfall.rundir import RunDir
from rankfall.rundir.lease import private
from rankfall.supervisor import HELD, LOG_NAME
from rankfall.supervisor.requests import Control
from rankfall.supervisor.run_events import Event
from rankfall.supervisor.supervise import supervise

_USAGE = 2


def main(argv: Sequence[str]) -> int:
    """Supervises one run; returns its exit code, or 75 if another process supervises it."""
    words = list(argv)
    detach = "--detach" in words
    if detach:
        words.remove("--detach")
    wait = 0.0
    if words[:1] == ["--wait"] and len(words) > 1 and (seconds := numbers.real(words[1])) is not None:
        wait = seconds
        words = words[2:]
    if len(words) != 1 or words[0].startswith("-"):
        sys.stderr.write("usage: python -m rankfall.supervisor [--detach] [--wait SECONDS] RUN_DIRECTORY\n")
        return _USAGE
    run_dir = RunDir(Path(words[0]))
    if detach:
        return _detach(run_dir, wait)
    return _supervise(run_dir, wait=wait, ready=-1)


def _supervise(run_dir: RunDir, *, wait: float, ready: int) -> int:
    control = Control(unseen=True)

    def on_event(event: Event) -> None:
        sys.stderr.write(f"{event.kind}: {event.text}\n".encode("ascii", "backslashreplace").decode("ascii"))
        sys.stderr.flush()
        if event.kind == "signal":
            control.cancel(f"the supervisor got signal {event.data.get('signal')}")

    try:
        return supervise(
            run_dir,
            on_event=on_event,
            control=control,
            wait=wait,
            handle_signals=True,
            on_lease=lambda: _say(ready, f"{os.getpid()}"),
        ).code
    except LockHeld as error:
        _say(ready, f"!{error.message}")
        return HELD
    except RankfallError as error:
        _say(ready, f"?{error.message}")
        sys.stderr.write(f"{error}\n")
        return error.exit_code


def _say(ready: int, text: str) -> None:
    if ready >= 0:
        os.write(ready, text.encode("utf-8", "replace")[:4096])
        os.close(ready)


def _detach(run_dir: RunDir, wait: float) -> int:
    """Forks; the child belongs to init and supervises the run."""
    come, go = os.pipe()
    if os.fork():
        os.close(go)
        with os.fdopen(come, "rb") as file:
            output = file.read(8192).decode("utf-8", "replace")
        if output.isdigit():
            sys.stdout.write(output + "\n")
        else:
            sys.stderr.write(output[1:] or f"it exited immediately; see {LOG_NAME}")
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0 if output.isdigit() else HELD if output.startswith("!") else 1)
    os.close(come)
    os.setsid()
    log = private(run_dir.path / LOG_NAME, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    return _supervise(run_dir, wait=wait, ready=go)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
