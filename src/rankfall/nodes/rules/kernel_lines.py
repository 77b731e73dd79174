"""Recognises kernel lines: NVIDIA's Xid and SXid by their grammar, all others by the signatures of verdicts.

Shapes are those of the driver's sources (kernel_rc.c, osinit.c, common_nvswitch.h), anchored at the start of
the line: the rest may hold a process name, which its user chooses. Signatures too count only at the very
start. A line that begins as an Xid and reads otherwise is ``xid/unreadable``: shown, never acted on. An
unknown number gives its code.

Cost: at most ``MAX_LINE`` bytes of a line; nothing is kept but the line before.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from functools import cache
from itertools import accumulate
from typing import Any, Final

import msgspec

from rankfall.model import numbers
from rankfall.model.node_health.records import printable
from rankfall.model.patterns import anchored
from rankfall.verdict.signatures.catalogue import Catalogue, default_catalogue
from rankfall.verdict.signatures.matcher import Hit, best
from rankfall.verdict.signatures.patterns import compile_one

_DEVICE: Final = r"(?:PCI:)?(?P<pci>[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2})(?:\.[0-9a-fA-F])?"
_XID: Final = rf"^NVRM: [Xx]id \({_DEVICE}(?P<mig>(?: GPU-(?:CI|I):[0-9]{{1,3}}){{0,2}})\): (?P<number>[0-9]{{1,5}})(?:,(?P<rest>.*))?$"
_SXID: Final = (
    rf"^nvidia-nvswitch(?P<switch>[0-9]{{1,3}}): SXid \({_DEVICE}\): (?P<number>[0-9]{{1,6}}),\s*(?P<rest>.*)$"
)
_LOST: Final = rf"^NVRM: GPU (?:at )?{_DEVICE}: GPU has fallen off the bus\."
# Three records, or one whose newlines the kernel escaped.
_LOST_HEAD: Final = rf"^NVRM: The NVIDIA GPU {_DEVICE}(?:\\x0a|\s*$)"
_LOST_TAIL: Final = r"^(?:NVRM: )?fallen off the bus and is not responding to commands\."
_LOST_WHOLE: Final = (
    rf"^NVRM: The NVIDIA GPU {_DEVICE}\\x0a.{{0,200}}fallen off the bus and is not responding to commands\."
)
_PROCESS: Final = r"^\s*pid='?(?P<pid>[0-9]{1,10}|<unknown>)'?(?:, name=(?P<name>[^,]{0,64}))?(?:,|$)"
_RECOVERY: Final = r"recovery action changed from 0x[0-9a-fA-F]{1,8} \([^)]{0,64}\) to 0x(?P<new>[0-9a-fA-F]{1,8}) "
_PREVIOUS: Final = r"caused by previous Xid (?P<previous>[0-9]{1,5})\s*$"
# As: NETIR_LINK_EVT, then Fatal, then XC0 i0 Link 01 and its words in hexadecimal.
_NVLINK5: Final = r"^\s*[A-Z][A-Z0-9_]{1,40}\s+(?P<word>[Ff]atal|[Nn]on-?[Ff]atal)\s+XC\d+ i\d+ Link (?P<link>\d{1,3})(?: \(0x(?P<first>[0-9a-fA-F]{1,8}))?"
_SXID_WORD: Final = r"^(?P<word>[Ff]atal|[Nn]on-[Ff]atal)\b"
_CONTINUED: Final = r"^(?:Data \{|Severity \d)"

# Values of the driver's enum NV2080_CTRL_GPU_RECOVERY_ACTION (595.45.04); a newer driver may add some, which then ask for an inspection.
_ACTIONS: Final = ("none", "gpu_reset", "node_reboot", "drain_p2p", "drain_and_reset", "recover_imex")
_NVLINK5_NUMBERS: Final = range(144, 151)
# Bits 20-25 of the first word of an NVLink5 line are its sub-code.
_SUBCODE_SHIFT: Final = 20
_SUBCODE_MASK: Final = 0x3F


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """What one line of the kernel says about a device.

    Attributes:
        code: as the rules name it; the part before it is ``xid``, ``sxid`` or ``kernel``.
        device: as ``gpu 0000:4e:00``; None = the line names none, or more than one may be meant.
        slug: the cause that it would be for a job, as the signatures say.
        detail: what it says beyond its code.
    """

    code: str
    device: str | None = None
    instance: str | None = None
    slug: str | None = None
    pid: int | None = None
    process: str | None = None
    detail: str | None = None


def read_xid(text: bytes) -> Line | None:
    """An Xid in any form that has a number; None = no Xid line."""
    if not text.startswith((b"NVRM: Xid", b"NVRM: xid")):
        return None
    found = _search(_XID, text)
    if found is None:
        return Line(code="xid/unreadable")
    number = numbers.matched(found["number"])
    rest = found["rest"] or b""
    process = _search(_PROCESS, rest) or {}
    word, detail = _xid_word(number, rest)
    pid = _text(process.get("pid"))
    return Line(
        code=f"xid/{number}" + (f"/{word}" if word else ""),
        device=f"gpu {_text(found['pci']).lower()}",
        instance=_text(found["mig"]).strip() or None,
        pid=numbers.clamped(pid, least=0, most=(1 << 32) - 1),
        process=printable(_text(process.get("name")), 64) or None,
        detail=detail,
    )


def read_sxid(text: bytes) -> Line | None:
    """An SXid's first line; None = no SXid, or a further line (``Data``, ``Severity``) of one that was read already."""
    if not text.startswith(b"nvidia-nvswitch"):
        return None
    found = _search(_SXID, text)
    if found is None:
        return None
    rest = found["rest"] or b""
    if _search(_CONTINUED, rest) is not None:
        return None
    word = _search(_SXID_WORD, rest)
    grave = "" if word is None else "/fatal" if _text(word["word"]).lower() == "fatal" else "/nonfatal"
    return Line(code=f"sxid/{numbers.matched(found['number'])}{grave}", device=f"switch {_text(found['pci']).lower()}")


