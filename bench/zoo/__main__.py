"""``make zoo``: real launchers, real faults, and what is said of their text; writes docs/results/zoo.md.

``python -m bench.zoo [LAUNCHER ...] [--fault NAME ...] [--again]``. The texts stay in build/zoo; a text that is there is
not made again without ``--again``. Environments are in the cache folder; the first time takes minutes and gigabytes.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from bench.common import ROOT
from bench.zoo import jobs, judge
from bench.zoo.launchers import LAUNCHERS
from bench.zoo.programs.faults import FAULTS

FOLDER = ROOT / "build" / "zoo"


def main(argv: list[str]) -> int:
    """Make the texts that are not there, judge all, print; write the page when everything was judged. 1 when a bound is broken."""
    parser = argparse.ArgumentParser(prog="python -m bench.zoo", description=__doc__)
    parser.add_argument("launchers", nargs="*", metavar="LAUNCHER", help=f"{', '.join(LAUNCHERS)}; all by default")
    parser.add_argument("--fault", action="append", choices=list(FAULTS), help="only this one; may be given again")
    parser.add_argument("--again", action="store_true", help="make texts that are there already")
    given = parser.parse_args(argv)
    if unknown := sorted(set(given.launchers) - set(LAUNCHERS)):
        parser.error(f"no launcher is named {unknown[0]}; there are: {', '.join(LAUNCHERS)}")
    left_out: dict[str, str] = {}
    for name in given.launchers or LAUNCHERS:
        needed = LAUNCHERS[name].needs
        if needed and (shutil.which(needed) is None or not os.environ.get("SLURM_CONF")):
            left_out[name] = f"no {needed}, or SLURM_CONF names no cluster"
            continue
        try:
            jobs.installed(LAUNCHERS[name])
        except subprocess.CalledProcessError as error:
            left_out[name] = (
                f"its packages cannot be installed: {' '.join(error.cmd[-3:])} ended with {error.returncode}"
            )
            continue
        _texts(name, given.fault or list(FAULTS), again=given.again)
    cells = judge.judge(FOLDER, given.launchers or list(LAUNCHERS), given.fault or list(FAULTS))
    text = judge.page(cells, left_out)
    print(text)
    if not given.launchers and not given.fault:
        (ROOT / "docs" / "results" / "zoo.md").write_text(text, encoding="utf-8")
    return 0 if judge.holds(cells) else 1


def _texts(name: str, faults: list[str], *, again: bool) -> None:
    launcher = LAUNCHERS[name]
    FOLDER.mkdir(parents=True, exist_ok=True)
    for fault in faults:
        log = FOLDER / f"{name}.{fault}.log"
        impossible = fault in launcher.without or (FAULTS[fault].torch and not launcher.torch)
        if impossible or (log.exists() and not again):
            continue
        folder = Path(tempfile.mkdtemp(prefix="zoo-"))
        try:
            status = jobs.run(launcher, fault, folder=folder, log=log.with_suffix(".part"))
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        print(f"{name} {fault}: {'ended after the time limit' if status is None else status}", flush=True)
        log.with_suffix(".part").replace(log)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
