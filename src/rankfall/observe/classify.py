"""Exceptions and ends of processes as evidence: the same rules for a record, for a traceback in text, and for a wait status.

Cost: a fixed part of each message is looked at, once for each exception of a chain; nothing is kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from rankfall.model import EvidenceRole
from rankfall.model.numbers import whole
from rankfall.observe.gpu_shares import mostly_its_own
from rankfall.observe.text import normalise
from rankfall.signatures.catalogue import Catalogue
from rankfall.signatures.matcher import Hit, best

# A plain Python exception that no signature knows.
GENERIC = 20
_EXTERNAL = frozenset(
    {"KeyboardInterrupt", "torch.distributed.elastic.multiprocessing.api.SignalException", "SignalException"}
)


class Meaning(msgspec.Struct, frozen=True, kw_only=True):
    """What an exception with its chain means."""

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
    """What an exception says, from its types and messages.

    The raised exception speaks first. When its own words are nameless, the most telling one of its chain does: who raises while
    handling a lost connection is a victim of that connection.

    Args:
        catalogue: the signatures in force.
        chain: ``(type, message)``, the raised one first.
        frame: top frame of user code, for the fingerprint.
        mark: the user's own word on it.
        exit_code: what a SystemExit asks for.
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
    """What a signature's hit says; ``text`` and ``fingerprint`` are its speaker's own."""
    signature, groups = hit.signature, hit.groups
    slug = signature.slug
    if slug == "gpu_oom_foreign" and mostly_its_own(text):
        slug, fingerprint = "gpu_oom", fingerprint.replace(slug, "gpu_oom", 1)
    return Meaning(
        slug=slug,
        role=signature.role,
        specificity=signature.specificity,
        text=text,
        fingerprint=fingerprint,
        signature=signature.id,
        peers=numbers(groups.get("peers") or groups.get("peer_rank") or ""),
        hosts=(groups["host"],) if "host" in groups else (),
        gpu=groups.get("gpu"),
        pid=next(iter(numbers(groups.get("pid", ""))), None),
    )


def numbers(text: str) -> tuple[int, ...]:
    """The whole numbers of a list such as ``1, 3``; at most 1,024 of at most 7 digits."""
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
