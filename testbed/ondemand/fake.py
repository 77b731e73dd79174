"""A fleet as a test sees it: names of its pods and nodes, and the log files that the test writes in a container runtime's format."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path


@dataclass(frozen=True)
class Fleet:
    """What runs.

    Attributes:
        namespace: of the pods, made for them.
        pods: their names, by index.
        nodes: names of the fake nodes.
        folder: of the logs.
    """

    namespace: str
    pods: tuple[str, ...]
    nodes: tuple[str, ...]
    folder: Path

    def log(self, pod: str | None = None) -> Path:
        """The file that a pod's log is read from; that of all pods of others on the fleet's nodes where none is named."""
        return self.folder / (f"{pod}.log" if pod else "others.log")

    def previous(self, pod: str) -> Path:
        """What ``--previous`` shows; there is none until a test writes the file."""
        return self.folder / f"{pod}.previous.log"

    def say(self, pod: str | None, *lines: str, stream: str = "stdout") -> None:
        """Append lines to a pod's log, with the time of now; all at once."""
        with self.log(pod).open("ab") as file:
            file.write(b"".join(cri_line(line, stream=stream) for line in lines))


def cri_line(text: str, *, stream: str = "stdout", at: datetime | None = None, partial: bool = False) -> bytes:
    """One line as a container runtime writes it to a log file.

    Args:
        text: without a line feed.
        stream: ``stdout`` or ``stderr``.
        at: when it was written; now where none is given.
        partial: more of the same line follows, as the runtime does with lines over 16 KiB.
    """
    stamp = (at or datetime.now(UTC)).astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%f000Z")
    return f"{stamp} {stream} {'P' if partial else 'F'} {text}\n".encode()
