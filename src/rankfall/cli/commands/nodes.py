"""``nodes``: shows node health, runs checks, edits taints.

Needs get, list and patch on nodes.
"""

from __future__ import annotations

import asyncio
import getpass
import sys
import uuid
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

import click

from rankfall.cli import console
from rankfall.cli.options import cluster_options, health_config_option, output_option
from rankfall.cli.target import Where
from rankfall.model import EvidenceLost, InfrastructureError, UsageError

if TYPE_CHECKING:
    from rankfall.kube.client import Kube
    from rankfall.nodes.checks.jobs import CheckResult
    from rankfall.nodes.checks.rounds import Round
    from rankfall.nodes.commands import Done
    from rankfall.nodes.config import HealthConfig

_T = TypeVar("_T")
_SELECTOR: Final = click.option("-l", "--selector", metavar="LABELS")
_DRY_RUN: Final = click.option("--dry-run", is_flag=True)
_YES: Final = click.option("-y", "--yes", is_flag=True)


@click.group("nodes")
def nodes() -> None:
    """Show the health of nodes; check, taint, clear them, remove taints."""


@nodes.command("list")
@_SELECTOR
@cluster_options
@health_config_option
@output_option()
def list_(*, selector: str | None, where: Where, config: Path | None, output: console.Output) -> None:
    """List nodes with state, Rankfall's taint and the gravest cause."""
    _show(where, config, output, names=(), selector=selector)


@nodes.command("describe")
@click.argument("names", nargs=-1, metavar="[NODE]...")
@_SELECTOR
@cluster_options
@health_config_option
@output_option()
def describe(
    *, names: tuple[str, ...], selector: str | None, where: Where, config: Path | None, output: console.Output
) -> None:
    """Show all about a node: causes with lines, checks, history."""
    _show(where, config, output, names=names, selector=selector, whole=True)


@nodes.command("taint")
@click.argument("names", nargs=-1, required=True, metavar="NODE...")
@click.option("--reason", required=True)
@_DRY_RUN
@cluster_options
@health_config_option
def taint(*, names: tuple[str, ...], reason: str, dry_run: bool, where: Where, config: Path | None) -> None:
    """Keep the scheduler off a node until a person releases it; its pods continue."""
    from rankfall.nodes import commands  # noqa: PLC0415

    settings = _settings(config)

    async def work(kube: Kube) -> list[Done]:
        found = await commands.find_nodes(kube, names=names, policy=settings.policy)
        return await commands.taint(
            kube, found, reason=reason, by=_user(), rules=settings.rules, policy=settings.policy, dry_run=dry_run
        )

    _tell(_run(where, work), dry_run=dry_run)


@nodes.command("clear")
@click.argument("names", nargs=-1, metavar="[NODE]...")
@_SELECTOR
@click.option("--cause", metavar="CODE")
@_DRY_RUN
@_YES
@cluster_options
@health_config_option
def clear(
    *,
    names: tuple[str, ...],
    selector: str | None,
    cause: str | None,
    dry_run: bool,
    yes: bool,
    where: Where,
    config: Path | None,
) -> None:
    """Clear a node, or one cause; its taint goes when no cause requires it.

    Only newer evidence taints the node again.
    """
    from rankfall.nodes import commands  # noqa: PLC0415

    if not names and selector is None:
        raise UsageError(
            "the name of a node is missing", hint="give names or -l LABELS; rankfall nodes reset clears all of them"
        )
    settings = _settings(config)

    async def work(kube: Kube) -> list[Done]:
        found = await commands.find_nodes(kube, names=names, labels=selector, policy=settings.policy)
        if not names:
            _confirm(f"clear {len(found)} nodes", yes=yes or dry_run)
        return await commands.clear(
            kube, found, cause=cause, rules=settings.rules, policy=settings.policy, dry_run=dry_run
        )

    _tell(_run(where, work), dry_run=dry_run)


@nodes.command("reset")
@click.option("--node", "names", multiple=True, metavar="NAME")
@_SELECTOR
@click.option("--key", "keys", multiple=True, metavar="KEY")
@_DRY_RUN
@_YES
@cluster_options
@health_config_option
def reset(
    *,
    names: tuple[str, ...],
    selector: str | None,
    keys: tuple[str, ...],
    dry_run: bool,
    yes: bool,
    where: Where,
    config: Path | None,
) -> None:
    """Remove Rankfall's taints from all or some nodes; one line for each.

    Keys: the configured one and rankfall.dev/faulty. Other taints and cordons stay.
    """
    from rankfall.nodes import commands  # noqa: PLC0415

    settings = _settings(config)
    wanted = frozenset(keys) or settings.policy.keys

    async def work(kube: Kube) -> list[Done]:
        found = await commands.find_nodes(kube, names=names, labels=selector, policy=settings.policy)
        having = [node for node in found if any(each.key in wanted for each in node.view.taints)]
        if having and not names:
            _confirm(f"remove {', '.join(sorted(wanted))} from {len(having)} nodes", yes=yes or dry_run)
        return await commands.reset(
            kube, having, keys=wanted, rules=settings.rules, policy=settings.policy, dry_run=dry_run
        )

    done = _run(where, work)
    if not done:
        console.say(f"rankfall: no node has a taint {' or '.join(sorted(wanted))}")
    _tell(done, dry_run=dry_run)


