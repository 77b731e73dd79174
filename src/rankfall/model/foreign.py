"""A job that Rankfall did not start and only observes; ``foreign.json``.

Holds only facts that its manifest proves, so no rank's pod.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

# Kinds of targets.
FOREIGN_KINDS: Final = ("job", "jobset", "trainjob", "pytorchjob", "tfjob", "mpijob", "pod")
FOREIGN: Final = "foreign"
_DIGITS: Final = 9


class Target(msgspec.Struct, frozen=True):
    """A job named as ``KIND/NAME``."""

    kind: str
    name: str

    @property
    def label(self) -> str:
        """``KIND/NAME``."""
        return f"{self.kind}/{self.name}"


class PodMarks(msgspec.Struct, frozen=True, kw_only=True):
    """Labels that identify the slot of each pod.

    Attributes:
        role: Label of the role; empty = one role.
        index: Label or annotation of the index in role or job; empty = numbered by discovery.
        outer: Label of the job's number in a role of several jobs.
        sizes: Slots of one such job, by role.
        containers: Training container by role; default: the first.
        owner: Label and value that differ on another job's pods.
        since: Creation of the job, RFC 3339; older pods are another's.
    """

    role: str = ""
    index: str = ""
    outer: str = ""
    sizes: dict[str, int] = {}
    containers: dict[str, str] = {}
    owner: tuple[str, str] = ("", "")
    since: str = ""

    def place(self, labels: Mapping[str, object], annotations: Mapping[str, object]) -> tuple[str | None, int | None]:
        """Returns role and index of a pod, None if undefined."""
        only = next(iter(self.sizes), None) if not self.role else None
        value = labels.get(self.role) if self.role else only
        role = value if isinstance(value, str) and value in self.sizes else None
        index = _number(labels.get(self.index, annotations.get(self.index))) if self.index else None
        outer = _number(labels.get(self.outer, annotations.get(self.outer))) if self.outer else 0
        if role is not None and self.index and index is None and self.sizes[role] == 1:
            # A single pod needs no number, as an MPIJob's launcher.
            index = 0
        if role is None or index is None or outer is None:
            return role, None
        return role, outer * self.sizes[role] + index

    def mine(self, labels: Mapping[str, object], created: object) -> bool:
        """True if a selected pod belongs to this job."""
        name, value = self.owner
        other = bool(name) and labels.get(name, value) != value
        # One server writes all stamps, so text order is time order.
        older = bool(self.since) and isinstance(created, str) and created < self.since
        return not other and not older


class Foreign(msgspec.Struct, frozen=True, kw_only=True):
    """The observed object.

    Attributes:
        kind, name, namespace, uid: Identity.
        context, kubeconfig: Access to its cluster, fixed at first use.
        selector, fields: Label and field selector of its pods.
        marks: Labels of its pods.
        slots: Pods of a full start, by role.
        launcher: Launcher in the manifest: ``torchrun``, or ``exec`` if unknown.
        restarts: Most restarts of the gang by its set.
        ends_as_one: One pod's failure ends all pods.
    """

    kind: str
    name: str
    namespace: str
    uid: str
    context: str
    kubeconfig: str | None = None
    selector: str = ""
    fields: str = ""
    marks: PodMarks = PodMarks()
    slots: dict[str, int] = {}
    launcher: str = "exec"
    restarts: int = 0
    ends_as_one: bool = msgspec.field(default=False, name="ends_together")

    @property
    def target(self) -> Target:
        """Its name on the command line."""
        return Target(self.kind, self.name)

    @property
    def directory(self) -> str:
        """Name of its run directory: shortened name, part of the UID."""
        return f"{self.kind}-{self.name[:62].rstrip('.-')}-{self.uid.replace('-', '')[:6]}"


def _number(value: object) -> int | None:
    if isinstance(value, str) and value.isascii() and value.isdecimal() and len(value) <= _DIGITS:
        return int(value)
    return None
