"""With the channels of evidence cut one by one the verdict stays, or gets weaker; it is never another one."""

from __future__ import annotations

from pathlib import Path

import pytest

from faults.channels import said_less
from faults.run import judge, run_ours
from faults.table import FAULTS, Fault
from rankfall.rundir import list_runs

pytestmark = [pytest.mark.faults, pytest.mark.timeout(120)]
# One of each kind: an exception, an exit, a signal from outside, a crash, a fault of all ranks, an early leave, a kill of the wrapper.
COVERING = (
    "exception-key",
    "exception-on-all",
    "exit-3",
    "leaves-early",
    "null-pointer",
    "signal-outside-kill",
    "signal-outside-term",
    "wrapper-killed",
)
# So long do they take that of these only two run each time.
ALWAYS = ("leaves-early", "signal-outside-kill")


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(one, id=one.name, marks=() if one.name in ALWAYS else pytest.mark.full)
        for one in FAULTS
        if one.name in COVERING
    ],
)
def test_errors_s35_a_verdict_without_a_channel_is_the_same_or_weaker(fault: Fault, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    ours = run_ours(fault, tmp_path / "run", launcher="plain", torch=False)
    judged = judge(fault, ours.verdicts[-1], slot=1)
    assert judged.grade == "right", (judged, ours.stderr)
    (run,) = list_runs(tmp_path / "run" / "home")
    slot = fault.slot if fault.slot is not None else None if fault.rank is None else fault.rank // 2
    found = list(said_less(fault, run, tmp_path / "cut", slot=slot))
    assert not found, "; ".join(found)
