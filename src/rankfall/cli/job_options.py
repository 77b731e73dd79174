"""The options of ``run`` and ``submit`` that describe a job: a table, read by both verbs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from rankfall.cli.options import output_option

F = TypeVar("F", bound=Callable[..., Any])
_COUNT: Final = click.IntRange(min=1, max=100_000)
_OPTIONS: Final = (
    click.argument("command", nargs=-1, type=click.UNPROCESSED, metavar="SCRIPT [ARGS]... | -- CMD [ARGS]..."),
    click.option("-f", "--file", type=click.Path(path_type=Path), help="job.yaml; flags beat its fields."),
    click.option("--name", help="The run's id begins with it; default: the script's name."),
    click.option("--nnodes", metavar="N|MIN:MAX", help="Nodes; MIN:MAX is elastic."),
    click.option("--nproc-per-node", type=_COUNT, metavar="N", help="Ranks per node."),
    click.option("--max-restarts", type=click.IntRange(0, 1_000_000), metavar="N", help="New attempts in all."),
    click.option("-e", "--env", multiple=True, metavar="K=V", help="A variable for the job; K alone takes yours."),
    click.option("--launcher", metavar="auto|torchrun|plain|exec", help="Who starts the ranks."),
    click.option("--python", metavar="PATH", help="The job's Python."),
    click.option("--cwd", metavar="PATH", help="Where the job runs; default: here."),
    click.option(
        "--code", multiple=True, metavar="DIR", help="A folder whose files the job runs in; later ones on top."
    ),
    click.option(
        "--code-exclude", multiple=True, metavar="PATTERN", help="Leave this out of it; default: .git, __pycache__."
    ),
    click.option("--workspace", metavar="CLAIM[:PATH]", help="A volume for code and files, and where pods see it."),
    click.option("--log-dir", metavar="DIR", help="Keep log-allranks_0.out there, and a file a rank at the end."),
    click.option(
        "--log-store",
        metavar="volume:/PATH|s3://BUCKET/PREFIX",
        help="A shared volume or a bucket for the lines of ranks, instead of the API server.",
    ),
    click.option("--inside", metavar="auto|require|off", help="The recorder inside the ranks."),
    click.option("--hang-timeout", metavar="10m|never", help="No progress for so long is a hang."),
    click.option("--retryable", multiple=True, metavar="TYPE", help="Exceptions worth a new attempt."),
    click.option("--final", multiple=True, metavar="TYPE", help="Exceptions that end the run."),
    click.option("--budget", multiple=True, metavar="SLUG=N", help="New attempts for one cause or family."),
    click.option(
        "--strategy", metavar="NAME", help="How the root is chosen: causal, earliest, first-listed, or a plug-in's."
    ),
    click.option("--record-store", metavar="URL", help="Copies of all records: file:///DIR or s3://BUCKET/PREFIX."),
    click.option("--success", metavar="all|rank0|80%", help="When the job counts as done; a part is one of the slots."),
    click.option("--deadline", metavar="8h|never", help="Time of the whole run, over all attempts."),
    click.option("--startup-deadline", metavar="10m|never", help="Until every rank of an attempt is there."),
    click.option("--suspend", is_flag=True, help="Begin suspended; rankfall resume starts it."),
    click.option("--backend", metavar="local|job|jobset|trainjob", help="What runs the job; default: local processes."),
    click.option("--image", metavar="NAME", help="The container's image."),
    click.option("-n", "--namespace", metavar="NAME", help="Of the cluster; default: that of the context."),
    click.option("--context", metavar="NAME", help="Of the kubeconfig; default: its current one."),
    click.option("--gpus", type=click.IntRange(0, 1024), metavar="N", help="GPUs of each slot."),
    click.option("--cpu", metavar="8|500m", help="CPUs that each slot asks for."),
    click.option("--memory", metavar="64Gi", help="Memory of each slot, asked for and limit."),
    click.option("--queue", metavar="NAME", help="Kueue's local queue."),
    click.option("--exclude-node", multiple=True, metavar="NAME", help="A node that no slot may run on."),
    click.option("--ttl", metavar="1d", help="How long the objects of an ended run stay in the cluster."),
    click.option("--annotate", is_flag=True, help="Put the verdict on the job's object, for kubectl describe."),
    click.option("--unattended", is_flag=True, help="Let the platform run the job without a supervisor."),
    click.option("--request-token", metavar="TEXT", help="Names this request: the same one again gives the same run."),
    click.option(
        "--replace", is_flag=True, help="End what an earlier request of this token left running in the cluster."
    ),
    click.option("-m", "--module", is_flag=True, help="The first word is a module's name."),
    click.option("--dry-run", is_flag=True, help="Print what would be started; start nothing."),
    output_option("Format of --dry-run and of -d."),
    click.option("-q", "--quiet", is_flag=True, help="No output of the job, no progress; only how it ended."),
)


def job_options(function: F) -> F:
    """All options that describe a job, given to the verb by the names of :class:`rankfall.cli.jobs.Flags`."""
    for option in reversed(_OPTIONS):
        function = option(function)
    return function
