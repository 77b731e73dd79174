"""A limit on the memory of tests with hostile input: what a reader takes without bound ends its test and never the machine."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

# Address space that one hostile input may take on top of what its process has.
MORE = 2 << 30


def limit_child() -> None:
    """Limit this process for good: for a child that reads one input and ends."""
    most = _now() + MORE
    resource.setrlimit(resource.RLIMIT_AS, (most, resource.getrlimit(resource.RLIMIT_AS)[1]))


@contextmanager
def limited() -> Iterator[None]:
    """Limit this process for a while."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    limit_child()
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def _now() -> int:
    """Address space of this process, bytes; 0 where /proc is missing."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    except OSError:
        return 0
    return pages * resource.getpagesize()
