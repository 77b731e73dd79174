"""Words of HTTP clients, object-store clients and file formats. Run by hand: these libraries are no dependency of the tests.

Needs requests, httpx, aiohttp, boto3, huggingface_hub, safetensors, Pillow, h5py, pyarrow, numpy, omegaconf and fsspec. The
services are one server on this machine that answers every request with the status a case asks for.
"""

from __future__ import annotations

import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path

from cases import CASES, case, main, python

CODES = {
    400: "ExpiredToken",
    401: "InvalidToken",
    403: "AccessDenied",
    404: "NoSuchKey",
    500: "InternalError",
    503: "SlowDown",
}
HUB = {403: "GatedRepo", 404: "RepoNotFound"}
SLUGS = {
    400: "credentials_rejected",
    401: "credentials_rejected",
    403: "credentials_rejected",
    404: "hub_unreachable",
    429: "hub_rate_limit",
    500: "hub_unreachable",
    503: "hub_rate_limit",
}


class Answer(BaseHTTPRequestHandler):
    """Answers with the status that is the first part of the path."""

    def do_GET(self) -> None:
        code = int(self.path.split("/")[1])
        body = f"<Error><Code>{CODES.get(code, 'TooManyRequests')}</Code><Message>no</Message></Error>".encode()
        self.send_response(code)
        self.send_header("Content-Length", str(len(body)))
        if code in HUB:
            self.send_header("X-Error-Code", HUB[code])
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    do_HEAD = do_GET  # noqa: N815 - the name that http.server looks for

    def log_message(self, *arguments: object) -> None:
        """Say nothing."""


def register(name: str, slug: str, source: str) -> None:
    def run_it() -> None:
        python(source)

    run_it.__name__ = name
    case(slug)(run_it)


def register_all(url: str) -> None:
    s3 = (
        "import boto3, botocore.config as c\n"
        "boto3.client('s3', endpoint_url={url!r}, aws_access_key_id='a', aws_secret_access_key='b', region_name='us-east-1',"
        " config=c.Config(retries={{'max_attempts': 0}}, s3={{'addressing_style': 'path'}})).get_object(Bucket={bucket!r}, Key='k')"
    )
    for code, slug in SLUGS.items():
        where = f"{url}/{code}/a"
        register(f"s3_{code}", slug, s3.format(url=url, bucket=str(code)))
        if code in CODES and code < 401:  # 400 means an expired token for the object store only
            continue
        register(f"requests_{code}", slug, f"import requests\nrequests.get({where!r}).raise_for_status()")
        register(
            f"hub_{code}",
            slug,
            f"import huggingface_hub as h\nh.HfApi(endpoint={url + '/' + str(code)!r}).model_info('a/b')",
        )
        if code != 404:
            register(f"httpx_{code}", slug, f"import httpx\nhttpx.get({where!r}).raise_for_status()")
    for name, slug, source in (
        ("requests_refused", "hub_unreachable", "import requests\nrequests.get('http://127.0.0.1:9/x')"),
        ("httpx_refused", "hub_unreachable", "import httpx\nhttpx.get('http://127.0.0.1:9/x')"),
        ("name", "hostname_resolution", "import requests\nrequests.get('http://hub.train.invalid/x')"),
        (
            "safetensors",
            "checkpoint_corrupt",
            "import safetensors\nopen('x','wb').write(b'v'*40)\nsafetensors.safe_open('x','np')",
        ),
        ("pillow", "bad_sample", "import io\nfrom PIL import Image\nImage.open(io.BytesIO(b'xx'))"),
        ("hdf5", "bad_sample", "import h5py\nopen('x','wb').write(b'v'*40)\nh5py.File('x')"),
        ("parquet", "bad_sample", "import pyarrow.parquet as p\nopen('x','wb').write(b'v'*40)\np.read_table('x')"),
        ("numpy", "bad_sample", "import numpy\nopen('x','wb').write(b'v'*40)\nnumpy.load('x')"),
        (
            "struct",
            "bad_arguments",
            "from omegaconf import OmegaConf as o\nc=o.create({'a':1})\no.set_struct(c,True)\nc.b",
        ),
    ):
        register(name, slug, source)


if __name__ == "__main__":
    missing = [each for each in ("requests", "httpx", "boto3", "huggingface_hub", "h5py") if not find_spec(each)]
    if missing:
        sys.exit(f"{Path(__file__).name}: install {', '.join(missing)} first")
    server = ThreadingHTTPServer(("127.0.0.1", 0), Answer)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    register_all(f"http://127.0.0.1:{server.server_port}")
    assert CASES
    main()
