"""Hostile inputs: what a job or a stranger can write into logs, records, error files, dumps and folders; one table for all tests.

``INPUTS`` holds them by name. Each says what it attacks and makes its bytes at any size, so that a test can measure cost a byte. A text can be
the output of a live job as well: ``python -m hostile_inputs NAME BYTES`` prints it (with ``tests`` on ``PYTHONPATH``; standard library only).
Nothing here needs more than a few MiB of disk: large files are sparse, or compressed zeros.
"""

from __future__ import annotations

from support.hostile_inputs.dumps import DUMPS
from support.hostile_inputs.error_files import ERROR_FILES
from support.hostile_inputs.shapes import Hostile, Kind
from support.hostile_inputs.texts import TEXTS
from support.hostile_inputs.trees import TREES

INPUTS: dict[str, Hostile] = {one.name: one for one in (*TEXTS, *ERROR_FILES, *DUMPS, *TREES)}

__all__ = ["INPUTS", "Hostile", "Kind", "of_kind"]


def of_kind(*kinds: Kind) -> list[Hostile]:
    """The inputs of these kinds, in the order of the table."""
    return [one for one in INPUTS.values() if one.kind in kinds]
