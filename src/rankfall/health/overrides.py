"""An operator's own rules: a TOML file that changes packaged rules or adds codes, read again when it changes.

A file with any fault is refused whole: the rules that were in force before stay in force, and the fault is said.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Final

import msgspec

from rankfall.health.rules import Rule, Rules, packaged
from rankfall.model.errors import SpecError
from rankfall.model.health import shown

MAX_FILE: Final = 1 << 20
_CODE: Final = re.compile(r"[a-z]{1,16}(?:/[A-Za-z0-9][A-Za-z0-9._-]{0,95}){1,2}")


def parse_rules(text: str, *, origin: str) -> tuple[Rule, ...]:
    """The packaged rules as this file changes them.

    A rule of the file gives the fields that change; the others stay as they are packaged, or have their defaults where the code is new. A rule
    for a number without a word (``sxid/20034``) stands for all its words, unless the file has one for the word as well.

    Args:
        text: TOML: ``[[rule]]`` tables with ``code`` and any other field of :class:`Rule`.
        origin: name of the file, for messages.

    Raises:
        SpecError: names file, rule and field.
    """
    if len(text) > MAX_FILE:
        raise SpecError(origin, f"file of rules is larger than {MAX_FILE} characters")
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise SpecError(origin, f"not TOML: {shown(str(error))}") from None
    extra = sorted(set(data) - {"rule"})
    rows = data.get("rule", [])
    if extra or not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise SpecError(
            origin,
            f"unknown key {shown(extra[0])!r}" if extra else "rule must be a list of tables",
            hint="write [[rule]] tables",
        )
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
            rule = msgspec.convert({**before, **row}, Rule)
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


class RulesFile:
    """The rules of a file, as long as it can be read.

    Args:
        path: of the operator; None = the packaged rules alone.

    Attributes:
        rules: what is in force.
        problem: what is wrong with the file as it is now; None = nothing.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._text: str | None = None
        self.rules = packaged()
        self.problem: str | None = None

    def reload(self) -> bool:
        """Read the file again; true when other rules are in force since."""
        if self._path is None:
            return False
        try:
            with self._path.open(encoding="utf-8") as file:
                text = file.read(MAX_FILE + 1)
            if text == self._text:
                self.problem = None
                return False
            rules = Rules(parse_rules(text, origin=str(self._path)))
        except (OSError, UnicodeDecodeError, SpecError) as error:
            told = error.message if isinstance(error, SpecError) else f"{self._path}: {error}"
            self.problem = f"{told}; the rules from before stay in force"
            return False
        self._text, self.rules, self.problem = text, rules, None
        return True
