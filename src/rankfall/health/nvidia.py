"""The grammar of the NVIDIA driver's own lines: Xid, SXid, and the forms of Xid 79 that carry no number.

Shapes are those of the driver's sources (kernel_rc.c, osinit.c, common_nvswitch.h): the device with or without ``PCI:``, with MIG instances or
without, process or none. Every pattern is anchored at the beginning of the line and the number at the end of the device, because the rest
may hold a process name, which its user chooses. A line that begins as an Xid and reads otherwise is ``xid/unreadable``: shown, never acted on.
"""

from __future__ import annotations

from functools import cache
from typing import Any, Final

import msgspec

from rankfall.model import numbers
from rankfall.model.health import shown
from rankfall.signatures.engine import compile_one

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
        process=shown(_text(process.get("name")), 64) or None,
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
        told = (
            "" if first is None else f", sub-code {(numbers.hexadecimal(first) or 0) >> _SUBCODE_SHIFT & _SUBCODE_MASK}"
        )
        return word, f"link {numbers.matched(found['link'])}{told}"
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
