"""Masks secrets in text before storage: tokens, passwords, keys, headers, environment dumps."""

from __future__ import annotations

import os
import re

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Iterable, Mapping

MASK = "***"
# Environment dumps, arguments, JSON, YAML, headers, query strings.
_NAME = (
    r"(?:[\w.-]{0,64}(?:password|passwd|passphrase|secret(?:[_-]?(?:key|id))?|token|api[_-]?key|apikey|access[_-]?key(?:[_-]?id)?|"
    r"private[_-]?key|account[_-]?key|client[_-]?(?:key|certificate)[_-]?data|credentials?|auth[_-]?key|signature|session[_-]?key|"
    r"x-amz-signature)|pwd|sig)"
)
# AWS, GitHub, GitLab, Hugging Face, Slack, Google, OpenAI, Stripe, W&B, others, JWT, base64 of a PEM block.
_TOKENS = (
    r"(?:AKIA|ASIA|ABIA|ACCA|AROA|AIDA|AGPA|ANPA|AIPA)[0-9A-Z]{16}",
    r"gh[opsur]_\w{20,255}|github_pat_\w{20,255}|glpat-[\w-]{16,255}",
    r"(?:hf|api_org)_\w{20,255}",
    r"xox[a-z]-[\w-]{8,255}|xapp-[\w-]{8,255}|hooks\.slack\.com/services/[\w/]{16,255}",
    r"AIza[\w-]{35}|ya29\.[\w-]{20,2048}|GOCSPX-[\w-]{20,255}",
    r"(?:sk|pk|rk)-[\w-]{16,255}",
    r"(?:sk|pk|rk)_(?:live|test)_\w{16,255}",
    r"wandb_v\d_\w{20,255}|local-[0-9a-f]{40}",
    r"nvapi-[\w-]{20,255}|npm_\w{30,255}|pypi-[\w-]{16,255}|dckr_pat_[\w-]{16,255}|dapi[0-9a-f]{32}|gsk_\w{20,255}|r8_\w{20,255}|hvs\.[\w-]{20,255}",
    r"eyJ[\w-]{8,4096}\.[\w-]{4,8192}(?:\.[\w-]{0,4096})?",
    r"LS0tLS1CRUdJTi[\w+/=]{8,16384}",
)
_PATTERNS = (
    # user:password@host keeps the user
    (re.compile(r"(://[^\s/:@'\"]{0,128}):([^\s/@'\"]{1,512})@"), r"\1:" + MASK + "@"),
    (re.compile(r"(://)[^\s/:@'\"]{16,512}@"), r"\1" + MASK + "@"),
    (
        re.compile(
            r"(?i)(authorization['\"]?\s{0,4}[:=]\s{0,4}['\"]?(?:bearer|basic|token|digest)?\s{0,4})[^\s'\",;]{4,4096}"
        ),
        r"\1" + MASK,
    ),
    (re.compile(r"(?i)((?<![\w-])(?:set-)?cookie['\"]?\s{0,4}[:=]\s{0,4})[^\n]{4,4096}"), r"\1" + MASK),
    (re.compile(r"(?i)\b(bearer\s{1,4})[\w.~+/=-]{8,4096}"), r"\1" + MASK),
    (
        re.compile(
            r"-----BEGIN [A-Z ]{0,32}PRIVATE KEY-----[\s\S]{0,16384}?(?:-----END [A-Z ]{0,32}PRIVATE KEY-----|\Z)"
        ),
        MASK,
    ),
    # a line of such a block
    (
        re.compile(
            r"(?<![\w+/=])(?=[^\s]{0,76}[A-Z])(?=[^\s]{0,76}[a-z])(?=[^\s]{0,76}[0-9])[A-Za-z0-9+/]{60,76}={0,2}(?=[ \t\r]{0,4}(?:\n|\Z))"
        ),
        MASK,
    ),
    (re.compile(r"(?<![A-Za-z0-9])(?:" + "|".join(_TOKENS) + ")"), MASK),
    (re.compile(r"(?i)(wandb\b[^\n]{0,80}?(?<![0-9a-f]))[0-9a-f]{40}(?![0-9a-f])"), r"\1" + MASK),
    (
        re.compile(
            r"(?i)(?<![\w.-])("
            + _NAME
            + r"['\"]?\]?\s{0,4}(?:=>|[=:])\s{0,4})(?:(['\"])[^'\"\n]{1,4096}\2|[^\s'\",;&)}\]]{1,4096})"
        ),
        r"\1" + MASK,
    ),
    (re.compile(r"(?i)((?<![\w-])--?" + _NAME + r"[ \t]{1,4})(?!-)[^\s'\"]{1,4096}"), r"\1" + MASK),
    # cut by a length limit
    (
        re.compile(
            r"(?<![A-Za-z0-9])(?:AKIA|ASIA|gh[opsur]_|github_pat_|glpat-|hf_|xox[a-z]-|AIza|(?:sk|pk|rk)-|eyJ)[\w.-]{4,64}\Z"
        ),
        MASK,
    ),
)
# The last: secret arguments of a cluster job.
_SECRET_ENV = re.compile(
    r"(?i)(?:password|passwd|passphrase|pwd|secret|token|key|credential|cookie|auth|dsn|signature)s?$|^RANKFALL_SECRET_\d+$"
)
_FOLDERS = frozenset({"PWD", "OLDPWD"})
# Shorter values would be masked everywhere.
_MIN_VALUE = 8


def secrets_of(environ: Mapping[str, str]) -> list[str]:
    """Returns values of variables with secret-like names, longest first."""
    # The working folders of a shell are no passwords.
    named = (value for name, value in environ.items() if _SECRET_ENV.search(name) and name not in _FOLDERS)
    return forms_of(named)


def forms_of(values: Iterable[str]) -> list[str]:
    """Returns values whole, by line, escaped, percent-encoded, base64; longest first."""
    import base64
    import json
    from urllib.parse import quote

    found: set[str] = set()
    for value in values:
        if len(value) < _MIN_VALUE:
            continue
        found.update(part for part in (value, *value.splitlines()) if len(part) >= _MIN_VALUE)
        data = value.encode("utf-8", "surrogateescape")
        found.update((quote(data, safe=""), json.dumps(value)[1:-1], base64.b64encode(data).decode("ascii")))
    return sorted(found, key=lambda one: (-len(one), one))


def redact(text: str, secrets: list[str] | None = None) -> str:
    """Returns ``text`` with secrets replaced by ``***``."""
    for value in secrets_of(os.environ) if secrets is None else secrets:
        text = text.replace(value, MASK)
        # Cut by a length limit.
        for size in range(min(len(value), len(text)) - 1, _MIN_VALUE - 1, -1) if value[:_MIN_VALUE] in text else ():
            if text.endswith(value[:size]):
                text = text[:-size] + MASK
                break
    for pattern, replacement in _PATTERNS:
        text = pattern.sub(replacement, text)
    return text
