"""The roles of one job in a cluster: the names of each, and what they agree on.

Each role is compiled as a job of its own would be; only what they share (the host of the rendezvous, who is waited for) is known here.
"""

from __future__ import annotations

import msgspec

from rankfall.backends.cluster.names import TRAINER_ROLE, Names
from rankfall.backends.plan import Rendezvous
from rankfall.model import JobSpec, Part


class Gang(msgspec.Struct, frozen=True, kw_only=True):
    """All roles of one attempt.

    Attributes:
        spec: the whole job.
        parts: its roles, but those that are left out of this attempt.
        names: of each.
        rdzv: of the torchruns of all.
    """

    spec: JobSpec
    parts: tuple[Part, ...]
    names: tuple[Names, ...]
    rdzv: Rendezvous

    @property
    def several(self) -> bool:
        """Whether the job has more than one role, also when only one of them is run."""
        return self.spec.several_roles

    def master(self, *, namespace: str) -> str:
        """Where the rendezvous is reached: in the first slot of the world."""
        head = self.spec.head_slot
        for part, names in zip(self.parts, self.names, strict=True):
            if head in part.slots:
                return names.address(part.index_of(head), namespace=namespace)
        return self.names[0].address(0, namespace=namespace)

    def addresses(self, *, namespace: str) -> list[str]:
        """Of all slots of the gang, in order: one of scope ``replica`` is none of it, and may have ended, with its name."""
        pairs = [pair for pair in zip(self.parts, self.names, strict=True) if pair[0].spec.restart_scope == "gang"]
        return [names.address(index, namespace=namespace) for part, names in pairs for index in range(part.count)]

    def hosts(self, *, namespace: str) -> dict[str, str]:
        """Of the first slot of each role, by role."""
        pairs = zip(self.parts, self.names, strict=True)
        return {part.name: names.address(0, namespace=namespace) for part, names in pairs}


def trainer_of(spec: JobSpec) -> str:
    """The role that a TrainJob takes for the one that trains: that of the rendezvous."""
    return spec.role_of(spec.head_slot)


def pod_role(spec: JobSpec, role: str) -> str:
    """The role as it stands in names of pods; empty for the pods of a plain Job of one role."""
    if spec.backend == "trainjob":
        return TRAINER_ROLE if role == trainer_of(spec) else role
    return role if spec.backend == "jobset" or spec.several_roles else ""
