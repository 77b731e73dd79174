"""A stop of a whole slot under the real torchrun: ranks in sessions of their own end too, and their ends say that it was us."""

from __future__ import annotations

import sys

import pytest

from rankfall_inside import procfs
from support.helpers import wait_until
from support.patience import scaled


@pytest.mark.torch
@pytest.mark.timeout(120)
def test_a_stop_ends_torchrun_and_its_ranks_without_leftovers(slot) -> None:
    script = slot.script("import signal\nprint('ready', flush=True)\nwhile True: signal.pause()")
    command = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", script)
    process = slot.start(*command, options=("--nproc", "2"))
    wait_until(lambda: slot.stream("0.out") and slot.stream("1.out"), timeout=60, what="both ranks")
    pids = [one.pid for one in procfs.descendants(process.pid)]
    assert len(pids) >= 3
    slot.control("stop 20 another slot failed")
    process.wait(scaled(40))
    assert not [pid for pid in pids if (found := procfs.stat(pid)) and found.state != "Z"]
    ends = slot.records("end")
    assert sorted(record.rank for record in ends) == [0, 1]
    assert {(record.exit.signal, record.exit.ours, record.exit.reason) for record in ends} == {
        (15, True, "another slot failed")
    }
    assert slot.one("slot_end").exit.ours
