"""``python -m rankfall``: the same as the command ``rankfall``."""

from rankfall.cli import main

main()