@nodes.command("check")
@click.argument("name", metavar="NODE")
@click.option("--check", "only", multiple=True, metavar="NAME")
@click.option("--peer", metavar="NODE")
@click.option("-n", "--namespace", default="rankfall", show_default=True)
@cluster_options
@health_config_option
def check(
    *, name: str, only: tuple[str, ...], peer: str | None, namespace: str, where: Where, config: Path | None
) -> int:
    """Run the configured checks on a node, as Jobs that tolerate its taint; does not change the node's state.

    Ends with 0 if all passed, 69 if one failed, 74 if one could not run.
    """
    from rankfall.nodes import commands  # noqa: PLC0415
    from rankfall.nodes.checks.rounds import run_checks  # noqa: PLC0415
    from rankfall.render.escape import clean_line  # noqa: PLC0415

    settings = _settings(config)
    known = {each.name: each for each in settings.checks}
    missing = [each for each in only if each not in known]
    if missing or not known:
        raise UsageError(
            f"no check {', '.join(missing)} is configured" if missing else "no check is configured",
            hint=f"configured: {', '.join(known) or 'none'}; [[check]] in the file of --config adds one",
        )
    chosen = [known[each] for each in only] if only else list(settings.checks)

    def tell(result: CheckResult) -> None:
        console.out(clean_line(f"{name}: {result.check}: {result.outcome}{': ' if result.text else ''}{result.text}"))

    async def work(kube: Kube) -> Round:
        await commands.find_nodes(kube, names=[name, *([peer] if peer else [])], policy=settings.policy)
        return await run_checks(
            kube, chosen, node=name, peer=peer, namespace=namespace, policy=settings.policy, round_=uuid.uuid4().hex, tell=tell
        )  # fmt: skip

    done = _run(where, work)
    return {"passed": 0, "failed": InfrastructureError.exit_code, "unable": EvidenceLost.exit_code}[done.round.outcome]


def _show(
    where: Where,
    config: Path | None,
    output: console.Output,
    *,
    names: Sequence[str],
    selector: str | None,
    whole: bool = False,
) -> None:
    from rankfall.nodes import commands  # noqa: PLC0415
    from rankfall.nodes.rules import node_objects  # noqa: PLC0415
    from rankfall.render.tables import render_node, render_nodes  # noqa: PLC0415

    settings = _settings(config)
    found = _run(where, lambda kube: commands.find_nodes(kube, names=names, labels=selector, policy=settings.policy))
    document = node_objects.document(found, rules=settings.rules, policy=settings.policy)
    now, color = datetime.now(UTC), console.color_on()
    if output is not console.Output.TABLE:
        console.out(console.document(document, output).rstrip("\n"))
    elif whole:
        console.out("\n\n".join(render_node(node, now=now, color=color) for node in document.nodes) or "No nodes.")
    else:
        console.out(render_nodes(document, now=now, color=color))


def _settings(config: Path | None) -> HealthConfig:
    from rankfall.nodes.config import load_config  # noqa: PLC0415

    return load_config(config)


def _run(where: Where, work: Callable[[Kube], Awaitable[_T]]) -> _T:
    from rankfall.kube.auth.kubeconfig import access_of  # noqa: PLC0415
    from rankfall.kube.client import Kube  # noqa: PLC0415

    async def connected() -> _T:
        async with Kube(access_of(where)) as kube:
            return await work(kube)

    return asyncio.run(connected())


def _tell(done: Sequence[Done], *, dry_run: bool) -> None:
    """Prints a line for each node to stdout, notes and failures to stderr.

    Raises:
        InfrastructureError: A node failed.
    """
    from rankfall.render.escape import clean_line  # noqa: PLC0415

    for each in done:
        if each.error is None:
            console.out(clean_line(f"{each.node}: {'dry run: ' if dry_run and each.changed else ''}{each.message}"))
        if each.note:
            console.say(clean_line(f"rankfall: {each.node}: {each.note}"))
    failed = [each for each in done if each.error is not None]
    for each in failed:
        console.say(clean_line(f"rankfall: {each.node}: failed: {each.error}"))
    if failed:
        raise InfrastructureError(
            f"{len(failed)} of {len(done)} nodes were not changed",
            hint="read the reasons in the lines above, then run the command again",
        )


def _confirm(question: str, *, yes: bool) -> None:
    if yes:
        return
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise UsageError(
            f"cannot {question} without a confirmation, and there is no terminal to confirm at",
            hint="give -y, or name the nodes",
        )
    click.confirm(f"{question[0].upper()}{question[1:]}?", abort=True, err=True)


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "somebody"
