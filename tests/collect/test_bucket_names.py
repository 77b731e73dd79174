"""Names in a bucket: asked for with a signature that AWS's own library makes too, and whole whatever somebody put there."""

from __future__ import annotations

import http.server
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from xml.sax.saxutils import escape

import pytest
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from hypothesis import given
from hypothesis import strategies as st

from rankfall.collect.stores.record_store import _page, names_in
from rankfall_inside.delivery.bucket import Bucket, RefusedError
from support.object_store import KEYS, put_many, s3_server

Answer = tuple[int, bytes]


@contextmanager
def answering(answer: Callable[[str, dict[str, str]], Answer]) -> Iterator[str]:
    """The address of a server that answers by a function of the path and the headers."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, body = answer(self.path, {name.lower(): value for name, value in self.headers.items()})
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: object) -> None:
            """Say nothing on the test's stderr."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


def listing(names: list[str], *, more: str = "", encoding: str = "") -> bytes:
    rows = "".join(f"<Contents><Key>{name}</Key><Size>7</Size></Contents>" for name in names)
    kind = f"<EncodingType>{encoding}</EncodingType>" if encoding else ""
    follows = f"<NextContinuationToken>{more}</NextContinuationToken>" if more else ""
    truncated = "true" if more else "false"
    return (
        '<?xml version="1.0" encoding="UTF-8"?><ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
        f"<IsTruncated>{truncated}</IsTruncated>{follows}{kind}{rows}</ListBucketResult>"
    ).encode()


def names(url: str = "s3://names/team", until_s: float = 30.0) -> list[str]:
    return [name for page in names_in(url, "run/errors", until=time.monotonic() + until_s) for name, _ in page]


@pytest.fixture
def keys(monkeypatch):
    for name, value in {**KEYS, "AWS_SESSION_TOKEN": "session"}.items():
        monkeypatch.setenv(name, value)


words = st.text(st.characters(codec="utf-8"), min_size=1, max_size=12)


@given(query=st.dictionaries(words, words, min_size=1, max_size=4))
def test_a_question_has_the_signature_of_aws_own_library(query):
    seen: list[tuple[str, dict[str, str]]] = []

    class Link:
        def __init__(self, host: str, timeout: float) -> None:
            self.host = host

        def request(self, method: str, path: str, body: bytes, headers: dict[str, str]) -> None:
            seen.append((f"http://{self.host}{path}", headers))
            raise OSError

        def close(self) -> None:
            """Nothing was opened."""

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("http.client.HTTPConnection", Link)
        with pytest.raises(OSError, match=r"^$"):
            Bucket("b", {**KEYS, "AWS_ENDPOINT_URL": "http://store:9000"}).ask(query, 100)
    ((url, headers),) = seen
    own = {"X-Amz-Date": headers["x-amz-date"], "X-Amz-Content-SHA256": headers["x-amz-content-sha256"]}
    request = AWSRequest("GET", url, headers={**own, "Host": "store:9000"})
    request.context["timestamp"] = headers["x-amz-date"]
    signer = S3SigV4Auth(Credentials("key", "secret"), "s3", "us-east-1")
    signature = signer.signature(signer.string_to_sign(request, signer.canonical_request(request)), request)
    assert headers["authorization"].endswith(f"Signature={signature}")


def test_names_of_any_bytes_come_page_by_page_and_deeper_ones_do_not(keys, monkeypatch):
    strange = ["a b", "a+b", "%41", "\x1b[2J", "\x00", "é", "\u202e", "<Key>", "&amp;", "..", "'\"", "\U0001f600"]
    monkeypatch.setattr("rankfall.collect.stores.record_store.PAGE", 10)
    with s3_server("names") as environ:
        monkeypatch.setenv("AWS_ENDPOINT_URL", environ["AWS_ENDPOINT_URL"])
        many = [f"{number:05d}" for number in range(25)]
        put_many("names", (f"team/run/errors/{name}" for name in [*strange, *many, "deep/x", "/y"]), b"1234567")
        put_many("names", ["team/run/errors", "team/run/errors-more/x", "run/errors/x", "team/run/errors/"], b"1")
        assert sorted(names()) == sorted([*strange, *many])
        sizes = {
            size for page in names_in("s3://names/team", "run/errors", until=time.monotonic() + 30) for _, size in page
        }
        assert sizes == {7}
        with pytest.raises(RefusedError, match="404"):
            names("s3://none/team")


def test_a_server_that_writes_names_as_they_are_hides_no_other_by_one_of_them(keys, monkeypatch):
    below = "team/run/errors/"
    raw = [
        f"{below}a",
        f"{below}\x1b[2J",
        f"{below}&#x1b;",
        f"{below}&#0;",
        f"{below}&#31;",
        f"{below}%41",
        f"{below}b",
    ]
    with answering(lambda path, headers: (200, listing(raw))) as endpoint:
        monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
        assert names() == ["a", "?[2J", "?", "?", "?", "%41", "b"]


def test_references_of_other_characters_are_left_as_they_are():
    found, _, _ = _page(listing(["&#65;", "&#x41;", "&#32;x", "&#x10ffff;", "&#311;"]))
    assert [name for name, _ in found] == ["A", "A", " x", "\U0010ffff", "ķ"]


@given(st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\r"), min_size=1, max_size=20), max_size=8))
def test_whatever_a_server_writes_as_it_is_a_page_has_as_many_names(strange):
    found, _, _ = _page(listing([escape(name) for name in strange]))
    assert len(found) == len(strange)
    for (name, _), written in zip(found, strange, strict=True):
        if re.fullmatch(r"[\w.-]+", written, re.ASCII):
            assert name == written


@pytest.mark.parametrize("body", [b"", b"<html>", b"not found", b'{"a": 1}', b"\xff\xfe"])
def test_an_answer_that_is_no_listing_is_an_error_and_no_empty_folder(keys, monkeypatch, body):
    with answering(lambda path, headers: (200, body)) as endpoint:
        monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
        with pytest.raises(OSError, match="not XML"):
            names(until_s=-1.0)


@pytest.mark.parametrize("more", ["same", ""])
def test_a_listing_that_never_goes_on_is_an_error_and_no_loop(keys, monkeypatch, more):
    body = listing(["team/run/errors/a"], more="same").replace(b"same", more.encode())
    with answering(lambda path, headers: (200, body)) as endpoint:
        monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
        with pytest.raises(OSError, match="its list of names is cut, and the answer has no token for the rest"):
            names()


def test_a_busy_server_is_asked_again_and_one_that_refuses_is_not(keys, monkeypatch):
    asked: list[str] = []

    def busy(path: str, headers: dict[str, str]) -> Answer:
        asked.append(path)
        assert headers["x-amz-security-token"] == "session"
        return (503, b"") if len(asked) < 3 else (200, listing(["team%2Frun/errors/a"], encoding="url"))

    monkeypatch.setattr("rankfall.collect.stores.record_store._PAUSES", (0.01, 0.01))
    with answering(busy) as endpoint:
        monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
        assert names() == ["a"]
        assert len(asked) == 3
        del asked[:]
        with pytest.raises(OSError, match="503"):
            names(until_s=-1.0)
        assert len(asked) == 1
    with answering(lambda path, headers: (403, b"")) as endpoint:
        monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
        with pytest.raises(RefusedError, match="403"):
            names()
