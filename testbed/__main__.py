"""``python -m testbed``: up, down, status, kubeconfig, logs, build, prune.

``TESTBED_VERSIONS`` names a set of other versions of Kubernetes, JobSet and Trainer (components.toml).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Sequence

from testbed import bed, builds, components, images, packages, process
from testbed.errors import TestbedError
from testbed.layout import MAX_BEDS, Layout

CORE_IMAGES = ("pause", "python", "static")
_TAIL_LINES = 200


def say(line: str) -> None:
    """Progress goes to stderr; what is asked for goes to stdout."""
    print(f"testbed: {line}", file=sys.stderr, flush=True)


def assemble(layout: Layout, *, extra_images: Sequence[str] = ()) -> bed.Bed:
    """A bed with its binaries and images, built where they are not in the cache.

    Args:
        layout: its names.
        extra_images: beside the ones that every bed has.

    Raises:
        TestbedError: something cannot be built, or the bed is up with other versions.
    """
    reason = bed.unsupported()
    if reason:
        raise TestbedError(reason)
    versions = os.environ.get("TESTBED_VERSIONS", "")
    # Before the builds, which may take long.
    bed.check_versions(layout, versions)
    packages.ensure(say=say)
    rows = components.core(versions)
    binaries = builds.ensure(rows.values(), say=say)
    archives = images.ensure([*CORE_IMAGES, *extra_images], say=say)
    files = {name: builds.files(rows[name]) for name in ("jobset", "trainer")}
    return bed.Bed(layout, binaries=binaries, files=files, images=list(archives.values()), versions=versions, say=say)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m testbed", description="A real Kubernetes on one machine, for tests."
    )
    parser.add_argument(
        "--bed",
        type=int,
        default=int(os.environ.get("TESTBED", "0")),
        metavar="N",
        help="number of the bed, 0 to 63: several may run side by side (default: $TESTBED or 0)",
    )
    commands = parser.add_subparsers(dest="command", required=True)
    up = commands.add_parser("up", help="start it; builds what is missing the first time")
    up.add_argument("--nodes", type=int, default=2, help="real nodes (default: 2)")
    commands.add_parser("down", help="end and remove everything of it")
    commands.add_parser("status", help="what runs, as JSON")
    commands.add_parser("kubeconfig", help="path of the administrator's kubeconfig")
    logs = commands.add_parser("logs", help="the last lines of a component's log")
    logs.add_argument("component", help="as status names it, e.g. kube-apiserver, n1-kubelet")
    build = commands.add_parser("build", help="build binaries and images without starting anything")
    build.add_argument(
        "--all",
        action="store_true",
        help="also what is started on demand only: KWOK, Loki, other images; not the sets of other versions",
    )
    build.add_argument("names", nargs="*", help="components and images (default: all that a bed needs)")
    commands.add_parser("prune", help="remove versions from the cache that this checkout no longer names")
    given = parser.parse_args(arguments)
    try:
        return _run(given)
    except TestbedError as error:
        print(f"testbed: {error}", file=sys.stderr)
        return 1
    except subprocess.TimeoutExpired as error:
        print(f"testbed: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("testbed: interrupted; python -m testbed down removes what was started", file=sys.stderr)
        return 130


def _run(given: argparse.Namespace) -> int:
    layout = Layout(given.bed)
    if given.command == "up":
        assemble(layout).up(nodes=given.nodes)
    elif given.command == "down":
        bed.down(layout)
        say(f"bed {layout.number} is gone")
    elif given.command == "status":
        print(json.dumps(bed.status(layout), indent=2))
    elif given.command == "kubeconfig":
        if not bed.is_up(layout):
            raise TestbedError(f"test bed {layout.number} is not up", hint="start it: make testbed-up")
        print(layout.kubeconfig())
    elif given.command == "logs":
        path = layout.logs / f"{given.component}.log"
        if path.parent != layout.logs or not path.is_file():
            known = ", ".join(sorted(item.stem for item in layout.logs.glob("*.log"))) or "none: it is not up"
            raise TestbedError(f"there is no component {given.component!r}", hint=f"components: {known}")
        print(process.tail(path, _TAIL_LINES))
    elif given.command == "prune":
        _prune()
    else:
        usual = [name for name, recipe in images.RECIPES.items() if not recipe.seldom]
        rows = [name for name, row in components.table().items() if row.group != "other"]
        _build([*rows, *usual] if given.all else given.names)
    return 0


def _prune() -> None:
    for number in range(MAX_BEDS):
        if bed.is_up(Layout(number)):
            raise TestbedError(
                f"test bed {number} is up, and may run what would be removed",
                hint=f"end it first: python -m testbed --bed {number} down",
            )
    for path in (*builds.prune(), *images.prune()):
        print(path)


def _build(names: Sequence[str]) -> None:
    wanted_images = [name for name in names if name in images.NAMES]
    wanted = [name for name in names if name not in images.NAMES]
    packages.ensure(say=say)
    if wanted or not names:
        builds.ensure(wanted or None, say=say)
    if wanted_images or not names:
        images.ensure(wanted_images or CORE_IMAGES, say=say)


if __name__ == "__main__":
    sys.exit(main())
