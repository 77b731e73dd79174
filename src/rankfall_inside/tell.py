"""``python INSIDE tell WORDS``: one command for the wrapper of this container, for whoever can exec into it but shares no files with it."""

from __future__ import annotations

import os
import sys

from rankfall_inside import foreign

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Mapping, Sequence

TOLD, WRONG_USAGE, NOBODY = 0, 2, 3
# A write of up to PIPE_BUF bytes is never mixed with another's.
_MAX_BYTES = 4096


def main(argv: Sequence[str], environ: Mapping[str, str]) -> int:
    """Write one line into ``ctl`` of the slot directory.

    Args:
        argv: words of the command; given as one word or as many.
        environ: names the slot directory.

    Returns:
        0 told, 3 nobody listens, 2 wrong usage; the reason is on stderr.
    """
    words = " ".join(argv).split()
    folder = environ.get("RANKFALL_SLOT_DIR")
    if not _is_command(words):
        return _say(WRONG_USAGE, 'tell: give one of "stop GRACE REASON", "signal NUMBER", stacks')
    if not folder:
        return _say(WRONG_USAGE, "tell: RANKFALL_SLOT_DIR is not set: run it in the environment of the slot")
    line = " ".join(words).encode("utf-8", "backslashreplace")[: _MAX_BYTES - 1] + b"\n"
    try:
        # Without a reader a pipe cannot be opened so, and a wrapper that is gone reads no more.
        fd = os.open(os.path.join(folder, "ctl"), os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            os.write(fd, line)
        finally:
            os.close(fd)
    except OSError as error:
        return _say(NOBODY, f"tell: no wrapper listens in {folder} ({error.strerror})")
    return TOLD


def _is_command(words: Sequence[str]) -> bool:
    if words[:1] == ["stop"]:
        return len(words) > 1 and _is_seconds(words[1])
    if words[:1] == ["signal"]:
        return len(words) == 2 and words[1].isdigit()  # noqa: PLR2004 - verb and number
    return list(words) == ["stacks"]


def _is_seconds(word: str) -> bool:
    said = foreign.real(word)
    return said is not None and said >= 0


def _say(code: int, text: str) -> int:
    sys.stderr.write(f"rankfall: {text}\n")
    return code
