"""The product's own image: deploy/Dockerfile built by buildah, and given to the nodes of a bed that runs, by digest.

Its base is an image of the bed, because no registry of images is asked; pip in it asks the index that this machine's own pip asks. What was built is kept
in the cache as long as the recipe and the sources are the same.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path

from testbed import commands, images, packages, process, store
from testbed.bed import Bed
from testbed.layout import MAX_NODES, cache_folder

NAME = "rankfall.test/rankfall"
_ROOT = Path(__file__).resolve().parents[2]
_RECIPE = _ROOT / "deploy" / "Dockerfile"
# What the recipe copies.
_COPIED = (
    "pyproject.toml",
    "README.md",
    "LICENSE",
    "deploy/requirements.txt",
    "deploy/build-requirements.txt",
    "src",
)
_SECONDS = 120
# Of this machine's pip, that which says where packages come from.
_PIP = ("INDEX_URL", "EXTRA_INDEX_URL", "TRUSTED_HOST", "DEFAULT_TIMEOUT")
_CERTIFICATES = Path("/etc/ssl/certs")


def give(bed: Bed) -> str:
    """Build it, have it on all running nodes, and name it by digest.

    Raises:
        BuildError: the base or the image could not be built.
        UnsupportedError: there is no buildah, and it cannot be installed from here.
    """
    base = images.ensure(["python-venv"], say=bed.say)["python-venv"]
    folder = cache_folder() / "product" / _key(base)
    entry = store.make(folder, lambda scratch: _build(bed, base, scratch), what="the product's image", say=bed.say)
    store.prune(folder.parent, {folder.name})
    archive = entry / "image.tar"
    named = f"{NAME}@{(entry / 'digest').read_text()}"
    for index in range(1, MAX_NODES + 1):
        node = bed.node(index)
        if process.find(bed.layout, f"{node.name}-init"):
            node.import_image(archive)
            ctr = node.enter("ctr", "--address", str(node.socket), "--namespace", "k8s.io")
            words = [*ctr, "images", "tag", "--force", f"{NAME}:test", named]
            subprocess.run(words, check=True, capture_output=True, timeout=60)
    return named


def _build(bed: Bed, base: Path, scratch: Path) -> None:
    packages.ensure(packages.BUILDER, say=bed.say)
    log = cache_folder() / "logs" / "product-image.log"
    log.unlink(missing_ok=True)
    work = scratch / "work"
    pip = scratch / "pip.conf"
    pip.write_text("[global]\n" + "".join(f"{key.lower()} = {value}\n" for key, value in _pip()))
    buildah = ["buildah", "--root", str(work / "root"), "--runroot", str(work / "run"), "--storage-driver", "vfs"]
    # chroot: no container of its own is needed for one command of pip, and this works inside of containers too.
    build = [*buildah, "bud", "--isolation", "chroot", "--network", "host", "--pull=false", "--file", str(_RECIPE)]
    # The recipe takes a base by digest only.
    by_digest = f"{images.NAMES['python-venv'].partition(':')[0]}@{_digest(base)}"
    build += ["--build-arg", f"BASE={by_digest}", "--tag", f"{NAME}:test"]
    build += ["--volume", f"{_CERTIFICATES}:{_CERTIFICATES}:ro", "--volume", f"{pip}:/etc/pip.conf:ro", str(_ROOT)]
    layout = scratch / "layout"
    steps = (
        [*buildah, "pull", f"oci-archive:{base}"],
        build,
        [*buildah, "push", f"{NAME}:test", f"oci:{layout}:{NAME}:test"],
    )
    try:
        for step in steps:
            commands.run(step, log=log, what="the product's image", seconds=_SECONDS, say=bed.say)
    except commands.CommandError as error:
        raise error.explain("the product's image could not be built") from error
    index = json.loads((layout / "index.json").read_text())
    (manifest,) = index["manifests"]
    # The name under which containerd keeps it.
    manifest["annotations"] = manifest.get("annotations", {}) | {"io.containerd.image.name": f"{NAME}:test"}
    (layout / "index.json").write_text(json.dumps(index))
    with tarfile.open(scratch / "image.tar", "w") as archive:
        for path in sorted(layout.iterdir()):
            archive.add(path, arcname=path.name)
    (scratch / "digest").write_text(manifest["digest"])
    for path in (work, layout):
        shutil.rmtree(path)
    pip.unlink()


def _digest(archive: Path) -> str:
    """Digest of the only image of an archive."""
    with tarfile.open(archive) as file, tempfile.TemporaryDirectory() as folder:
        file.extract("index.json", folder, filter="data")
        (manifest,) = json.loads((Path(folder) / "index.json").read_bytes())["manifests"]
    return str(manifest["digest"])


def _pip() -> Iterator[tuple[str, str]]:
    for name in _PIP:
        value = os.environ.get(f"PIP_{name}")
        if value:
            yield name.replace("_", "-").removeprefix("DEFAULT-"), value
    yield "cert", str(_CERTIFICATES / "ca-certificates.crt")


def _key(base: Path) -> str:
    """Of the recipe, its base and all that it copies."""
    found = hashlib.sha256(base.parent.name.encode())
    for path in [_RECIPE, *_sources()]:
        found.update(f"{path.relative_to(_ROOT)}\n".encode() + path.read_bytes())
    return f"rankfall-{found.hexdigest()[:12]}"


def _sources() -> Iterator[Path]:
    for name in _COPIED:
        path = _ROOT / name
        inside = sorted(path.rglob("*")) if path.is_dir() else [path]
        yield from (each for each in inside if each.is_file() and "__pycache__" not in each.parts)
