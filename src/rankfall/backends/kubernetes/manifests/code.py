"""Location of a job's code in pods: config map or workspace volume.

Refuses code that is too large for the config map.
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

# A config map holds 1 MiB, with the recorder.
MOST_PACKED: Final = 700 << 10
# Text shrinks to a fifth, and every attempt packs.
_MOST_RAW: Final = 32 << 20
_INSTEAD: Final = "name a volume in kubernetes.workspace (--workspace CLAIM), put the code into the image, or skip more with code_exclude (--code-exclude)"


def packed_code(spec: JobSpec, tree: Tree | None) -> bytes | None:
    """Returns the packed code; None if none or on the workspace.

    Raises:
        Refused: Too large, or no unpacker or image.
        UsageError: The code is unreadable.
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
            f"$.code: with inside: off, no code of Rankfall in the pod could unpack it (backend {spec.backend})",
            hint="use kubernetes.workspace (--workspace CLAIM), or inside: auto, or put the code into the image",
        )
    if tree.size > _MOST_RAW:
        raise _too_large(spec, tree, f"more than {_MOST_RAW >> 20} MiB, which cannot become small enough")
    try:
        packed = pack(tree)
    except TransferError as error:
        raise UsageError(f"$.code: {error}", hint="leave it out with code_exclude (--code-exclude)") from None
    if len(packed) > MOST_PACKED:
        raise _too_large(spec, tree, f"{len(packed)} packed, but only {MOST_PACKED} fit into a config map")
    return packed


def code_note(spec: JobSpec, tree: Tree, packed: bytes | None, *, run: str) -> str:
    """Describes the code's location, for plans."""
    what = f"code: {sum(entry.kind == FILE for entry in tree.entries)} files, {tree.size} bytes"
    if packed is not None:
        return f"{what}, {len(packed)} packed, in the config map; pods unpack it to {code_dir(spec, run=run)}"
    workspace = spec.kubernetes.workspace
    claim = workspace.claim if workspace is not None else ""
    return f"{what}, copied to claim {claim} before the start; its path in pods: {code_dir(spec, run=run)}"


def copy_pod_image(spec: JobSpec) -> str | None:
    """Copy pod's image: workspace's, job's or first role's; None if none is named."""
    workspace = spec.kubernetes.workspace
    found = [workspace.image if workspace is not None else None, spec.kubernetes.image]
    return next((one for one in (*found, *(part.spec.kubernetes.image for part in spec.parts)) if one), None)


def _too_large(spec: JobSpec, tree: Tree, why: str) -> Refused:
    return Refused(
        f"$.code: {len(tree.entries)} files and folders of {tree.size} bytes: {why} (backend {spec.backend})",
        hint=_INSTEAD,
    )


def code_dir(spec: JobSpec, *, run: str) -> str:
    """Code's folder in a run's pods."""
    workspace = spec.kubernetes.workspace
    return (
        f"{SLOT_DIR}/{CODE}" if workspace is None else f"{workspace.path}/{code_folder(workspace, spec.name, run=run)}"
    )


def code_folder(workspace: Workspace, job: str, *, run: str) -> str:
    """Folder of the code below the volume's root."""
    return f"{workspace.folder or runs_folder(job)}/{run}/{CODE}"


def runs_folder(job: str) -> str:
    """Folder of this user's runs on a volume."""
    return f"{user_name()}/{job}"


def user_name() -> str:
    """Account as a folder name; containers' users may have none."""
    try:
        name = getpass.getuser()
    except (KeyError, OSError):
        name = ""
    plain = re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.")
    return plain or f"uid-{os.getuid()}"
