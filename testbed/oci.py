"""Container images from folders, without a builder: one layer, its configuration, an index, all in one archive (OCI image layout).

The same folder gives the same archive, byte for byte: names are sorted, owners are numbers, and no time but the files' own gets in.
"""

from __future__ import annotations

import hashlib
import io
import json
import platform
import stat
import tarfile
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_TYPE = "application/vnd.oci.image"
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
_BLOCK = 1 << 20


@dataclass(frozen=True, kw_only=True)
class Image:
    """What a container of the image starts with.

    Attributes:
        name: full, with a registry's name and a tag: a pod names it so.
        entrypoint: program and first arguments.
        env: ``NAME=value`` words.
        workdir: of the process.
    """

    name: str
    entrypoint: Sequence[str] = ()
    env: Sequence[str] = field(default=("PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",))
    workdir: str = "/"


def pack(image: Image, root: Path, archive: Path) -> None:
    """Write an archive whose one layer is the folder ``root``; containerd and other engines import it.

    The layer is not compressed: it is read from the same disk a moment later. Device nodes and sockets are left out: a container gets its own.
    """
    with tempfile.TemporaryDirectory(dir=archive.parent) as scratch:
        layer = Path(scratch) / "layer.tar"
        _write_layer(root, layer)
        digest = _digest(layer)
        platform_ = {"architecture": _ARCHITECTURES.get(platform.machine(), platform.machine()), "os": "linux"}
        config = _json(
            {
                **platform_,
                "config": {
                    "Entrypoint": list(image.entrypoint),
                    "Env": list(image.env),
                    "WorkingDir": image.workdir,
                },
                "rootfs": {"type": "layers", "diff_ids": [digest]},
            }
        )
        layer_entry = {"mediaType": f"{_TYPE}.layer.v1.tar", "digest": digest, "size": layer.stat().st_size}
        manifest = _json(
            {
                "schemaVersion": 2,
                "mediaType": f"{_TYPE}.manifest.v1+json",
                "config": _entry(f"{_TYPE}.config.v1+json", config),
                "layers": [layer_entry],
            }
        )
        # containerd takes the image's name from its own annotation; others know the tag's.
        names = {"io.containerd.image.name": image.name, "org.opencontainers.image.ref.name": image.name}
        top = _entry(f"{_TYPE}.manifest.v1+json", manifest) | {"annotations": names, "platform": platform_}
        index = {"schemaVersion": 2, "mediaType": f"{_TYPE}.index.v1+json", "manifests": [top]}
        with tarfile.open(archive, "w", format=tarfile.PAX_FORMAT) as out:
            _add(out, "oci-layout", _json({"imageLayoutVersion": "1.0.0"}))
            _add(out, "index.json", _json(index))
            for blob in (config, manifest):
                _add(out, _blob(_digest_of(blob)), blob)
            info = tarfile.TarInfo(_blob(digest))
            info.size, info.mode = layer.stat().st_size, 0o644
            with layer.open("rb") as content:
                out.addfile(info, content)


def _write_layer(root: Path, layer: Path) -> None:
    with tarfile.open(layer, "w", format=tarfile.PAX_FORMAT) as out:
        for path in sorted(root.rglob("*")):
            mode = path.lstat().st_mode
            if not (stat.S_ISDIR(mode) or stat.S_ISREG(mode) or stat.S_ISLNK(mode)):
                continue
            # Two names of one file become a link; the archive keeps track of that by itself.
            info = out.gettarinfo(path, arcname=str(path.relative_to(root)))
            info.uname = info.gname = ""
            info.mtime = int(info.mtime)
            if info.isreg():
                with path.open("rb") as content:
                    out.addfile(info, content)
            else:
                out.addfile(info)


def _add(out: tarfile.TarFile, name: str, content: bytes) -> None:
    info = tarfile.TarInfo(name)
    info.size, info.mode = len(content), 0o644
    out.addfile(info, io.BytesIO(content))


def _entry(media_type: str, content: bytes) -> dict[str, Any]:
    return {"mediaType": media_type, "digest": _digest_of(content), "size": len(content)}


def _json(data: dict[str, Any]) -> bytes:
    return json.dumps(data, sort_keys=True, separators=(",", ":")).encode()


def _blob(digest: str) -> str:
    return f"blobs/{digest.replace(':', '/')}"


def _digest_of(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def _digest(path: Path) -> str:
    found = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            found.update(block)
    return f"sha256:{found.hexdigest()}"
