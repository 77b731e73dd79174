"""Steps side by side: all run at once, all are waited for, a failure is told."""

from __future__ import annotations

import threading

import pytest

from support.patience import scaled
from testbed.together import together


def test_all_run_at_the_same_time():
    meet = threading.Barrier(3)
    together(*(lambda: meet.wait(scaled(20)) for _ in range(3)))


def test_a_failure_is_raised_after_the_others_came_to_their_end():
    done = []

    def fail() -> None:
        raise OSError("no room")

    with pytest.raises(OSError, match="no room"):
        together(fail, lambda: done.append(1))
    assert done == [1]
