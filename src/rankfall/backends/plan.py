"""The plan of one attempt: slots with command, environment and place.

Printed copies mask possible secrets. Stored copies omit the job's variables, which are in the spec.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from rankfall.model import JobSpec, decoding
from rankfall.model.jobspec.secrets import MASK, masked, masked_words, referring, secrets_of, without_pointer
from rankfall.model.jobspec.secrets import reference as secret_reference
from rankfall.model.jobspec.sizes import Left, SizeChange
from rankfall.model.numbers import counted
from rankfall.rundir.cluster.pod_source import PodSource
from rankfall.verdict.diagnose import CAUSAL

Launcher = Literal["torchrun", "plain", "exec"]
Rendezvous = Literal["static", "c10d", "none"]

PLAN_SCHEMA: Final = "rankfall.plan/1"


class SlotPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Plan of one slot.

    Attributes:
        argv: Wrapper with the job's command.
        env: Rankfall's variables only.
        cwd, slot_dir, stream_dir: Absolute paths.
        instance: Start number in this attempt, from 0.
    """

    slot: int
    instance: int = 0
    role: str
    node: str
    argv: tuple[str, ...]
    env: dict[str, str]
    cwd: str
    slot_dir: str
    stream_dir: str


class ClusterPlan(PodSource, frozen=True, kw_only=True):
    """Location of an attempt in a cluster: its pods and their parent object.

    Attributes:
        excluded: Avoided nodes besides the spec's.
        restart: Earlier gang restarts by Kubernetes, also a pod label.
    """

    backend: str
    object: str
    excluded: tuple[str, ...] = ()
    restart: int = 0

    def without(self, roles: Collection[str]) -> ClusterPlan:
        """Same location without the workloads of these roles."""
        jobs = {role: name for role, name in self.jobs.items() if role not in roles}
        return msgspec.structs.replace(self, jobs=jobs, object=next(iter(jobs.values()), self.object))


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """Plan of one attempt. Creating a plan has no side effects.

    Attributes:
        env: The spec's variables.
        role_env: Overrides by role; no empty entries.
        removed: Removed inherited variables of another job.
        notes: Choices and reasons, for users.
        strategy: Effective strategy.
        cluster: None on this machine.
        objects: Masked manifests for display, never stored.
        sizes: Requested nodes by role; empty = the spec's.
        slots: All started or joined slots, even if they left.
        spare: ``MIN:MAX`` slots that may still join.
        left: Slots that left during the attempt.
        outlived: Survived failures (``slot`` or ``rank``, number, process id).
        changes: Size changes since the previous attempt, and during this one.
        left_out: Roles that succeeded in an earlier attempt.
        port: TCP port of rendezvous or ranks, or None.
    """

    schema: str = PLAN_SCHEMA
    attempt: int
    launcher: Launcher
    rdzv: Rendezvous = "none"
    slots: tuple[SlotPlan, ...]
    env: dict[str, str] = {}
    role_env: dict[str, dict[str, str]] = {}
    removed: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    port: int | None = None
    cluster: ClusterPlan | None = None
    objects: tuple[dict[str, Any], ...] = ()
    strategy: str = CAUSAL.name
    sizes: dict[str, int] = {}
    changes: tuple[SizeChange, ...] = ()
    left_out: tuple[str, ...] = ()
    spare: tuple[SlotPlan, ...] = ()
    left: tuple[Left, ...] = ()
    outlived: tuple[tuple[str, int, int | None], ...] = ()

    @property
    def gone(self) -> frozenset[int]:
        """Slots that left the gang."""
        return frozenset(one.slot for one in self.left)

    @property
    def present(self) -> tuple[SlotPlan, ...]:
        """Slots that belong to the gang."""
        gone = self.gone
        return tuple(slot for slot in self.slots if slot.slot not in gone) if gone else self.slots

    def env_of(self, role: str) -> dict[str, str]:
        """Job's variables for a role."""
        return {**self.env, **self.role_env.get(role, {})}

    def without(self, roles: Collection[str]) -> Plan:
        """Plan without these roles, which have already succeeded."""
        cluster = self.cluster.without(roles) if self.cluster is not None else None
        slots = tuple(one for one in self.slots if one.role not in roles)
        return msgspec.structs.replace(self, slots=slots, cluster=cluster, left_out=tuple(roles))

    def with_start(self, slot: int, instance: int) -> Plan:
        """Plan with a restarted slot, in separate folders."""
        slots = tuple(_started_again(one, instance) if one.slot == slot else one for one in self.slots)
        return msgspec.structs.replace(self, slots=slots)

    def size_text(self, spec: JobSpec) -> str:
        """Describes the size: nodes and ranks of each role; no ranks outside the world."""
        found = []
        for part in spec.parts:
            count = sum(slot.role == part.name for slot in self.slots)
            ranks = f" x {counted(part.spec.nproc_per_node, 'rank')}" if part.in_world or not spec.several_roles else ""
            found.append(f"{f'{part.name} ' if spec.several_roles else ''}{counted(count, 'node')}{ranks}")
        return ", ".join(found)

    def document(self) -> dict[str, Any]:
        """Plan as plain data, with possible secrets masked."""
        slots, spare = _masked_slots(self.slots), _masked_slots(self.spare)
        own = {role: _masked_env(env) for role, env in self.role_env.items()}
        plan = msgspec.structs.replace(self, slots=slots, spare=spare, env=_masked_env(self.env), role_env=own)
        if self.cluster is not None:
            plan = msgspec.structs.replace(plan, cluster=msgspec.structs.replace(self.cluster, token=MASK))
        document: dict[str, Any] = msgspec.to_builtins(plan)
        return document

    def row(self) -> dict[str, Any]:
        """Plan for storage, without the job's variables, which the spec holds."""
        stored: dict[str, Any] = msgspec.to_builtins(msgspec.structs.replace(self, env={}, role_env={}, objects=()))
        return stored

    @classmethod
    def of_row(cls, row: Mapping[str, Any], spec: JobSpec) -> Plan:
        """Restores a stored plan.

        Raises:
            msgspec.ValidationError: Not a row of :meth:`row`.
        """
        return msgspec.structs.replace(decoding.convert(row, cls), **variables(spec))


