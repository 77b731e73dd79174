"""Input and output of the compiler: server facts, roles, the request of one role, compiled manifests.

Kubernetes expands ``$(NAME)`` in commands, arguments and values, turns ``$$`` into ``$`` and breaks a ``$``
before non-ASCII letters, so every dollar sign is doubled. Copies for people have secrets masked; what is sent
is never masked.
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

# The number of this slot, once the pod runs; the variable stands first in the container's list.
SLOT_REFERENCE: Final = "$(RANKFALL_SLOT)"
# Its place within its role, in a job of several.
INDEX_REFERENCE: Final = "$(RANKFALL_INDEX)"
# Its place among the slots with ranks, where that is a sum: Kubernetes knows no such variable and leaves the words alone, the wrapper
# puts the number in (rankfall_inside.wrapper.startup).
NODE_REFERENCE: Final = "$(RANKFALL_PLAIN_NODE_RANK)"
# How often a JobSet has started the gang again by itself.
RESTART_REFERENCE: Final = "$(RANKFALL_RESTART)"
_VARIABLE: Final = re.compile(r"[A-Za-z_.-][A-Za-z0-9_.-]*")


def escape(text: str) -> str:
    """``text`` so that the process gets exactly ``text``."""
    return text.replace("$", "$$")


def check_text(path: str, texts: Iterable[str]) -> None:
    """Refuse what a manifest cannot carry.

    Raises:
        SpecError: bytes that are no UTF-8, or a NUL byte.
    """
    for text in texts:
        try:
            text.encode()
        except UnicodeEncodeError:
            raise SpecError(
                path,
                "holds bytes that are no UTF-8, which Kubernetes cannot carry",
                hint="put such values into a file or a secret",
            ) from None
        if "\0" in text:
            raise SpecError(path, "holds a NUL byte")


def check_variables(env: Mapping[str, str]) -> None:
    """Refuse variables that Kubernetes, or a manifest, cannot carry.

    Raises:
        SpecError: a name is no variable's, or a text is no UTF-8.
    """
    for name, value in env.items():
        if not _VARIABLE.fullmatch(name):
            raise SpecError(
                f"$.env.{name}", "is no valid variable in a pod: letters, digits, _, - and dots, no digit first"
            )
        check_text(f"$.env.{name}", (value,))


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


Object = dict[str, Any]
PodOverrides = Literal["podSpecOverrides", "podTemplateOverrides", "runtimePatches"]

# Names that sound secret and only say where a secret is kept.
_REFERENCES: Final = frozenset({"secretName", "secretRef", "secretKeyRef", "imagePullSecrets", "serviceAccountToken"})


class ServedFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What the API server offers; filled by discovery.

    Attributes:
        version: of Kubernetes, as (1, 34).
        kinds: ``Job``, ``JobSet``, ``TrainJob``, ``TrainingRuntime``, ``ClusterTrainingRuntime`` as far as they are served.
        pod_overrides: the field of a TrainJob that changes its pods: it has another name in each minor of Kubeflow Trainer.
    """

    version: tuple[int, int]
    kinds: frozenset[str] = frozenset({"Job"})
    pod_overrides: PodOverrides | None = None

    def at_least(self, minor: int) -> bool:
        """Whether the server is Kubernetes 1.``minor`` or newer."""
        return self.version >= (1, minor)


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """One attempt to compile.

    Attributes:
        spec: checked; the job as this role alone has it.
        part: the role.
        gang: all roles.
        names: of the role.
        namespace: where everything lives.
        count: slots of the role that are made at first.
        least, most: slots that the rendezvous needs, and takes; a difference is elastic.
        token: of the attempt; lines of records carry it.
        strategy: of diagnosis, in force for this attempt.
        excluded: names of nodes that no slot may run on.
        code_dir: folder in the pods that the job's code is in; None = it brings none.
        code_digest: of the code in the config map; None = it is on a volume, or there is none.
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
        """Folder of the command; None = that of the image."""
        if self.code_dir is None or self.spec.cwd is None:
            return self.code_dir or self.spec.cwd
        return f"{self.code_dir}/{self.spec.cwd}"

    @property
    def node_reference(self) -> str:
        """What becomes this slot's place among those with ranks, once the pod runs."""
        if not self.gang.several:
            return SLOT_REFERENCE
        # Kubernetes cannot add; where the role is not the first of the world, the wrapper does.
        return NODE_REFERENCE if self.part.first_node else INDEX_REFERENCE

    @property
    def master(self) -> str:
        """Where the rendezvous is reached."""
        return self.gang.master(namespace=self.namespace)

    @property
    def rendezvous_id(self) -> str:
        """Of this attempt alone, as Kubernetes' text: a late process of an earlier one is rejected."""
        own = f"{self.names.run}-a{self.names.attempt}"
        return f"{own}-r{RESTART_REFERENCE}" if self.restarts_as_set else own

    @property
    def restarts_as_set(self) -> bool:
        """Whether a JobSet starts the gang again by itself, within one attempt of ours."""
        return self.native_restarts > 0 and self.spec.backend != "job"

    @property
    def native_restarts(self) -> int:
        """How often Kubernetes itself may start something again."""
        return self.spec.policies.max_restarts if self.spec.unattended else 0


class Compiled(msgspec.Struct, frozen=True, kw_only=True):
    """The manifests of one attempt.

    Attributes:
        objects: in the order in which they are created. Those after the workload get it as owner.
        workload: place of the workload in ``objects``.
        others: how many of the last ``objects`` are workloads too, the Jobs of other roles, released before the first.
        names: of everything; of the first role, where there are several.
        slots: how many pods are made at first.
        selector: label selector of exactly this attempt's pods.
        container: name of the container that trains.
        launcher: how ranks are started; None = decided in the pod, by whether its Python has torch.
        rdzv: of torchrun, where it is used.
        port: of the rendezvous in slot 0.
        release: whether the workload, which is created suspended, is to be set going at once.
        request_token: of the annotation on the workload: tells our own object from another's after a lost reply.
        notes: what was chosen and why, for people.
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
        """The manifests for people: values that look secret are masked, the bundle is told by size and digest."""
        return [masked(item) for item in self.objects]


def request_token(token: str) -> str:
    """What stands on the object for the attempt's ``token``: one can be told from the other's, never made into it."""
    return hashlib.sha256(f"request:{token}".encode()).hexdigest()[:32]


def masked(value: Any) -> Any:
    """A copy of a manifest, or of any part of it, without values that look secret."""
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
