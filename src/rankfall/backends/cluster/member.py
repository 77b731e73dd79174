"""One role of a job, compiled as far as its pods: what the objects of all kinds are made of."""

from __future__ import annotations

import msgspec

from rankfall.backends.cluster.command import Start
from rankfall.backends.cluster.merge import Object
from rankfall.backends.cluster.native import Native
from rankfall.backends.cluster.objects import Request


class Member(msgspec.Struct, frozen=True, kw_only=True):
    """One role.

    Attributes:
        request: to compile it.
        start: of its containers.
        policies: its native ones.
        pod: the template.
    """

    request: Request
    start: Start
    policies: Native
    pod: Object
