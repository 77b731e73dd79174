"""Who holds the memory of a GPU that ran out, by torch's own words: the process that says so, or others.

torch lists other processes wherever there are any, also a few small ones. Another node, or an end of them, helps only where they hold more than
the process itself.
"""

from __future__ import annotations

from typing import Final

from rankfall.model import numbers
from rankfall.model.patterns import bounded

_SHARE: Final = bounded(
    r"(?P<who>[Pp]rocess \d{1,10}|this process) has (?P<number>\d{1,9}(?:\.\d{1,4})?) (?P<unit>bytes|[KMGT]iB) memory in use",
    limit=4_096,
)
_UNITS: Final = {"bytes": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
_MOST: Final = 4096


def mostly_its_own(text: str) -> bool:
    """Whether the process that ran out holds at least as much as all others together; false where it does not say how much it holds."""
    own = others = 0.0
    for share in _SHARE.finditer(text[:_MOST]):
        size = (numbers.real(share["number"]) or 0.0) * _UNITS[share["unit"]]
        if share["who"] == "this process":
            own = max(own, size)
        else:
            others += size
    return own > 0 and own >= others
