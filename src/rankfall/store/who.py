"""Who does something: this user on this machine, as it stands in requests, leases and marks on objects. Says nothing that is secret."""

from __future__ import annotations

import getpass
import os
import socket
from typing import Final

_LONGEST: Final = 200


def who() -> str:
    """``alice@laptop``: printable ASCII, at most 200 characters."""
    try:
        name = getpass.getuser()
    except (OSError, KeyError):
        name = str(os.getuid())
    text = f"{name}@{socket.gethostname()}".encode("ascii", "backslashreplace").decode("ascii")
    return "".join(letter if letter.isprintable() else "?" for letter in text)[:_LONGEST]
