"""What can be checked on a node before it is given back: a table of commands in images. An operator turns rows on, changes them and adds own ones."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from functools import cache
from importlib import resources
from typing import Annotated, Any, Final, Literal

import msgspec

from rankfall.model import decoding
from rankfall.model.errors import SpecError
from rankfall.model.health import shown

#: A command that ends with this could not tell; that is no pass.
CANNOT_TELL: Final = 75

_Name = Annotated[str, msgspec.Meta(pattern=r"^[a-z0-9]([a-z0-9-]{0,28}[a-z0-9])?$(?!\n)")]
_Word = Annotated[str, msgspec.Meta(max_length=65_536)]
_Limit = Annotated[int, msgspec.Meta(ge=1, le=86_400)]


class Check(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One check: a Job on the node.

    Attributes:
        image: with the command in it.
        command: ends with 0 for passed, 75 for "cannot tell", anything else for failed.
        env: of the command; ``EXPECTED``, ``GPUS``, ``NODE``, ``NODE_RANK``, ``MASTER`` and ``SCRIPT`` are added.
        script: a packaged file whose text is in ``SCRIPT``.
        expected: the number that it is measured by: GPUs, GB/s.
        needs_expected: without that number nothing could be told.
        gpus: it gets all GPUs that the node offers, as ``gpu_resource``.
        nodes: 2 = together with a node that is healthy.
        timeout_s: it has failed when it is not over by then.
        wait_s: it could not be made when it has not begun by then.
        host_network: it sees the node's own links.
        tolerate: keys of taints that it passes beside ours.
    """

    name: _Name
    image: _Word
    command: Annotated[tuple[_Word, ...], msgspec.Meta(min_length=1)]
    env: dict[str, _Word] = {}
    script: str | None = None
    expected: float | None = None
    needs_expected: bool = False
    gpus: bool = False
    gpu_resource: str = "nvidia.com/gpu"
    nodes: Literal[1, 2] = 1
    timeout_s: _Limit = 60
    wait_s: _Limit = 120
    host_network: bool = False
    tolerate: tuple[str, ...] = ()


def checks_from(rows: Sequence[dict[str, Any]], *, origin: str) -> tuple[Check, ...]:
    """The checks of an operator's file, in its order; one with a packaged name has all that it does not change from there.

    Raises:
        SpecError: names file, check and field.
    """
    found: list[Check] = []
    for number, row in enumerate(rows, start=1):
        name = row.get("name")
        place = f"{origin}: check {number}" + (f" ({shown(name, 40)})" if isinstance(name, str) else "")
        before: dict[str, Any] = packaged_checks().get(name, {}) if isinstance(name, str) else {}
        env = {**before.get("env", {}), **row["env"]} if isinstance(row.get("env"), dict) else before.get("env", {})
        try:
            check = decoding.convert(
                {**before, **row, **({} if "env" in row and not isinstance(row["env"], dict) else {"env": env})}, Check
            )
        except msgspec.ValidationError as error:
            raise SpecError(place, shown(str(error)), hint=f"packaged: {', '.join(packaged_checks())}") from None
        if check.needs_expected and check.expected is None:
            raise SpecError(
                f"{place}: expected", "is needed: without a number nothing can be told", hint="expected = 8"
            )
        if check.script is not None and check.script not in _scripts():
            raise SpecError(f"{place}: script", f"there is no packaged script {shown(check.script, 40)}")
        if check.name in {each.name for each in found}:
            raise SpecError(f"{place}: name", "there is a check of this name in this file already")
        found.append(check)
    return tuple(found)


@cache
def packaged_checks() -> dict[str, dict[str, Any]]:
    """Rows of the table by name, without what only an operator knows: the image, and the number that is expected."""
    table = tomllib.loads(_data("checks.toml"))
    return {name: {"name": name, **row} for name, row in table.items()}


def script_text(name: str) -> str:
    """A packaged script."""
    return _data(name)


def _scripts() -> frozenset[str]:
    return frozenset(row["script"] for row in packaged_checks().values() if "script" in row)


def _data(name: str) -> str:
    return resources.files("rankfall.health").joinpath("data", name).read_text("utf-8")
