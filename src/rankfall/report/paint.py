"""Colour for a terminal, or none. Six attributes are enough; everything printed must read as well without them."""

from __future__ import annotations

import os
from typing import IO, Any


class Paint:
    """Wraps text in SGR sequences when ``color`` is true, else leaves it as it is."""

    def __init__(self, *, color: bool = False) -> None:
        self.color = color

    def __call__(self, text: str, code: str) -> str:
        """``text`` with the SGR attributes ``code``, as ``1;31``."""
        return f"\x1b[{code}m{text}\x1b[0m" if self.color and text else text

    def bold(self, text: str) -> str:
        """What the eye should find first."""
        return self(text, "1")

    def dim(self, text: str) -> str:
        """What may be skipped."""
        return self(text, "2")

    def bad(self, text: str) -> str:
        """A failure."""
        return self(text, "1;31")

    def good(self, text: str) -> str:
        """A success."""
        return self(text, "32")

    def warn(self, text: str) -> str:
        """Worth a look."""
        return self(text, "33")


def wants_color(stream: IO[Any]) -> bool:
    """Whether colour is wanted there: a terminal, no ``NO_COLOR``, no dumb terminal."""
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return False
    try:
        return stream.isatty()
    except ValueError:  # closed
        return False
