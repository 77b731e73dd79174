"""Makes hostile text safe for a terminal.

Characters that would move the cursor, ring the bell, change the title, reorder text or forge a line become visible
escapes. Colors and the sequences of progress bars are removed.
"""

from __future__ import annotations

import os
import re
import unicodedata
from collections.abc import Iterable, Iterator
from typing import Any, Final, TypeVar

from rankfall.model.patterns import bounded

MAX_LINE: Final = 4000
MAX_TEXT: Final = 400_000

# CSI sequences that end in m (colors), or that erase and move: progress bars are full of them. Bounded, so that an
# unterminated ESC [ consumes nothing.
_CSI: Final = bounded(r"\x1b\[[0-9;:]{0,64}[ABCDEFGHJKSTfmsu]|\x1b\[\?[0-9;]{1,32}[hl]", limit=1 << 30)
# All unusual characters: C0 without \t and \n, DEL, C1, surrogates, format characters, line separators.
_SUSPECT: Final = bounded(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\u3164\ufeff\uffa0"
    "\ufff0-\ufffb\ud800-\udfff\U000e0000-\U000e0fff]",
    limit=1 << 30,
)
# Characters that are safe in every line: printable ASCII, tab and newline.
_PLAIN: Final = bytes([0x09, 0x0A, *range(0x20, 0x7F)])
_KEPT_FORMATS: Final = frozenset("\u200c\u200d")  # joiners: scripts and emoji need them


def clean(text: str | bytes, *, max_line: int = MAX_LINE, max_text: int = MAX_TEXT) -> str:
    r"""Returns the text, safe to print, without control characters except ``\n`` and ``\t``.

    Args:
        text: Bytes are read as UTF-8, invalid ones appear as ``\xff``.
        max_line: Characters of a line; the excess is counted.
        max_text: Characters over all lines.
    """
    if isinstance(text, bytes):
        # One character over the limit suffices to detect a text that is too long.
        text = text[: 4 * max_text + 4].decode("utf-8", "backslashreplace")
    text, over = text[:max_text], len(text) - max_text
    text = _safe(text)
    text = "\n".join(_cut(line, max_line) for line in text.split("\n"))
    return f"{text}\n… [more than {max_text} characters; the rest is hidden]" if over > 0 else text


def clean_line(text: str | bytes, *, max_line: int = MAX_LINE) -> str:
    r"""Returns one line as a terminal would finally show it; text overwritten by ``\r`` becomes ``… ``."""
    if isinstance(text, bytes):
        text = text.decode("utf-8", "backslashreplace")
    text = text.rstrip("\r\n")
    before, _, last = text.rpartition("\r")
    if before:
        text = f"… {last}"
    return _cut(_safe(text).replace("\n", "\\n"), max_line)


def is_plain(data: bytes, *, max_line: int = MAX_LINE) -> bool:
    """True if :func:`clean_line` changes none of these lines, each with its LF.

    Called with a hundred thousand bytes at a time.
    """
    if data.translate(None, _PLAIN):
        return False
    begin = 0
    while begin < len(data):
        # From the beginning of a line to the end of the last one that ends within the maximum length.
        begin = data.rfind(b"\n", begin, begin + max_line + 1) + 1
        if not begin:
            return False
    return True


def one_line(text: str | bytes, *, width: int) -> str:
    """Returns the first non-empty line, shortened to ``width`` characters; for tables and headings."""
    for line in clean(text, max_line=100_000).split("\n"):
        if line.strip():
            return shorten(" ".join(line.split()), width)
    return ""


def shorten(text: str, width: int) -> str:
    """Returns ``text`` in at most ``width`` characters, with ``…`` at its end if it was longer."""
    return text if len(text) <= width else text[: max(0, width - 1)].rstrip() + "…"


def _safe(text: str) -> str:
    if text.isascii() and text.isprintable():
        return text
    text = _CSI.sub("", text)
    text = _SUSPECT.sub(_visible, text)
    if text.isascii():
        return text
    return "".join(char if _harmless(char) else _escaped(char) for char in text)


def _harmless(char: str) -> bool:
    return char.isascii() or char in _KEPT_FORMATS or unicodedata.category(char) not in {"Cc", "Cf", "Cs", "Zl", "Zp"}


def _visible(match: re.Match[str]) -> str:
    return _escaped(match[0])


def _escaped(char: str) -> str:
    return char.encode("unicode_escape").decode("ascii")


def _cut(line: str, limit: int) -> str:
    return line if len(line) <= limit else f"{line[:limit]}… [{len(line) - limit} more characters]"


_T = TypeVar("_T")
# Lines of one key; more are no key.
_MAX_KEY: Final = 128


class Redactor:
    """Masks secrets of this process's environment, of a run, and of known forms."""

    def __init__(self) -> None:
        # Only --redact needs its patterns.
        from rankfall_inside import redact  # noqa: PLC0415

        self._masks = redact
        self._secrets = redact.secrets_of(os.environ)
        self._keys: dict[object, int] = {}

    def learn(self, values: Iterable[str]) -> None:
        """Adds secret values."""
        self._secrets = sorted({*self._secrets, *self._masks.forms_of(values)}, key=lambda one: (-len(one), one))

    def text(self, text: str) -> str:
        """Returns a text without secrets."""
        return self._masks.redact(text, self._secrets)

    def line(self, text: str, *, stream: object = None) -> str:
        """Returns the next line of a stream, masking all lines of a key."""
        left = self._keys.pop(stream, 0)
        if left:
            if not ("-----END " in text and "PRIVATE KEY-----" in text) and left > 1:
                self._keys[stream] = left - 1
            return self._masks.MASK
        begin = text.rfind("-----BEGIN ")
        if begin >= 0 and "PRIVATE KEY-----" in text[begin : begin + 64] and "-----END " not in text[begin:]:
            self._keys[stream] = _MAX_KEY
        return self.text(text)

    def lines(self, texts: Iterable[str]) -> tuple[str, ...]:
        """Returns adjacent lines without secrets."""
        self._keys.pop("", None)
        return tuple(self.line(text, stream="") for text in texts)

    def of(self, value: _T) -> _T:
        """Returns a document without secrets."""
        import msgspec  # noqa: PLC0415

        from rankfall.model import decoding  # noqa: PLC0415

        kind = type(value)
        words = frozenset(_vocabulary(msgspec.json.schema(kind)))
        return decoding.convert(self._of(msgspec.to_builtins(value), words), kind)

    def _of(self, value: Any, words: frozenset[str]) -> Any:
        if isinstance(value, str):
            return value if value in words else self.text(value)
        if isinstance(value, dict):
            return {key if key in words else self.text(key): self._of(one, words) for key, one in value.items()}
        return [self._of(one, words) for one in value] if isinstance(value, (list, tuple)) else value


def _vocabulary(schema: Any) -> Iterator[str]:
    """Yields a schema's names of fields and values of enums."""
    if isinstance(schema, dict):
        yield from (word for word in schema.get("enum", ()) if isinstance(word, str))
        yield from schema.get("properties", ())
    for part in schema.values() if isinstance(schema, dict) else schema if isinstance(schema, list) else ():
        yield from _vocabulary(part)
