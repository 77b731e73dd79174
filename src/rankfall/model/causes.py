"""The catalogue of causes, a public contract; the table is ``causes.csv``."""

from __future__ import annotations

import csv
from functools import cache
from importlib import resources
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal

import msgspec

from rankfall.model import decoding

if TYPE_CHECKING:
    from collections.abc import Mapping

Family = Literal["user", "data", "memory", "gpu", "network", "storage", "platform", "control", "unknown"]
EvidenceRole = Literal["primary", "secondary", "context"]
Retry = Literal["no", "yes", "once", "elsewhere"]
NodeAction = Literal["none", "suspect", "taint"]


class CauseInfo(msgspec.Struct, frozen=True, kw_only=True):
    """One row of the catalogue.

    Attributes:
        slug: Stable name; never renamed or reused.
        role: Default role; a signature may override it.
        retry: Default retry advice.
        node_action: Strongest default action on the node.
        evidence: Typical evidence, as text.
    """

    slug: str
    family: Family
    title: str
    role: EvidenceRole
    retry: Retry
    node_action: NodeAction
    evidence: str = ""


@cache
def catalogue() -> Mapping[str, CauseInfo]:
    """Returns all causes by slug."""
    text = resources.files(__package__).joinpath("causes.csv").read_text("utf-8")
    rows = (
        decoding.convert(
            {k: row[k] for k in ("slug", "family", "title", "retry", "node_action")}
            | {"role": row["default_role"], "evidence": row["typical_evidence"]},
            CauseInfo,
        )
        for row in csv.DictReader(text.splitlines())
    )
    return MappingProxyType({row.slug: row for row in rows})


def cause_info(slug: str) -> CauseInfo:
    """Returns the row of ``slug``, or ``unknown`` for a slug of another version."""
    table = catalogue()
    return table.get(slug, table["unknown"])
