"""``controller``: runs the node health controller; its ``manifests`` need no cluster."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from rankfall.cli import console
from rankfall.cli.options import health_config_option
from rankfall.model import UsageError
from rankfall.model.patterns import anchored

if TYPE_CHECKING:
    from rankfall.nodes.controller.main import Controller

_DIGEST: Final = anchored(r"[^\s@]+@sha256:[0-9a-f]{64}", limit=1_024)
_NAME: Final = anchored(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", limit=1_024)


@click.command("manifests")
@click.option("--image", required=True, metavar="NAME@sha256:…")
@click.option("-n", "--namespace", default="rankfall", show_default=True)
@click.option("--loki-url", metavar="URL")
@click.option("--agent/--no-agent", default=True, show_default=True)
@click.option(
    "--accept-injected-kmsg",
    is_flag=True,
)
@click.option(
    "--admission-policy",
    is_flag=True,
)
@health_config_option
def manifests(
    *,
    image: str,
    namespace: str,
    loki_url: str | None,
    agent: bool,
    accept_injected_kmsg: bool,
    admission_policy: bool,
    config: Path | None,
) -> None:
    """Print namespace, accounts, rights, Deployment and DaemonSet of node health, as YAML.

    For kubectl apply -f -; the --config file becomes a ConfigMap.
    """
    import yaml  # noqa: PLC0415

    from rankfall.nodes.manifests.cluster import cluster_objects  # noqa: PLC0415

    if not _DIGEST.fullmatch(image):
        raise UsageError(
            f"--image {image[:200]!r} has no digest, so its name could later mean another image",
            hint="give NAME@sha256:…; docker buildx imagetools inspect NAME, or the output of docker push, shows it",
        )
    if not _NAME.fullmatch(namespace):
        raise UsageError(f"{namespace[:80]!r} cannot be the name of a namespace")
    objects = cluster_objects(
        namespace=namespace,
        image=image,
        loki_url=loki_url,
        agent=agent,
        injected=accept_injected_kmsg,
        admission=admission_policy,
        config=config,
    )
    console.out("---\n".join(_text(yaml, item) for item in objects).rstrip("\n"))


def _text(yaml: Any, item: dict[str, Any]) -> str:
    text: str = yaml.safe_dump(item, sort_keys=False, width=1000)
    return text


@click.group("controller", invoke_without_command=True)
@click.option(
    "--loki-url",
    metavar="URL",
)
@click.option(
    "--config",
    metavar="FILE",
)
@click.option(
    "-n",
    "--namespace",
    default=None,
)
@click.option("--context", metavar="NAME")
@click.option("--kubeconfig", metavar="FILE")
@click.option("--dry-run", is_flag=True)
@click.option(
    "--watch",
    "watched",
    metavar="NAMES",
)
@click.option(
    "--stream", "streams", multiple=True, metavar="NAMESPACE/NAME",

)  # fmt: skip
@click.option(
    "--poll",
    type=click.FloatRange(min=0.2, max=300),
    default=5.0,
    show_default=True,
)
@click.option(
    "--look-back",
    type=click.IntRange(min=0, max=86_400),
    default=600,
    show_default=True,
)
@click.option("--shared-kernel-node", metavar="NODE")
@click.option(
    "--accept-injected-kmsg",
    is_flag=True,
)
@click.option("--metrics-address", metavar="HOST:PORT")
@click.pass_context
def controller(
    ctx: click.Context,
    *,
    loki_url: str | None,
    config: str | None,
    namespace: str | None,
    context: str | None,
    kubeconfig: str | None,
    dry_run: bool,
    watched: str | None,
    streams: tuple[str, ...],
    poll: float,
    look_back: int,
    shared_kernel_node: str | None,
    accept_injected_kmsg: bool,
    metrics_address: str | None,
) -> None:
    """Watch all nodes for GPU and host faults, and keep the scheduler off bad ones.

    Logs to stderr; prints decisions as JSON lines to stdout. Ctrl-C releases its lease.
    """
    if ctx.invoked_subcommand is not None:
        return
    _log_to_stderr()
    from rankfall.model.numbers import address_of  # noqa: PLC0415
    from rankfall.nodes.config import ENVIRONMENT  # noqa: PLC0415
    from rankfall.nodes.controller import settings as given  # noqa: PLC0415
    from rankfall.nodes.controller.main import (  # noqa: PLC0415
        Controller,
        find_access,
    )

    environ = os.environ
    settings = given.Settings(
        namespace=given.namespace_of(namespace, environ),
        identity=f"{environ.get('POD_NAME') or socket.gethostname()}-{uuid.uuid4().hex[:6]}",
        loki=given.loki_of(loki_url, environ),
        log_type=given.log_type_of(environ),
        watched=given.watched_of(watched if watched is not None else environ.get("WATCHED_NAMESPACES")),
        streams=tuple(given.stream_of(each) for each in streams) or (given.DMESG, given.AGENT),
        poll_s=poll,
        look_back_s=look_back,
        shared_kernel_node=shared_kernel_node,
        web=None if metrics_address is None else address_of(metrics_address),
        dry_run=dry_run,
        accept_injected=accept_injected_kmsg,
    )
    path = config or environ.get(ENVIRONMENT)
    access = find_access(kubeconfig=kubeconfig, context=context, environ=environ)
    one = Controller(settings, access=access, config=Path(path) if path else None, audit=console.out)
    asyncio.run(_wait_for_signal(one))


controller.add_command(manifests)


def _log_to_stderr() -> None:
    from rankfall.nodes.controller.notifier import DATE_FORMAT, FORMAT, LOG  # noqa: PLC0415

    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter(FORMAT, DATE_FORMAT))
    LOG.handlers[:] = [handler]
    LOG.setLevel(logging.INFO)
    LOG.propagate = False


async def _wait_for_signal(one: Controller) -> None:
    """Runs until SIGTERM or SIGINT; raises single errors."""
    running = asyncio.create_task(one.run())
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, running.cancel)
    try:
        with contextlib.suppress(asyncio.CancelledError):
            await running
    except BaseExceptionGroup as group:
        raise _first(group) from None


def _first(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
