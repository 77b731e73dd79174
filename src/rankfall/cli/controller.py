"""``controller``: watches all nodes for faults and keeps the scheduler away from bad ones, in a pod or from any machine with a kubeconfig."""

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
from typing import TYPE_CHECKING

import click

from rankfall.cli import emit
from rankfall.cli.manifests import manifests

if TYPE_CHECKING:
    from rankfall.health.controller.main import Controller


@click.group("controller", invoke_without_command=True)
@click.option(
    "--loki-url",
    metavar="URL",
    help="Where Loki is; default: $LOG_ENDPOINT or $RANKFALL_LOKI_URL. Tenant and credentials: $RANKFALL_LOKI_*.",
)
@click.option(
    "--config", metavar="FILE", help="Policy and rules, as TOML; read again when it changes. $RANKFALL_HEALTH_CONFIG."
)
@click.option("-n", "--namespace", default=None, help="Of its own lease, state and switches.  [default: rankfall]")
@click.option(
    "--context", metavar="NAME", help="Of the kubeconfig; default: the pod's own cluster, else the current one."
)
@click.option("--kubeconfig", metavar="FILE", help="Default: the pod's own cluster, else as kubectl finds it.")
@click.option("--dry-run", is_flag=True, help="Decide and tell, and write nothing at all.")
@click.option(
    "--watch",
    "watched",
    metavar="NAMES",
    help="Namespaces whose pods' output is looked at, with commas; $WATCHED_NAMESPACES.",
)
@click.option(
    "--stream", "streams", multiple=True, metavar="NAMESPACE/NAME",
    help="A DaemonSet whose kernel lines are believed; may be repeated.  [default: dmesg-logging/dmesg, rankfall/rankfall-agent]",
)  # fmt: skip
@click.option(
    "--poll",
    type=click.FloatRange(min=0.2, max=300),
    default=5.0,
    show_default=True,
    help="Seconds between the beginnings of two looks at Loki.",
)
@click.option(
    "--look-back",
    type=click.IntRange(min=0, max=86_400),
    default=600,
    show_default=True,
    help="Seconds that the very first look goes back.",
)
@click.option(
    "--shared-kernel-node", metavar="NODE", help="Whose kernel's log it is where several Nodes show one boot id."
)
@click.option(
    "--accept-injected-kmsg",
    is_flag=True,
    help="Test mode: what any process writes into the kernel's log counts as the kernel's.",
)
@click.option("--metrics-address", metavar="HOST:PORT", help="Serve /metrics, /healthz and /readyz there.")
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
    """Watch all nodes for GPU and host faults, and keep the scheduler away from bad ones.

    The log goes to stderr, the audit trail to stdout, a line of JSON for each decision. Ctrl-C ends it and gives its lease back.
    """
    if ctx.invoked_subcommand is not None:
        return
    _log_to_stderr()
    from rankfall.health.address import address_of  # noqa: PLC0415 - as below
    from rankfall.health.config import ENVIRONMENT  # noqa: PLC0415 - loads the HTTP client with its package
    from rankfall.health.controller import settings as given  # noqa: PLC0415 - as above
    from rankfall.health.controller.access import find_access  # noqa: PLC0415 - as above
    from rankfall.health.controller.main import Controller  # noqa: PLC0415 - as above

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
    one = Controller(settings, access=access, config=Path(path) if path else None, audit=emit.out)
    asyncio.run(_until_told(one))


controller.add_command(manifests)


def _log_to_stderr() -> None:
    from rankfall.health.controller.telling import DATE_FORMAT, FORMAT, LOG  # noqa: PLC0415 - as above

    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter(FORMAT, DATE_FORMAT))
    LOG.handlers[:] = [handler]
    LOG.setLevel(logging.INFO)
    LOG.propagate = False


async def _until_told(one: Controller) -> None:
    """Run until SIGTERM or SIGINT; one error is shown instead of the group that tasks make of it."""
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
