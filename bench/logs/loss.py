"""What is lost when the connection is cut: all tools on the same pods, through the same proxy, at the same time."""

from __future__ import annotations

import random
import time
from collections import Counter
from pathlib import Path
from typing import Final

from bench.logs import numbers
from bench.logs.clients import NAMES, OURS, Client, start
from bench.logs.page import Loss
from bench.logs.scene import Scene, scene, until
from testbed.client import Kubectl
from testbed.proxy import Action, Cut, EndStream, How, Match, Proxy, When

PODS: Final = 4
LINES: Final = 1500
PAUSE_S: Final = 0.02
# Cuts come so long after one another, drawn evenly, seconds: every open follow of every tool ends in the same moment.
LEAST_S, MOST_S = 1.0, 5.0
CONDITIONS: Final[dict[str, Action | None]] = {
    "left alone": None,
    "reset every 1-5 s": Cut(how=How.RST, at=When(called=True)),
    "ended in order every 1-5 s": EndStream(at=When(called=True)),
}
# What each client calls itself in its requests.
AGENTS: Final = {"kubectl": "kubectl/", "official": "OpenAPI-Generator/", "ours": "rankfall/"}
_RULE: Final = "bench"
_SEED: Final = 20261121
_CONNECT_S: Final = 180.0
_LIMIT_S: Final = 300.0


def rows(kubectl: Kubectl, proxy: Proxy, *, config: Path, namespace: str, folder: Path) -> list[Loss]:
    """All conditions, all tools.

    Args:
        kubectl: of the administrator.
        proxy: that ``config`` leads through.
        config: of the clients.
        namespace: of the pods.
        folder: for what they write.
    """
    found: list[Loss] = []
    for number, (words, action) in enumerate(CONDITIONS.items()):
        place = folder / f"loss-{number}"
        place.mkdir()
        if action is not None:
            proxy.add(_RULE, action, Match(follow=True))
        try:
            found += _condition(
                words, kubectl, proxy, cut=action is not None, config=config, namespace=namespace, folder=place
            )
        finally:
            if action is not None:
                proxy.remove(_RULE)
    return found


def _condition(
    words: str, kubectl: Kubectl, proxy: Proxy, *, cut: bool, config: Path, namespace: str, folder: Path
) -> list[Loss]:
    with scene(
        kubectl,
        config=config,
        namespace=namespace,
        folder=folder,
        pods=PODS,
        paced=LINES,
        pause_s=PAUSE_S,
        stay=False,
    ) as pods:
        since = proxy.counters().requests
        clients = {tool: start(tool, pods, folder / tool) for tool in NAMES}
        until(lambda: _connected(proxy, since=since), "a follow of each pod by each tool", limit_s=_CONNECT_S)
        pods.go()
        deadline, rng = time.monotonic() + _LIMIT_S, random.Random(_SEED)
        cuts = 0
        while time.monotonic() < deadline and any(client.process.poll() is None for client in clients.values()):
            # Writers and clients end by themselves.
            time.sleep(rng.uniform(LEAST_S, MOST_S))
            if cut and _writing(pods):
                proxy.fire(_RULE)
                cuts += 1
        shown = f"{words} ({cuts} times)" if cut else words
        return [Loss(shown, NAMES[tool], _seen(client), _ended(client)) for tool, client in clients.items()]


def _connected(proxy: Proxy, *, since: int) -> bool:
    """Whether each tool follows each pod."""
    follows = Counter(
        tool
        for one in proxy.log()
        if one.number > since and one.path.endswith("/log") and "follow=" in one.query.lower()
        for tool, agent in AGENTS.items()
        if one.user_agent.startswith(agent)
    )
    return all(follows[tool] >= PODS * (len(OURS) if tool in OURS else 1) for tool in AGENTS)


def _writing(pods: Scene) -> bool:
    """Whether any writer writes still."""
    words = (
        "get",
        "pods",
        "-n",
        pods.namespace,
        "-l",
        pods.selector,
        "--field-selector=status.phase=Running",
        "-o",
        "name",
    )
    return bool(pods.kubectl(*words).split())


def _seen(client: Client) -> numbers.Seen:
    return numbers.count(client.text(), writers=PODS, lines=LINES)


def _ended(client: Client) -> str:
    still = client.process.poll() is None
    code = client.end()
    if still:
        return "had to be ended"
    return "exit 0" if code == 0 else f"exit {code}"
