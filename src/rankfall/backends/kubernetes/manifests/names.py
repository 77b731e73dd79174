"""Names and labels of a run's objects: valid, unique and short enough on every backend.

Names derive from run, attempt, backend and role; derived names fit into 63 characters, after resizes too.
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
# Kubeflow Trainer requires this name.
TRAINER_ROLE: Final = "node"

LABEL_LENGTH: Final = 63
_HEX_LENGTH: Final = 6
# "-a9999"
_ATTEMPT_ROOM: Final = 6
# "-99999": at most 100,000 indexes.
_INDEX_ROOM: Final = 6
# "-x7k2p": Kubernetes's suffix.
_POD_SUFFIX: Final = "-x7k2p"
_DNS_1035: Final = re.compile(r"[a-z]([a-z0-9-]*[a-z0-9])?")
_RUN: Final = re.compile(r"(?P<base>.+)-(?P<hex>[0-9a-f]{6})", re.DOTALL)
_DEFAULT_BASE: Final = "job"


def kubernetes_base(text: str, *, limit: int = 26) -> str:
    """Converts any text to a valid start of a name; 26 characters leave room for six digits."""
    plain = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
    if not plain:
        return _DEFAULT_BASE[:limit]
    if not plain[0].isalpha():
        # A service's name starts with a letter.
        plain = f"j-{plain}"
    return plain[:limit].rstrip("-")


class Names(msgspec.Struct, frozen=True, kw_only=True):
    """All names of one attempt.

    Attributes:
        run, attempt: Run id and number.
        object: Name of workload, service, config map and training runtime.
        role: Role in pod names; empty for a plain Job.
        replica: True if a JobSet's number precedes the index.
    """

    run: str
    attempt: int
    object: str
    role: str = ""
    replica: bool = True

    @property
    def workload(self) -> str:
        """Name of the object that creates this role's pods."""
        return self.object if self.replica or not self.role else f"{self.object}-{self.role}"

    def host(self, index: int) -> str:
        """Host name of the pod with this index, also its pod name's prefix."""
        return f"{self.object}-{self.role}-0-{index}" if self.role and self.replica else f"{self.workload}-{index}"

    def address(self, index: int, *, namespace: str) -> str:
        """Returns a pod's DNS name.

        Omits the cluster's domain, unknown outside; includes the namespace, because search domains differ.
        """
        return f"{self.host(index)}.{self.object}.{namespace}.svc"

    def longest_pod(self, count: int) -> str:
        """Longest pod name, with Kubernetes's suffix."""
        return f"{self.host(max(0, count - 1))}{_POD_SUFFIX}"

    @property
    def labels(self) -> dict[str, str]:
        """Ownership labels of every object and pod of the attempt."""
        return {LABEL_RUN: self.run, LABEL_ATTEMPT: str(self.attempt)}


def names_for(
    *, run: str, attempt: int, backend: BackendName, roles: Sequence[str], counts: Sequence[int]
) -> tuple[Names, ...]:
    """Returns an attempt's names per role; all share one object name.

    Raises:
        Refused: A derived name would be invalid.
    """
    replica = backend != "job"
    name = f"{_run_part(run, min(_room(role, replica=replica) for role in roles))}-a{attempt}"
    found = tuple(Names(run=run, attempt=attempt, object=name, role=role, replica=replica) for role in roles)
    for names, count in zip(found, counts, strict=True):
        check_names(names, count=count, backend=backend)
    return found


def check_names(names: Names, *, count: int, backend: str) -> None:
    """Refuses names that the cluster would refuse, or truncate, later.

    Raises:
        Refused: Derived name and its length.
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
    inner = len(f"-{role}-0" if replica else f"-{role}") if role else 0
    return LABEL_LENGTH - inner - _ATTEMPT_ROOM - _INDEX_ROOM - len(_POD_SUFFIX)


def _run_part(run: str, room: int) -> str:
    """Run's id, truncated if needed, with its unique digits."""
    if len(run) <= room and _DNS_1035.fullmatch(run):
        return run
    found = _RUN.fullmatch(run)
    base, digits = (found["base"], found["hex"]) if found else (run, hashlib.sha256(run.encode()).hexdigest()[:6])
    return f"{kubernetes_base(base, limit=room - _HEX_LENGTH - 1)}-{digits}"
