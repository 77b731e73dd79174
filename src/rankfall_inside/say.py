"""What the wrapper has to say to people, on stderr: a line of its own, never a reason to fail."""

from __future__ import annotations

import os


def say(text: str) -> None:
    """Write one line."""
    try:
        os.write(2, f"rankfall: {text}\n".encode("utf-8", "backslashreplace"))
    except OSError:
        return
