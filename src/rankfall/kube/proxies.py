"""Which proxy the way to a server goes through: the kubeconfig's, else the environment's by the rules of Go's clients.

``HTTPS_PROXY`` (``HTTP_PROXY`` for a server without TLS), ``NO_PROXY`` with names, ``.names``, addresses, networks, ports and ``*``. This machine
itself is never asked through a proxy. Python's own reading of these variables knows no networks, so it would send pods astray.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from typing import Final
from urllib.parse import urlsplit

from rankfall.kube.access import Endpoint
from rankfall.kube.errors import KubeConfigError
from rankfall.kube.secret import Secret
from rankfall.model import numbers
from rankfall.model.http_address import is_http

_PORTS: Final = {"https": 443, "http": 80}
_LOCAL: Final = frozenset({"localhost"})


def proxy_for(endpoint: Endpoint, environ: Mapping[str, str]) -> Secret | None:
    """Address of the proxy, which may hold a password; None = none.

    Raises:
        KubeConfigError: the environment names a proxy of a kind that is not supported.
    """
    if endpoint.proxy is not None:
        return endpoint.proxy
    parts = urlsplit(endpoint.server)
    host = parts.hostname or ""
    name = f"{parts.scheme.upper()}_PROXY"
    found = environ.get(name) or environ.get(name.lower()) or ""
    excluded = environ.get("NO_PROXY") or environ.get("no_proxy") or ""
    if not found or _bypassed(host, parts.port or _PORTS[parts.scheme], excluded):
        return None
    address = found if "://" in found else f"http://{found}"
    if not is_http(address):
        raise KubeConfigError(
            f"${name} names no proxy that can be used here",
            hint="set it to http://host:port, or add the server to $NO_PROXY",
        )
    return Secret(address)


def _bypassed(host: str, port: int, excluded: str) -> bool:
    address = _address(host)
    if host in _LOCAL or (address is not None and address.is_loopback):
        return True
    return any(_excludes(rule.strip().lower(), host, address, port) for rule in excluded.split(","))


def _excludes(rule: str, host: str, address: ipaddress.IPv4Address | ipaddress.IPv6Address | None, port: int) -> bool:
    if rule in {"", "*"}:
        return rule == "*"
    try:
        network = ipaddress.ip_network(rule, strict=False)
    except ValueError:
        network = None
    if network is not None:
        return address is not None and address in network
    name, separator, wanted = rule.rpartition(":")
    if separator and wanted.isdigit():
        if numbers.whole(wanted) != port:
            return False
        rule = name.strip("[]")
    if address is not None:
        return _address(rule) == address
    rule = rule.removeprefix("*")
    return host.endswith(rule) if rule.startswith(".") else host == rule or host.endswith(f".{rule}")


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None
