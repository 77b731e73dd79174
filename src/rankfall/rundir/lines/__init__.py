"""Lines of a run: a snapshot with :func:`read_lines`, live with :class:`LineTail`; one query for both."""

from rankfall.rundir.lines.follow import LineTail
from rankfall.rundir.lines.merge import CUT_MARK, Block, Line, block_of, read_blocks, read_lines
from rankfall.rundir.lines.query import LineQuery, last_known_rank
from rankfall.rundir.lines.reader import MAX_LINE

__all__ = [
    "CUT_MARK",
    "MAX_LINE",
    "Block",
    "Line",
    "LineQuery",
    "LineTail",
    "block_of",
    "last_known_rank",
    "read_blocks",
    "read_lines",
]
