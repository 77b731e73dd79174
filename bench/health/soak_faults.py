"""What the soak injects, and what each of it must lead to. Pure but for the random numbers that it is given.

Each fault has a device of its own, so that the record of a node tells whether it was counted once, twice or never.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Literal

SECOND: Final = 1_000_000_000
#: The kernels of the fake nodes say that they began so long before the soak, seconds.
UPTIME_S: Final = 7_200
POOL_LABEL: Final = "rankfall.dev/pool"
#: One node in five is in a pool whose budget is soon spent.
SMALL_EVERY: Final = 5
SMALL_BUDGET: Final = 10

Way = Literal["agent", "loki", "loki_twice", "loki_late", "agent_mild", "loki_mild", "agent_injected", "pod"]
#: ``quarantine``: one taint, or held by the budget; ``noted``: in the node's record, no taint; ``nothing``: the Node stays as it was.
Due = Literal["quarantine", "noted", "nothing"]


@dataclass(frozen=True)
class Kind:
    """One way in which a fault comes: its code, what it must lead to, and how often of a hundred it is chosen."""

    code: str
    due: Due
    share: int
    told: str


KINDS: Final[Mapping[Way, Kind]] = MappingProxyType({
    "agent": Kind("xid/79", "quarantine", 26, "Xid 79 in the agent's annotation"),
    "loki": Kind("xid/79", "quarantine", 24, "Xid 79 in the log of the dmesg DaemonSet"),
    "loki_twice": Kind("xid/79", "quarantine", 10, "the same, printed a second time with a later stamp"),
    "loki_late": Kind("xid/79", "quarantine", 10, "the same, brought up to 200 s late"),
    "agent_mild": Kind("xid/31", "noted", 7, "Xid 31 in the agent's annotation"),
    "loki_mild": Kind("xid/31", "noted", 7, "Xid 31 in the log of the dmesg DaemonSet"),
    "agent_injected": Kind("xid/79", "nothing", 8, "Xid 79 that a process wrote into the kernel's log"),
    "pod": Kind("xid/79", "nothing", 8, "Xid 79 printed by a pod"),
})  # fmt: skip


@dataclass(frozen=True)
class Fault:
    """One injected fault.

    Attributes:
        bus: PCI address; no other fault of the soak has it.
        late_s: how much older than its arrival its stamp is.
    """

    number: int
    node: str
    way: Way
    late_s: float = 0.0

    @property
    def bus(self) -> str:
        """As the driver prints it."""
        return f"{self.number >> 8 & 0xFFFF:04x}:{self.number & 0xFF:02x}:00"

    @property
    def cause(self) -> tuple[str, str]:
        """Code and device, as the node's record names them."""
        return KINDS[self.way].code, f"gpu {self.bus}"

    @property
    def due(self) -> Due:
        """What it must lead to."""
        return KINDS[self.way].due

    @property
    def text(self) -> str:
        """The driver's line."""
        if KINDS[self.way].code == "xid/31":
            return f"NVRM: Xid (PCI:{self.bus}): 31, pid={1000 + self.number}, name=python, Ch 00000008, MMU Fault"
        return f"NVRM: Xid (PCI:{self.bus}): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."

    def dmesg(self, *, at: int, begun: int) -> str:
        """The line as ``dmesg`` prints it on a kernel that began then; both in nanoseconds since the epoch."""
        seconds, rest = divmod((at - begun) // 1_000, 1_000_000)
        return f"[{seconds:5d}.{rest:06d}] {self.text}"


def faults(nodes: Sequence[str], rng: random.Random) -> Iterator[Fault]:
    """Faults without end: every node gets its first before any gets its second, save one node in four, which gets none."""
    mine = [name for index, name in enumerate(nodes) if index % 4 != 1]
    ways, shares = list(KINDS), [kind.share for kind in KINDS.values()]
    number = 0
    while True:
        rng.shuffle(mine)
        for node in mine:
            (way,) = rng.choices(ways, shares)
            number += 1
            yield Fault(number, node, way, late_s=rng.uniform(20, 200) if way == "loki_late" else 0.0)


def pool(index: int) -> str:
    """Of the node with this number."""
    return "small" if index % SMALL_EVERY == 0 else "main"
