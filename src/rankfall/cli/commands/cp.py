"""``cp``: copies files to and from a run's folder or volume."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Final

import click

from rankfall.backends.files import Place, place_of
from rankfall.cli import console
from rankfall.cli.target import read_home
from rankfall.model import Kubernetes, UsageError, Workspace
from rankfall.rundir import RunDir

_HELP: Final = """Copy files to a run's folder and back.

PATH is where the run's command sees it: relative to its code directory, or absolute on its volume. It becomes the copy's name; ending with a
slash it is a folder to copy into. Files that already exist there are not sent again, and an interrupted copy resumes.

\b
  rankfall cp data.csv configs/ train-608d43:inputs/
  rankfall cp train-608d43:checkpoints/last.pt .
  rankfall cp --claim datasets --image python:3.12-slim corpus/ :corpus
"""


@click.command("cp", help=_HELP)
@click.argument("paths", nargs=-1, required=True, metavar="SRC... DEST")
@click.option("--claim", metavar="NAME", help="A PersistentVolumeClaim; paths on it are written :PATH.")
@click.option("--image", metavar="NAME", help="Image of the pod that copies, with sh and Python; default: the run's.")
@click.option("-n", "--namespace", metavar="NAME", help="Namespace of the claim; default: that of the context.")
@click.option("--context", metavar="NAME", help="Context of the kubeconfig; default: the current one.")
@click.option("--exclude", multiple=True, metavar="PATTERN", help="Skip names or paths that match.")
@click.option("-q", "--quiet", is_flag=True, help="Print nothing on success.")
def cp(
    *,
    paths: tuple[str, ...],
    claim: str | None,
    image: str | None,
    namespace: str | None,
    context: str | None,
    exclude: tuple[str, ...],
    quiet: bool,
) -> int:
    """Runs ``rankfall cp``; returns the exit code."""
    sources, dest = paths[:-1], paths[-1]
    there = [split(path) for path in paths]
    remote = [one for one in there if one is not None]
    if len(remote) != 1 or (there[-1] is None and len(sources) > 1) or not sources:
        raise UsageError(
            "cp needs one local side and one side in a run",
            hint="rankfall cp SRC... RUN:PATH, or rankfall cp RUN:PATH LOCAL; a file with a colon in its name: ./a:b",
        )
    run, path = remote[0]
    place = _place(run, claim=claim, image=image, namespace=namespace, context=context, quiet=quiet)
    if place is None:
        return 0
    from rankfall.backends import files  # noqa: PLC0415

    if there[-1] is not None:
        work = files.put(place, [Path(source) for source in sources], path, exclude=exclude)
    else:
        into = dest.endswith("/") or Path(dest).name in {"", "..", "."}
        work = files.get(place, path, Path(dest), into=into and not path.endswith("/"), exclude=exclude)
    done = asyncio.run(work)
    there_already = f", {done.same} were there already" if done.same else ""
    console.say(f"rankfall: {done.files} files, {done.sent} bytes sent{there_already}", quiet=quiet)
    return 0


def split(text: str) -> tuple[str, str] | None:
    """Splits ``RUN:PATH``; None for a local path."""
    run, colon, path = text.partition(":")
    return (run, path) if colon and "/" not in run and run not in {".", ".."} else None


def _place(
    run: str, *, claim: str | None, image: str | None, namespace: str | None, context: str | None, quiet: bool
) -> Place | None:
    def say(text: str) -> None:
        console.say(f"rankfall: {text}", quiet=quiet)

    if claim is not None:
        if run:
            raise UsageError(f"--claim and the run {run!r} contradict each other", hint=f"write :{'PATH'} with --claim")
        if image is None:
            raise UsageError(
                "--claim needs --image: a pod copies the files",
                hint="name any image with sh and Python 3.8, as --image python:3.12-slim",
            )
        from rankfall.backends.kubernetes.copy.workspace import place_of_claim  # noqa: PLC0415

        section = Kubernetes(
            namespace=namespace, context=context, workspace=Workspace(claim=claim, path="/volume", image=image)
        )
        return place_of_claim(section, say=say)
    if not run:
        raise UsageError(
            "the name of the run before the colon is missing", hint="rankfall cp SRC... RUN:PATH, or --claim NAME"
        )
    if namespace is not None or context is not None:
        raise UsageError(
            "-n and --context are only for --claim: a run knows its namespace and context",
            hint="leave -n and --context out, or use --claim",
        )
    directory = RunDir.open(read_home(), run)
    found = place_of(directory, say=say, image=image)
    if found is None:
        console.say(f"rankfall: run {directory.id} has no volume (kubernetes.workspace), so there is nothing to copy")
    return found
