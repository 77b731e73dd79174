"""``python -m rankfall.supervise.expiry``: ``python -m rankfall.supervisor.attended.ttl`` under its old name."""

from __future__ import annotations

import sys

from rankfall.supervisor.attended.ttl import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
