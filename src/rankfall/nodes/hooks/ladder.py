"""The ladder of remediation steps and the next hook for a node. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Annotated, Any, Final, Literal

import msgspec

from rankfall.model import decoding
from rankfall.model.errors import SpecError
from rankfall.model.node_health.records import NodeHealth, OpenCause, printable
from rankfall.model.numbers import is_http
from rankfall.nodes.rules.fault_rules import Remedy, Rules
from rankfall.nodes.rules.node_state import grave, needs_manual_return

Step = Literal["restart_pods", "reset_gpu", "reboot", "power_cycle"]
#: Gentlest first.
LADDER: Final[tuple[Step, ...]] = ("restart_pods", "reset_gpu", "reboot", "power_cycle")
#: First rung of each remedy; others need a person.
_FIRST: Final[Mapping[Remedy, int]] = MappingProxyType({"restart_app": 0, "check_app": 0, "reset_gpu": 1, "reboot": 2})

_Limit = Annotated[int, msgspec.Meta(ge=1, le=86_400)]


class HookJob(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A hook that is a Job; ``on_node``: on the faulty node despite taints; ``privileged``: all rights there."""

    image: str
    command: Annotated[tuple[str, ...], msgspec.Meta(min_length=1)]
    on_node: bool = False
    privileged: bool = False
    service_account: str | None = None


class Hook(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One rung: exactly one of ``command``, ``webhook`` and ``job``.

    Attributes:
        command: Runs in the controller's container.
        webhook: Address of a POST.
        token_file: File with the webhook's bearer token.
        timeout_s: Seconds until a hook without answer has failed.
        prove_s: Seconds until the node must show another boot id; otherwise the step failed.
        attempts: Attempts before the next rung.
    """

    step: Step
    command: tuple[str, ...] | None = None
    webhook: str | None = None
    token_file: str | None = None
    job: HookJob | None = None
    timeout_s: _Limit = 600
    prove_s: _Limit = 1_200
    attempts: Annotated[int, msgspec.Meta(ge=1, le=5)] = 1


def hooks_from(rows: Sequence[dict[str, Any]], *, origin: str) -> tuple[Hook, ...]:
    """Returns the hooks of an operator's file, by rung.

    Raises:
        SpecError: Names file, hook and field.
    """
    found: dict[Step, Hook] = {}
    for number, row in enumerate(rows, start=1):
        place = f"{origin}: hook {number}"
        try:
            hook = decoding.convert(row, Hook)
        except msgspec.ValidationError as error:
            raise SpecError(place, printable(str(error)), hint=f"use one of these steps: {', '.join(LADDER)}") from None
        place += f" ({hook.step})"
        if sum(each is not None for each in (hook.command, hook.webhook, hook.job)) != 1 or hook.command == ():
            raise SpecError(place, "needs exactly one of command, webhook and job")
        if hook.webhook is not None and not is_http(hook.webhook):
            raise SpecError(f"{place}: webhook", "must be an http or https address")
        if hook.token_file is not None and hook.webhook is None:
            raise SpecError(f"{place}: token_file", "is for a webhook")
        if hook.step in found:
            raise SpecError(f"{place}: step", "there is a hook of this step in this file already")
        found[hook.step] = hook
    return tuple(found[step] for step in LADDER if step in found)


def next_hook(health: NodeHealth, *, hooks: Sequence[Hook], rules: Rules) -> tuple[Hook, OpenCause] | None:
    """Returns the next hook for a quarantined node and the hook's cause; None if a person must act.

    That is so if any cause needs a person: a partial repair would return a broken node.
    """
    causes = grave(health, rules)
    if health.state != "quarantined" or not health.tainted or not causes or needs_manual_return(health):
        return None
    rungs: dict[int, OpenCause] = {}
    for cause in causes:
        rule = rules.find(cause.code)
        rung = None if rule is None else _FIRST.get(rule.remedy)
        if rung is None:
            return None
        rungs[rung] = cause
    first = max(rungs)
    for hook in hooks:
        if LADDER.index(hook.step) >= first and health.tried.count(hook.step) < hook.attempts:
            return hook, rungs[first]
    return None
