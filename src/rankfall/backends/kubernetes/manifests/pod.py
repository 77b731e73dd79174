"""The pod template of all workloads: one container with wrapper, environment and mounts.

The user's overrides are merged by name; only node exclusion follows, so that no affinity cancels it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

from rankfall.backends.environment import place
from rankfall.backends.kubernetes.manifests.container_command import BOOTSTRAP, BUNDLE_PATH, SLOT_DIR, Start
from rankfall.backends.kubernetes.manifests.names import LABEL_ROLE
from rankfall.backends.kubernetes.manifests.pod_overrides import (
    OWN_VOLUMES,
    WORKSPACE,
    Object,
    check_override,
    check_volumes,
    merged,
    without_nodes,
)
from rankfall.backends.kubernetes.manifests.request import NODE_REFERENCE, Request, check_variables, escape
from rankfall.backends.kubernetes.manifests.secrets import job_variables, secret_variables, without_values
from rankfall.backends.torchrun import ELASTIC_ENV
from rankfall.kube.object_fields import COMPLETION_INDEX, JOBSET_RESTART
from rankfall.model import JobSpec, Refused, Resources
from rankfall.model.jobspec.kubernetes import EnvSource, log_store_place
from rankfall_inside.transfer import pack

BUNDLE_KEY: Final = "inside.pyz"
CODE_KEY: Final = pack.NAME
MANAGED_BY: Final = {"app.kubernetes.io/managed-by": "rankfall"}
# Label since Kubernetes 1.28, before an annotation.
_INDEX_LABEL_SINCE: Final = 28
# Seconds between the wrapper's SIGKILL and the kubelet's.
_KUBELET_MARGIN_S: Final = 5
# Two words each; more would exceed the API server's limits.
_MOST_WAITED_FOR: Final = 1024
# A TrainJob's command has at most 128 words.
_MOST_WAITED_FOR_SHARED: Final = 32


def template(request: Request, start: Start, *, container: str) -> Object:
    """Returns the pod template: metadata and spec.

    Raises:
        SpecError: An override removes a required part.
    """
    spec = request.spec
    section = spec.kubernetes
    env = environment(request, start)
    for override in (section.pod, request.part.pod):
        check_override(override, container=container, own_env=_own_names(request, start))
    check_volumes("$.kubernetes.volumes", section.volumes)
    pod: Object = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": termination_grace_s(spec),
        "subdomain": request.names.object,
        "containers": [
            {
                "name": container,
                "image": section.image,
                **_optional("imagePullPolicy", section.image_pull_policy),
                "command": list(container_command(request, start)),
                **_optional("workingDir", _working_dir(request)),
                "env": env,
                **_optional("resources", resources(section.resources)),
                **_optional("volumeMounts", mounts(spec)),
                # The end of the log, where the wrapper wrote no message.
                "terminationMessagePolicy": "FallbackToLogsOnError",
            }
        ],
        **_optional("volumes", volumes(request)),
        **_optional("serviceAccountName", section.service_account),
        **_optional("priorityClassName", section.priority_class),
        **_optional("imagePullSecrets", [{"name": name} for name in section.image_pull_secrets]),
        **_optional("tolerations", list(section.tolerations)),
        **_optional("nodeSelector", dict(section.node_selector)),
        **_optional("affinity", section.affinity),
    }
    made = {"metadata": {"labels": labels(request), **_optional("annotations", dict(section.annotations))}, "spec": pod}
    theirs = [
        without_values(request, pod, at=at)[0] for at, pod in (("pod", section.pod), ("role-pod", request.part.pod))
    ]
    result: dict[str, Any] = merged(merged(made, theirs[0]), theirs[1])
    result["spec"] = without_nodes(result["spec"], request.excluded)
    return result


def labels(request: Request) -> dict[str, str]:
    """Labels of a role's pods and objects."""
    return {**_labels(request), LABEL_ROLE: request.part.name}


def shared_labels(request: Request) -> dict[str, str]:
    """Labels of an object that belongs to the whole job: without a role if the job has several."""
    return _labels(request) if request.gang.several else labels(request)


def _labels(request: Request) -> dict[str, str]:
    return {**request.spec.kubernetes.labels, **MANAGED_BY, **request.names.labels}


