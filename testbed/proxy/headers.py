"""What the proxy changes in heads of requests and answers.

A client that shows a certificate is known to the API server by the front proxy's way: the proxy has verified the certificate, names its user and
groups in ``X-Remote-User`` and ``X-Remote-Group``, and shows a client certificate of its own that the server trusts for that (kube-apiserver:
``--requestheader-client-ca-file``, ``--requestheader-allowed-names``). It needs no key of any user. A bearer token passes as it is. The same headers
sent by a client are always taken out. Without a client's certificate the proxy shows none either: an anonymous client stays one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from urllib.parse import parse_qsl, urlencode

import h11

from testbed.proxy.book import Facts
from testbed.proxy.shift import shift_text

Headers = list[tuple[bytes, bytes]]
Identity = tuple[str, tuple[str, ...]]

_FORGED = b"x-remote-"
# What the proxy cannot read; discovery all in one document is left out too, as older servers do not offer it.
_UNREADABLE = ("protobuf", "cbor", "apidiscovery")
# "Not modified" would leave the client with what another server, or an unchanged answer, told it.
_CONDITIONS = frozenset({b"if-none-match", b"if-modified-since", b"accept-encoding"})
_VALIDATORS = frozenset({b"content-length", b"etag", b"last-modified"})


def identity(subject: Sequence[tuple[str, str]]) -> Identity | None:
    """User and groups in a certificate's name, as kube-apiserver reads them; None = no certificate."""
    users = [value for kind, value in subject if kind == "commonName"]
    return (users[0], tuple(value for kind, value in subject if kind == "organizationName")) if users else None


def request_headers(request: h11.Request, who: Identity | None, *, readable: bool) -> Headers:
    """Headers for the server.

    Args:
        request: of the client.
        who: its certificate says.
        readable: a rule must read the answer: it is asked for as plain JSON.
    """
    kept = [(name, value) for name, value in _raw(request) if not name.lower().startswith(_FORGED)]
    if who is not None:
        user, groups = who
        kept.append((b"X-Remote-User", user.encode()))
        kept += [(b"X-Remote-Group", group.encode()) for group in groups]
    if readable:
        kept = [
            (name, _json_only(value) if name.lower() == b"accept" else value)
            for name, value in kept
            if name.lower() not in _CONDITIONS
        ]
        kept.append((b"Accept-Encoding", b"identity"))
    return kept


def response_headers(response: h11.Response, *, reframed: bool) -> Headers:
    """Headers for the client.

    Args:
        response: of the server.
        reframed: the body will be another: chunks instead of a length, and nothing to compare it by.
    """
    dropped = _VALIDATORS if reframed else frozenset[bytes]()
    return [(name, value) for name, value in _raw(response) if name.lower() not in dropped]


def header(event: h11.Request | h11.Response, name: bytes) -> str:
    """A header's value; empty = not there."""
    return next((value.decode("latin-1") for found, value in event.headers if found == name), "")


def shifted_target(facts: Facts, target: bytes, seconds: float) -> bytes:
    """The request's target with ``sinceTime`` as the node's clock has it."""
    parameters = parse_qsl(facts.query, keep_blank_values=True)
    if not any(name == "sinceTime" for name, _ in parameters):
        return target
    moved = [(name, shift_text(value, -seconds) if name == "sinceTime" else value) for name, value in parameters]
    return f"{facts.path}?{urlencode(moved)}".encode()


def _raw(event: h11.Request | h11.Response) -> Iterable[tuple[bytes, bytes]]:
    return event.headers.raw_items()


def _json_only(accept: bytes) -> bytes:
    kinds = [kind.strip() for kind in accept.decode("latin-1").split(",")]
    kept = [kind for kind in kinds if not any(word in kind for word in _UNREADABLE)]
    return (", ".join(kept) or "application/json").encode("latin-1")
