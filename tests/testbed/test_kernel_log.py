"""The kernel's limit on writes of processes to its log comes back, whatever becomes of who lifted it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from support.helpers import wait_until
from testbed.errors import TestbedError
from testbed.kernel_log import loud


@pytest.fixture
def switch(tmp_path):
    path = tmp_path / "printk_devkmsg"
    path.write_text("ratelimit\n")
    return path


def test_the_limit_is_lifted_for_the_life_of_the_block(switch):
    with loud(switch):
        assert switch.read_text() == "on\n"
    assert switch.read_text() == "ratelimit\n"


def test_it_comes_back_after_an_error(switch):
    with pytest.raises(ValueError, match="of the block"), loud(switch):
        raise ValueError("of the block")
    assert switch.read_text() == "ratelimit\n"


LIFTS = """
import pathlib, sys, time
from testbed.kernel_log import loud
with loud(pathlib.Path(sys.argv[1])):
    print("on", flush=True)
    time.sleep(60)
"""


def test_it_comes_back_after_a_kill(switch):
    with subprocess.Popen([sys.executable, "-c", LIFTS, str(switch)], stdout=subprocess.PIPE, text=True) as lifting:
        assert lifting.stdout is not None
        assert lifting.stdout.readline() == "on\n"
        assert switch.read_text() == "on\n"
        os.kill(lifting.pid, signal.SIGKILL)
    wait_until(lambda: switch.read_text() == "ratelimit\n", timeout=20, what="the limit")


def test_a_kernel_that_keeps_its_limit_is_told(tmp_path):
    class Refusing(type(tmp_path)):
        """``/dev/full`` refuses every write, and has nothing to read."""

        def read_text(self):
            return "ratelimit\n"

    with pytest.raises(TestbedError, match="cannot be set"), loud(Refusing("/dev/full")):
        pass
