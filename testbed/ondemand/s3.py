"""An S3-compatible server: moto's, for checkpoints and run folders in object storage. It keeps all in memory and checks no password."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from testbed import process
from testbed.answers import answers
from testbed.bed import Bed
from testbed.errors import TestbedError

_PORT = 9000
_READY_S = 60.0
# Any will do; clients refuse to start without.
LOGIN = {"AWS_ACCESS_KEY_ID": "testbed", "AWS_SECRET_ACCESS_KEY": "testbed", "AWS_DEFAULT_REGION": "us-east-1"}


@contextmanager
def run(bed: Bed) -> Iterator[str]:
    """Its URL, once it answers; reached from this machine and from pods. It starts empty, and what it holds goes with it.

    Clients need ``LOGIN``, and must put the bucket into the path: the URL has an address and no name.

    Raises:
        StartError: it did not become ready.
        TestbedError: one runs already.
    """
    if process.find(bed.layout, "s3"):
        raise TestbedError("this bed has an S3 server already", hint="use its URL, or end it first")
    address = str(bed.layout.control_address)
    try:
        daemon = process.start(
            bed.layout,
            "s3",
            [sys.executable, "-m", "moto.server", "--host", address, "--port", str(_PORT)],
            namespace=bed.layout.control_namespace,
            # It looks up the name of its address, and no name server can be reached from there.
            env=LOGIN | {"RES_OPTIONS": "timeout:1 attempts:1"},
        )
        process.await_ready(daemon, lambda: answers(address, _PORT, "/moto-api/"), limit_s=_READY_S)
        yield f"http://{address}:{_PORT}"
    finally:
        process.stop(bed.layout, "s3", patience_s=1.0)
