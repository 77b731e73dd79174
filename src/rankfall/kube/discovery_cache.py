"""Schemas on disk, by the hash that the server gives them: a server that has not changed is asked for its index alone.

Only a cache: what cannot be read is fetched again, what cannot be written is not kept. Never trusted beyond its form, which is checked.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
from pathlib import Path
from typing import Final

import msgspec

from rankfall.kube.discovery_schema import Schemas
from rankfall.model import decoding

# Counted up when ``Schemas`` changes its form: what lies in caches is then not found.
_FORM: Final = 1
# Files kept: the group versions of a dozen clusters.
_MOST: Final = 64


class Cache:
    """One folder.

    Args:
        folder: made when the first schema is kept; None = keep nothing.
    """

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder

    def get(self, name: str, digest: str) -> Schemas | None:
        """The schemas of a group version in one state; None when they are not here.

        Args:
            name: ``batch/v1``.
            digest: of the server.
        """
        if self._folder is None:
            return None
        try:
            return decoding.decode(self._path(self._folder, name, digest).read_bytes(), kind=Schemas)
        except (OSError, msgspec.MsgspecError):
            return None

    def put(self, name: str, digest: str, schemas: Schemas) -> None:
        """Keep them; a reader never sees half of them."""
        if self._folder is None:
            return
        with contextlib.suppress(OSError):
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            handle, scratch = tempfile.mkstemp(dir=self._folder, suffix=".new")
            try:
                with os.fdopen(handle, "wb") as file:
                    file.write(msgspec.json.encode(schemas))
                Path(scratch).replace(self._path(self._folder, name, digest))
            except OSError:
                Path(scratch).unlink(missing_ok=True)
                raise
            self._prune(self._folder)

    def _path(self, folder: Path, name: str, digest: str) -> Path:
        # What a server calls its hash is no name of a file.
        return folder / f"{hashlib.sha256(f'{_FORM} {name} {digest}'.encode()).hexdigest()}.json"

    def _prune(self, folder: Path) -> None:
        files = sorted(folder.glob("*.json"), key=lambda path: path.stat().st_mtime, reverse=True)
        for path in files[_MOST:]:
            path.unlink(missing_ok=True)
