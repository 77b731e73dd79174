"""Run directories: streams with index, run.db, lease, requests, line queries.

One writer under a lease, readers without a lock; raw streams are never rewritten. Entries: ``RunDir``,
``Reader``, ``Writer``, ``lines``.
"""

from rankfall.rundir.database import (
    NO_RANK,
    AttemptRow,
    DecisionRow,
    RunRow,
    SlotFailure,
    SlotFailureRow,
    StreamRow,
    VerdictRow,
)
from rankfall.rundir.database_writer import Writer
from rankfall.rundir.directory import Reader, RunDir, list_runs
from rankfall.rundir.layout import default_home, home
from rankfall.rundir.lease import Holder
from rankfall.rundir.streams.writer import StreamAppender

__all__ = [
    "NO_RANK",
    "AttemptRow",
    "DecisionRow",
    "Holder",
    "Reader",
    "RunDir",
    "RunRow",
    "SlotFailure",
    "SlotFailureRow",
    "StreamAppender",
    "StreamRow",
    "VerdictRow",
    "Writer",
    "default_home",
    "home",
    "list_runs",
]
