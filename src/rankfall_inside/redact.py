"""Masks secrets in text before storage: tokens, passwords, keys, headers, environment dumps."""

from __future__ import annotations

import os
import re

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Mapping

MASK = "***"
# Environment dumps, arguments, JSON, headers, query strings.
_NAME = (
    r"(?:[\w.-]{0,64}(?:password|passwd|passphrase|secret|token|api[_-]?key|apikey|access[_-]?key(?:[_-]?id)?|private[_-]?key|"
    r"credentials?|auth[_-]?key|signature|session[_-]?key|x-amz-signature)|pwd|sig)"
)
_PATTERNS = (
    # user:password@host; keeps the user
    (re.compile(r"(://[^\s/:@'\"]{0,128}):([^\s/@'\"]{1,512})@"), r"\1:" + MASK + "@"),
    (
        re.compile(
            r"(?i)(authorization['\"]?\s{0,4}[:=]\s{0,4}['\"]?(?:bearer|basic|token|digest)?\s{0,4})[^\s'\",;]{4,4096}"
        ),
        r"\1" + MASK,
    ),
    (re.compile(r"(?i)\b(bearer\s{1,4})[\w.~+/=-]{8,4096}"), r"\1" + MASK),
    (
        re.compile(
            r"-----BEGIN [A-Z ]{0,32}PRIVATE KEY-----[\s\S]{0,16384}?(?:-----END [A-Z ]{0,32}PRIVATE KEY-----|\Z)"
        ),
        MASK,
    ),
    (re.compile(r"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b"), MASK),
    (
        re.compile(
            r"\b(?:gh[opsur]_\w{20,255}|github_pat_\w{20,255}|glpat-[\w-]{16,255}|hf_\w{20,255}|xox[abeprs]-[\w-]{8,255})"
        ),
        MASK,
    ),
    (re.compile(r"\b(?:sk|pk|rk)-[\w-]{16,255}"), MASK),
    (re.compile(r"\beyJ[\w-]{8,4096}\.[\w-]{4,8192}(?:\.[\w-]{0,4096})?"), MASK),
    (
        re.compile(
            r"(?i)(?<![\w.-])("
            + _NAME
            + r"['\"]?\]?\s{0,4}(?:=>|[=:])\s{0,4})(?:(['\"])[^'\"\n]{1,4096}\2|[^\s'\",;&)}\]]{1,4096})"
        ),
        r"\1" + MASK,
    ),
)
# The last: secret arguments of a cluster job.
_SECRET_ENV = re.compile(
    r"(?i)(?:password|passwd|passphrase|pwd|secret|token|key|credential|cookie|auth|dsn|signature)s?$|^RANKFALL_SECRET_\d+$"
)
# Shorter values would be masked everywhere.
_MIN_VALUE = 8


def secrets_of(environ: Mapping[str, str]) -> list[str]:
    """Returns values of variables with secret-like names, longest first."""
    found = {value for name, value in environ.items() if len(value) >= _MIN_VALUE and _SECRET_ENV.search(name)}
    return sorted(found, key=len, reverse=True)


def redact(text: str, secrets: list[str] | None = None) -> str:
    """Returns ``text`` with secrets replaced by ``***``."""
    for value in secrets_of(os.environ) if secrets is None else secrets:
        text = text.replace(value, MASK)
    for pattern, replacement in _PATTERNS:
        text = pattern.sub(replacement, text)
    return text
