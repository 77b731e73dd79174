"""The moment between the end of an attempt's slots and the end of their wrappers, or of the word of their pods: it is waited for, not for ever.

A wrapper's last record comes a moment before its end. A pod's last state comes a moment after its wrapper's last words, and goes with the pod.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from typing import Final

from rankfall.backends.plan import Plan
from rankfall.backends.protocol import Backend
from rankfall.supervise.control import Control

# For a wrapper to write its end and leave, on a busy disk; and between two looks.
_LEAVE_S: Final = 5.0
_STEP_S: Final = 0.01
# How long the kubelet may take to say how a container ended; likewise.
_LAST_STATE_S: Final = 10.0
_POD_STEP_S: Final = 0.05


def see_off(plan: Plan, slots: Collection[int], *, backend: Backend, control: Control) -> None:
    """Wait until these slots have left.

    Args:
        plan: of the attempt, with the newest start of each slot.
        slots: that have ended.
        backend: sees whether they are there.
        control: wakes the wait.
    """
    most, step = (_LEAVE_S, _STEP_S) if plan.cluster is None else (_LAST_STATE_S, _POD_STEP_S)
    deadline = time.monotonic() + most
    while any(backend.alive(plan, slot) for slot in slots) and time.monotonic() < deadline:
        control.wait(step)
