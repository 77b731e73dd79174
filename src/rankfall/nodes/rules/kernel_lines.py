"""Recognizes kernel lines: Xid and SXid by the driver's grammar, others by verdict signatures.

Forms are anchored at the start: the remainder may hold a process name, which users choose.

Cost: at most ``MAX_LINE`` bytes of a line; stores nothing but the line before.
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
# Three records, or one with escaped newlines.
_LOST_HEAD: Final = rf"^NVRM: The NVIDIA GPU {_DEVICE}(?:\\x0a|\s*$)"
_LOST_TAIL: Final = r"^(?:NVRM: )?fallen off the bus and is not responding to commands\."
_LOST_WHOLE: Final = (
    rf"^NVRM: The NVIDIA GPU {_DEVICE}\\x0a.{{0,200}}fallen off the bus and is not responding to commands\."
)
_PROCESS: Final = r"^\s*pid='?(?P<pid>[0-9]{1,10}|<unknown>)'?(?:, name=(?P<name>[^,]{0,64}))?(?:,|$)"
_RECOVERY: Final = r"recovery action changed from 0x[0-9a-fA-F]{1,8} \([^)]{0,64}\) to 0x(?P<new>[0-9a-fA-F]{1,8}) "
_PREVIOUS: Final = r"caused by previous Xid (?P<previous>[0-9]{1,5})\s*$"
# As: NETIR_LINK_EVT, Fatal, XC0 i0 Link 01, hexadecimal words.
_NVLINK5: Final = r"^\s*[A-Z][A-Z0-9_]{1,40}\s+(?P<word>[Ff]atal|[Nn]on-?[Ff]atal)\s+XC\d+ i\d+ Link (?P<link>\d{1,3})(?: \(0x(?P<first>[0-9a-fA-F]{1,8}))?"
_SXID_WORD: Final = r"^(?P<word>[Ff]atal|[Nn]on-[Ff]atal)\b"
_CONTINUED: Final = r"^(?:Data \{|Severity \d)"

# NV2080_CTRL_GPU_RECOVERY_ACTION (595.45.04); newer values request an inspection.
_ACTIONS: Final = ("none", "gpu_reset", "node_reboot", "drain_p2p", "drain_and_reset", "recover_imex")
_NVLINK5_NUMBERS: Final = range(144, 151)
# Bits 20-25 of an NVLink5 line's first word.
_SUBCODE_SHIFT: Final = 20
_SUBCODE_MASK: Final = 0x3F


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """Content of one kernel line about a device.

    Attributes:
        code: Begins with ``xid``, ``sxid`` or ``kernel``.
        device: As ``gpu 0000:4e:00``; None if ambiguous.
        slug: Cause for a job.
        detail: Further content.
    """

    code: str
    device: str | None = None
    instance: str | None = None
    slug: str | None = None
    pid: int | None = None
    process: str | None = None
    detail: str | None = None


def read_xid(text: bytes) -> Line | None:
    """Parses an Xid line; ``xid/unreadable`` is never acted on. None for other lines."""
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
    """Parses an SXid's first line; None for other lines and its continuations (``Data``, ``Severity``)."""
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
    """Parses Xid 79 in one line without its number; None for other lines."""
    found = _search(_LOST, text) or _search(_LOST_WHOLE, text)
    return None if found is None else Line(code="xid/79", device=f"gpu {_text(found['pci']).lower()}")


def lost_head(text: bytes) -> str | None:
    """Returns the device of "The NVIDIA GPU ..."; None for other lines.

    This is the first of three records that may form an Xid 79.
    """
    found = _search(_LOST_HEAD, text) if text.startswith(b"NVRM: The NVIDIA GPU ") else None
    return None if found is None else f"gpu {_text(found['pci']).lower()}"


def lost_tail(text: bytes) -> bool:
    """True if the text is the last of those three records."""
    return _search(_LOST_TAIL, text) is not None


def _xid_word(number: int, rest: bytes) -> tuple[str, str | None]:
    """Word that the line adds to the number ("" without one), and further detail or None."""
    if number == 154:  # noqa: PLR2004 - the number of the line with the recovery action
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
    # RE2 over bytes names groups in bytes.
    return None if found is None else {name.decode(): found.group(index) for name, index in compiled.groupindex.items()}


#: Bytes read of a line; the kernel's longest have about 1,000.
MAX_LINE: Final = 4_096
#: Lines after which a lost GPU's first record is forgotten.
_HEAD_LINES: Final = 64
#: The same loss appears with and without its number.
_SAME_NS: Final = 10 * 1_000_000_000
_NVIDIA: Final = (b"NVRM: ", b"nvidia-nvswitch", b"fallen off the bus")
# In dmesg: "<6>[ 1235.431527][ T1234] ".
_PREFIX: Final = anchored(
    rb"(?:<[0-9]{1,4}>)?\[ {0,12}[0-9]{1,12}\.[0-9]{6}\](?:\[ {0,8}[TC][0-9]{1,10}\])? ", limit=128
)


class Recogniser:
    """Reads the kernel lines of one boot in order. ``prefixed``: the lines have dmesg's prefix."""

    def __init__(self, catalogue: Catalogue | None = None, *, prefixed: bool = False) -> None:
        self._catalogue = catalogue or default_catalogue()
        self._prefixed = prefixed
        self._heads: list[tuple[str, int]] = []
        self._count = 0
        self._lost: dict[str | None, int] = {}

    def fresh(self) -> Recogniser:
        """Returns a new reader of the same kind."""
        return Recogniser(self._catalogue, prefixed=self._prefixed)

    def worth(self, texts: Sequence[bytes]) -> set[int]:
        """Returns the indexes of potentially relevant lines with one scan; others may go to ``skip``."""
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
        """Counts an irrelevant line, for which ``read`` would return None."""
        self._count += 1

    def read(self, text: bytes, *, at: int | None = None) -> Line | None:
        """Returns the content of a line, or None. ``at`` in nanoseconds on the boot's clock."""
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
        # Records of two GPUs may be mixed.
        return Line(code="xid/79", device=devices.pop() if len(devices) == 1 else None)

    def _again(self, found: Line, at: int | None) -> bool:
        """True if the same lost GPU was reported already in another form."""
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
    """True for signatures of text that NVIDIA's numbers or tools also report."""
    return "line" in hit.signature.where


def _slugged(found: Line, slug: str) -> Line:
    return msgspec.structs.replace(found, slug=slug)
