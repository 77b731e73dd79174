"""Text that Kubernetes must hand over byte for byte: it expands ``$(NAME)`` in commands, arguments and values of variables.

Its expander turns ``$$`` into ``$`` anywhere, and it breaks a ``$`` before a letter outside ASCII. So every dollar sign is doubled, not only
those before a parenthesis.
"""

from __future__ import annotations

from collections.abc import Iterable

from rankfall.model import SpecError

# The number of this slot, once the pod runs; the variable stands first in the container's list.
SLOT_REFERENCE = "$(RANKFALL_SLOT)"


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
