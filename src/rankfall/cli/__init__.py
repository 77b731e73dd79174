"""The command line: parse arguments, call the client, render the answer.

This module is loaded by every start, so everything else is imported when it is used.
The root holds what several commands share; ``commands`` holds one module per group of verbs, loaded when
its verb runs.
May import ``client``, ``render``, ``explain``, ``supervisor`` and below; nothing imports ``cli``.
"""

from __future__ import annotations

import sys


def main() -> None:
    """Entry point of ``rankfall``; ends the process with the exit code of the verb."""
    from rankfall.cli.app import run  # noqa: PLC0415 - importing rankfall.cli must stay free

    sys.exit(run(sys.argv[1:]))
