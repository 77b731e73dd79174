"""How much of each stream was put on the container's stdout, so that whoever stored it can tell whether anything is missing.

Counted is what a reader stores: lines and bytes without the prefix that names the rank. Carriage returns right before a line feed count
nothing: containerd leaves one out, other runtimes keep it.
"""

from __future__ import annotations

import re

from rankfall_inside import foreign

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Mapping

# Of more streams only the sum is told: the record must fit into a line of the log channel.
MOST = 64
# The same for the termination message, which holds the first error too.
MOST_IN_MESSAGE = 12
SUM = "all"
# Only from where a run of them begins: from each of a long one it would take time by its square.
_RETURNS = re.compile(rb"(?<!\r)\r+(?=\n)")
_RANK = b"[rank "


class Printed:
    """Lines and bytes by stream: ``r<rank>``, or ``slot`` for lines of no rank."""

    def __init__(self) -> None:
        self._counts: dict[bytes, list[int]] = {}

    def add(self, prefix: bytes, data: bytes) -> None:
        """Count lines that leave.

        Args:
            prefix: that they get, ``[rank N] `` or another one.
            data: the lines without it, the last one without its newline.
        """
        size = len(data) + 1
        if b"\r" in data:
            size -= sum(len(found) for found in _RETURNS.findall(data + b"\n"))
        count = self._counts.setdefault(prefix, [0, 0])
        count[0] += data.count(b"\n") + 1
        count[1] += size

    def told(self) -> dict[str, list[int]]:
        """For the record of the slot's end: [lines, bytes] by stream."""
        found: dict[str, list[int]] = {}
        for prefix, (lines, size) in self._counts.items():
            rank = prefix[len(_RANK) : -2]
            count = found.setdefault(f"r{number}" if (number := foreign.whole(rank)) is not None else "slot", [0, 0])
            count[0] += lines
            count[1] += size
        return few(found, MOST)


def few(counts: Mapping[str, list[int]], most: int) -> dict[str, list[int]]:
    """``counts`` as they are, or their sum where there are more than ``most``."""
    if len(counts) <= most:
        return dict(counts)
    return {SUM: [sum(count[0] for count in counts.values()), sum(count[1] for count in counts.values())]}
