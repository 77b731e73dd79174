"""Two sides of a transfer over pipes: the one in the pod is a real process, as exec starts it; the other is this one."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

from rankfall_inside.transfer.frames import Channel
from rankfall_inside.transfer.receive import Receiver
from rankfall_inside.transfer.send import Counts, send
from rankfall_inside.transfer.tree import Tree, scan

CODE = "import sys; from rankfall_inside.transfer import stdio; sys.exit(stdio.main(sys.argv[1:]))"


class Cut(Exception):
    """The connection ends here."""


def picture(root: Path) -> dict[bytes, tuple[str, bytes, bool]]:
    """Everything below a folder: kind, content or target, exec bit."""
    found = {}
    base = os.fsencode(root)
    for folder, folders, files in os.walk(base):
        for name in folders + files:
            path = Path(os.fsdecode(folder), os.fsdecode(name))
            below = os.fsencode(path.relative_to(root))
            if path.is_symlink():
                found[below] = ("link", os.fsencode(path.readlink()), False)
            elif path.is_dir():
                found[below] = ("folder", b"", False)
            else:
                found[below] = ("file", path.read_bytes(), bool(path.stat().st_mode & 0o100))
    return found


def across(tree: Tree, dest: Path, *, owner: str = "t", answer: bool = True) -> Counts:
    """Send and receive in two threads."""
    one, two = socket.socketpair()
    failed: list[BaseException] = []

    def sender() -> None:
        with one, one.makefile("rb") as file:
            try:
                send(tree, Channel(file.read, one.sendall), ask=answer)
            except BaseException as error:  # noqa: BLE001 - raised below, in the test's own thread
                failed.append(error)

    thread = threading.Thread(target=sender)
    thread.start()
    try:
        with two, two.makefile("rb") as file:
            counts = Receiver(Channel(file.read, two.sendall), os.fsencode(dest), owner=owner, answer=answer).run()
    finally:
        thread.join()
    if failed:
        raise failed[0]
    return counts


def pod(verb: str, base: Path, below: str, *, owner: str = "t", beat: str = "") -> subprocess.Popen[bytes]:
    """The side in a pod."""
    words = (verb, owner, os.fsencode(base).hex(), os.fsencode(below).hex(), beat)
    return subprocess.Popen(
        (sys.executable, "-c", CODE, *words), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )


def channel_to(process: subprocess.Popen[bytes], *, cut: Callable[[int], bool] = lambda _: False) -> Channel:
    """Frames to a process; the connection ends where ``cut`` says so of the bytes written so far."""
    assert process.stdin is not None
    assert process.stdout is not None
    stdin, stdout = process.stdin, process.stdout
    written = 0

    def write(data: bytes) -> None:
        nonlocal written
        for at in range(0, len(data), 4096):
            if cut(written):
                raise Cut
            stdin.write(data[at : at + 4096])
            stdin.flush()
            written += len(data[at : at + 4096])

    return Channel(stdout.read, write)


def send_to_pod(source: Path, base: Path, below: str, *, owner: str = "t", cut: Callable[[int], bool]) -> Counts | None:
    """Send a tree to a process; None when the connection was cut."""
    with pod("receive", base, below, owner=owner) as process:
        try:
            return send(scan(os.fsencode(source)), channel_to(process, cut=cut))
        except Cut:
            return None
