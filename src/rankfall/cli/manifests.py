"""``controller manifests``: what guards a cluster, as YAML for ``kubectl apply``; nothing is asked of the cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import click

from rankfall.cli import emit
from rankfall.cli.options import health_config_option
from rankfall.model import UsageError
from rankfall.model.patterns import anchored

_DIGEST: Final = anchored(r"[^\s@]+@sha256:[0-9a-f]{64}", limit=1_024)
_NAME: Final = anchored(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", limit=1_024)


@click.command("manifests")
@click.option("--image", required=True, metavar="NAME@sha256:…", help="Image with Rankfall, by digest.")
@click.option("-n", "--namespace", default="rankfall", show_default=True, help="Of all that has one.")
@click.option("--loki-url", metavar="URL", help="Where the controller finds Loki; default: it asks no Loki.")
@click.option("--agent/--no-agent", default=True, show_default=True, help="The DaemonSet that reads kernel logs.")
@click.option(
    "--accept-injected-kmsg",
    is_flag=True,
    help="TEST MODE: what any process writes into a kernel's log counts as the kernel's.",
)
@click.option(
    "--admission-policy",
    is_flag=True,
    help="Policies of the API server that limit what of a Node these accounts may change.",
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
    """Print namespace, accounts, rights, Deployment and DaemonSet that guard a cluster, as YAML.

    They can be piped into kubectl apply -f -; the file of --config becomes a ConfigMap.
    """
    import yaml  # noqa: PLC0415 - only here

    from rankfall.health.manifests.cluster import cluster_objects  # noqa: PLC0415 - only here

    if not _DIGEST.fullmatch(image):
        raise UsageError(
            f"--image {image[:200]!r} has no digest, so another image could come under its name",
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
    emit.out("---\n".join(_text(yaml, item) for item in objects).rstrip("\n"))


def _text(yaml: Any, item: dict[str, Any]) -> str:
    text: str = yaml.safe_dump(item, sort_keys=False, width=1000)
    return text
