"""The compiler's input and output: server facts, roles, requests, manifests.

Kubernetes expands ``$(NAME)`` and ``$$`` in commands and values, so every dollar sign is doubled.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final, Literal

import msgspec

from rankfall.backends.kubernetes.manifests.names import TRAINER_ROLE, Names
from rankfall.backends.plan import Launcher, Rendezvous
from rankfall.model import JobSpec, Part, SpecError
from rankfall.model.jobspec.secrets import MASK, is_secret_name, masked_words

# The container's first variable.
SLOT_REFERENCE: Final = "$(RANKFALL_SLOT)"
# Index within its role.
INDEX_REFERENCE: Final = "$(RANKFALL_INDEX)"
# Index among the slots with ranks; if it is a sum, the wrapper inserts it (rankfall_inside.wrapper.startup).
NODE_REFERENCE: Final = "$(RANKFALL_PLAIN_NODE_RANK)"
# Gang restarts by a JobSet.
RESTART_REFERENCE: Final = "$(RANKFALL_RESTART)"
_VARIABLE: Final = re.compile(r"[A-Za-z_.-][A-Za-z0-9_.-]*")


def escape(text: str) -> str:
    """Escapes text so that the process gets exactly this text."""
    return text.replace("$", "$$")


def check_text(path: str, texts: Iterable[str]) -> None:
    """Refuses text that a manifest cannot contain.

    Raises:
        SpecError: Invalid UTF-8 or a NUL byte.
    """
    for text in texts:
        try:
            text.encode()
        except UnicodeEncodeError:
            raise SpecError(
                path,
                "contains bytes that are not UTF-8, which Kubernetes cannot store",
                hint="put such values into a file or a secret",
            ) from None
        if "\0" in text:
            raise SpecError(path, "contains a NUL byte")


def check_variables(env: Mapping[str, str]) -> None:
    """Refuses variables that Kubernetes or a manifest cannot contain.

    Raises:
        SpecError: Invalid name or text.
    """
    for name, value in env.items():
        if not _VARIABLE.fullmatch(name):
            raise SpecError(
                f"$.env.{name}", "is not a valid variable in a pod: letters, digits, _, - and dots, no digit first"
            )
        check_text(f"$.env.{name}", (value,))


class Gang(msgspec.Struct, frozen=True, kw_only=True):
    """All roles of one attempt.

    Attributes:
        spec: The whole job.
        parts: Its roles in this attempt.
        names: Names of each role.
        rdzv: Rendezvous of all torchruns.
    """

    spec: JobSpec
    parts: tuple[Part, ...]
    names: tuple[Names, ...]
    rdzv: Rendezvous

    @property
    def several(self) -> bool:
        """True if the job has several roles, even if one runs."""
        return self.spec.several_roles

    def master(self, *, namespace: str) -> str:
        """Rendezvous address: the world's first slot."""
        head = self.spec.head_slot
        for part, names in zip(self.parts, self.names, strict=True):
            if head in part.slots:
                return names.address(part.index_of(head), namespace=namespace)
        return self.names[0].address(0, namespace=namespace)

    def addresses(self, *, namespace: str) -> list[str]:
        """Addresses of all gang slots in order, without scope ``replica``."""
        pairs = [pair for pair in zip(self.parts, self.names, strict=True) if pair[0].spec.restart_scope == "gang"]
        return [names.address(index, namespace=namespace) for part, names in pairs for index in range(part.count)]

    def hosts(self, *, namespace: str) -> dict[str, str]:
        """Returns each role's first slot's address."""
        pairs = zip(self.parts, self.names, strict=True)
        return {part.name: names.address(0, namespace=namespace) for part, names in pairs}


def trainer_of(spec: JobSpec) -> str:
    """Returns a TrainJob's training role: that of the rendezvous."""
    return spec.role_of(spec.head_slot)


def pod_role(spec: JobSpec, role: str) -> str:
    """Role in pod names; empty for a plain Job."""
    if spec.backend == "trainjob":
        return TRAINER_ROLE if role == trainer_of(spec) else role
    return role if spec.backend == "jobset" or spec.several_roles else ""


Object = dict[str, Any]
PodOverrides = Literal["podSpecOverrides", "podTemplateOverrides", "runtimePatches"]

# They only reference a secret.
_REFERENCES: Final = frozenset({"secretName", "secretRef", "secretKeyRef", "imagePullSecrets", "serviceAccountToken"})


class ServedFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Capabilities of the API server, from discovery.

    Attributes:
        version: Kubernetes version, as (1, 34).
        kinds: Served kinds.
        pod_overrides: TrainJob field that changes pods; differs by minor version of Kubeflow Trainer.
    """

    version: tuple[int, int]
    kinds: frozenset[str] = frozenset({"Job"})
    pod_overrides: PodOverrides | None = None

    def at_least(self, minor: int) -> bool:
        """True if the server is Kubernetes 1.``minor`` or newer."""
        return self.version >= (1, minor)


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """Request to compile one role of an attempt.

    Attributes:
        spec: The job as this role sees it.
        part: The role.
        gang: All roles.
        names: Names of the role.
        namespace: Namespace of all objects.
        count: Initial number of slots.
        least, most: Slots of the rendezvous; different = elastic.
        token: Token of the attempt, in record lines.
        strategy: Effective strategy.
        excluded: Avoided nodes.
        code_dir: Folder in pods; None = no code.
        code_digest: Digest of code in the config map.
    """

    spec: JobSpec
    part: Part
    gang: Gang
    names: Names
    namespace: str
    count: int
    least: int
    most: int
    token: str
    strategy: str
    served: ServedFacts
    excluded: tuple[str, ...] = ()
    code_dir: str | None = None
    code_digest: str | None = None

    @property
    def work_dir(self) -> str | None:
        """Working directory; None = the image's."""
        if self.code_dir is None or self.spec.cwd is None:
            return self.code_dir or self.spec.cwd
        return f"{self.code_dir}/{self.spec.cwd}"

    @property
    def node_reference(self) -> str:
        """Text that the pod expands to this slot's index among those with ranks."""
        if not self.gang.several:
            return SLOT_REFERENCE
        # Kubernetes cannot add.
        return NODE_REFERENCE if self.part.first_node else INDEX_REFERENCE

    @property
    def master(self) -> str:
        """Address of the rendezvous."""
        return self.gang.master(namespace=self.namespace)

    @property
    def rendezvous_id(self) -> str:
        """Rendezvous id of this attempt; rejects late processes of earlier ones."""
        own = f"{self.names.run}-a{self.names.attempt}"
        return f"{own}-r{RESTART_REFERENCE}" if self.restarts_as_set else own

    @property
    def restarts_as_set(self) -> bool:
        """True if a JobSet restarts the gang within one attempt."""
        return self.native_restarts > 0 and self.spec.backend != "job"

    @property
    def native_restarts(self) -> int:
        """Number of restarts that Kubernetes itself may do."""
        return self.spec.policies.max_restarts if self.spec.unattended else 0


class Compiled(msgspec.Struct, frozen=True, kw_only=True):
    """The manifests of one attempt.

    Attributes:
        objects: In order of creation.
        workload: Index in ``objects``; owns later ones.
        others: Number of final ``objects`` that are workloads, released first.
        names: Names, of the first role.
        slots: Initial number of pods.
        selector: Label selector of the pods.
        container: Training container.
        launcher: The ranks' launcher; None = the pod decides.
        rdzv: Rendezvous of torchrun, if used.
        port: Port of the rendezvous in slot 0.
        release: True = release immediately.
        request_token: Annotation that identifies the request.
        notes: Choices and reasons, for users.
    """

    objects: tuple[Object, ...]
    workload: int
    others: int = 0
    names: Names
    slots: int
    selector: str
    container: str
    launcher: Launcher | None
    rdzv: Rendezvous
    port: int
    release: bool
    request_token: str
    notes: tuple[str, ...] = ()

    @property
    def workloads(self) -> list[Object]:
        """The workload, then those of other roles."""
        return [self.objects[self.workload], *self.objects[len(self.objects) - self.others :]]

    def masked_objects(self) -> list[Object]:
        """Returns manifests for display: secrets masked, the bundle as size and digest."""
        return [masked(item) for item in self.objects]


def request_token(token: str) -> str:
    """Returns a one-way digest of ``token`` for the object's annotation."""
    return hashlib.sha256(f"request:{token}".encode()).hexdigest()[:32]


def masked(value: Any) -> Any:
    """Returns a manifest, or a part, without possible secrets."""
    if isinstance(value, Mapping):
        if value.get("kind") == "Secret" and isinstance(value.get("data"), Mapping):
            return {**value, "data": dict.fromkeys(value["data"], MASK)}
        if isinstance(value.get("name"), str) and isinstance(value.get("value"), str):
            return {**value, "value": _variable(value["name"], value["value"])}
        return {key: _field(str(key), inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [masked(item) for item in value]
    return masked_words((value,))[0] if isinstance(value, str) else value


def _field(key: str, value: Any) -> Any:
    if key in {"command", "args"} and isinstance(value, list | tuple):
        return list(masked_words(tuple(map(str, value))))
    if key == "binaryData" and isinstance(value, Mapping):
        return {name: _digest(text) for name, text in value.items()}
    if isinstance(value, str) and is_secret_name(key) and key not in _REFERENCES:
        return MASK
    return masked(value)


def _variable(name: str, value: str) -> str:
    if is_secret_name(name):
        return MASK
    if name == "RANKFALL_TORCHRUN":
        return json.dumps(masked_words(json.loads(value)))
    return str(masked(value))


def _digest(text: Any) -> str:
    data = base64.b64decode(str(text))
    return f"<{len(data)} bytes, sha256 {hashlib.sha256(data).hexdigest()[:12]}>"
