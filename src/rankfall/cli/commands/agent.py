"""``agent``: reads each node's kernel log.

Imports little: its memory limit is 50 MiB.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Final

import click

from rankfall.cli import console
from rankfall.model import UsageError
from rankfall.model.patterns import anchored

_NODE: Final = anchored(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?", limit=256)
_PATH: Final = click.Path(path_type=Path)


@click.command("agent")
@click.option("--node", envvar="NODE_NAME", metavar="NAME")
@click.option("--kmsg", type=_PATH, default=Path("/dev/kmsg"), show_default=True)
@click.option(
    "--kmsg-socket",
    type=_PATH,
)
@click.option(
    "--state",
    type=_PATH,
    envvar="RANKFALL_AGENT_STATE",
    metavar="FOLDER",
)
@click.option("--all", "all_", is_flag=True)
@click.option("--once", is_flag=True)
@click.option("--publish/--no-publish", default=True, show_default=True)
@click.option(
    "--accept-injected-kmsg",
    is_flag=True,
)
@click.option("--probe-address", metavar="HOST:PORT")
@click.option("--context", metavar="NAME")
@click.option(
    "--kubeconfig",
    metavar="FILE",
)
def agent(
    *,
    node: str | None,
    kmsg: Path,
    kmsg_socket: Path | None,
    state: Path | None,
    all_: bool,
    once: bool,
    publish: bool,
    accept_injected_kmsg: bool,
    probe_address: str | None,
    context: str | None,
    kubeconfig: str | None,
) -> int:
    """Read this node's kernel log, print health records, and show them on the Node."""
    from rankfall.model.numbers import address_of  # noqa: PLC0415
    from rankfall.nodes.agent import main as agent_start  # noqa: PLC0415

    if node is None or not _NODE.fullmatch(node):
        raise UsageError(
            "the agent does not know the name of its Node",
            hint="give --node NAME, or NODE_NAME in the environment (spec.nodeName of the downward API)",
        )
    if kmsg_socket is None and os.path.isfile(kmsg):  # noqa: PTH113 - without an error for a forbidden folder
        if publish:
            raise UsageError(
                f"{kmsg} is a file: its records may be of another boot or node, so they are not published",
                hint="add --no-publish",
            )
        console.say(f"rankfall agent: {kmsg} is a file: times count from this node's boot")
    access = None
    if publish:
        from rankfall.kube.auth.kubeconfig import load_access  # noqa: PLC0415

        access = load_access(kubeconfig=kubeconfig, context=context)
    if accept_injected_kmsg:
        console.say(
            "rankfall agent: TEST MODE: lines that any process writes into the kernel log count as lines of the kernel"
        )
    settings = agent_start.Settings(
        node=node,
        device=kmsg,
        socket=kmsg_socket,
        state=state,
        all_=all_,
        injected=accept_injected_kmsg,
        once=once,
        probe=None if probe_address is None else address_of(probe_address),
    )
    return agent_start.run(
        settings, access=access, out=sys.stdout.buffer, say=lambda text: console.say(f"rankfall agent: {text}")
    )
