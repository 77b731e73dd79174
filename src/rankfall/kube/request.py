"""What is asked of a server, apart from who asks and how often."""

from __future__ import annotations

from collections.abc import Sequence

from rankfall.kube.retry import Risk

Params = Sequence[tuple[str, str]]
"""Of a query; a name may come more than once."""


class Request:
    """What is asked, apart from who asks.

    Args:
        method: of HTTP.
        path: below the server's address, already percent-encoded.
        verb: for the counters and messages: ``get``, ``watch`` …
        what: the object, for messages.
        risk: of sending it twice.
        params: of the query.
        body: with ``kind`` as its content type.
        repeat: False = the caller has a pace of its own for repeats.
    """

    def __init__(
        self,
        method: str,
        path: str,
        *,
        verb: str,
        what: str,
        risk: Risk,
        params: Params = (),
        body: bytes | None = None,
        kind: str = "application/json",
        repeat: bool = True,
    ) -> None:
        self.method, self.path, self.verb, self.what = method, path, verb, f"{verb} {what}"
        self.risk, self.params, self.body, self.kind, self.repeat = risk, params, body, kind, repeat
