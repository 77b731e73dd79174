"""The command line: parses arguments, calls the client, renders the answer.

Every start loads this module, so it imports lazily. ``commands`` has one module per group of verbs.
"""

from __future__ import annotations

import sys

# As ``rankfall.cli.app.CANCELLED``, for a Ctrl-C while that module loads.
_CANCELLED = 130


def main() -> None:
    """Runs ``rankfall`` and exits with the verb's exit code."""
    try:
        from rankfall.cli.app import run  # noqa: PLC0415
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        sys.exit(_CANCELLED)
    sys.exit(run(sys.argv[1:]))