def container_command(request: Request, start: Start) -> tuple[str, ...]:
    """Container's ``command``: bootstrap and wrapper, with ``inside: off`` only the job's words."""
    spec = request.spec
    if spec.inside == "off":
        return start.words
    words = ["wrap", "--console", "--launcher", start.launcher, "--nproc", str(spec.nproc_per_node)]
    words += ["--grace", f"{wrapper_grace_s(spec):g}"]
    if spec.unattended:
        words += ["--exit-code", "cause"]
    if request.code_digest is not None:
        words += ["--code", request.code_digest]
    if request.code_dir is not None:
        words += ["--chdir", escape(request.work_dir or "")]
    if spec.kubernetes.log_store is not None:
        words += ["--log-store", escape(log_store_place(spec.kubernetes.log_store).path)]
    for address in required_names(request):
        words += ["--wait-for", address]
    words += ["--", *start.words]
    if spec.inside == "require" and spec.python is not None:
        # No shell is needed to find Python.
        return (escape(spec.python), "-I", "-S", BUNDLE_PATH, *words)
    return ("sh", "-c", escape(BOOTSTRAP), "rankfall", *words)


def required_names(request: Request) -> list[str]:
    """Returns the names that must resolve before the command starts.

    Fixed size: all slots. MIN:MAX: only the rendezvous. A slot restarting alone: none.
    """
    most = request.gang.spec.slot_count
    if most == 1 or request.spec.restart_scope == "replica":
        return []
    all_of_them = not request.gang.spec.elastic and most <= most_required_names(request.spec)
    return request.gang.addresses(namespace=request.namespace) if all_of_them else [request.master]


def most_required_names(spec: JobSpec) -> int:
    """Largest number of names in a container's command."""
    shared = spec.backend == "trainjob" and spec.kubernetes.runtime is not None
    return _MOST_WAITED_FOR_SHARED if shared else _MOST_WAITED_FOR


def wrapper_grace_s(spec: JobSpec) -> float:
    """Seconds that the job's command gets after SIGTERM; unattended at least the drain time."""
    if spec.unattended and spec.success.policy != "all":
        return max(spec.policies.grace_s, spec.success.drain_s)
    return spec.policies.grace_s


def termination_grace_s(spec: JobSpec) -> int:
    """Seconds until the kubelet kills the pod's remaining processes."""
    return math.ceil(wrapper_grace_s(spec)) + _KUBELET_MARGIN_S


def environment(request: Request, start: Start) -> list[Object]:
    """Container's variables; the slot's number is first, because others refer to it."""
    spec = request.spec
    check_variables(spec.env)
    literal = job_variables(request, {name: escape(value) for name, value in spec.env.items()})
    sources: list[Object] = [
        {"name": name, "valueFrom": _source(source)} for name, source in spec.kubernetes.env_from.items()
    ]
    taken = {*spec.env, *spec.kubernetes.env_from}
    own = [*secret_variables(request, as_json=start.variable is not None), *_own(request, start)]
    return [*(item for item in own if item["name"] not in taken), *literal, *sources]


def _own_names(request: Request, start: Start) -> frozenset[str]:
    return frozenset(item["name"] for item in _own(request, start))


def _own(request: Request, start: Start) -> list[Object]:
    spec, names = request.spec, request.names
    index = "labels" if request.served.at_least(_INDEX_LABEL_SINCE) else "annotations"
    own: list[Object] = [
        _field(
            "RANKFALL_INDEX" if request.gang.several else "RANKFALL_SLOT", f"metadata.{index}['{COMPLETION_INDEX}']"
        ),
        _field("RANKFALL_NODE", "spec.nodeName"),
        _field("RANKFALL_POD", "metadata.name"),
        _field("RANKFALL_POD_UID", "metadata.uid"),
    ]
    if request.restarts_as_set:
        own.append(_field("RANKFALL_RESTART", f"metadata.labels['{JOBSET_RESTART}']"))
    values = {
        "RANKFALL_RUN": names.run,
        "RANKFALL_ATTEMPT": str(names.attempt),
        "RANKFALL_ROLE": request.part.name,
        **place(request.gang.spec, request.part, hosts=request.gang.hosts(namespace=request.namespace)),
        "RANKFALL_INSIDE": spec.inside,
        "RANKFALL_STRATEGY": request.strategy,
    }
    if spec.inside != "off":
        values |= {
            "RANKFALL_TOKEN": request.token,
            "RANKFALL_SLOT_DIR": SLOT_DIR,
            "RANKFALL_RECORD_DIR": f"{SLOT_DIR}/records",
        }
        if spec.record_store is not None:
            values["RANKFALL_RECORD_STORE"] = spec.record_store
        if spec.error_file is not None:
            values["RANKFALL_ERROR_FILE"] = spec.error_file
        if spec.python is not None:
            values["RANKFALL_PYTHON"] = spec.python
    if spec.policies.retryable:
        values["RANKFALL_RETRYABLE"] = ",".join(spec.policies.retryable)
    if spec.policies.final:
        values["RANKFALL_FINAL"] = ",".join(spec.policies.final)
    if spec.elastic:
        values |= ELASTIC_ENV
    if start.chosen != "torchrun":
        values |= {
            "MASTER_ADDR": request.master,
            "MASTER_PORT": str(spec.kubernetes.master_port),
        }
    own += [{"name": name, "value": escape(value)} for name, value in values.items()]
    if start.launcher in {"auto", "plain"}:
        own += _ranks(request)
    if start.variable is not None and spec.inside != "off":
        own.append({"name": "RANKFALL_TORCHRUN", "value": start.variable})
    return own


