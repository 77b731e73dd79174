"""Text that Kubernetes must hand over byte for byte: it expands ``$(NAME)`` in commands, arguments and values of variables.

Its expander turns ``$$`` into ``$`` anywhere, and it breaks a ``$`` before a letter outside ASCII. So every dollar sign is doubled, not only
those before a parenthesis.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final

from rankfall.model import SpecError

# The number of this slot, once the pod runs; the variable stands first in the container's list.
SLOT_REFERENCE: Final = "$(RANKFALL_SLOT)"
# Its place within its role, in a job of several.
INDEX_REFERENCE: Final = "$(RANKFALL_INDEX)"
# Its place among the slots with ranks, where that is a sum: Kubernetes knows no such variable and leaves the words alone, the wrapper
# puts the number in (rankfall_inside.place).
NODE_REFERENCE: Final = "$(RANKFALL_PLAIN_NODE_RANK)"
# How often a JobSet has started the gang again by itself.
RESTART_REFERENCE: Final = "$(RANKFALL_RESTART)"
_VARIABLE: Final = re.compile(r"[A-Za-z_.-][A-Za-z0-9_.-]*")


def escape(text: str) -> str:
    """``text`` so that the process gets exactly ``text``."""
    return text.replace("$", "$$")


def check_text(path: str, texts: Iterable[str]) -> None:
    """Refuse what a manifest cannot carry.

    Raises:
        SpecError: bytes that are no UTF-8, or a NUL byte.
    """
    for text in texts:
        try:
            text.encode()
        except UnicodeEncodeError:
            raise SpecError(
                path,
                "holds bytes that are no UTF-8, which Kubernetes cannot carry",
                hint="put such values into a file or a secret",
            ) from None
        if "\0" in text:
            raise SpecError(path, "holds a NUL byte")


def check_variables(env: Mapping[str, str]) -> None:
    """Refuse variables that Kubernetes, or a manifest, cannot carry.

    Raises:
        SpecError: a name is no variable's, or a text is no UTF-8.
    """
    for name, value in env.items():
        if not _VARIABLE.fullmatch(name):
            raise SpecError(
                f"$.env.{name}", "is no valid variable in a pod: letters, digits, _, - and dots, no digit first"
            )
        check_text(f"$.env.{name}", (value,))
