"""The plain way, for comparison: every record decoded, every rule's expression tried on it, as node-problem-detector's kernel monitor does.

``python -m bench.health.tail PATH``: reads a socket of records, or the device, until it ends.
"""

from __future__ import annotations

import os
import re
import select
import socket
import stat
import sys
from pathlib import Path

#: Of node-problem-detector's config/kernel-monitor.json, and one for Xids as its users add.
RULES = tuple(
    re.compile(each)
    for each in (
        r"Killed process \d+ (.+) total-vm:\d+kB, anon-rss:\d+kB, file-rss:\d+kB.*",
        r"task [\S ]+:\w+ blocked for more than \w+ seconds\.",
        r"unregister_netdevice: waiting for \w+ to become free. Usage count = \d+",
        r"BUG: unable to handle kernel NULL pointer dereference at .*",
        r"divide error: 0000 \[#\d+\] SMP",
        r"EXT4-fs error .*",
        r"EXT4-fs warning .*",
        r"Buffer I/O error .*",
        r"CE memory read error .*",
        r"task docker:\w+ blocked for more than \w+ seconds\.",
        r"Remounting filesystem read-only",
        r"NVRM: Xid .*",
    )
)


def main() -> None:
    """Print what matches."""
    path = Path(sys.argv[1])
    if stat.S_ISSOCK(path.stat().st_mode):
        reader = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        reader.connect(str(path))
        reader.recv(256)
        fd = reader.detach()
    else:
        fd = os.open(path, os.O_RDONLY)
    os.set_blocking(fd, False)
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    while True:
        try:
            data = os.read(fd, 16 << 10)
        except BlockingIOError:
            poll.poll()
            continue
        if not data:
            return
        line = data.partition(b";")[2].decode("utf-8", "replace").rstrip("\n")
        for rule in RULES:
            if rule.search(line):
                sys.stdout.write(line + "\n")
                sys.stdout.flush()


if __name__ == "__main__":
    main()
