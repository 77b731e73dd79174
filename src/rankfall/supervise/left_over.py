"""What is still to be done for a run whose final state is stored: the files made for reading, then what it leaves in its platform and its large streams.

A mark in the run directory says so before the final state is stored, and goes when all is done. So whoever was killed in between is finished by
the next command that looks at the run: its files by any of them, the rest by who waits for it or attaches to it. Each step can be done twice.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Literal

from rankfall.model import FINAL_STATES, RankfallError, StoreError
from rankfall.store import RunDir
from rankfall.store.fs import write_file
from rankfall.supervise.ledger import Ledger

Left = Literal["files", "rest"]


def left_over(run_dir: RunDir) -> Left | None:
    """What is still to be done first; None when nothing is."""
    try:
        with run_dir.closing_path.open("rb") as file:
            return "rest" if file.read(16).startswith(b"rest") else "files"
    except OSError:
        return None


def begin(run_dir: RunDir) -> None:
    """Say that a final state is stored next."""
    # On a full disk the run ends all the same.
    with contextlib.suppress(OSError):
        write_file(run_dir.closing_path, b"files\n")


def done(run_dir: RunDir) -> None:
    """Say that nothing is left to do. Whose files could not be written keeps the mark: there may be room later."""
    if left_over(run_dir) == "rest":
        with contextlib.suppress(OSError):
            run_dir.closing_path.unlink()


def write_files(run_dir: RunDir, ledger: Ledger) -> None:
    """Write the files made for reading; the run does not depend on them. What fails is noted.

    Of a foreign job there are none: its record is made for who looks at it, and holds each line once.
    """
    if run_dir.foreign is None:
        from rankfall.store.derived import write_derived  # noqa: PLC0415 - only at the end of a run

        try:
            write_derived(run_dir)
        except (OSError, StoreError) as error:
            ledger.note(f"the files per rank could not be written: {error}"[:500])
            return
    folder = run_dir.spec.log_dir
    if folder is not None:
        from rankfall.store.log_dir import LogDir  # noqa: PLC0415 - as above

        problem = LogDir(run_dir, Path(folder)).finish()
        if problem is not None:
            ledger.note(f"log_dir: {problem}; the same files are in {run_dir.path}"[:500])
    if left_over(run_dir) is not None:
        with contextlib.suppress(OSError):
            half = run_dir.closing_path.with_suffix(".half")
            write_file(half, b"rest\n")
            half.replace(run_dir.closing_path)


def finish_files(run_dir: RunDir) -> None:
    """Write the files that somebody was killed over, where nobody holds the run; what cannot be done is left to the next one."""
    if left_over(run_dir) != "files":
        return
    # Held by somebody, damaged, or not writable for us: it is theirs.
    with contextlib.suppress(RankfallError, OSError), run_dir.lease() as writer:
        if writer.run().state in FINAL_STATES and left_over(run_dir) == "files":
            ledger = Ledger(writer, on_gap=lambda _: None)
            write_files(run_dir, ledger)
            ledger.flush()
