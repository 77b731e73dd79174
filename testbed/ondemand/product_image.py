"""The product's own image, as deploy/Dockerfile has it: Python, the dependencies, Rankfall; given to the nodes of a bed that runs, by digest.

The base is the bed's image with Python; the dependencies are copied from the virtual environment, which has the same version of Python.
"""

from __future__ import annotations

import importlib.metadata
import json
import re
import shutil
import subprocess
import tarfile
import tempfile
from pathlib import Path

from testbed import images, oci, process
from testbed.bed import Bed
from testbed.errors import BuildError
from testbed.layout import MAX_NODES

NAME = "rankfall.test/rankfall"
_SITE = "opt/rankfall"
_PROGRAM = """#!/usr/bin/python3
import sys
sys.path.insert(0, "/opt/rankfall")
from rankfall.cli import main
sys.exit(main())
"""
_SOURCES = Path(__file__).resolve().parents[2] / "src"


def give(bed: Bed) -> str:
    """Build it, have it on all running nodes, and name it by digest.

    Raises:
        BuildError: the base or a dependency is missing.
    """
    base = images.ensure(["python"], say=bed.say)["python"]
    with tempfile.TemporaryDirectory(prefix="product-image-") as scratch:
        root, archive = Path(scratch) / "root", Path(scratch) / "image.tar"
        root.mkdir(mode=0o755)
        _unpack(base, root)
        _install(root)
        oci.pack(oci.Image(name=f"{NAME}:test", entrypoint=("rankfall",)), root, archive)
        with tarfile.open(archive) as file:
            digest = json.loads(_content(file, "index.json"))["manifests"][0]["digest"]
        named = f"{NAME}@{digest}"
        for index in range(1, MAX_NODES + 1):
            node = bed.node(index)
            if process.find(bed.layout, f"{node.name}-init"):
                node.import_image(archive)
                ctr = node.enter("ctr", "--address", str(node.socket), "--namespace", "k8s.io")
                words = [*ctr, "images", "tag", "--force", f"{NAME}:test", named]
                subprocess.run(words, check=True, capture_output=True, timeout=60)
    return named


def _unpack(archive: Path, root: Path) -> None:
    with tarfile.open(archive) as file:
        (entry,) = json.loads(_content(file, "index.json"))["manifests"]
        manifest = json.loads(_content(file, _blob(entry["digest"])))
        for layer in manifest["layers"]:
            inner = file.extractfile(_blob(layer["digest"]))
            if inner is None:
                raise BuildError(
                    f"{archive} lacks the layer {layer['digest']}", hint="python -m testbed prune, then up"
                )
            with tarfile.open(fileobj=inner) as files:
                files.extractall(root, filter="fully_trusted")  # noqa: S202 - of an image that the bed made itself


def _install(root: Path) -> None:
    site = root / _SITE
    for name in sorted(_needed("rankfall") - {"rankfall"}):
        for file in importlib.metadata.files(name) or ():
            target = site / file
            if ".." in file.parts or file.suffix == ".pyc":
                continue
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(str(file.locate()), target)
    for package in ("rankfall", "rankfall_inside"):
        shutil.copytree(_SOURCES / package, site / package, ignore=shutil.ignore_patterns("__pycache__"))
    program = root / "usr/bin/rankfall"
    program.write_text(_PROGRAM)
    program.chmod(0o755)


def _needed(name: str) -> set[str]:
    """A distribution and all that it needs, without extras."""
    found, todo = set(), [name]
    while todo:
        one = re.sub(r"[-_.]+", "-", todo.pop()).lower()
        if one in found:
            continue
        try:
            requires = importlib.metadata.requires(one) or []
        except importlib.metadata.PackageNotFoundError:
            continue  # of another platform or version of Python
        found.add(one)
        todo += [re.split(r"[ ;<>=!~\[(]", each)[0] for each in requires if "extra ==" not in each]
    return found


def _content(file: tarfile.TarFile, name: str) -> bytes:
    found = file.extractfile(name)
    return b"" if found is None else found.read()


def _blob(digest: str) -> str:
    return f"blobs/{digest.replace(':', '/')}"
