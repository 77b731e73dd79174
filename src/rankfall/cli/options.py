"""Click options and arguments that several verbs share."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from rankfall.cli.console import Output
from rankfall.cli.target import Where
from rankfall.cli.values import parse_size

F = TypeVar("F", bound=Callable[..., Any])

_RANKS = "0,8-15|first|last|failed"


def output_option(text: str = "Format.") -> Callable[[F], F]:
    """``-o table|json|yaml``, given to the verb as ``output: Output``."""
    return click.option(
        "-o",
        "--output",
        type=click.Choice([form.value for form in Output]),
        default=Output.TABLE.value,
        show_default=True,
        callback=lambda ctx, param, value: Output(value),  # noqa: ARG005 - click's signature
        help=text,
    )


def run_argument(function: F) -> F:
    """A run's id, or its beginning, or none for the newest run."""
    return click.argument("run", required=False, metavar="[RUN]")(function)


def target_argument(function: Callable[..., Any]) -> Callable[..., Any]:
    """A run, or a job of a cluster that Rankfall did not start, with where that is; given to the verb as ``run`` and ``where``."""

    @functools.wraps(function)
    def with_where(
        *, namespace: str | None, context: str | None, kubeconfig: str | None, no_exec: bool, **rest: Any
    ) -> Any:
        where = Where(namespace=namespace, context=context, kubeconfig=kubeconfig, no_exec=no_exec)
        return function(where=where, **rest)

    return click.argument("run", required=False, metavar="[RUN | KIND/NAME]")(place_options(with_where))


def place_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """``-n``, ``--context``, ``--kubeconfig`` and ``--no-exec``: where a job is that Rankfall did not start, and how it may be looked at."""
    function = click.option("--no-exec", is_flag=True, help="Of KIND/NAME: do not look into its pods for the ranks.")(
        function
    )
    function = click.option("--kubeconfig", metavar="FILE", help="Of KIND/NAME; default: as kubectl finds it.")(
        function
    )
    function = click.option("--context", metavar="NAME", help="Of KIND/NAME; default: the current one.")(function)
    return click.option("-n", "--namespace", metavar="NAME", help="Of KIND/NAME; default: that of the context.")(
        function
    )


def cluster_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """``--context`` and ``--kubeconfig``: which cluster, given to the verb as ``where``."""

    @functools.wraps(function)
    def with_where(*, context: str | None, kubeconfig: str | None, **rest: Any) -> Any:
        return function(where=Where(context=context, kubeconfig=kubeconfig), **rest)

    made = click.option("--kubeconfig", metavar="FILE", help="Default: as kubectl finds it.")(with_where)
    return click.option("--context", metavar="NAME", help="Of the kubeconfig; default: the current one.")(made)


def health_config_option(function: F) -> F:
    """``--config FILE``: policy and rules of node health, given to the verb as ``config``."""
    return click.option(
        "--config",
        envvar="RANKFALL_HEALTH_CONFIG",
        type=click.Path(path_type=Path, dir_okay=False),
        metavar="FILE",
        help="Policy and rules of node health, as TOML; default: $RANKFALL_HEALTH_CONFIG, else the packaged ones.",
    )(function)


def max_bytes(function: F) -> F:
    """``--max-bytes SIZE``, given to the verb as a number of bytes."""
    return click.option(
        "--max-bytes",
        metavar="SIZE",
        callback=lambda ctx, param, value: parse_size(value, flag="--max-bytes") if value else None,  # noqa: ARG005 - click's signature
        help="Show at most so much output, as 10M; all of it is kept.",
    )(function)


def rank_options(function: F) -> F:
    """``--rank``, ``--all`` and ``--max-bytes`` of the verbs that show a live run."""
    function = max_bytes(function)
    function = click.option("--all", "everything", is_flag=True, help="Show the output of all ranks.")(function)
    return click.option("--rank", multiple=True, metavar=_RANKS, help="Show the output of these.")(function)
