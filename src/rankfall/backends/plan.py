"""The plan of one attempt: which slots would be started, with what command and environment, and where.

A plan is data: printed by ``--dry-run``, stored with the attempt, given to a backend. Printed copies have
values masked that look secret (rather one too many than one too few); stored copies leave the job's own
variables to the spec.
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
from rankfall.rundir.cluster.pod_source import PodSource
from rankfall.verdict.diagnose import CAUSAL

Launcher = Literal["torchrun", "plain", "exec"]
Rendezvous = Literal["static", "c10d", "none"]

PLAN_SCHEMA: Final = "rankfall.plan/1"


class SlotPlan(msgspec.Struct, frozen=True, kw_only=True):
    """One slot that would be started.

    Attributes:
        argv: the wrapper with the job's command.
        env: what Rankfall adds for this slot; the job's own variables stand in ``Plan.env``.
        cwd, slot_dir, stream_dir: absolute paths.
        instance: which start of the slot in this attempt, counted from 0.
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
    """Where in a cluster an attempt lives, and what finds it again: its pods, and the object that makes them.

    Attributes:
        excluded: nodes that were avoided, beside those of the spec.
        restart: how often Kubernetes itself had started the gang again before this attempt; its pods bear that number.
    """

    backend: str
    object: str
    excluded: tuple[str, ...] = ()
    restart: int = 0

    def without(self, roles: Collection[str]) -> ClusterPlan:
        """The same place, in which these roles have no workload."""
        jobs = {role: name for role, name in self.jobs.items() if role not in roles}
        return msgspec.structs.replace(self, jobs=jobs, object=next(iter(jobs.values()), self.object))


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """One attempt that would be started. Making it creates nothing.

    Attributes:
        env: variables of the job spec, the same for all slots.
        role_env: variables over these, by role; roles that have none of their own are left out.
        removed: names taken out of the inherited environment, because they speak of another job.
        notes: what was chosen and why, for people.
        strategy: the one in force for this attempt, by name.
        cluster: where in a cluster; None on this machine.
        objects: manifests for people, with secrets masked; only while they are shown, never stored.
        sizes: nodes by role, as they were wished when the plan was made; empty = the spec's.
        slots: those that were begun with or joined since; some of them may have left.
        spare: of ``MIN:MAX`` nodes those that may still join.
        left: slots that left the gang while the attempt went on.
        outlived: bad ends (``slot`` or ``rank``, its number, process id) that the gang went on after.
        changes: what of that differs from the attempt before, and what changed while this one ran.
        left_out: roles that have done their work in an earlier attempt, and are not run again.
        port: the TCP port kept for the rendezvous or the ranks; None = none is needed.
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
        """The job's variables as a role has them."""
        return {**self.env, **self.role_env.get(role, {})}

    def without(self, roles: Collection[str]) -> Plan:
        """The same plan, in which these roles are not run: they have done their work."""
        cluster = self.cluster.without(roles) if self.cluster is not None else None
        slots = tuple(one for one in self.slots if one.role not in roles)
        return msgspec.structs.replace(self, slots=slots, cluster=cluster, left_out=tuple(roles))

    def with_start(self, slot: int, instance: int) -> Plan:
        """The same plan, in which a slot is started again: under folders of its own.

        Args:
            slot: which one.
            instance: which start of it, more than 0.
        """
        slots = tuple(_started_again(one, instance) if one.slot == slot else one for one in self.slots)
        return msgspec.structs.replace(self, slots=slots)

    def size_text(self, spec: JobSpec) -> str:
        """How large the attempt is, in words: nodes and ranks of each role; a role outside the world has no ranks."""
        found = []
        for part in spec.parts:
            count = sum(slot.role == part.name for slot in self.slots)
            ranks = f" x {part.spec.nproc_per_node} ranks" if part.in_world or not spec.several_roles else ""
            found.append(f"{f'{part.name} ' if spec.several_roles else ''}{count} nodes{ranks}")
        return ", ".join(found)

    def document(self) -> dict[str, Any]:
        """The plan as plain data for people: values that look secret are masked."""
        slots, spare = _masked_slots(self.slots), _masked_slots(self.spare)
        own = {role: _masked_env(env) for role, env in self.role_env.items()}
        plan = msgspec.structs.replace(self, slots=slots, spare=spare, env=_masked_env(self.env), role_env=own)
        if self.cluster is not None:
            plan = msgspec.structs.replace(plan, cluster=msgspec.structs.replace(self.cluster, token=MASK))
        document: dict[str, Any] = msgspec.to_builtins(plan)
        return document

    def row(self) -> dict[str, Any]:
        """The plan as it is stored: without the job's own variables, which stand in the spec and nowhere else."""
        stored: dict[str, Any] = msgspec.to_builtins(msgspec.structs.replace(self, env={}, role_env={}, objects=()))
        return stored

    @classmethod
    def of_row(cls, row: Mapping[str, Any], spec: JobSpec) -> Plan:
        """A stored plan.

        Raises:
            msgspec.ValidationError: it was not written by :meth:`row`.
        """
        return msgspec.structs.replace(decoding.convert(row, cls), **variables(spec))


def variables(spec: JobSpec) -> dict[str, Any]:
    """The job's variables and those of its roles, as the fields ``env`` and ``role_env`` of a plan."""
    spec = referring(spec)
    return {
        "env": dict(spec.env),
        "role_env": {role.name: dict(role.env) for role in spec.roles if role.env},
    }


def referred_words(spec: JobSpec) -> dict[str, str]:
    """What stands in a plan for each secret argument of a job's commands, by the argument."""
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
    """The plan of one slot.

    Raises:
        KeyError: the plan has no such slot.
    """
    for one in plan.slots:
        if one.slot == slot:
            return one
    raise KeyError(slot)


def _started_again(slot: SlotPlan, instance: int) -> SlotPlan:
    """The folders of a slot bear its number of the start; they stand in its words and variables too."""
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
