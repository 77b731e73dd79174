"""Makes the folder of an older server's answers from the Go module of that Kubernetes version.

The module holds OpenAPI of every version, and discovery from 1.26 on; of 1.25 discovery is derived from the paths in ``swagger.json``. Both were
written by a server with everything switched on: what an ordinary server of that version does not serve (alpha, and beta since 1.24) is
left out here, or a client would believe in resources that no such cluster has.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import msgspec

from testbed.errors import BuildError
from testbed.layout import cache_folder
from testbed.proxy.derive import discovery, names
from testbed.proxy.version import Version

# Newest patch release of each minor version that is replayed.
VERSIONS = {"1.25": "1.25.16", "1.30": "1.30.14", "1.33": "1.33.7"}
# Where short names and categories come from when a version's own discovery is not written down.
_NAMES_FROM = "1.30"
# Beta versions that an ordinary server of that version serves.
_BETA = {
    "1.25": {
        "autoscaling/v2beta2",
        "flowcontrol.apiserver.k8s.io/v1beta1",
        "flowcontrol.apiserver.k8s.io/v1beta2",
        "storage.k8s.io/v1beta1",
    },
    "1.30": {"flowcontrol.apiserver.k8s.io/v1beta3"},
    "1.33": set[str](),
}
_UNSTABLE = re.compile(r"v\d+(alpha|beta)\d+")


def make(minor: str, *, go: Path) -> Path:
    """The folder with this version's answers; made at the first call and kept in the cache.

    Args:
        minor: one of ``VERSIONS``.
        go: the Go program.

    Raises:
        BuildError: the version is not known or its module cannot be had.
    """
    if minor not in VERSIONS:
        raise BuildError(f"there are no answers of Kubernetes {minor}", hint=f"choose one of {', '.join(VERSIONS)}")
    folder = cache_folder() / "answers" / minor
    if not (folder / "version.json").exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(prefix=f"{minor}.", dir=folder.parent))
        try:
            fill(scratch, minor, go=go)
            shutil.rmtree(folder, ignore_errors=True)
            scratch.rename(folder)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
    return folder


def fill(folder: Path, minor: str, *, go: Path) -> None:
    """Write the answers of a version into an empty folder.

    Args:
        folder: to fill.
        minor: one of ``VERSIONS``.
        go: the Go program.

    Raises:
        BuildError: its module cannot be had.
    """
    module = _module(go, VERSIONS[minor])
    api = Path(module["Dir"]) / "api"
    swagger = msgspec.json.decode((api / "openapi-spec" / "swagger.json").read_bytes())
    served = _Served(minor)
    swagger["paths"] = {path: item for path, item in swagger["paths"].items() if served.path(path)}
    (folder / "swagger.json").write_bytes(msgspec.json.encode(swagger))
    (folder / "v3").mkdir()
    for file in (api / "openapi-spec" / "v3").glob("*_openapi.json"):
        if served.path("/" + file.name.removesuffix("_openapi.json").replace("__", "/")):
            shutil.copyfile(file, folder / "v3" / file.name)
    if (api / "discovery").is_dir():
        found = _recorded(api / "discovery", served)
    else:
        other = Path(_module(go, VERSIONS[_NAMES_FROM])["Dir"]) / "api" / "discovery"
        found = discovery(swagger, names(other))
    (folder / "discovery").mkdir()
    for name, document in found.items():
        (folder / "discovery" / name).write_bytes(msgspec.json.encode(document))
    version = Version.of_module(module)
    # The last file: a folder that has it is whole.
    (folder / "version.json").write_bytes(msgspec.json.encode(version.answer()))


class _Served:
    def __init__(self, minor: str) -> None:
        self._beta = _BETA[minor]

    def version(self, group_version: str) -> bool:
        """Whether an ordinary server serves this group and version."""
        return group_version in self._beta or _UNSTABLE.search(group_version) is None

    def path(self, path: str) -> bool:
        """Whether it serves this path."""
        parts = path.strip("/").split("/")
        return parts[0] != "apis" or len(parts) < 3 or self.version("/".join(parts[1:3]))  # noqa: PLR2004 - apis/G/V


def _recorded(folder: Path, served: _Served) -> dict[str, Any]:
    """A server's own discovery, less what an ordinary one does not serve."""
    found: dict[str, Any] = {}
    for file in sorted(folder.glob("api*.json")):
        document = msgspec.json.decode(file.read_bytes())
        if file.name == "apis.json":
            groups = [_trim(group, served) for group in document["groups"]]
            document["groups"] = [group for group in groups if group["versions"]]
        elif document.get("kind") == "APIGroup":
            document = _trim(document, served)
            if not document["versions"]:
                continue
        elif "groupVersion" in document and not served.version(document["groupVersion"]):
            continue
        found[file.name] = document
    return found


def _trim(group: dict[str, Any], served: _Served) -> dict[str, Any]:
    kept = [version for version in group["versions"] if served.version(version["groupVersion"])]
    preferred = group["preferredVersion"] if group["preferredVersion"] in kept or not kept else kept[0]
    return group | {"versions": kept, "preferredVersion": preferred}


def _module(go: Path, version: str) -> dict[str, Any]:
    command = [str(go), "mod", "download", "-json", f"k8s.io/kubernetes@v{version}"]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"GOTOOLCHAIN": "local", "GOFLAGS": "-mod=mod"},
    )
    if done.returncode:
        raise BuildError(
            f"{' '.join(command)} failed: {(done.stderr or done.stdout).strip()}", hint="is the module proxy reachable?"
        )
    found: dict[str, Any] = msgspec.json.decode(done.stdout)
    return found
