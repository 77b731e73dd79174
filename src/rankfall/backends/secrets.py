"""Hides values that look secret where a plan is printed. Prefers one value too many hidden over one secret shown."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

MASK: Final = "***"
_NAME: Final = re.compile(
    r"(?i)(pass(word|wd|phrase)?|secret|token|api[_-]?key|access[_-]?key|private[_-]?key|credential|auth|signature|session)"
)
_IN_URL: Final = re.compile(r"(://[^\s/:@]{0,128}):([^\s/@]{1,512})@")
_OPTION: Final = re.compile(r"(--?[\w.-]+)=(.*)", re.DOTALL)


def looks_secret(name: str) -> bool:
    """Whether a variable or an option of this name probably holds a secret."""
    return bool(_NAME.search(name))


def masked(env: Mapping[str, str]) -> dict[str, str]:
    """The same variables with secret values replaced."""
    return {name: MASK if looks_secret(name) else _url(value) for name, value in env.items()}


def masked_words(words: Sequence[str]) -> tuple[str, ...]:
    """The same command with secret values of options (``--token X``, ``--token=X``) and passwords in URLs replaced."""
    shown: list[str] = []
    hide = False
    for word in words:
        option = _OPTION.fullmatch(word)
        if hide and not word.startswith("-"):
            shown.append(MASK)
        elif option is not None and looks_secret(option[1]):
            shown.append(f"{option[1]}={MASK}")
        else:
            shown.append(_url(word))
        hide = word.startswith("-") and option is None and looks_secret(word)
    return tuple(shown)


def _url(text: str) -> str:
    return _IN_URL.sub(rf"\1:{MASK}@", text)
