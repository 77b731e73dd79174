"""``python -m rankfall.cli``, for environments without the script on PATH."""

from rankfall.cli import main

main()
