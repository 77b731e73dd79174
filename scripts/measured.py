"""Starts coverage in a child of the tests, in the moment when it imports ``rankfall``.

``scripts/setup`` puts this into the virtual environment, and a ``.pth`` file loads it where the tests ask for it. Coverage's own way is to be
loaded in every Python: then each rank, launcher and helper of a test starts in 0.2 s of work instead of 0.015, and torch is imported under its tracer.
Nothing is measured in a Python without ``site`` (``-S``). Standard library only.
"""

from __future__ import annotations

import os
import sys

# Set by tests/conftest.py: coverage's settings, as it would give them to a child.
SETTINGS = "COVERAGE_OF_RANKFALL"
_THEIRS = "COVERAGE_PROCESS_CONFIG"


class OnImport:
    """The first of ``sys.meta_path``; finds nothing, and leaves when it has seen the import."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        """Start coverage when the measured package is imported."""
        del path, target
        if name != "rankfall":
            return
        sys.meta_path.remove(self)
        os.environ[_THEIRS] = os.environ[SETTINGS]
        import coverage  # noqa: PLC0415 - the point of this module

        coverage.process_startup(slug="import")
        # Coverage hands its settings to children; ours are enough.
        os.environ.pop(_THEIRS, None)


if os.environ.get(SETTINGS):
    sys.meta_path.insert(0, OnImport())
