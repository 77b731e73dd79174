"""Lines of a call that runs in the portal's thread, handed on in the thread of whoever waits for it, while it waits."""

from __future__ import annotations

from collections import deque
from typing import Final

from rankfall.backends.protocol import Company

# A call that nobody listens to keeps its newest words only.
_MOST: Final = 200


class Telling:
    """Words of one call.

    Args:
        company: who waits; None = nobody listens.

    Attributes:
        last: the newest line.
    """

    def __init__(self, company: Company | None) -> None:
        self.last = ""
        self._company = company
        self._lines: deque[str] = deque(maxlen=_MOST)

    def say(self, text: str) -> None:
        """Take a line, from any thread."""
        self.last = text
        self._lines.append(text)

    def meanwhile(self) -> bool:
        """Hand on what came; whether the call is to end."""
        if self._company is None:
            return False
        while self._lines:
            self._company.say(self._lines.popleft())
        return self._company.over()
