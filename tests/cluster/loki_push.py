"""Brings lines to a real Loki, as a collector does."""

from __future__ import annotations

import http.client
import json
from urllib.parse import urlsplit


def push(url: str, labels: dict[str, str], rows: list[tuple[int, str]], *, tenant: str | None = None) -> None:
    place = urlsplit(url)
    connection = http.client.HTTPConnection(place.hostname, place.port, timeout=30)
    values = [[str(at), text] for at, text in rows]
    body = json.dumps({"streams": [{"stream": labels, "values": values}]})
    headers = {"Content-Type": "application/json"} | ({} if tenant is None else {"X-Scope-OrgID": tenant})
    connection.request("POST", "/loki/api/v1/push", body, headers)
    answer = connection.getresponse()
    assert answer.status == http.HTTPStatus.NO_CONTENT, answer.read()
    connection.close()
