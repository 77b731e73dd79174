"""Click options and arguments of several verbs."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from rankfall.cli.console import Output
from rankfall.cli.target import Where
from rankfall.cli.values import parse_size
from rankfall.model import RankfallError

F = TypeVar("F", bound=Callable[..., Any])

_RANKS = "0,8-15|first|last|failed"


def output_option(text: str = "Format.") -> Callable[[F], F]:
    """Adds ``-o table|json|yaml`` as ``output: Output``."""
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
    """Adds the argument ``run``: a run's id or prefix; without it the newest run."""
    return click.argument("run", required=False, metavar="[RUN]")(function)


def target_argument(function: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the arguments ``run`` and ``where``: a run, or a cluster job not started by Rankfall."""

    @functools.wraps(function)
    def with_where(
        *, namespace: str | None, context: str | None, kubeconfig: str | None, no_exec: bool, **rest: Any
    ) -> Any:
        where = Where(namespace=namespace, context=context, kubeconfig=kubeconfig, no_exec=no_exec)
        return function(where=where, **rest)

    return click.argument("run", required=False, metavar="[RUN | KIND/NAME]")(place_options(with_where))


def place_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Adds ``-n``, ``--context``, ``--kubeconfig`` and ``--no-exec``, for jobs not started by Rankfall."""
    function = click.option("--no-exec", is_flag=True, help="Of KIND/NAME: run no command in its pods to find ranks.")(
        function
    )
    function = click.option(
        "--kubeconfig", metavar="FILE", help="Kubeconfig for KIND/NAME; default: as kubectl finds it."
    )(function)
    function = click.option("--context", metavar="NAME", help="Context for KIND/NAME; default: the current one.")(
        function
    )
    return click.option(
        "-n", "--namespace", metavar="NAME", help="Namespace of KIND/NAME; default: that of the context."
    )(function)


def cluster_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Adds ``--context`` and ``--kubeconfig`` as ``where``."""

    @functools.wraps(function)
    def with_where(*, context: str | None, kubeconfig: str | None, **rest: Any) -> Any:
        return function(where=Where(context=context, kubeconfig=kubeconfig), **rest)

    made = click.option("--kubeconfig", metavar="FILE", help="Kubeconfig file; default: as kubectl finds it.")(
        with_where
    )
    return click.option("--context", metavar="NAME", help="Context of the kubeconfig; default: the current one.")(made)


def health_config_option(function: F) -> F:
    """Adds ``--config FILE``, policy and rules of node health, as ``config``."""
    return click.option(
        "--config",
        envvar="RANKFALL_HEALTH_CONFIG",
        type=click.Path(path_type=Path, dir_okay=False),
        metavar="FILE",
        help="TOML file with policy and rules of node health; default: $RANKFALL_HEALTH_CONFIG, else the packaged ones.",
    )(function)


def redact_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """Adds ``--redact`` as ``redact: Redactor | None``, which also masks errors."""

    @functools.wraps(function)
    def masked(*, redact: bool, **rest: Any) -> Any:
        from rankfall.render.escape import Redactor  # noqa: PLC0415

        redactor = Redactor() if redact else None
        try:
            return function(redact=redactor, **rest)
        except RankfallError as error:
            if redactor is not None:
                error.message = redactor.text(error.message)
                error.hint = error.hint and redactor.text(error.hint)
            raise

    return click.option("--redact", is_flag=True, help="Mask secrets in the output.")(masked)


def max_bytes(function: F) -> F:
    """Adds ``--max-bytes SIZE``, in bytes."""
    return click.option(
        "--max-bytes",
        metavar="SIZE",
        callback=lambda ctx, param, value: parse_size(value, flag="--max-bytes") if value else None,  # noqa: ARG005 - click's signature
        help="Maximum output to show, as 10M; the run stores all of it.",
    )(function)


def rank_options(function: F) -> F:
    """Adds ``--rank``, ``--all`` and ``--max-bytes``, for verbs that show a live run's lines."""
    function = max_bytes(function)
    function = click.option("--all", "everything", is_flag=True, help="Show the output of all ranks.")(function)
    return click.option("--rank", multiple=True, metavar=_RANKS, help="Show the output of these ranks.")(function)
