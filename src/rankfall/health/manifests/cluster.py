"""All that guards a cluster, as objects: the namespace, the controller, the agents, and the rights by which runs tell of nodes."""

from __future__ import annotations

from pathlib import Path

from rankfall.health.config import load_config
from rankfall.health.controller.settings import AGENT, DMESG, Stream
from rankfall.health.manifests.admission import Object
from rankfall.health.manifests.agent import agent_admission, agent_objects
from rankfall.health.manifests.controller import controller_admission, controller_objects
from rankfall.health.manifests.runs import runs_admission, runs_objects


def cluster_objects(
    *,
    namespace: str,
    image: str,
    loki_url: str | None = None,
    agent: bool = True,
    injected: bool = False,
    admission: bool = False,
    config: Path | None = None,
    command: tuple[str, ...] = ("rankfall",),
    pull: str = "IfNotPresent",
) -> list[Object]:
    """The objects in the order in which they are to be made.

    Args:
        namespace: of all that has one.
        image: that has Rankfall, by digest.
        loki_url: where the controller finds Loki; None = it asks none.
        agent: with the DaemonSet that reads kernel logs.
        injected: the test mode of agents and controller.
        admission: with policies that limit what the accounts may change; they come last, so that they never stand without what they are for.
        config: the operator's file; what is wrong with it is refused here, not by a pod that does not start.
        command: that starts Rankfall in the image.
        pull: policy of the image.

    Raises:
        SpecError: the file cannot be read, or anything in it is wrong.
    """
    settings = load_config(config)
    text = None if config is None else config.read_text("utf-8")
    # The agent reads a device of its node, which only a privileged pod may.
    level = "privileged" if agent else "restricted"
    labels = {f"pod-security.kubernetes.io/{mode}": level for mode in ("enforce", "warn")}
    objects: list[Object] = [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace, "labels": labels}}
    ]
    arguments = ["--accept-injected-kmsg"] if injected else []
    if agent and namespace != AGENT.namespace:
        # Whose lines are believed is named with the namespace: of another one the controller would not read them.
        streams = (DMESG, Stream(namespace=namespace, daemon_set=AGENT.daemon_set))
        arguments += [word for each in streams for word in ("--stream", f"{each.namespace}/{each.daemon_set}")]
    objects += runs_objects(namespace=namespace)
    objects += controller_objects(
        namespace=namespace,
        image=image,
        command=command,
        arguments=arguments,
        environment=(("LOG_ENDPOINT", loki_url),) if loki_url else (),
        settings=text,
        jobs=bool(settings.checks) or any(hook.job is not None for hook in settings.hooks),
        occupied=bool(settings.hooks) or settings.policy.after_job,
        exporters=[each.namespace for each in settings.exporters if each.namespace is not None],
        pull=pull,
    )
    if agent:
        objects += agent_objects(namespace=namespace, image=image, command=command, injected=injected, pull=pull)
    if admission:
        objects += controller_admission(namespace=namespace, policy=settings.policy)
        objects += runs_admission()
        objects += agent_admission(namespace=namespace) if agent else []
    return objects
