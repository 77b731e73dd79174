"""How long tests wait: the scale of every wait and time-out of the tests.

``scripts/check.py`` measures the machine at the start of a run and stores the ratio in the variable ``RANKFALL_TEST_SCALE``. Tests pass each
length of time that a slow machine could exceed through ``scaled``. This module uses the standard library only, because ``scripts/check.py``
imports it before anything is installed.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time

VARIABLE = "RANKFALL_TEST_SCALE"
LEAST, MOST = 1.0, 6.0

# What a test's process does most: the start of an interpreter, imports, and Python code.
_WORK = """
import argparse, asyncio, decimal, email.message, http.client, json, ssl, subprocess, unittest, xml.dom.minidom
number = 0
for step in range(1_050_000):
    number = (number * 31 + step) % 1_000_003
"""
# Seconds of that work on an idle core of the reference machine (2 cores, AMD EPYC, Python 3.11): the median of the processor time of 12 children.
_IDLE_S = 0.32
_ROUNDS = 3


def _clamped(ratio: float) -> float:
    return min(MOST, max(LEAST, ratio))


def _scale() -> float:
    """Read the variable at each call, so that ``tests/conftest.py`` can set it after the import of this module."""
    return _clamped(float(os.environ.get(VARIABLE) or LEAST))


def __getattr__(name: str) -> float:
    """``SCALE``: the scale of this run, between 1 and 6; 1 when nothing was measured."""
    if name == "SCALE":
        return _scale()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def scaled(seconds: float) -> float:
    """The limit ``seconds``, which is right for an idle machine, as this machine needs it."""
    return seconds * _scale()


def measure() -> float:
    """Measure how much slower this machine is now than an idle core; the median of three rounds, between 1 and 6."""
    return _clamped(statistics.median(_round() for _ in range(_ROUNDS)) / _IDLE_S)


def _round() -> float:
    """Seconds of one round."""
    began = time.perf_counter()
    subprocess.run([sys.executable, "-I", "-c", _WORK], stdin=subprocess.DEVNULL, check=True)
    return time.perf_counter() - began
