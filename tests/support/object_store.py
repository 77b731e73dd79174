"""moto's S3-compatible server in this process, with a bucket, for tests of channels through an object store."""

from __future__ import annotations

import http.client
import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from support.patience import scaled

KEYS = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_REGION": "us-east-1"}


@contextmanager
def s3_server(bucket: str = "records") -> Iterator[dict[str, str]]:
    """The environment that leads to it."""
    from moto.server import ThreadedMotoServer  # noqa: PLC0415 - takes a second to load

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        link = http.client.HTTPConnection(host, port, timeout=scaled(20))
        link.request(
            "PUT",
            f"/{bucket}",
            headers={"Authorization": "AWS4-HMAC-SHA256 Credential=key/20260101/us-east-1/s3/aws4_request"},
        )
        assert link.getresponse().status == 200
        link.close()
        yield {**KEYS, "AWS_ENDPOINT_URL": f"http://{host}:{port}"}
    finally:
        server.stop()


def put_many(bucket: str, keys: Iterable[str], data: bytes) -> None:
    """Objects put into the server's memory, past its HTTP, which takes a hundredth of a second for each."""
    from moto.core import DEFAULT_ACCOUNT_ID  # noqa: PLC0415 - as above
    from moto.s3.models import s3_backends  # noqa: PLC0415 - as above

    backend = s3_backends[DEFAULT_ACCOUNT_ID]["aws"]
    for key in keys:
        # Its checksum is made when somebody lists it, of all of its bytes at once: better here than while a test measures.
        assert backend.put_object(bucket, key, data).etag
