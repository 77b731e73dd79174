"""Run directories: streams with their index, run.db, lease, requests, line queries, journal formats.

Everything that is shown of a run is read from here and kept nowhere else; raw streams are never rewritten.
Contents: files and formats on disk, one writer under a lease, readers without a lock; no process, no
request.
Imports model and verdict.signatures (late); cluster/ also the pure helpers of kube.object_fields.
Faces: RunDir, Reader, Writer (this package), lines (queries of lines).
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
