"""The table of what the test bed builds, and the name under which the cache keeps each: it changes with whatever could change the result."""

from __future__ import annotations

import hashlib
import platform
import tomllib
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Literal

import msgspec

from testbed.errors import BuildError

Group = Literal["core", "image", "demand", "files", "other"]
SOURCES = Path(__file__).parent / "go"
_TABLE = Path(__file__).parent / "components.toml"
# Raised when the same sources would be laid out in another way.
_RECIPE = "1"


class Component(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One row of ``components.toml``; that file says what the columns mean."""

    name: str
    module: str
    version: str
    group: Group
    seconds: int
    space_mib: int
    binaries: Mapping[str, str] = msgspec.field(default_factory=dict)
    files: tuple[str, ...] = ()
    ldflags: tuple[str, ...] = ()
    sum: str = ""

    @property
    def minor(self) -> tuple[int, int]:
        """Major and minor number of its version."""
        major, minor = self.version.removeprefix("v").split(".")[:2]
        return int(major), int(minor)

    @property
    def sources(self) -> Path:
        """Its go.mod, go.sum and Go files; a component of files alone has no such folder."""
        return SOURCES / self.name

    @property
    def key(self) -> str:
        """Name of its folder in the cache."""
        digest = hashlib.sha256()
        row = (self.module, self.version, sorted(self.binaries.items()), self.files, self.ldflags, self.sum)
        for part in (_RECIPE, repr(row), go_version(), platform.machine()):
            digest.update(f"{part}\n".encode())
        for path in sorted(self.sources.rglob("*")):
            if path.is_file():
                digest.update(f"{path.relative_to(self.sources)}\n".encode() + path.read_bytes())
        return f"{self.name}-{self.version}-{digest.hexdigest()[:12]}"


@cache
def table() -> dict[str, Component]:
    """All components, by name."""
    rows = tomllib.loads(_TABLE.read_text())["component"]
    return {name: _component(name, row) for name, row in rows.items()}


def _component(name: str, row: dict[str, Any]) -> Component:
    one = msgspec.convert({"name": name, **row}, Component)
    if not one.ldflags:
        return one
    major, minor = one.minor
    flags = [flag.format(version=one.version, major=major, minor=minor) for flag in one.ldflags]
    return msgspec.structs.replace(one, ldflags=tuple(flags))


def version_sets() -> dict[str, dict[str, str]]:
    """Sets of other versions, by name: core component -> the row that takes its place."""
    return dict(tomllib.loads(_TABLE.read_text())["versions"])


def core(versions: str = "") -> dict[str, str]:
    """The components that every bed needs, and the row of each: its own, or that of a set of other versions.

    Args:
        versions: name of the set; the usual versions where it is empty.

    Raises:
        BuildError: there is no such set.
    """
    sets = {"": dict[str, str](), **version_sets()}
    if versions not in sets:
        known = ", ".join(version_sets())
        raise BuildError(
            f"there is no set of versions {versions!r}", hint=f"unset TESTBED_VERSIONS, or choose of: {known}"
        )
    return {name: sets[versions].get(name, name) for name, row in table().items() if row.group == "core"}


@cache
def go_version() -> str:
    """The Go version that all is built with."""
    return str(tomllib.loads(_TABLE.read_text())["go"]["version"])


def choose(names: Iterable[str] | None) -> list[Component]:
    """The components of these names; those that every bed needs where none are given.

    Raises:
        BuildError: no component has that name.
    """
    if names is None:
        return [table()[name] for name in core()]
    wanted = list(dict.fromkeys(names))
    unknown = [name for name in wanted if name not in table()]
    if unknown:
        raise BuildError(
            f"there is nothing to build under the name {', '.join(unknown)}", hint=f"choose of: {', '.join(table())}"
        )
    return [table()[name] for name in wanted]
