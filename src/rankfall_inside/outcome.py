"""How the slot ended, in words for the ``slot_end`` record and as the wrapper's own exit code."""

from __future__ import annotations

import os
import signal

from rankfall_inside import causes, ranks

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Sequence

    from rankfall_inside.commands import Commands
    from rankfall_inside.falls import Falls
    from rankfall_inside.orders import Orders
    from rankfall_inside.procfs import Stat

_MAX_NOTES = 20


def exit_info(commands: Commands, orders: Orders, *, refused: str) -> dict[str, Any]:
    """Fields of ``ExitInfo`` of the slot.

    Args:
        commands: what was started, and its status.
        orders: who asked for the end.
        refused: why nothing could be started; "" otherwise.
    """
    status, asked = commands.status, orders.asked
    how = "none" if not commands.started else "gone" if status is None else "wait"
    found: dict[str, Any] = dict(ranks.exit_fields(status), how=how)
    if refused:
        found.update(code=causes.CODES["startup"], reason=refused)
    elif orders.stop_reason is not None:
        found.update(ours=True, reason=orders.stop_reason)
    elif asked is not None:
        found.update({name: asked[name] for name in ("sender_pid", "sender", "ours") if name in asked})
        found["reason"] = f"signal {asked['signal']} from outside"
    return found


def exit_code(commands: Commands, orders: Orders, *, refused: str, falls: Falls | None) -> int:
    """The wrapper's exit code: the command's as a shell would say it, or the cause's.

    Args:
        commands: what was started, and its status.
        orders: who asked for the end.
        refused: why nothing could be started; "" otherwise.
        falls: knows the cause; None where the command's own code is wanted.
    """
    if refused:
        return causes.CODES["startup"]
    if not commands.started:
        # foreign-text: a number that orders.py has checked
        return 128 + int(orders.asked["signal"] if orders.asked is not None else signal.SIGTERM)
    status = commands.status
    code = 128 + int(signal.SIGKILL)
    if status is not None:
        code = 128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
    return (falls.code() or code) if code and falls is not None else code


def notes(
    gaps: list[str],
    *,
    left: Sequence[Stat],
    started: bool,
    refused: str,
    trouble: str,
    unwritten: int,
    unsent: int,
) -> list[str]:
    """What is to be said of the end beside the exit.

    Args:
        gaps: what streams and copies of records have less than there was.
        left: processes that did not die.
        started: whether the command was.
        refused: why nothing could be started; "" otherwise.
        trouble: what the wrapper itself met; "" for nothing.
        unwritten: records that could not be written.
        unsent: records that found no room on the log channel.
    """
    found = gaps[:_MAX_NOTES] + [f"process {one.pid} ({one.comm}) did not die" for one in left[:_MAX_NOTES]]
    if not started:
        found.append(refused or "the command was not started: the slot was told to end before")
    if trouble:
        found.append(trouble)
    if unwritten:
        found.append(f"{unwritten} records could not be written")
    if unsent:
        found.append(f"{unsent} records found no room on the log channel")
    return found
