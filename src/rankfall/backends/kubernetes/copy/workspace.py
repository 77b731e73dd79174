"""A job's workspace: claim, a run's folder, copies of files and code."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final

import msgspec

from rankfall.backends.files import Files, Place
from rankfall.backends.kubernetes.copy.copy_pod import Volume
from rankfall.backends.kubernetes.copy.transfer import copy_pod_of
from rankfall.backends.kubernetes.manifests.code import code_folder, copy_pod_image, runs_folder
from rankfall.backends.kubernetes.manifests.pod_overrides import merged
from rankfall.backends.payload import CODE
from rankfall.kube.auth.kubeconfig import access_of
from rankfall.kube.client import Kube
from rankfall.model import JobSpec, Kubernetes, UsageError, Workspace
from rankfall.rundir import RunDir
from rankfall.rundir.lease import make_folder, write_file
from rankfall_inside.transfer.tree import scan

# Let a copy pod run like the job's.
_POD_FIELDS: Final = ("imagePullSecrets", "tolerations", "serviceAccountName", "securityContext", "priorityClassName")


def pinned(spec: JobSpec) -> JobSpec:
    """Fixes the folder of this user's runs in the spec, so that others find it."""
    workspace = spec.kubernetes.workspace
    if workspace is None or workspace.folder is not None:
        return spec
    folder = runs_folder(spec.name)
    section = msgspec.structs.replace(spec.kubernetes, workspace=msgspec.structs.replace(workspace, folder=folder))
    return msgspec.structs.replace(spec, kubernetes=section)


def volume_of(section: Kubernetes, workspace: Workspace, *, image: str, python: str | None = None) -> Volume:
    """Returns a workspace's volume, mounted with the rights of the job's pods."""
    own: dict[str, Any] = {
        "imagePullSecrets": [{"name": name} for name in section.image_pull_secrets],
        "tolerations": list(section.tolerations),
        "serviceAccountName": section.service_account,
    }
    wanted = merged({key: value for key, value in own.items() if value}, _dict(section.pod.get("spec")))
    container: Mapping[str, Any] = next(
        (one for one in wanted.get("containers", ()) if one.get("name") == section.container), {}
    )
    taken = ("imagePullPolicy", "securityContext") if workspace.image is None else ("securityContext",)
    # The pull policy concerns the job's image.
    own_image = workspace.image is None and section.image_pull_policy is not None
    pull = {"imagePullPolicy": section.image_pull_policy} if own_image else {}
    return Volume(
        claim=workspace.claim,
        namespace=section.namespace or "default",
        path=workspace.path,
        image=image,
        python=python,
        pod={key: wanted[key] for key in _POD_FIELDS if key in wanted},
        container={
            **pull,
            **{key: container[key] for key in taken if key in container},
        },
    )


def place_of_run(spec: JobSpec, run: str, *, say: Callable[[str], None], image: str | None = None) -> Place | None:
    """Place of a run's files; None without a volume."""
    workspace = spec.kubernetes.workspace
    if workspace is None:
        return None
    image = image or copy_pod_image(spec)
    if image is None:
        raise UsageError(
            f"run {run} names no image for the pod that copies",
            hint="name an image with sh and Python 3.8 (cp: --image)",
        )
    volume = volume_of(spec.kubernetes, workspace, image=image, python=spec.python)
    return _place(
        spec.kubernetes,
        volume,
        start=code_folder(workspace, spec.name, run=run),
        label=f"claim {workspace.claim} of run {run}",
        say=say,
    )


async def upload_code(kube: Kube, run_dir: RunDir, *, namespace: str, say: Callable[[str], None]) -> None:
    """Copies a run's code to the volume; a final list of files proves completeness.

    Raises:
        InfrastructureError: Copying failed.
    """
    spec, done = run_dir.spec, run_dir.path / "kube" / "code.json"
    workspace = spec.kubernetes.workspace
    if workspace is None or done.exists():
        return
    tree = await asyncio.to_thread(scan, os.fsencode(run_dir.path / CODE))
    folder = code_folder(workspace, spec.name, run=run_dir.id)
    section = msgspec.structs.replace(spec.kubernetes, namespace=namespace)
    volume = volume_of(section, workspace, image=copy_pod_image(spec) or "", python=spec.python)
    fresh = done.with_suffix(".new")
    make_folder(fresh.parent)
    write_file(fresh, msgspec.json.encode({"files": len(tree.entries), "bytes": tree.size, "folder": folder}))
    async with copy_pod_of(kube, volume, say=say) as made:
        await made.put(tree, os.fsencode(folder))
        await made.put(await asyncio.to_thread(scan, os.fsencode(fresh)), os.fsencode(f"{folder}.json"))
    fresh.replace(done)


def place_of_claim(section: Kubernetes, *, say: Callable[[str], None]) -> Place:
    """Place of a claim's files; paths begin at its root."""
    access = access_of(section)
    section = msgspec.structs.replace(section, context=access.context, namespace=access.namespace)
    workspace = section.workspace or Workspace(claim="")
    volume = volume_of(section, workspace, image=workspace.image or "")
    return _place(section, volume, start="", label=f"claim {workspace.claim}", say=say)


def _place(section: Kubernetes, volume: Volume, *, start: str, label: str, say: Callable[[str], None]) -> Place:
    @asynccontextmanager
    async def opened() -> AsyncIterator[Files]:
        async with Kube(access_of(section)) as kube, copy_pod_of(kube, volume, say=say) as made:
            yield made

    return Place(open=opened, root=os.fsencode(volume.path), start=os.fsencode(start), label=label)


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
