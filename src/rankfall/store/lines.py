"""Lines of a run: a snapshot with :func:`read_lines`, live with :class:`Follower`; the same query for both."""

from rankfall.store.cursor import MAX_LINE
from rankfall.store.follow import Follower
from rankfall.store.merge import CUT_MARK, Block, Line, block_of, read_blocks, read_lines
from rankfall.store.select import LineQuery, last_told

__all__ = [
    "CUT_MARK",
    "MAX_LINE",
    "Block",
    "Follower",
    "Line",
    "LineQuery",
    "block_of",
    "last_told",
    "read_blocks",
    "read_lines",
]
