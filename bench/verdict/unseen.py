"""How rightly a log is explained without the signatures that were written for it.

A signature that matches in one log of the corpus alone was probably written for that log. Each log with such signatures is explained again by a catalogue
without them, as a log that nobody has seen. Only ``develop`` is used.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from unittest import mock

from bench.common import Row
from bench.verdict.corpus import Judged, Label, judged, labels_of, rows
from rankfall.evidence.files.log_files import case_of_files
from rankfall.evidence.readers.findings import line_meanings
from rankfall.verdict.diagnose import diagnose
from rankfall.verdict.signatures.catalogue import Catalogue, default_catalogue
from rankfall.verdict.signatures.matcher import Hit, Matcher


def judge(folder: Path) -> list[Judged]:
    """Explains each log that has signatures of its own, without these, and compares."""
    labels, catalogue = labels_of(folder), default_catalogue()
    matched = {label.log: _matched(folder, label, catalogue) for label in labels}
    logs = Counter(each for found in matched.values() for each in found)
    found = []
    for label in labels:
        own = {each for each in matched[label.log] if logs[each] == 1}
        if own:
            others = Catalogue(each for each in catalogue.signatures if each.id not in own)
            found.append(_explained(folder, label, others))
    return found


def rows_of(found: Sequence[Judged], name: str) -> list[Row]:
    """The rows of a half: a figure to compare changes by, with no bound, since other logs of the half may have taught the same."""
    how = f"{len(found)} logs with signatures that match in no other log, each without these"
    return [
        dataclasses.replace(row, what=f"{row.what}, without its own signatures", bound="-", holds=None, how=how)
        for row in rows(found, name)
    ]


def _explained(folder: Path, label: Label, catalogue: Catalogue) -> Judged:
    return judged(label, diagnose(case_of_files([folder / label.log], catalogue=catalogue)).verdict)


def _matched(folder: Path, label: Label, catalogue: Catalogue) -> set[str]:
    """IDs of the signatures that match anywhere in a log."""
    found: set[str] = set()
    original = Matcher._line  # noqa: SLF001 - the one place through which each hit comes

    def recorded(self: Matcher, line: bytes, offset: int) -> Iterator[Hit]:
        for hit in original(self, line, offset):
            found.add(hit.signature.id)
            yield hit

    line_meanings.cache_clear()  # else a line that an earlier log had too is not matched again
    with mock.patch.object(Matcher, "_line", recorded):
        _explained(folder, label, catalogue)
    return found
