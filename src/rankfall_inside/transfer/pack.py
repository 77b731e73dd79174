"""Packs a tree into one compressed piece for a config map, and unpacks it.

Refuses a wrong checksum. A rename at the end shows all or nothing.
"""

from __future__ import annotations

import hashlib
import io
import os
import shutil
import zlib

from rankfall_inside.transfer.frames import Channel, TransferError
from rankfall_inside.transfer.receive import Receiver
from rankfall_inside.transfer.send import send

TYPE_CHECKING = False
if TYPE_CHECKING:
    from rankfall_inside.transfer.tree import Tree

# Next to the bundle.
NAME = "code.pack"


def pack(tree: Tree) -> bytes:
    """Packs a tree; equal trees give equal bytes.

    Raises:
        TransferError: A file is unreadable or changed.
    """
    parts: list[bytes] = []
    send(tree, Channel(lambda _: b"", parts.append), ask=False)
    return zlib.compress(b"".join(parts), 9)


def digest_of(packed: bytes) -> str:
    """Returns the name of a pack."""
    return hashlib.sha256(packed).hexdigest()


def unpack(path: str, *, digest: str, to: str) -> None:
    """Unpacks into folder ``to``, replacing an older one.

    Raises:
        TransferError: Missing, damaged or wrong file; ``to`` does not exist then.
    """
    fresh = f"{to}.new-{os.getpid()}"
    try:
        with open(path, "rb") as file:
            packed = file.read()
        if digest_of(packed) != digest:
            msg = f"{path}: its checksum is wrong"
            raise TransferError(msg)
        shutil.rmtree(to, ignore_errors=True)
        shutil.rmtree(fresh, ignore_errors=True)
        read = io.BytesIO(zlib.decompress(packed)).read
        Receiver(Channel(read, lambda _: None), os.fsencode(fresh), owner="0", answer=False).run()
        os.rename(fresh, to)
    except (OSError, zlib.error) as error:
        msg = f"{path}: {error}"
        raise TransferError(msg) from None
