"""The command line. This module is what a start pays for, so everything else is imported when it is used."""

from __future__ import annotations

import sys


def main() -> None:
    """Entry point of ``rankfall``; ends the process with the exit code of the verb."""
    from rankfall.cli.guard import run  # noqa: PLC0415 - importing rankfall.cli must stay free

    sys.exit(run(sys.argv[1:]))
