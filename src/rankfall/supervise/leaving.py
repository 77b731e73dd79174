"""The moment between the end of an attempt's slots and the end of their wrappers, or of the word of their pods: it is waited for, not for ever.

A wrapper's last record comes a moment before its end. A pod's last state comes a moment after its wrapper's last words, and goes with the pod.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from typing import Final, Protocol

from rankfall.backends.plan import Plan
from rankfall.backends.protocol import Backend
from rankfall.supervise.control import Control

# For a wrapper to write its end and leave, on a busy disk; and between two looks.
_LEAVE_S: Final = 5.0
_STEP_S: Final = 0.01
# How long the kubelet may take to say how a container ended; likewise.
_LAST_STATE_S: Final = 10.0
_POD_STEP_S: Final = 0.05
_MAX_NAMED: Final = 8
# What takes less is not reported as a wait.
_WORTH_S: Final = 0.5


class Wait(Protocol):
    """Takes what is waited for: its kind, and a text for people."""

    def __call__(self, what: str, text: str, *, now: int) -> None:
        """Report it."""


def see_off(plan: Plan, slots: Collection[int], *, backend: Backend, control: Control, wait: Wait) -> None:
    """Wait until these slots have left.

    Args:
        plan: of the attempt, with the newest start of each slot.
        slots: that have ended.
        backend: sees whether they are there.
        control: wakes the wait.
        wait: takes what is waited for.
    """
    most, step = (_LEAVE_S, _STEP_S) if plan.cluster is None else (_LAST_STATE_S, _POD_STEP_S)
    begun = time.monotonic()
    while time.monotonic() - begun < most and (left := [slot for slot in slots if backend.alive(plan, slot)]):
        if time.monotonic() - begun >= _WORTH_S:
            what = "wrapper" if plan.cluster is None else "kubelet"
            wait(
                "last_states",
                f"waits for the {what}'s last report on {slots_text(left)}, at most {most:g} s",
                now=time.time_ns(),
            )
        control.wait(step)


def slots_text(slots: Collection[int]) -> str:
    """Slots in a text for people: the first few of many."""
    first = ", ".join(map(str, sorted(slots)[:_MAX_NAMED]))
    more = f" and {len(slots) - _MAX_NAMED} more" if len(slots) > _MAX_NAMED else ""
    return f"slot{'s' if len(slots) > 1 else ''} {first}{more}"
