"""Whether something answers over HTTP: how the bed knows that a part is ready."""

from __future__ import annotations

import http.client
import ssl
from pathlib import Path

from testbed.pki import Pair


def answers(
    host: str, port: int, path: str, *, authority: Path | None = None, client: Pair | None = None, anybody: bool = False
) -> bool:
    """Whether a GET is answered with 200.

    Args:
        host: name or address.
        port: of it.
        path: of the request.
        authority: the server is checked against this certificate; none = plain HTTP.
        client: certificate that is shown.
        anybody: TLS, and no check of the server.
    """
    try:
        connection: http.client.HTTPConnection
        if authority is None and not anybody:
            connection = http.client.HTTPConnection(host, port, timeout=5)
        else:
            context = ssl.create_default_context(cafile=str(authority) if authority else None)
            if anybody:
                context.check_hostname = False
                context.verify_mode = ssl.CERT_NONE
            if client is not None:
                context.load_cert_chain(client.cert, client.key)
            connection = http.client.HTTPSConnection(host, port, timeout=5, context=context)
        connection.request("GET", path)
        answer = connection.getresponse()
        answer.read()
        connection.close()
    except (OSError, http.client.HTTPException):
        return False
    return answer.status == http.HTTPStatus.OK
