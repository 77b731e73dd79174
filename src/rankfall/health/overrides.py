"""An operator's own rules: tables that change packaged rules or add codes. Any fault refuses all of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from rankfall.health.rules import Rule, packaged
from rankfall.model import decoding
from rankfall.model.errors import SpecError
from rankfall.model.health import shown
from rankfall.model.patterns import anchored

_CODE: Final = anchored(r"[a-z]{1,16}(?:/[A-Za-z0-9][A-Za-z0-9._-]{0,95}){1,2}", limit=256)


def rules_from(rows: Sequence[dict[str, Any]], *, origin: str) -> tuple[Rule, ...]:
    """The packaged rules as these tables change them.

    A table gives the fields that change; the others stay as they are packaged, or have their defaults where the code is new. A rule
    for a number without a word (``sxid/20034``) stands for all its words, unless there is one for the word as well.

    Args:
        rows: with ``code`` and any other field of :class:`Rule`.
        origin: name of the file, for messages.

    Raises:
        SpecError: names file, rule and field.
    """
    known = {rule.code: rule for rule in packaged()}
    named: dict[str, Rule] = {}
    for number, row in enumerate(rows, start=1):
        code = row.get("code")
        place = f"{origin}: rule {number}"
        if not isinstance(code, str) or not _CODE.fullmatch(code):
            raise SpecError(f"{place}: code", "must be as xid/79, sxid/20034, kernel/nic_down.kernel, verdict/gpu_ecc")
        if code in named:
            raise SpecError(f"{place}: code", f"{code} has a rule in this file already")
        before = msgspec.structs.asdict(known[code]) if code in known else {}
        try:
            rule = decoding.convert({**before, **row}, Rule)
        except msgspec.ValidationError as error:
            raise SpecError(f"{place} ({code})", shown(str(error))) from None
        if rule.count > 1 and not rule.window_s:
            raise SpecError(
                f"{place} ({code}): window_s", f"count {rule.count} needs the seconds within which they count"
            )
        if rule.recovers is not None and rule.action != "none":
            raise SpecError(f"{place} ({code}): action", f"it takes {shown(rule.recovers)} back, so its action is none")
        named[code] = rule
    kept = (rule for code, rule in known.items() if code.rpartition("/")[0] not in named)
    return (*kept, *named.values())