def variables(spec: JobSpec) -> dict[str, Any]:
    """Variables of job and roles as fields ``env`` and ``role_env`` of a plan."""
    spec = referring(spec)
    return {
        "env": dict(spec.env),
        "role_env": {role.name: dict(role.env) for role in spec.roles if role.env},
    }


def referred_words(spec: JobSpec) -> dict[str, str]:
    """Maps secret arguments of a job's commands to their placeholders."""
    found = {pointer: one for pointer, one in secrets_of(spec).items() if "/command/" in pointer}
    return {one.text: secret_reference(pointer, one.label) for pointer, one in found.items()}


def _masked_slots(slots: Iterable[SlotPlan]) -> tuple[SlotPlan, ...]:
    return tuple(
        msgspec.structs.replace(slot, argv=masked_words(tuple(map(without_pointer, slot.argv))), env=masked(slot.env))
        for slot in slots
    )


def _masked_env(env: Mapping[str, str]) -> dict[str, str]:
    return masked({name: without_pointer(value) for name, value in env.items()})


def slot_plan(plan: Plan, slot: int) -> SlotPlan:
    """Returns the plan of one slot.

    Raises:
        KeyError: No such slot.
    """
    for one in plan.slots:
        if one.slot == slot:
            return one
    raise KeyError(slot)


def _started_again(slot: SlotPlan, instance: int) -> SlotPlan:
    before, folder = Path(slot.slot_dir), Path(slot.stream_dir)
    moved = {
        slot.slot_dir: str(before.with_name(f"{slot.role}-{slot.slot}.{instance}")),
        slot.stream_dir: str(folder.with_name(str(instance))),
    }

    def new(word: str) -> str:
        for old, now in moved.items():
            if word == old or word.startswith(f"{old}/"):
                return now + word[len(old) :]
        return word

    return msgspec.structs.replace(
        slot,
        instance=instance,
        argv=tuple(map(new, slot.argv)),
        env={name: new(value) for name, value in slot.env.items()} | {"RANKFALL_INSTANCE": str(instance)},
        slot_dir=moved[slot.slot_dir],
        stream_dir=moved[slot.stream_dir],
    )
