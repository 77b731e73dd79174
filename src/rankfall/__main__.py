"""Runs the command ``rankfall`` as ``python -m rankfall``."""

from rankfall.cli import main

main()
