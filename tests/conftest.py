"""Settings of all tests."""

from __future__ import annotations

from hypothesis import settings

# A busy machine may take any time for one example: time is measured by the benchmarks, never asserted here. Everything else stays as
# hypothesis chose it (in CI: the same examples in every run).
settings.register_profile("rankfall", settings(), deadline=None)
settings.load_profile("rankfall")
