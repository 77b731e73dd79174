"""A limit that a bed raised is put back to what it was; one that is high enough is left alone."""

from __future__ import annotations

import pytest

from testbed import limits
from testbed.layout import Layout


@pytest.fixture
def layout(tmp_path, monkeypatch):
    monkeypatch.setattr(limits, "INSTANCES", tmp_path / "max_user_instances")
    monkeypatch.setattr(Layout, "folder", tmp_path / "bed")
    (tmp_path / "bed").mkdir()
    return Layout(63)


def test_what_was_raised_twice_goes_back_to_what_it_was_first(layout):
    limits.INSTANCES.write_text("128\n")
    limits.raise_follows(layout)
    limits.raise_follows(layout)
    limits.restore(layout)
    assert limits.INSTANCES.read_text() == "128\n"


def test_a_machine_that_allows_enough_is_left_alone(layout):
    limits.INSTANCES.write_text("100000\n")
    limits.raise_follows(layout)
    assert limits.INSTANCES.read_text() == "100000\n"
    limits.INSTANCES.write_text("90000\n")
    limits.restore(layout)
    assert limits.INSTANCES.read_text() == "90000\n"
