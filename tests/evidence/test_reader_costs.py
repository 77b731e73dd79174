"""A part of ``make fuzz-readers``: each reader over some hostile shapes, in child processes with limits."""

from __future__ import annotations

import importlib
import math
import os
import signal
from functools import partial

import pytest

from support import reader_costs
from support.hostile_inputs import INPUTS
from support.reader_costs import MODULES, READERS, Cost, Result, inputs_of, made_texts, measure, repeated

N = 16 << 10
# Shapes that stalled or ended a run before (issue 18), one for each reader that meets them.
ONCE = (
    "traceback-heads",
    "traceback-interleaved",
    "repeat-error",
    "number-stopped",
    "json-message-newlines",
    "flyte-newlines",
    "pickle-shared-members",
)


@pytest.fixture(scope="module", autouse=True)
def _prepared():
    reader_costs.prepare()


def worst(results):
    return [f"{one.reader}, {one.input}: {one.problem}" for one in results if one.problem]


def measured(name, label, make):
    """Up to three times where a bound is broken: other processes may have slowed the first time."""
    for _ in range(3):
        result = measure(name, label, make, (N, 4 * N))
        if not result.problem:
            break
    return result


@pytest.mark.parametrize("name", READERS)
def test_i18_p6_each_reader_takes_linear_time_and_bounded_memory(name, monkeypatch):
    # Seconds are measured by make fuzz-readers; here it counts how they grow.
    monkeypatch.setattr(reader_costs, "MAX_SECONDS_A_MIB", math.inf)
    chosen = [one for one in inputs_of(name) if one.name in ONCE]
    texts = made_texts(2, start=len(name))
    results = [measured(name, one.name, one.data) for one in chosen]
    results += [measured(name, f"made {text[:20]!r}", partial(repeated, text)) for text in texts]
    assert len(results) >= 3
    assert not worst(results)


def test_what_breaks_a_bound_is_named(monkeypatch):
    def drive(data, _):
        if data == b"die":
            os.kill(os.getpid(), signal.SIGKILL)
        if data == b"raise":
            raise KeyError("x")
        if data == b"big":
            bytearray(400 << 20)

    monkeypatch.setitem(READERS, "test", reader_costs.Reader(drive))
    say = lambda data: measure("test", "x", lambda _: data, (1,)).problem  # noqa: E731 - shorter so
    assert "status" in say(b"die")
    assert "KeyError" in say(b"raise")
    assert "MiB for 3 bytes" in say(b"big")
    assert say(b"fine") == ""
    slow = Result("r", "i", (Cost(1000, 0.1), Cost(4000, 1.6)))
    assert "a MiB" in slow.problem
    grows = Result("r", "i", (Cost(1 << 20, 0.1), Cost(4 << 20, 1.6)))
    assert "16 times" in grows.problem
    assert Result("r", "i", (Cost(1 << 20, 0.1), Cost(4 << 20, 0.4))).problem == ""


def test_the_shapes_of_the_issue_are_in_the_table():
    assert set(ONCE) <= set(INPUTS)


@pytest.mark.parametrize("name", sorted(MODULES))
def test_every_reader_states_its_cost(name):
    assert "Cost: " in importlib.import_module(name).__doc__
