"""A job that Rankfall did not start: its object, and how its pods show role and index (``foreign.json``).

Such a job is only observed. What its manifest does not prove (which rank runs in which pod) is not in here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

# Kinds of targets, as they are written before the slash.
FOREIGN_KINDS: Final = ("job", "jobset", "trainjob", "pytorchjob", "tfjob", "mpijob", "pod")
FOREIGN: Final = "foreign"
_DIGITS: Final = 9


class Target(msgspec.Struct, frozen=True):
    """A job as it is named on the command line, ``KIND/NAME``."""

    kind: str
    name: str

    @property
    def label(self) -> str:
        """As it was written."""
        return f"{self.kind}/{self.name}"


class PodMarks(msgspec.Struct, frozen=True, kw_only=True):
    """How the pods of a job say which slot they are.

    Attributes:
        role: label with the name of the role; empty = all pods are of the one role.
        index: label (or annotation) with the place within the role, or within one of the role's jobs; empty = pods have no places, and
            are numbered as they were seen first.
        outer: label with the number of the job within the role, where a role has several.
        sizes: slots of one such job, by role.
        containers: the training container, by role; a pod of another role is read in its first one.
        owner: label and value that a pod of another job of the same name has otherwise; empty = there is none.
        since: when the job was made, RFC 3339: pods that are older are another one's.
    """

    role: str = ""
    index: str = ""
    outer: str = ""
    sizes: dict[str, int] = {}
    containers: dict[str, str] = {}
    owner: tuple[str, str] = ("", "")
    since: str = ""

    def place(self, labels: Mapping[str, object], annotations: Mapping[str, object]) -> tuple[str | None, int | None]:
        """Role and index of a pod, each None where it does not say."""
        only = next(iter(self.sizes), None) if not self.role else None
        said = labels.get(self.role) if self.role else only
        role = said if isinstance(said, str) and said in self.sizes else None
        index = _number(labels.get(self.index, annotations.get(self.index))) if self.index else None
        outer = _number(labels.get(self.outer, annotations.get(self.outer))) if self.outer else 0
        if role is not None and self.index and index is None and self.sizes[role] == 1:
            # Of one pod there is nothing to number, as of an MPIJob's launcher.
            index = 0
        if role is None or index is None or outer is None:
            return role, None
        return role, outer * self.sizes[role] + index

    def mine(self, labels: Mapping[str, object], created: object) -> bool:
        """Whether a pod that the selector found is of this very job."""
        name, value = self.owner
        other = bool(name) and labels.get(name, value) != value
        # Stamps of one server in one form: compared as texts.
        older = bool(self.since) and isinstance(created, str) and created < self.since
        return not other and not older


class Foreign(msgspec.Struct, frozen=True, kw_only=True):
    """The object that is looked at.

    Attributes:
        kind, name, namespace, uid: of the object.
        context, kubeconfig: how its cluster is reached; pinned when it was looked at first.
        selector, fields: of its pods, by labels and by fields.
        marks: how its pods say who they are.
        slots: pods of a full start, by role.
        launcher: what starts the ranks, as the manifest shows it: ``torchrun``, or ``exec`` where nothing is known.
        restarts: how often its set starts the whole gang again at most.
        ends_as_one: whether Kubernetes ends the others when one pod has failed.
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
        """As it is named on the command line."""
        return Target(self.kind, self.name)

    @property
    def directory(self) -> str:
        """Name of its run directory: a name too long is cut, the UID tells them apart."""
        return f"{self.kind}-{self.name[:62].rstrip('.-')}-{self.uid.replace('-', '')[:6]}"


def _number(value: object) -> int | None:
    if isinstance(value, str) and value.isascii() and value.isdecimal() and len(value) <= _DIGITS:
        return int(value)
    return None
