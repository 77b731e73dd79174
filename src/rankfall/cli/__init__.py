"""The command line: parses arguments, calls the client, renders the answer.

Every start loads this module, so it imports lazily. ``commands`` has one module per group of verbs.
"""

from __future__ import annotations

import sys


def main() -> None:
    """Runs ``rankfall`` and exits with the verb's exit code."""
    from rankfall.cli.app import run  # noqa: PLC0415

    sys.exit(run(sys.argv[1:]))
