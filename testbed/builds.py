"""Binaries of the test bed, and the manifests that come with them: built once from their pinned sources, then found in the cache.

What is in the cache is used without Go and without a network. Nothing is ever replaced there: another version is another folder.
"""

from __future__ import annotations

import functools
import json
import os
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path

from testbed import commands, store, toolchain
from testbed.components import Component, choose, table
from testbed.errors import BuildError
from testbed.layout import cache_folder

Say = Callable[[str], None]
_TRIES = 3
_MIB = 1 << 20
_LONG_S = 100


def ensure(names: Iterable[str] | None = None, *, say: Say) -> dict[str, Path]:
    """The path of each binary; what is not in the cache is built.

    Args:
        names: of components; those that every bed needs where none are given.
        say: takes lines of progress.

    Raises:
        BuildError: no such component, or a build failed; the message has its last lines.
    """
    chosen = choose(names)
    missing = [component for component in chosen if not folder(component).is_dir()]
    if len(missing) > 1:
        total = sum(component.seconds for component in missing)
        say(f"to build: {', '.join(one.name for one in missing)}; about {_minutes(total)} on 2 cores")
    paths: dict[str, Path] = {}
    for component in chosen:
        fill = functools.partial(_build, component, say)
        entry = store.make(folder(component), fill, what=component.name, say=say)
        paths |= {name: entry / name for name in component.binaries}
    return paths


def files(name: str, *, say: Say = lambda _: None) -> Path:
    """The folder of a component's own manifests, with the paths that they have in its module.

    Raises:
        BuildError: as for ``ensure``, or this component keeps no files.
    """
    (component,) = choose([name])
    if not component.files:
        raise BuildError(
            f"{name} keeps no files of its module", hint="name the folders under `files` in components.toml"
        )
    ensure([name], say=say)
    return folder(component) / "files"


def folder(component: Component) -> Path:
    """Where the cache keeps a component, whether it is there or not."""
    return cache_folder() / "bin" / component.key


def prune() -> list[Path]:
    """Remove what the table no longer names: old versions, and what killed builds left. Says what was removed."""
    return store.prune(cache_folder() / "bin", {component.key for component in table().values()})


def _build(component: Component, say: Say, scratch: Path) -> None:
    _check_space(component)
    log = cache_folder() / "logs" / f"build-{component.name}.log"
    log.unlink(missing_ok=True)
    say(f"{component.name} {component.version}: building, about {_minutes(component.seconds)} on 2 cores")
    if component.binaries:
        _compile(component, scratch, log, say)
    if component.files:
        source = _module(component, log, say)
        for path in component.files:
            _copy(source / path, scratch / "files" / path)
    say(f"{component.name} {component.version}: done")


def _compile(component: Component, scratch: Path, log: Path, say: Say) -> None:
    # One command for all: the packages that they share are compiled once, and two links run at a time.
    products = scratch / "products"
    products.mkdir()
    flags = ["-mod=readonly", "-trimpath", "-buildvcs=false", f"-ldflags={' '.join(('-s', '-w', *component.ldflags))}"]
    command = [str(toolchain.program()), "build", "-v", *flags, "-o", f"{products}/", *component.binaries.values()]
    _run(component, command, component.sources, log, say)
    for name, package in component.binaries.items():
        (products / _product(package)).rename(scratch / name)
    products.rmdir()


def _module(component: Component, log: Path, say: Say) -> Path:
    """The module's own folder, in Go's cache; read-only there."""
    if component.binaries:
        return Path(
            toolchain.ask(
                component.sources, ["list", "-mod=readonly", "-m", "-f", "{{.Dir}}", component.module]
            ).strip()
        )
    # Without a go.mod the checksum is in the table. The folder must not be inside another module.
    neutral = log.parent
    neutral.mkdir(parents=True, exist_ok=True)
    name = f"{component.module}@{component.version}"
    _run(component, [str(toolchain.program()), "mod", "download", "-x", name], neutral, log, say)
    found = json.loads(toolchain.ask(neutral, ["mod", "download", "-json", name]))
    if found["Sum"] != component.sum:
        raise BuildError(f"{name} is not what the table names: it has the sum {found['Sum']}, not {component.sum}")
    return Path(found["Dir"])


def _run(component: Component, command: list[str], where: Path, log: Path, say: Say) -> None:
    for left in reversed(range(_TRIES)):
        try:
            commands.run(
                command,
                log=log,
                what=component.name,
                seconds=component.seconds,
                say=say,
                env=toolchain.environment(),
                folder=where,
            )
        except commands.CommandError as failure:
            if not (failure.network and left):
                raise failure.explain(f"{component.name} could not be built") from failure
            say(f"{component.name}: the network failed; trying again, what was downloaded is kept")
        else:
            return


def _product(package: str) -> str:
    """The name that ``go build`` gives to a program: the last word of its path that is no version."""
    words = package.rstrip("/").split("/")
    is_version = words[-1][:1] == "v" and words[-1][1:].isdigit() and len(words) > 1
    return words[-2] if is_version else words[-1]


def _copy(source: Path, target: Path) -> None:
    if not source.is_dir():
        raise BuildError(f"the module has no folder {source}", hint="correct `files` in components.toml")
    shutil.copytree(source, target, copy_function=shutil.copyfile)
    # Go's module cache is read-only; a copy that cannot be removed would stay for ever.
    for path in (target, *target.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)


def _check_space(component: Component) -> None:
    go_cache = Path(os.environ.get("GOCACHE") or Path.home() / ".cache")
    for place in (cache_folder(), go_cache):
        there = next(path for path in (place, *place.parents) if path.exists())
        free = shutil.disk_usage(there).free // _MIB
        if free < component.space_mib:
            raise BuildError(
                f"{component.name} needs about {component.space_mib} MiB to be built, and {there} has {free} MiB left",
                hint="free some, or keep the caches on another disk: TESTBED_CACHE, GOCACHE, GOMODCACHE",
            )


def _minutes(seconds: int) -> str:
    return f"{seconds} s" if seconds < _LONG_S else f"{seconds / 60:.0f} min"
