"""Lines of a run: a snapshot with :func:`read_lines`, live with :class:`Follower`; the same query for both."""

from rankfall.store.cursor import MAX_LINE
from rankfall.store.follow import Follower
from rankfall.store.merge import CUT_MARK, Line, read_lines
from rankfall.store.select import LineQuery, last_told

__all__ = ["CUT_MARK", "MAX_LINE", "Follower", "Line", "LineQuery", "last_told", "read_lines"]
