"""Settings of a Loki server from flags and RANKFALL_LOKI_*.

Secrets are files. Refuses a password in the URL, a certificate without key, and two logins.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final
from urllib.parse import urlsplit

import msgspec

from rankfall.loki import logql
from rankfall.model import UsageError
from rankfall.model.numbers import is_http

PREFIX: Final = "RANKFALL_LOKI_"
# Promtail's and Alloy's.
LABELS: Final = {"namespace": "namespace", "pod": "pod", "container": "container"}
# OpenTelemetry collector's: RANKFALL_LOKI_LABELS=otlp.
OTLP: Final = {"namespace": "k8s_namespace_name", "pod": "k8s_pod_name", "container": "k8s_container_name"}
_FILES: Final = ("token_file", "basic_file", "ca_file", "cert_file", "key_file")


class LokiSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Address and credentials of one Loki.

    Attributes:
        url: Without ``/loki/api/v1``.
        tenant: ``X-Scope-OrgID``; several joined by ``|``.
        token_file: File with a bearer token.
        basic_file: File with ``user:password``.
        ca_file: None = the system's authorities.
        cert_file, key_file: Client certificate and key.
        labels: Names for ``namespace``, ``pod`` and ``container``.
    """

    url: str
    tenant: str | None = None
    token_file: str | None = None
    basic_file: str | None = None
    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None
    labels: dict[str, str] = msgspec.field(default_factory=lambda: dict(LABELS))


def loki_settings(url: str | None, environ: Mapping[str, str]) -> LokiSettings:
    """Returns the settings; ``url`` None = ``RANKFALL_LOKI_URL``.

    Raises:
        UsageError: URL missing, setting invalid or contradictory.
    """
    given = {name: environ.get(f"{PREFIX}{name.upper()}") or None for name in ("tenant", *_FILES)}
    address = url or environ.get(f"{PREFIX}URL")
    if not address:
        raise UsageError(
            "the address of Loki is missing",
            hint=f"set --loki-url, as http://loki.monitoring:3100, or {PREFIX}URL; kubectl get svc lists addresses",
        )
    if given["token_file"] and given["basic_file"]:
        raise UsageError(f"{PREFIX}TOKEN_FILE and {PREFIX}BASIC_FILE contradict each other", hint="give one of them")
    if bool(given["cert_file"]) != bool(given["key_file"]):
        raise UsageError(f"{PREFIX}CERT_FILE and {PREFIX}KEY_FILE need each other", hint="give both, or neither")
    tenant = given["tenant"]
    if tenant is not None and not (tenant.isascii() and tenant.isprintable()):
        raise UsageError(
            f"{PREFIX}TENANT has characters that are invalid in a header", hint="as team-a, or team-a|team-b"
        )
    return LokiSettings(url=_url(address), labels=_labels(environ.get(f"{PREFIX}LABELS")), **given)


def _url(text: str) -> str:
    found = urlsplit(text) if is_http(text) else None
    plain = text.isascii() and text.isprintable() and " " not in text
    if found is None or found.query or found.fragment or not plain:
        # Hides the URL, which may contain a password.
        raise UsageError(
            "the URL of Loki is invalid", hint="as http://loki.monitoring:3100 or https://logs.example.org/team"
        )
    if found.username is not None or found.password is not None:
        raise UsageError(
            "the URL of Loki holds a name or a password",
            hint=f"write user:password into a file: {PREFIX}BASIC_FILE=FILE",
        )
    return text.rstrip("/").removesuffix("/loki/api/v1")


def _labels(text: str | None) -> dict[str, str]:
    if not text:
        return dict(LABELS)
    if text == "otlp":
        return dict(OTLP)
    found = dict(LABELS)
    for part in text.split(","):
        name, equals, value = part.partition("=")
        if name not in LABELS or not equals:
            raise UsageError(
                f"{PREFIX}LABELS: {part[:60]!r} is not a label of Rankfall",
                hint=f"write pod=k8s_pod_name,…; Rankfall's labels: {', '.join(LABELS)}; or otlp for all labels of OpenTelemetry",
            )
        found[name] = logql.label(value)
    return found
