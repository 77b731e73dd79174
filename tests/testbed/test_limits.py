"""A limit that a bed raised is put back to what it was; one that is high enough is left alone."""

from __future__ import annotations

import pytest

from testbed import limits
from testbed.layout import Layout


@pytest.fixture
def layout(tmp_path, monkeypatch):
    monkeypatch.setattr(limits, "INSTANCES", tmp_path / "max_user_instances")
    monkeypatch.setattr(Layout, "folder", property(lambda self: tmp_path / "beds" / str(self.number)))
    for number in (62, 63):
        Layout(number).folder.mkdir(parents=True)
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


@pytest.mark.parametrize("first", [62, 63])
def test_the_last_of_two_beds_puts_it_back(layout, first):
    limits.INSTANCES.write_text("128\n")
    limits.raise_follows(Layout(62))
    limits.raise_follows(layout)
    limits.restore(Layout(first))
    assert int(limits.INSTANCES.read_text()) > 1000
    limits.restore(Layout(62 + 63 - first))
    assert limits.INSTANCES.read_text() == "128\n"


def test_what_somebody_else_changed_meanwhile_is_no_bed_s_business_before_the_end(layout):
    limits.INSTANCES.write_text("128\n")
    limits.raise_follows(Layout(62))
    limits.INSTANCES.write_text("20000\n")
    limits.raise_follows(layout)
    assert limits.INSTANCES.read_text() == "20000\n"
