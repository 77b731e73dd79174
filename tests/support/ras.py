"""A stand-in for the RAS service in an NCCL process: reports in the shape of NVIDIA's documentation, and a server for them.

NCCL 2.24 to 2.29, docs.nvidia.com, "RAS". No NCCL and no GPU is needed; addresses and numbers are made up.
"""

from __future__ import annotations

import socket

SUMMARY = """Job summary
===========

  Nodes  Processes         GPUs  Processes     GPUs
(total)   per node  per process    (total)  (total)
{nodes:>7} {each:>10} {one:>12} {total:>10} {total:>8}

Communicators... ({took:.2f}s)
=============

Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors
    #  in group  per comm  per node  per comm  in group
"""


def report(*, size: int, errors: str = "OK", body: str = "", took: float = 0.0, groups: str | None = None) -> str:
    """A report about one communicator of ``size`` ranks on one node; ``groups`` replaces its row."""
    head = SUMMARY.format(nodes=1, each=size, one=1, total=size, took=took)
    row = (
        f"    0         1         1  {size:>8}  {size:>8}  {size:>8}   RUNNING  {errors}\n"
        if groups is None
        else groups
    )
    return head + row + body


def behind(name: str, *, many: str, few: str, what: str = "AllReduce ") -> str:
    """The part about different operation counts; ``what`` is empty before NCCL 2.26."""
    return f"""
Errors
======

Warnings
========

#0-0 ({name}) MISMATCH
  Communicator ranks have different {what or "collective "}operation counts
{many}
{few}

"""


def free_port() -> int:
    """A port on which nobody listens at present."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


# The beginning of a rank's program: ``ras(REPORT, ...)`` serves them in turn, the last one for ever.
SERVER = """
import os, socket, threading, time
def converse(link, reports, how):
    def line():
        data = b""
        while not data.endswith(b"\\n"):
            part = link.recv(1)
            if not part:
                return b""
            data += part
        return data.strip().lower()
    with link:
        if how == "mute":
            time.sleep(600)
        if how == "garbage":
            link.sendall(os.urandom(4096) + b"\\n")
            return
        assert line() == b"client protocol 2"
        link.sendall(b"SERVER PROTOCOL 2\\n")
        word, seconds = line().split()
        assert word == b"timeout" and int(seconds) > 0
        link.sendall(b"OK\\n")
        assert line() == b"verbose status"
        text = reports.pop(0) if len(reports) > 1 else reports[0]
        text = text.replace("PID", str(os.getpid())).encode()
        if how == "stops":
            link.sendall(text[: len(text) // 2])
            time.sleep(600)
        link.sendall(text)
        while how == "floods":
            link.sendall(b"  Rank 0 -- GPU 0 managed by process 1 on node 10.0.0.1\\n" * 1000)
def serve(reports, how):
    server = socket.create_server(("127.0.0.1", int(os.environ["NCCL_RAS_ADDR"].rpartition(":")[2])))
    while True:
        threading.Thread(target=guarded, args=(server.accept()[0], reports, how), daemon=True).start()
def guarded(*given):
    try:
        converse(*given)
    except (OSError, AssertionError):
        pass
def ras(*reports, how="well"):
    threading.Thread(target=serve, args=(list(reports), how), daemon=True).start()
"""
