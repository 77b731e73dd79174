"""Names and labels of a run's objects: valid, unique and short enough up to the last index, on every backend.

All follow from run, attempt, backend and role, so any process finds the same names again. What Kubernetes
derives from an object's name (pods, hosts, jobs of a set) must fit into 63 characters too; room for it is
kept from the start, so that neither a resize nor a hundredth attempt makes a name too long.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from typing import Final

import msgspec

from rankfall.model import Refused
from rankfall.model.jobspec.job import BackendName

LABEL_RUN: Final = "rankfall.dev/run"
LABEL_ATTEMPT: Final = "rankfall.dev/attempt"
LABEL_ROLE: Final = "rankfall.dev/role"
ANNOTATION_REQUEST: Final = "rankfall.dev/request-token"
# Kubeflow Trainer takes the training role and its container for this name, and makes the master's address out of it.
TRAINER_ROLE: Final = "node"

LABEL_LENGTH: Final = 63
_HEX_LENGTH: Final = 6
# "-a9999": as many attempts as a run can sensibly have.
_ATTEMPT_ROOM: Final = 6
# "-99999": an Indexed Job has at most 100,000 indexes.
_INDEX_ROOM: Final = 6
# "-x7k2p": what Kubernetes appends to a pod's name.
_POD_SUFFIX: Final = "-x7k2p"
_DNS_1035: Final = re.compile(r"[a-z]([a-z0-9-]*[a-z0-9])?")
_RUN: Final = re.compile(r"(?P<base>.+)-(?P<hex>[0-9a-f]{6})", re.DOTALL)
_DEFAULT_BASE: Final = "job"


def kubernetes_base(text: str, *, limit: int = 26) -> str:
    """A valid beginning of a name out of any text: upper case, underscores, slashes, 200 characters, only symbols.

    Args:
        text: anything.
        limit: length of the result at most; 26 leaves room for the run's six digits within 33 characters.

    Returns:
        Lower-case ASCII letters, digits and single dashes; a letter first, no dash last.
    """
    plain = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
    if not plain:
        return _DEFAULT_BASE[:limit]
    if not plain[0].isalpha():
        # A service's name begins with a letter, and the service bears the job's.
        plain = f"j-{plain}"
    return plain[:limit].rstrip("-")


class Names(msgspec.Struct, frozen=True, kw_only=True):
    """All names of one attempt.

    Attributes:
        run, attempt: whose they are.
        object: of the workload, and of its service, config map and training runtime (other kinds, same name).
        role: the role as it stands in pod names; empty for a plain Job of one role.
        replica: whether a JobSet's number stands between role and index. Without it the role is a Job of its own.
    """

    run: str
    attempt: int
    object: str
    role: str = ""
    replica: bool = True

    @property
    def workload(self) -> str:
        """Name of the object that makes the pods of this role, or of the one that makes those of all."""
        return self.object if self.replica or not self.role else f"{self.object}-{self.role}"

    def host(self, index: int) -> str:
        """Host name of the pod with this completion index; its pod's name begins so."""
        return f"{self.object}-{self.role}-0-{index}" if self.role and self.replica else f"{self.workload}-{index}"

    def address(self, index: int, *, namespace: str) -> str:
        """Name under which all pods of the attempt find the pod with this index.

        The cluster's domain is not part of it, because nobody outside knows it: the pods' search list completes ``.svc``. The namespace
        is, so that a pod with search domains of its own still asks for the right one.
        """
        return f"{self.host(index)}.{self.object}.{namespace}.svc"

    def longest_pod(self, count: int) -> str:
        """The longest pod name of so many slots, with what Kubernetes appends."""
        return f"{self.host(max(0, count - 1))}{_POD_SUFFIX}"

    @property
    def labels(self) -> dict[str, str]:
        """Ownership marks of every object and pod of the attempt."""
        return {LABEL_RUN: self.run, LABEL_ATTEMPT: str(self.attempt)}


def names_for(
    *, run: str, attempt: int, backend: BackendName, roles: Sequence[str], counts: Sequence[int]
) -> tuple[Names, ...]:
    """The names of one attempt, of each role, checked up to its last index. All roles share one object's name.

    Args:
        run: the run's id.
        attempt: counted from 1.
        backend: which kind of object.
        roles: as they stand in names of pods.
        counts: slots of each.

    Raises:
        Refused: a derived name would be no valid name.
    """
    replica = backend != "job"
    name = f"{_run_part(run, min(_room(role, replica=replica) for role in roles))}-a{attempt}"
    found = tuple(Names(run=run, attempt=attempt, object=name, role=role, replica=replica) for role in roles)
    for names, count in zip(found, counts, strict=True):
        check_names(names, count=count, backend=backend)
    return found


def check_names(names: Names, *, count: int, backend: str) -> None:
    """Refuse names that the cluster would refuse, or cut, later.

    Raises:
        Refused: names the derived name and how long it is.
    """
    pod = names.longest_pod(count)
    for what, name in (("object", names.object), ("pod of the last index", pod), ("label", names.run)):
        if len(name) > LABEL_LENGTH:
            raise Refused(
                f"$.name: too long for backend {backend}: the name of its {what}, {name!r}, has {len(name)} characters, and Kubernetes "
                f"takes {LABEL_LENGTH}",
                hint="give a shorter name or role",
            )
    if not _DNS_1035.fullmatch(names.object):
        raise Refused(
            f"$.name: {names.object!r} is no valid name of a Kubernetes service",
            hint="use lower-case letters, digits and dashes, a letter first",
        )


def _room(role: str, *, replica: bool) -> int:
    """Characters that the run's part of an object's name may have."""
    inner = len(f"-{role}-0" if replica else f"-{role}") if role else 0
    return LABEL_LENGTH - inner - _ATTEMPT_ROOM - _INDEX_ROOM - len(_POD_SUFFIX)


def _run_part(run: str, room: int) -> str:
    """The run's id where it fits; else its beginning, shortened, with the digits that make it unique."""
    if len(run) <= room and _DNS_1035.fullmatch(run):
        return run
    found = _RUN.fullmatch(run)
    base, digits = (found["base"], found["hex"]) if found else (run, hashlib.sha256(run.encode()).hexdigest()[:6])
    return f"{kubernetes_base(base, limit=room - _HEX_LENGTH - 1)}-{digits}"
