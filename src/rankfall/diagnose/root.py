"""What the search for the root came to."""

from __future__ import annotations

import msgspec

from rankfall.diagnose.candidates import Candidate
from rankfall.diagnose.subjects import Subject
from rankfall.model import Evidence


class Root(msgspec.Struct, kw_only=True):
    """The chosen candidate, whether it struck everywhere, and what was set aside for which reason.

    ``chosen`` is None when only consequences speak; ``nearest`` is then the one nearest the origin, and ``suspects`` the peers
    that the consequences name or that never spoke; ``alone`` when it is the only rank that failed. ``repeated``: somebody said that a part was stopped or
    given up because another one had failed, which is no cause of anything. ``independent``: what failed as well and is no consequence, and how that is
    known. ``unnamed``: what happened is known, but several ranks offer it equally.
    """

    chosen: Candidate | None = None
    everywhere: bool = False
    unnamed: bool = False
    tied: bool = False
    rejected: list[tuple[Candidate, str]] = msgspec.field(default_factory=list)
    independent: list[tuple[Candidate, str]] = msgspec.field(default_factory=list)
    nearest: tuple[Subject, Evidence] | None = None
    suspects: tuple[int, ...] = ()
    suspect_slots: tuple[int, ...] = ()
    alone: bool = False
    repeated: bool = False
