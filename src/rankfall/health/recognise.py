"""From lines of the kernel to what they mean: NVIDIA's numbers by their grammar, all others by the signatures that verdicts use too.

A signature counts only where it matches at the very beginning of a line: the kernel prints names that users choose (of a process, of a file), and
such a name must not make a kernel line of another one. What is no fault gives nothing; an unknown number of NVIDIA gives its code.

Cost: at most ``MAX_LINE`` bytes of a line; nothing is kept but the line before.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import Final

import msgspec

from rankfall.health.nvidia import Line, lost_head, lost_tail, read_lost, read_sxid, read_xid
from rankfall.model import numbers
from rankfall.model.patterns import anchored
from rankfall.signatures.catalogue import Catalogue, default_catalogue
from rankfall.signatures.matcher import Hit, best

#: More of a line is not looked at; the longest that the kernel prints have about 1,000 characters.
MAX_LINE: Final = 4_096
#: The three records of a GPU that fell off the bus stand together; a first one is forgotten after so many others.
_HEAD_LINES: Final = 64
#: The same loss is told with its number and without, within one moment; in nanoseconds.
_SAME_NS: Final = 10 * 1_000_000_000
# How NVIDIA's own lines begin.
_NVIDIA: Final = (b"NVRM: ", b"nvidia-nvswitch", b"fallen off the bus")
# What dmesg puts before a line: "<6>[ 1235.431527][ T1234] ".
_PREFIX: Final = anchored(
    rb"(?:<[0-9]{1,4}>)?\[ {0,12}[0-9]{1,12}\.[0-9]{6}\](?:\[ {0,8}[TC][0-9]{1,10}\])? ", limit=128
)


class Recogniser:
    """Reads the kernel's lines of one boot of one node, in their order.

    Args:
        catalogue: the signatures in force.
        prefixed: lines come as dmesg prints them, with a stamp before the text; a record of the ring has none.
    """

    def __init__(self, catalogue: Catalogue | None = None, *, prefixed: bool = False) -> None:
        self._catalogue = catalogue or default_catalogue()
        self._prefixed = prefixed
        self._heads: list[tuple[str, int]] = []
        self._count = 0
        self._lost: dict[str | None, int] = {}

    def fresh(self) -> Recogniser:
        """Another one of the same kind that has read nothing yet."""
        return Recogniser(self._catalogue, prefixed=self._prefixed)

    def worth(self, texts: Sequence[bytes]) -> set[int]:
        """Which of these lines may say anything, by their places in the list. One look over all of them; each other one may be given to ``skip``."""
        data = b"\n".join(texts)
        begins = list(accumulate((len(each) + 1 for each in texts), initial=0))
        found = [start for start, _ in self._catalogue.candidates(data, where="kernel")]
        for head in _NVIDIA:
            at = data.find(head)
            while at >= 0:
                found.append(at)
                at = data.find(head, at + 1)
        return {bisect_right(begins, at) - 1 for at in found}

    def skip(self) -> None:
        """A line passed that is not worth reading: ``read`` would give nothing."""
        self._count += 1

    def read(self, text: bytes, *, at: int | None = None) -> Line | None:
        """What this line says; None = nothing that concerns the node, or a further part of what was told already.

        Args:
            text: one line; of a record of the ring as the kernel escaped it.
            at: nanoseconds on any clock that is the same for all lines of the boot.
        """
        line = text[:MAX_LINE].split(b"\n", 1)[0]
        if self._prefixed:
            line = line[found.end() :] if (found := _PREFIX.match(line)) else line
        self._count += 1
        told = self._nvidia(line, at)
        return told if told is not None else self._other(line)

    def _nvidia(self, line: bytes, at: int | None) -> Line | None:
        if not line.startswith(_NVIDIA):
            return None
        told = read_xid(line) or read_sxid(line) or read_lost(line) or self._three_parts(line)
        if told is None or (told.code == "xid/79" and self._again(told, at)):
            return None
        return self._with_slug(told, line)

    def _three_parts(self, line: bytes) -> Line | None:
        head = lost_head(line)
        if head is not None:
            self._heads.append((head, self._count))
            return None
        if not lost_tail(line):
            return None
        devices = {device for device, number in self._heads if self._count - number <= _HEAD_LINES}
        self._heads.clear()
        # With two GPUs between which the records are mixed, which of them this one belongs to is not known.
        return Line(code="xid/79", device=devices.pop() if len(devices) == 1 else None)

    def _again(self, told: Line, at: int | None) -> bool:
        """Whether the same loss was told already, in another of its forms."""
        before = self._lost.get(told.device)
        if at is not None:
            self._lost[told.device] = at
        return before is not None and at is not None and abs(at - before) <= _SAME_NS

    def _with_slug(self, told: Line, line: bytes) -> Line:
        hit = best(self._hits(line))
        if told.code == "xid/79" and hit is None:
            return _slugged(told, "gpu_fallen_off_bus")
        return told if hit is None else _slugged(told, hit.signature.slug)

    def _other(self, line: bytes) -> Line | None:
        hit = best([each for each in self._hits(line) if not _numbered(each)])
        if hit is None:
            return None
        device = hit.groups.get("gpu")
        pid = hit.groups.get("pid", "")
        return Line(
            code=f"kernel/{hit.signature.id}",
            device=f"pci {device}" if device else None,
            slug=hit.signature.slug,
            pid=numbers.clamped(pid, least=0, most=(1 << 32) - 1),
        )

    def _hits(self, line: bytes) -> list[Hit]:
        return [each for each in self._catalogue.match_line(line, where="kernel") if each.start == each.line_start]


def _numbered(hit: Hit) -> bool:
    """Signatures of NVIDIA's numbers and of tools: their lines are read by the grammar, or are none of the kernel's."""
    return "line" in hit.signature.where


def _slugged(told: Line, slug: str) -> Line:
    return msgspec.structs.replace(told, slug=slug)
