"""Where the code of a job lies in its pods: packed in the config map, or on the workspace's volume.

Refuses code that is too large to travel with the recorder, before anything is created.
"""

from __future__ import annotations

import getpass
import os
import re
from typing import Final

from rankfall.backends.kubernetes.manifests.container_command import SLOT_DIR
from rankfall.backends.payload import CODE
from rankfall.model import JobSpec, Refused, UsageError, Workspace
from rankfall_inside.transfer.frames import TransferError
from rankfall_inside.transfer.pack import pack
from rankfall_inside.transfer.tree import FILE, Tree

# A config map holds 1 MiB in all, and the recorder is in it too.
MOST_PACKED: Final = 700 << 10
# More than this is not even tried: text becomes a fifth, and every start of an attempt packs it.
_MOST_RAW: Final = 32 << 20
_INSTEAD: Final = "name a volume for it: kubernetes.workspace (--workspace CLAIM); or bring it in the image, or leave out more with code_exclude (--code-exclude)"


def packed_code(spec: JobSpec, tree: Tree | None) -> bytes | None:
    """The code as it travels with the recorder; None: there is none, or it goes to the workspace.

    Raises:
        Refused: it is too large, nobody in the pod could unpack it, or there is no image for the pod that copies it.
        UsageError: it cannot be read.
    """
    if tree is None:
        return None
    if spec.kubernetes.workspace is not None:
        if copy_pod_image(spec) is None:
            raise Refused(
                f"$.kubernetes.workspace.image: is missing: the pod that copies the code needs an image (backend {spec.backend})",
                hint="name one with sh and Python 3.8",
            )
        return None
    if spec.inside == "off":
        raise Refused(
            f"$.code: with inside: off nobody in the pod could unpack it (backend {spec.backend})",
            hint="use kubernetes.workspace (--workspace CLAIM), or inside: auto, or bring it in the image",
        )
    if tree.size > _MOST_RAW:
        raise _too_large(spec, tree, f"more than the {_MOST_RAW >> 20} MiB that could become small enough")
    try:
        packed = pack(tree)
    except TransferError as error:
        raise UsageError(f"$.code: {error}", hint="leave it out with code_exclude (--code-exclude)") from None
    if len(packed) > MOST_PACKED:
        raise _too_large(spec, tree, f"{len(packed)} packed, and {MOST_PACKED} fit into a config map")
    return packed


def code_note(spec: JobSpec, tree: Tree, packed: bytes | None, *, run: str) -> str:
    """Where the code goes, for people who look at a plan."""
    what = f"code: {sum(entry.kind == FILE for entry in tree.entries)} files, {tree.size} bytes"
    if packed is not None:
        return f"{what}, {len(packed)} packed, in the config map; pods unpack it to {code_dir(spec, run=run)}"
    workspace = spec.kubernetes.workspace
    claim = workspace.claim if workspace is not None else ""
    return f"{what}, copied to claim {claim} before the start; pods see it in {code_dir(spec, run=run)}"


def copy_pod_image(spec: JobSpec) -> str | None:
    """Of the pod that copies: the workspace's own, else the job's, else that of its first role which has one."""
    workspace = spec.kubernetes.workspace
    found = [workspace.image if workspace is not None else None, spec.kubernetes.image]
    return next((one for one in (*found, *(part.spec.kubernetes.image for part in spec.parts)) if one), None)


def _too_large(spec: JobSpec, tree: Tree, why: str) -> Refused:
    return Refused(
        f"$.code: {len(tree.entries)} files and folders of {tree.size} bytes: {why} (backend {spec.backend})",
        hint=_INSTEAD,
    )


def code_dir(spec: JobSpec, *, run: str) -> str:
    """The folder of the code as the pods of a run see it."""
    workspace = spec.kubernetes.workspace
    return (
        f"{SLOT_DIR}/{CODE}" if workspace is None else f"{workspace.path}/{code_folder(workspace, spec.name, run=run)}"
    )


def code_folder(workspace: Workspace, job: str, *, run: str) -> str:
    """The same below the volume's root."""
    return f"{workspace.folder or runs_folder(job)}/{run}/{CODE}"


def runs_folder(job: str) -> str:
    """Where this user's runs of a job have their folders on a volume."""
    return f"{user_name()}/{job}"


def user_name() -> str:
    """The account's name as a folder's; in a container its number may have no name."""
    try:
        name = getpass.getuser()
    except (KeyError, OSError):
        name = ""
    plain = re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.")
    return plain or f"uid-{os.getuid()}"
