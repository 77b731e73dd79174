"""Checks the section ``kubernetes`` for contradictions, also with Rankfall's own pod parts.

The API server's schema checks the rest.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

from rankfall.model.errors import SpecError
from rankfall.model.jobspec.job import JobSpec
from rankfall.model.jobspec.kubernetes import Kubernetes, check_log_store

OWN_PREFIX: Final = "rankfall.dev/"
OWN_MOUNTS: Final = ("/rankfall", "/rankfall-run")
_DNS_LABEL: Final = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_DNS_NAME: Final = re.compile(r"(?=.{1,253}$)[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*")
_QUALIFIED: Final = re.compile(r"(?:[a-z0-9][a-z0-9.-]{0,252}/)?[A-Za-z0-9](?:[A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?")
_LABEL_VALUE: Final = re.compile(r"(?:[A-Za-z0-9](?:[A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?)?")
_QUANTITY: Final = re.compile(r"[0-9]+(?:\.[0-9]+)?(?:m|[kMGTPE]|[KMGTPE]i|[eE][0-9]+)?")
_VARIABLE: Final = re.compile(r"[A-Za-z_.-][A-Za-z0-9_.-]*")


def check_kubernetes(spec: JobSpec) -> None:
    """Refuses a section that fails on any cluster.

    Raises:
        SpecError: Names field and allowed values.
    """
    section = spec.kubernetes
    if section == Kubernetes():
        _check_launcher_variables(spec)
        return
    _check_names(section)
    _check_env_from(spec)
    _check_resources(section)
    _check_marks("labels", section.labels)
    _check_marks("annotations", section.annotations)
    _check_marks("node_selector", section.node_selector)
    _check_volumes(section)
    _check_workspace(section)
    check_log_store(section)
    _check_pod(section)
    _check_launcher_variables(spec)


def _check_names(section: Kubernetes) -> None:
    for field in ("namespace", "container"):
        value = getattr(section, field)
        if value is not None and not _DNS_LABEL.fullmatch(value):
            raise SpecError(
                f"$.kubernetes.{field}", f"{value!r} is not a valid name: 1-63 lower-case letters, digits and dashes"
            )
    for field in ("service_account", "priority_class", "queue", "runtime"):
        value = getattr(section, field)
        if value is not None and not _DNS_NAME.fullmatch(value):
            raise SpecError(
                f"$.kubernetes.{field}", f"{value!r} is not a valid name: lower-case letters, digits, dashes and dots"
            )
    for field in ("image_pull_secrets", "exclude_nodes"):
        for number, value in enumerate(getattr(section, field)):
            if not _DNS_NAME.fullmatch(value):
                raise SpecError(f"$.kubernetes.{field}[{number}]", f"{value!r} is no valid name")
    image = section.image
    if image is not None and (not image or any(c.isspace() for c in image)):
        raise SpecError("$.kubernetes.image", f"{image!r} is no image", hint="as: registry/name:tag")


def _check_env_from(spec: JobSpec) -> None:
    for key, source in spec.kubernetes.env_from.items():
        path = f"$.kubernetes.env_from.{key}"
        if not _VARIABLE.fullmatch(key):
            raise SpecError(path, "is not a valid variable: letters, digits, _, - and dots, no digit first")
        if key.startswith("RANKFALL_"):
            raise SpecError(path, "names beginning with RANKFALL_ are set by Rankfall itself")
        if key in spec.env:
            raise SpecError(path, "is also in $.env; choose one")
        if (source.secret is None) == (source.config_map is None):
            raise SpecError(path, "needs exactly one of secret, config_map")
        if not source.key:
            raise SpecError(f"{path}.key", "is empty", hint="name one key of the secret or config map")


def _check_resources(section: Kubernetes) -> None:
    resources = section.resources
    for field in ("requests", "limits"):
        for name, text in getattr(resources, field).items():
            path = f"$.kubernetes.resources.{field}.{name}"
            if not _QUALIFIED.fullmatch(name):
                raise SpecError(path, "is no name of a resource", hint="as: cpu, memory, rdma/ib")
            if not _QUANTITY.fullmatch(text):
                raise SpecError(path, f"{text!r} is no quantity", hint="as: 500m, 8, 64Gi")
            if resources.gpus and name == resources.gpu_resource and text != str(resources.gpus):
                raise SpecError(path, f"{text} contradicts gpus: {resources.gpus}", hint="leave it out: gpus sets it")
    if not _QUALIFIED.fullmatch(resources.gpu_resource):
        raise SpecError("$.kubernetes.resources.gpu_resource", f"{resources.gpu_resource!r} is no name of a resource")


def _check_marks(field: str, marks: Mapping[str, str]) -> None:
    for key, value in marks.items():
        path = f"$.kubernetes.{field}.{key}"
        if not _QUALIFIED.fullmatch(key):
            raise SpecError(path, "is not a valid key: a name of 1-63 characters, with an optional domain/ before it")
        if field != "annotations" and not _LABEL_VALUE.fullmatch(value):
            raise SpecError(
                path,
                f"{value!r} is not a valid value: at most 63 letters, digits, -, _ and dots, a letter or digit at the ends",
            )
        if field != "node_selector" and key.startswith(OWN_PREFIX):
            raise SpecError(path, f"keys beginning with {OWN_PREFIX} are set by Rankfall itself")


def _check_volumes(section: Kubernetes) -> None:
    _check_named("$.kubernetes.volumes", section.volumes)
    for number, mount in enumerate(section.volume_mounts):
        path = f"$.kubernetes.volume_mounts[{number}]"
        if not isinstance(mount.get("name"), str) or not isinstance(mount.get("mountPath"), str):
            raise SpecError(path, "needs name and mountPath", hint="as: {name: data, mountPath: /data}")
        if _taken(mount["mountPath"]):
            raise SpecError(f"{path}.mountPath", f"{mount['mountPath']!r} is Rankfall's own place in the container")


def _check_workspace(section: Kubernetes) -> None:
    workspace = section.workspace
    if workspace is None:
        return
    path = "$.kubernetes.workspace"
    if not _DNS_NAME.fullmatch(workspace.claim):
        raise SpecError(f"{path}.claim", f"{workspace.claim!r} is no name of a PersistentVolumeClaim")
    place = workspace.path
    if not place.startswith("/") or place == "/" or not _plain(place[1:]):
        raise SpecError(f"{path}.path", f"{place!r} is no absolute path below /", hint="as: /workspace")
    if _taken(place):
        raise SpecError(f"{path}.path", f"{place!r} is Rankfall's own place in the container", hint="as: /workspace")
    if workspace.folder is not None and not _plain(workspace.folder):
        raise SpecError(f"{path}.folder", f"{workspace.folder!r} is no path below the volume", hint="as: team-a/train")
    if workspace.image is not None and (not workspace.image or any(c.isspace() for c in workspace.image)):
        raise SpecError(f"{path}.image", f"{workspace.image!r} is no image", hint="as: registry/name:tag")
    claims = {
        volume["name"]: volume["persistentVolumeClaim"].get("claimName")
        for volume in section.volumes
        if isinstance(volume.get("persistentVolumeClaim"), dict)
    }
    for number, mount in enumerate(section.volume_mounts):
        if mount["mountPath"].rstrip("/") == place and (
            claims.get(mount["name"]) != workspace.claim or mount.get("subPath") or mount.get("readOnly")
        ):
            raise SpecError(
                f"$.kubernetes.volume_mounts[{number}].mountPath",
                f"{place!r} is the path where kubernetes.workspace is mounted, as a whole and writable",
                hint="give the workspace another path",
            )


def _plain(path: str) -> bool:
    """True if a path consists of names only."""
    return "\0" not in path and all(part not in {"", ".", ".."} for part in path.split("/"))


def _taken(path: str) -> bool:
    plain = path.rstrip("/") or "/"
    return any(plain == own or plain.startswith(f"{own}/") for own in OWN_MOUNTS)


def _check_pod(section: Kubernetes) -> None:
    path = "$.kubernetes.pod"
    for key in section.pod:
        if key in {"ttlSecondsAfterFinished", "activeDeadlineSeconds", "backoffLimit"}:
            raise SpecError(
                f"{path}.{key}", "is not a part of a pod template", hint="use ttl_s, deadlines, policies.max_restarts"
            )
        if key not in {"metadata", "spec"}:
            raise SpecError(f"{path}.{key}", "is not a part of a pod template; allowed here: metadata, spec")
    metadata, pod = section.pod.get("metadata", {}), section.pod.get("spec", {})
    for name, part in (("metadata", metadata), ("spec", pod)):
        if not isinstance(part, dict):
            raise SpecError(f"{path}.{name}", "is no mapping of fields")
    for field in ("labels", "annotations"):
        for key in metadata.get(field) or {}:
            if str(key).startswith(OWN_PREFIX):
                raise SpecError(
                    f"{path}.metadata.{field}.{key}", f"keys beginning with {OWN_PREFIX} are set by Rankfall itself"
                )
    if pod.get("restartPolicy", "Never") != "Never":
        # A restart by the kubelet hides the failure from rules and peers.
        raise SpecError(
            f"{path}.spec.restartPolicy",
            f"{pod['restartPolicy']!r} contradicts rules and budgets: Rankfall restarts the gang itself",
            hint="leave it out; policies.max_restarts and rules decide about restarts",
        )
    if "activeDeadlineSeconds" in pod:
        raise SpecError(
            f"{path}.spec.activeDeadlineSeconds",
            "would end one pod without Rankfall's knowledge",
            hint="use deadlines.attempt_s",
        )
    for field in ("containers", "initContainers", "volumes"):
        _check_named(f"{path}.spec.{field}", pod.get(field) or ())


def _check_named(path: str, items: Iterable[Any]) -> None:
    """Requires unique names, because lists merge by name."""
    seen = set()
    for number, item in enumerate(items):
        name = item.get("name") if isinstance(item, dict) else None
        if not isinstance(name, str) or not name:
            raise SpecError(f"{path}[{number}].name", "is missing: it names the object")
        if name in seen:
            raise SpecError(f"{path}[{number}].name", f"{name!r} is there twice")
        seen.add(name)


def _check_launcher_variables(spec: JobSpec) -> None:
    """Refuses ``PET_*``, torchrun's flags, on a TrainJob: the Trainer reserves these variables."""
    if spec.backend != "trainjob":
        return
    containers = (spec.kubernetes.pod.get("spec") or {}).get("containers") or ()
    given = {f"$.env.{key}": key for key in spec.env} | {
        f"$.kubernetes.env_from.{key}": key for key in spec.kubernetes.env_from
    }
    for number, container in enumerate(containers):
        for place, variable in enumerate(container.get("env") or ()):
            name = variable.get("name") if isinstance(variable, dict) else None
            given[f"$.kubernetes.pod.spec.containers[{number}].env[{place}]"] = str(name)
    for path, name in given.items():
        if name.startswith("PET_"):
            raise SpecError(
                path,
                f"{name} is reserved by Kubeflow Trainer on backend trainjob",
                hint="use nnodes, nproc_per_node, rdzv and kubernetes.master_port, or backend: job or jobset",
            )