def _ranks(request: Request) -> list[Object]:
    """Plain launcher's input; with ``inside: off`` the rank itself."""
    count, role = str(request.most), request.part.name
    size = str(request.gang.spec.world_size) if request.gang.several else count
    values = {"TORCHELASTIC_RUN_ID": request.rendezvous_id}
    if request.spec.inside == "off":
        values |= dict.fromkeys(("RANK", "GROUP_RANK", "ROLE_RANK"), request.node_reference)
        values |= {"WORLD_SIZE": size, "GROUP_WORLD_SIZE": count, "ROLE_WORLD_SIZE": str(request.part.count)}
        values |= {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", "ROLE_NAME": role}
    else:
        values["RANKFALL_PLAIN_NNODES"] = count
        if request.node_reference != NODE_REFERENCE:
            values["RANKFALL_PLAIN_NODE_RANK"] = request.node_reference
    return [{"name": name, "value": value} for name, value in values.items()]


def _field(name: str, path: str) -> Object:
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}


def _source(source: EnvSource) -> Object:
    kind, name = (
        ("secretKeyRef", source.secret) if source.secret is not None else ("configMapKeyRef", source.config_map)
    )
    return {kind: {"name": name, "key": source.key}}


def resources(wanted: Resources) -> Object:
    """Returns requests and limits; GPUs are in both."""
    gpus = {wanted.gpu_resource: str(wanted.gpus)} if wanted.gpus else {}
    return {
        **_optional("requests", {**wanted.requests, **gpus}),
        **_optional("limits", {**wanted.limits, **gpus}),
    }


def mounts(spec: JobSpec) -> list[Object]:
    """Returns Rankfall's mounts, then the user's."""
    bundle, run = OWN_VOLUMES
    own: list[Object] = [
        {"name": bundle, "mountPath": "/rankfall", "readOnly": True},
        {"name": run, "mountPath": SLOT_DIR},
    ]
    return [*(own if spec.inside != "off" else []), *spec.kubernetes.volume_mounts, *_workspace_mount(spec)]


def volumes(request: Request) -> list[Object]:
    """Returns Rankfall's volumes, then the user's."""
    bundle, run = OWN_VOLUMES
    keys = [BUNDLE_KEY] if request.code_digest is None else [BUNDLE_KEY, CODE_KEY]
    own: list[Object] = [
        {
            "name": bundle,
            "configMap": {"name": request.names.object, "items": [{"key": key, "path": key} for key in keys]},
        },
        {"name": run, "emptyDir": {}},
    ]
    return [
        *(own if request.spec.inside != "off" else []),
        *request.spec.kubernetes.volumes,
        *_workspace_volume(request.spec),
    ]


def _workspace_volume(spec: JobSpec) -> list[Object]:
    """Workspace's volume, unless the job declares one of this claim."""
    workspace = spec.kubernetes.workspace
    if workspace is None or _declared(spec) is not None:
        return []
    return [{"name": WORKSPACE, "persistentVolumeClaim": {"claimName": workspace.claim}}]


def _workspace_mount(spec: JobSpec) -> list[Object]:
    workspace = spec.kubernetes.workspace
    if workspace is None:
        return []
    if any(one["mountPath"].rstrip("/") == workspace.path for one in spec.kubernetes.volume_mounts):
        return []
    return [{"name": _declared(spec) or WORKSPACE, "mountPath": workspace.path}]


def _declared(spec: JobSpec) -> str | None:
    workspace = spec.kubernetes.workspace
    for volume in spec.kubernetes.volumes:
        source = volume.get("persistentVolumeClaim")
        if workspace is not None and isinstance(source, dict) and source.get("claimName") == workspace.claim:
            return None if source.get("readOnly") else str(volume["name"])
    return None


def _working_dir(request: Request) -> str | None:
    """Working directory; None if the wrapper changes it."""
    return None if request.code_dir is not None and request.spec.inside != "off" else request.work_dir


def check_spec_of_pod(spec: JobSpec) -> None:
    """Refuses problems that are detectable without a server.

    Raises:
        Refused: Names field and alternative.
    """
    if spec.cwd is not None and not spec.cwd.startswith("/") and not spec.code_folders:
        raise Refused(
            f"$.cwd: {spec.cwd!r} is not an absolute path, and backend {spec.backend} has no folder to start from",
            hint="give the path in the image or on a volume",
        )


def _optional(key: str, value: Any) -> Mapping[str, Any]:
    return {key: value} if value not in (None, {}, [], "") else {}