def read_lost(text: bytes) -> Line | None:
    """Xid 79 in one line without its number."""
    found = _search(_LOST, text) or _search(_LOST_WHOLE, text)
    return None if found is None else Line(code="xid/79", device=f"gpu {_text(found['pci']).lower()}")


def lost_head(text: bytes) -> str | None:
    """The device of "The NVIDIA GPU ...", the first of three records that may become an Xid 79."""
    found = _search(_LOST_HEAD, text) if text.startswith(b"NVRM: The NVIDIA GPU ") else None
    return None if found is None else f"gpu {_text(found['pci']).lower()}"


def lost_tail(text: bytes) -> bool:
    """Whether it is the last of those three records."""
    return _search(_LOST_TAIL, text) is not None


def _xid_word(number: int, rest: bytes) -> tuple[str, str | None]:
    """The word that the line itself adds to the number, and what else it tells."""
    if number == 154:  # noqa: PLR2004 - the number of the line that tells the recovery action
        found = _search(_RECOVERY, rest)
        if found is None:
            return "", None
        value = numbers.hexadecimal(found["new"]) or 0
        return (_ACTIONS[value] if value < len(_ACTIONS) else "other"), f"action {value:#x}"
    if number in _NVLINK5_NUMBERS:
        found = _search(_NVLINK5, rest)
        if found is None:
            return "", None
        word = "fatal" if _text(found["word"]).lower() == "fatal" else "nonfatal"
        first = found["first"]
        suffix = (
            "" if first is None else f", sub-code {(numbers.hexadecimal(first) or 0) >> _SUBCODE_SHIFT & _SUBCODE_MASK}"
        )
        return word, f"link {numbers.matched(found['link'])}{suffix}"
    previous = _search(_PREVIOUS, rest)
    return "", None if previous is None else f"previous xid {numbers.matched(previous['previous'])}"


def _text(data: bytes | None) -> str:
    return "" if data is None else data.decode("ascii", "replace")


@cache
def _compiled(pattern: str) -> Any:
    return compile_one(pattern)


def _search(pattern: str, text: bytes) -> dict[str, bytes | None] | None:
    compiled = _compiled(pattern)
    found = compiled.search(text)
    # RE2 over bytes names its groups in bytes.
    return None if found is None else {name.decode(): found.group(index) for name, index in compiled.groupindex.items()}


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
        known = self._nvidia(line, at)
        return known if known is not None else self._other(line)

    def _nvidia(self, line: bytes, at: int | None) -> Line | None:
        if not line.startswith(_NVIDIA):
            return None
        found = read_xid(line) or read_sxid(line) or read_lost(line) or self._three_parts(line)
        if found is None or (found.code == "xid/79" and self._again(found, at)):
            return None
        return self._with_slug(found, line)

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

    def _again(self, found: Line, at: int | None) -> bool:
        """Whether the same loss was told already, in another of its forms."""
        before = self._lost.get(found.device)
        if at is not None:
            self._lost[found.device] = at
        return before is not None and at is not None and abs(at - before) <= _SAME_NS

    def _with_slug(self, found: Line, line: bytes) -> Line:
        hit = best(self._hits(line))
        if found.code == "xid/79" and hit is None:
            return _slugged(found, "gpu_fallen_off_bus")
        return found if hit is None else _slugged(found, hit.signature.slug)

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


def _slugged(found: Line, slug: str) -> Line:
    return msgspec.structs.replace(found, slug=slug)
