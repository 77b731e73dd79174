"""Files that change under a running program: tokens, certificates, keys. Read again as soon as they look different, never held open.

A mounted Secret is changed by swapping a link, ``cp`` keeps the inode, some tools keep the time: each alone must be enough. While a file
is away or empty, which happens for a moment when it is replaced, the last content stands.
"""

from __future__ import annotations

import stat
import time
from pathlib import Path
from typing import Final

from rankfall.kube.errors import CredentialsError

# Credentials are small; more is a wrong path.
_LARGEST: Final = 1 << 20
# A file changed so recently may change again within the same tick of its file system's clock.
_RACY_NS: Final = 2_000_000_000
# However equal it looks, it is read again after so long: network file systems may cache what stat says.
_TRUSTED_S: Final = 10.0


class WatchedFile:
    """One file.

    Args:
        path: of the file.
        what: its role, for messages: ``token of user "bob"``.
    """

    def __init__(self, path: str, *, what: str) -> None:
        self.path, self._what = Path(path), what
        self._data: bytes | None = None
        self._mark: tuple[int, ...] = ()
        self._read_again_at = 0.0

    def read(self, *, anew: bool = False) -> bytes:
        """The content.

        Args:
            anew: read it however equal it looks, and do not fall back on the last content.

        Raises:
            CredentialsError: it cannot be read, and never could be, or ``anew`` was asked for.
        """
        try:
            found = self.path.stat()
            mark = (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)
            if self._data is not None and not anew and mark == self._mark and time.monotonic() < self._read_again_at:
                return self._data
            data = self._content(found.st_mode)
        except OSError as error:
            why = error.strerror or type(error).__name__
        else:
            if data.strip():
                racy = time.time_ns() - max(found.st_mtime_ns, found.st_ctime_ns) < _RACY_NS
                self._data, self._mark = data, mark
                self._read_again_at = 0.0 if racy else time.monotonic() + _TRUSTED_S
                return data
            why = "it is empty"
        if self._data is not None and not anew:
            return self._data
        raise CredentialsError(
            f"cannot read {self.path} ({self._what}): {why}", hint="log in again, or correct the path in the kubeconfig"
        )

    def _content(self, mode: int) -> bytes:
        if not stat.S_ISREG(mode):
            raise OSError(0, "it is no ordinary file")  # opening a pipe would wait for its writer
        with self.path.open("rb") as file:
            data = file.read(_LARGEST + 1)
        if len(data) > _LARGEST:
            raise OSError(0, f"it is larger than {_LARGEST} bytes")
        return data
