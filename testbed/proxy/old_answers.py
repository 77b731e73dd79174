"""Makes the folder of an older server's answers from the Go module of that Kubernetes version.

The module holds OpenAPI of every version, and discovery from 1.26 on; of 1.25 discovery is derived from the paths in ``swagger.json``. Both were
written by a server with everything switched on: what an ordinary server of that version does not serve (alpha, and beta since 1.24) is
left out here, or a client would believe in resources that no such cluster has.
"""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from testbed import toolchain
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
# Counted up when this module writes other files than before: what lies in caches is then made anew.
_FORM = 1
_UNSTABLE = re.compile(r"v\d+(alpha|beta)\d+")


def make(minor: str) -> Path:
    """The folder with this version's answers; made at the first call and kept in the cache.

    Args:
        minor: one of ``VERSIONS``.

    Raises:
        BuildError: the version is not known or its module cannot be had.
    """
    if minor not in VERSIONS:
        raise BuildError(f"there are no answers of Kubernetes {minor}", hint=f"choose one of {', '.join(VERSIONS)}")
    folder = cache_folder() / "answers" / f"{VERSIONS[minor]}-{_FORM}"
    if not (folder / "version.json").exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(prefix=f"{minor}.", dir=folder.parent))
        try:
            fill(scratch, minor)
            shutil.rmtree(folder, ignore_errors=True)
            scratch.rename(folder)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
    return folder


def fill(folder: Path, minor: str) -> None:
    """Write the answers of a version into an empty folder.

    Args:
        folder: to fill.
        minor: one of ``VERSIONS``.

    Raises:
        BuildError: its module cannot be had.
    """
    module = module_of(VERSIONS[minor])
    api = Path(module["Dir"]) / "api"
    swagger = msgspec.json.decode((api / "openapi-spec" / "swagger.json").read_bytes())
    served = _Served(minor, swagger["paths"])
    swagger["paths"] = {path: item for path, item in swagger["paths"].items() if served.path(path)}
    (folder / "swagger.json").write_bytes(msgspec.json.encode(swagger))
    (folder / "v3").mkdir()
    for file in (api / "openapi-spec" / "v3").glob("*_openapi.json"):
        if served.path("/" + file.name.removesuffix("_openapi.json").replace("__", "/")):
            shutil.copyfile(file, folder / "v3" / file.name)
    if (api / "discovery").is_dir():
        found = _recorded(api / "discovery", served)
    else:
        other = Path(module_of(VERSIONS[_NAMES_FROM])["Dir"]) / "api" / "discovery"
        found = discovery(swagger, names(other))
    (folder / "discovery").mkdir()
    for name, document in found.items():
        (folder / "discovery" / name).write_bytes(msgspec.json.encode(document))
    version = Version.of_module(module)
    # The last file: a folder that has it is whole.
    (folder / "version.json").write_bytes(msgspec.json.encode(version.answer()))


class _Served:
    def __init__(self, minor: str, paths: Iterable[str]) -> None:
        self._beta = _BETA[minor]
        parts = [path.strip("/").split("/") for path in paths]
        self._groups = {words[1] for words in parts if len(words) > 2 and self.version("/".join(words[1:3]))}  # noqa: PLR2004

    def version(self, group_version: str) -> bool:
        """Whether an ordinary server serves this group and version."""
        return group_version in self._beta or _UNSTABLE.search(group_version) is None

    def path(self, path: str) -> bool:
        """Whether it serves this path."""
        match path.strip("/").split("/"):
            case ["apis", group]:
                return group in self._groups
            case ["apis", group, version, *_]:
                return self.version(f"{group}/{version}")
            case _:
                return True


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


def module_of(version: str) -> dict[str, Any]:
    """What Go says of a version's module, once it lies in Go's own cache.

    Raises:
        BuildError: it cannot be had.
    """
    with tempfile.TemporaryDirectory() as nowhere:
        text = toolchain.ask(Path(nowhere), ["mod", "download", "-json", f"k8s.io/kubernetes@v{version}"])
    found: dict[str, Any] = msgspec.json.decode(text)
    return found
