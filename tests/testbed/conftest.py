from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.proxy_world import World


@pytest.fixture
def world(tmp_path) -> Iterator[World]:
    """A small TLS server with a fault proxy before it."""
    made = World(tmp_path)
    yield made
    made.close()
