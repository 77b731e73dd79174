"""The run directory: raw streams with their index, the sqlite tables, the lease of the one writer, derived files.

Streams are never rewritten. All that others read of a run (terminal, JSON, reports) comes from here; nothing else is kept anywhere.
"""

from rankfall.store.append import StreamAppender
from rankfall.store.home import default_home, home
from rankfall.store.lease import Holder
from rankfall.store.reader import Reader
from rankfall.store.rows import NO_RANK, AttemptRow, DecisionRow, Fall, FallRow, RunRow, StreamRow, VerdictRow
from rankfall.store.rundir import RunDir, list_runs
from rankfall.store.writer import Writer

__all__ = [
    "NO_RANK",
    "AttemptRow",
    "DecisionRow",
    "Fall",
    "FallRow",
    "Holder",
    "Reader",
    "RunDir",
    "RunRow",
    "StreamAppender",
    "StreamRow",
    "VerdictRow",
    "Writer",
    "default_home",
    "home",
    "list_runs",
]
