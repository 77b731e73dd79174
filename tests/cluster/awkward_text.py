"""What terminals, editors and parsers of lines trip over. Tests take it from here; a pod writes the same when this file is its program."""

from __future__ import annotations

import os


def awkward() -> bytes:
    """Bytes that are no text, blank and indented lines, a progress bar, lines of one and of three mebibytes, and a last line without an end.

    No carriage return stands right before a line feed: containerd leaves that one out of its file.
    """
    bar = b"".join(b"\r%3d%%|%s" % (part, b"#" * (part // 4)) for part in range(101))
    return b"\n".join(
        (
            b"\xff\xfe no text \xc3(",
            b"nul \x00 in it",
            b"\x1b[31mred\x1b[0m",
            "line\u2028separator next\x85line form\x0cfeed vertical\x0btab".encode(),
            b"",
            b"",
            b"    indented",
            b"\ttab",
            b" ",
            bar,
            b'{"values": [' + b"17, " * (1 << 18) + b"17]}",
            b"2026-11-21T10:37:44.119843665Z looks like a stamp",
            b"x" * (3 << 20),
            b"after it",
            b"the end has no end",
        )
    )


def main() -> None:
    """Write all of it."""
    text = awkward()
    while text:
        text = text[os.write(1, text) :]


if __name__ == "__main__":
    main()
