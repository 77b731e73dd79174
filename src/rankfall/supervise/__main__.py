"""``python -m rankfall.supervise``: ``python -m rankfall.supervisor`` under its old name."""

from __future__ import annotations

import sys

from rankfall.supervisor.__main__ import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
