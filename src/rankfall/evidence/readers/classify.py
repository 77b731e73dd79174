"""Classifies exceptions and process exits by the signature catalogue.

Cost: a fixed part of each message is read, once for each exception of a chain; nothing is cached.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal

import msgspec

from rankfall.evidence.readers.text import normalise
from rankfall.model import EvidenceRole, numbers
from rankfall.model.numbers import whole
from rankfall.model.patterns import bounded
from rankfall.verdict.signatures.catalogue import Catalogue
from rankfall.verdict.signatures.matcher import Hit, best

_SHARE: Final = bounded(
    r"(?P<who>[Pp]rocess \d{1,10}|this process) has (?P<number>\d{1,9}(?:\.\d{1,4})?) (?P<unit>bytes|[KMGT]iB) memory in use",
    limit=4_096,
)
_UNITS: Final = {"bytes": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
_MOST: Final = 4096


def own_process_holds_most(text: str) -> bool:
    """True if the process that ran out holds at least as much as all others in total.

    False if the message lacks its size.
    """
    own = others = 0.0
    for share in _SHARE.finditer(text[:_MOST]):
        size = (numbers.real(share["number"]) or 0.0) * _UNITS[share["unit"]]
        if share["who"] == "this process":
            own = max(own, size)
        else:
            others += size
    return own > 0 and own >= others


# Specificity of an exception without a signature.
GENERIC = 20
_EXTERNAL = frozenset(
    {"KeyboardInterrupt", "torch.distributed.elastic.multiprocessing.api.SignalException", "SignalException"}
)


class Meaning(msgspec.Struct, frozen=True, kw_only=True):
    """Classification of an exception with its chain."""

    slug: str
    role: EvidenceRole
    specificity: int
    text: str
    fingerprint: str
    signature: str | None = None
    peers: tuple[int, ...] = ()
    hosts: tuple[str, ...] = ()
    gpu: str | None = None
    pid: int | None = None


def exception_meaning(
    catalogue: Catalogue,
    chain: Sequence[tuple[str, str]],
    *,
    frame: str = "",
    mark: Literal["retryable", "final"] | None = None,
    exit_code: int | None = None,
) -> Meaning:
    """Classifies an exception by its types and messages.

    The raised one has precedence, then the most specific of its chain: an error while handling a lost connection is
    its consequence. ``frame``: top user frame, for the fingerprint.
    """
    head_type, head_text = chain[0] if chain else ("", "")
    print_of = f"{_short(head_type)}:{normalise(head_text.split(chr(10), 1)[0])}:{frame}"
    spoken = f"{_short(head_type)}: {head_text}" if head_text else _short(head_type)
    if _short(head_type) == "SystemExit":
        known = {126: "permission_denied", 127: "command_not_found", 138: "retryable_exception"}
        slug = "retryable_exception" if mark == "retryable" else known.get(exit_code or 0, "user_exit")
        return Meaning(
            slug=slug, role="primary", specificity=10, text=spoken, fingerprint=f"{slug}:{exit_code}:{frame}"
        )
    if head_type in _EXTERNAL and mark is None:
        return Meaning(
            slug="external_signal",
            role="secondary",
            specificity=50,
            text=spoken,
            fingerprint=f"external_signal:{head_type}",
        )
    found = None
    for kind, message in chain:
        hits = catalogue.match_line(_one_line(kind, message), where="exception")
        hit = best(hits)
        if hit is not None and hit.signature.specificity > (found.signature.specificity if found else GENERIC):
            found = hit
        if found is not None and (kind, message) == chain[0]:
            break
    if mark == "retryable":
        return Meaning(
            slug="retryable_exception", role="primary", specificity=90, text=spoken, fingerprint=f"retryable:{print_of}"
        )
    if found is None:
        return Meaning(
            slug="user_code_exception",
            role="primary",
            specificity=GENERIC,
            text=spoken,
            fingerprint=f"user_code_exception:{print_of}",
        )
    return meaning_of_hit(found, text=spoken, fingerprint=f"{found.signature.slug}:{print_of}")


def meaning_of_hit(hit: Hit, *, text: str, fingerprint: str) -> Meaning:
    """Classifies a signature's hit, with the given text and fingerprint."""
    signature, groups = hit.signature, hit.groups
    slug = signature.slug
    if slug == "gpu_oom_foreign" and own_process_holds_most(text):
        slug, fingerprint = "gpu_oom", fingerprint.replace(slug, "gpu_oom", 1)
    return Meaning(
        slug=slug,
        role=signature.role,
        specificity=signature.specificity,
        text=text,
        fingerprint=fingerprint,
        signature=signature.id,
        peers=listed_numbers(groups.get("peers") or groups.get("peer_rank") or ""),
        hosts=(groups["host"],) if "host" in groups else (),
        gpu=groups.get("gpu"),
        pid=next(iter(listed_numbers(groups.get("pid", ""))), None),
    )


def listed_numbers(text: str) -> tuple[int, ...]:
    """Returns the numbers of a list as ``1, 3``; at most 1,024 of 7 digits."""
    found = []
    for word in text.replace(",", " ").split()[:1024]:
        digits = word.strip("[](){}.;:'\"")
        number = whole(digits, digits=7) if digits.isdigit() else None
        if number is not None:
            found.append(number)
    return tuple(found)


def _short(name: str) -> str:
    return name.removeprefix("builtins.").removeprefix("__main__.")


def _one_line(kind: str, message: str) -> bytes:
    text = f"{_short(kind)}: {message}" if message else f"{_short(kind)}:"
    return " ".join(text.split("\n"))[:4000].encode("utf-8", "replace")
