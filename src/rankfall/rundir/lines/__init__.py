"""Lines of a run: a snapshot with :func:`read_lines`, live with :class:`Follower`; one query for both.

Holds the line reader, the query, merging, following, and the files derived from lines (rank logs,
--log-dir).
Imports rundir and rundir.streams; the signature catalogue only late, for --level error.
"""

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
