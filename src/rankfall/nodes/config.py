"""The operator's TOML file: policy, rules, checks, hooks and metric exporters, reread after a change.

A faulty file is refused as a whole; earlier settings stay.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

from rankfall.model import decoding
from rankfall.model.errors import SpecError
from rankfall.model.node_health.records import printable
from rankfall.nodes.checks.jobs import Check, checks_from
from rankfall.nodes.hooks.ladder import Hook, hooks_from
from rankfall.nodes.rules.fault_rules import Rules, packaged, rules_from
from rankfall.nodes.rules.gpu_metrics import Exporter, exporters_from
from rankfall.nodes.rules.policy import Budget, Policy

#: Environment variable that names the file.
ENVIRONMENT: Final = "RANKFALL_HEALTH_CONFIG"
MAX_FILE: Final = 1 << 20
_LISTS: Final = frozenset({"check", "hook", "metrics", "rule"})
_TABLES: Final = frozenset({"policy"})
_Table = TypeVar("_Table", Policy, Budget)


class HealthConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Content of one file.

    Attributes:
        policy: ``[policy]``: budgets, rate, breaker, switches, taint key.
        rules: ``[[rule]]``: packaged rules with the file's changes.
        checks: ``[[check]]``: in order; without any only a person returns nodes.
        hooks: ``[[hook]]``: remedies, gentlest first; none means no repair.
        exporters: ``[[metrics]]``: sources of GPU metrics.
    """

    policy: Policy
    rules: Rules
    checks: tuple[Check, ...] = ()
    hooks: tuple[Hook, ...] = ()
    exporters: tuple[Exporter, ...] = ()


def defaults() -> HealthConfig:
    """Returns the settings without a file."""
    return HealthConfig(policy=Policy(), rules=packaged())


def parse_config(text: str, *, origin: str) -> HealthConfig:
    """Parses the file's text.

    Raises:
        SpecError: Names file, section and field.
    """
    if len(text) > MAX_FILE:
        raise SpecError(origin, f"the file is larger than {MAX_FILE} characters")
    try:
        data = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # also for a number too long for Python
        raise SpecError(origin, f"not TOML: {printable(str(error))}") from None
    _check_shape(data, origin=origin)
    return HealthConfig(
        policy=_policy(data.get("policy", {}), place=f"{origin}: policy"),
        rules=Rules(rules_from(data.get("rule", ()), origin=origin)),
        checks=checks_from(data.get("check", ()), origin=origin),
        hooks=hooks_from(data.get("hook", ()), origin=origin),
        exporters=exporters_from(data.get("metrics", ()), origin=origin),
    )


def load_config(path: Path | None) -> HealthConfig:
    """Returns the file's content, or the defaults without a path.

    Raises:
        SpecError: The file is unreadable or invalid.
    """
    return defaults() if path is None else parse_config(_text(path), origin=str(path))


class ConfigFile:
    """Settings of a file, as long as it is valid.

    Attributes:
        config: Active settings.
        problem: Fault of the current file, or None.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._text_before: str | None = None
        self.config = defaults()
        self.problem: str | None = None

    def reload(self) -> bool:
        """Reads the file again. Returns True if the active settings changed."""
        if self._path is None:
            return False
        try:
            text = _text(self._path)
            if text == self._text_before:
                self.problem = None
                return False
            config = parse_config(text, origin=str(self._path))
        except SpecError as error:
            self.problem = f"{error.message}; the previous settings remain active"
            return False
        self._text_before, self.config, self.problem = text, config, None
        return True


def _text(path: Path) -> str:
    try:
        with path.open(encoding="utf-8") as file:
            return file.read(MAX_FILE + 1)
    except (OSError, UnicodeDecodeError) as error:
        raise SpecError(str(path), f"cannot be read: {printable(str(error))}", hint="give a TOML file") from None


def _check_shape(data: Mapping[str, Any], *, origin: str) -> None:
    known = sorted(_LISTS | _TABLES)
    for key, value in data.items():
        if key not in known:
            raise SpecError(
                f"{origin}: {printable(key, 64)}", "there is no such section", hint=f"known: {', '.join(known)}"
            )
        if key in _TABLES and not isinstance(value, dict):
            raise SpecError(f"{origin}: {key}", "must be a table", hint=f"write [{key}]")
        if key in _LISTS and not (isinstance(value, list) and all(isinstance(row, dict) for row in value)):
            raise SpecError(f"{origin}: {key}", "must be a list of tables", hint=f"write [[{key}]]")


# Forms that the decoder would show as a regular expression.
_FORMS: Final = {
    "key": "is no key of a taint, as example.com/faulty",
    "pool_label": "is no key of a label, as example.com/pool",
    "value": "is no value of a taint, as faulty-gpu",
}


def _policy(table: Mapping[str, Any], *, place: str) -> Policy:
    pools = table.get("pools")
    for name, row in pools.items() if isinstance(pools, dict) else ():
        _struct(row, Budget, place=f"{place}.pools.{printable(name, 64)}")
    return _struct(table, Policy, place=place)


def _struct(table: Mapping[str, Any], kind: type[_Table], *, place: str) -> _Table:
    try:
        return decoding.convert(table, kind)
    except msgspec.ValidationError as error:
        message, _, where = str(error).partition(" - at `$")
        field = where.rstrip("`")
        if " matching regex " in message:
            message = _FORMS.get(field.removeprefix("."), "has a wrong form")
        names = ", ".join(one.encode_name for one in msgspec.structs.fields(kind))
        hint = f"allowed: {names}" if "unknown field" in message else f"leave it out for its default; allowed: {names}"
        raise SpecError(f"{place}{printable(field)}", printable(message), hint=hint) from None
