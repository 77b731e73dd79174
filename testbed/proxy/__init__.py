"""A proxy in front of the API server that misbehaves when told to.

It ends TLS, speaks HTTP/1.1 alone and streams both ways without keeping anything back; without rules nobody notices it.

    with Proxy(Settings(upstream=…, authority=…, serving=…)) as proxy:
        proxy.add("dead", HalfOpen(at=When(called=True)), Match(follow=True))
        …
        proxy.fire("dead")
"""

from testbed.proxy.certificates import Certificates
from testbed.proxy.hub import Settings
from testbed.proxy.proxy import Proxy
from testbed.proxy.records import Counters, Record
from testbed.proxy.remote import Remote
from testbed.proxy.rules import (
    Action,
    Answer,
    Cut,
    Delay,
    EndStream,
    HalfOpen,
    How,
    Match,
    OldServer,
    Place,
    Rule,
    ShiftTimes,
    Slow,
    Stall,
    WatchError,
    Way,
    When,
)

__all__ = [
    "Action",
    "Answer",
    "Certificates",
    "Counters",
    "Cut",
    "Delay",
    "EndStream",
    "HalfOpen",
    "How",
    "Match",
    "OldServer",
    "Place",
    "Proxy",
    "Record",
    "Remote",
    "Rule",
    "Settings",
    "ShiftTimes",
    "Slow",
    "Stall",
    "WatchError",
    "Way",
    "When",
]
