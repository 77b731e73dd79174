"""The operator's TOML file: policy, rules, checks, hooks and metric exporters, read again when it changes.

A file with any fault is refused as a whole; what was in force stays in force, and the fault is reported with
its place.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from rankfall.model import decoding
from rankfall.model.errors import SpecError
from rankfall.model.node_health.records import printable
from rankfall.nodes.checks.jobs import Check, checks_from
from rankfall.nodes.hooks.ladder import Hook, hooks_from
from rankfall.nodes.rules.fault_rules import Rules, packaged, rules_from
from rankfall.nodes.rules.gpu_metrics import Exporter, exporters_from
from rankfall.nodes.rules.policy import Policy

#: Names the file where no flag does.
ENVIRONMENT: Final = "RANKFALL_HEALTH_CONFIG"
MAX_FILE: Final = 1 << 20
_LISTS: Final = frozenset({"check", "hook", "metrics", "rule"})
_TABLES: Final = frozenset({"policy"})


class HealthConfig(msgspec.Struct, frozen=True, kw_only=True):
    """All that is in one file.

    Attributes:
        policy: ``[policy]``: budgets, rate, breaker, switches, the key of the taint.
        rules: ``[[rule]]``: the packaged rules as the file changes them.
        checks: ``[[check]]``: what a node must pass before it is given back, in this order; none = only a person gives one back.
        hooks: ``[[hook]]``: the ladder of remedies, gentlest first; none = nothing is mended by itself.
        exporters: ``[[metrics]]``: where metrics of GPUs are; none = nobody is asked.
    """

    policy: Policy
    rules: Rules
    checks: tuple[Check, ...] = ()
    hooks: tuple[Hook, ...] = ()
    exporters: tuple[Exporter, ...] = ()


def defaults() -> HealthConfig:
    """What holds without a file."""
    return HealthConfig(policy=Policy(), rules=packaged())


def parse_config(text: str, *, origin: str) -> HealthConfig:
    """Read the file's text.

    Args:
        text: TOML.
        origin: name of the file, for messages.

    Raises:
        SpecError: names file, section and field.
    """
    if len(text) > MAX_FILE:
        raise SpecError(origin, f"the file is larger than {MAX_FILE} characters")
    try:
        data = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # also of a number that is longer than Python reads
        raise SpecError(origin, f"not TOML: {printable(str(error))}") from None
    _check_shape(data, origin=origin)
    return HealthConfig(
        policy=_struct(data.get("policy", {}), Policy, place=f"{origin}: policy"),
        rules=Rules(rules_from(data.get("rule", ()), origin=origin)),
        checks=checks_from(data.get("check", ()), origin=origin),
        hooks=hooks_from(data.get("hook", ()), origin=origin),
        exporters=exporters_from(data.get("metrics", ()), origin=origin),
    )


def load_config(path: Path | None) -> HealthConfig:
    """The file's content; without a path, the defaults.

    Raises:
        SpecError: the file cannot be read, or anything in it is wrong.
    """
    return defaults() if path is None else parse_config(_text(path), origin=str(path))


class ConfigFile:
    """What a file says, as long as it can be read.

    Args:
        path: of the operator; None = the defaults alone.

    Attributes:
        config: what is in force.
        problem: what is wrong with the file as it is now; None = nothing.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._text_before: str | None = None
        self.config = defaults()
        self.problem: str | None = None

    def reload(self) -> bool:
        """Read the file again; true when something else is in force since."""
        if self._path is None:
            return False
        try:
            text = _text(self._path)
            if text == self._text_before:
                self.problem = None
                return False
            config = parse_config(text, origin=str(self._path))
        except SpecError as error:
            self.problem = f"{error.message}; the settings from before stay in force"
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


def _struct(table: Mapping[str, Any], kind: type[Policy], *, place: str) -> Policy:
    try:
        return decoding.convert(table, kind)
    except msgspec.ValidationError as error:
        raise SpecError(place, printable(str(error))) from None
