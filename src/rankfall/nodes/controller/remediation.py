"""Runs the operator's hooks on tainted nodes, and rounds of checks on nodes that may be returned; one node at a time.

A hook without an answer is not called again. Without the right to list pods every node counts as busy. Jobs of checks
have deterministic names, so a killed controller finds them; no pod is evicted.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final

from rankfall.kube.client import ALL_NAMESPACES, Kube
from rankfall.kube.errors import KubeError
from rankfall.kube.resources import PODS
from rankfall.model.node_health.records import NodeHealth, OpenCause
from rankfall.nodes.checks.rounds import Round, run_checks
from rankfall.nodes.config import ConfigFile
from rankfall.nodes.controller.decision_loop import Loop
from rankfall.nodes.controller.node_cache import NodeCache
from rankfall.nodes.controller.notifier import LOG
from rankfall.nodes.hooks.calls import Call, call_hook
from rankfall.nodes.hooks.ladder import Hook, next_hook
from rankfall.nodes.rules import node_state
from rankfall.nodes.rules.node_objects import NodeObject
from rankfall.nodes.rules.node_state import REBOOTS, CheckRound, Remedy, grave

#: Seconds between checks of the cache.
POLL_INTERVAL_S: Final = 5.0
_SECOND: Final = 1_000_000_000


class Remediation:
    """Runs remediation hooks; needs the rights of ``JOB_RULES``."""

    def __init__(
        self,
        kube: Kube,
        *,
        book: NodeCache,
        loop: Loop,
        config: ConfigFile,
        occupied: NodeOccupancy,
        namespace: str,
        poll_interval_s: float = POLL_INTERVAL_S,
        clock: Callable[[], int] = time.time_ns,
    ) -> None:
        self._kube, self._book, self._loop, self._config = kube, book, loop, config
        self._namespace, self._poll_interval_s, self._clock = namespace, poll_interval_s, clock
        self._occupied = occupied
        self._waiting: set[str] = set()

    async def run(self) -> None:
        """Runs forever."""
        while True:
            for name in sorted(self._book.nodes):
                try:
                    await self._node(name)
                except KubeError as error:
                    LOG.warning("node `%s` cannot be remediated now: %s", name, error.message)
            await asyncio.sleep(self._poll_interval_s)

    async def _node(self, name: str) -> None:
        node, policy = self._book.nodes.get(name), self._loop.in_force.policy
        health = None if node is None else node.view.record
        if node is None or health is None or not health.tainted or policy.kill_switch or node.view.hands_off:
            return
        if health.state == "remediating":
            await self._proof(node, health)
        elif health.state == "quarantined" and not self._elsewhere(name):
            found = next_hook(health, hooks=self._config.config.hooks, rules=self._config.config.rules)
            if found is not None and await self._may_disturb(name, health):
                await self._run_hook(node, health, *found)

    async def _may_disturb(self, name: str, health: NodeHealth) -> bool:
        """True if no job on the node would suffer: none runs, or the fault is fatal for it anyway."""
        rules = self._config.config.rules
        causes = (rules.find(each.code) for each in grave(health, rules))
        if any(rule is not None and rule.fatal_for_job == "yes" for rule in causes) or await self._occupied.idle(name):
            self._waiting.discard(name)
            return True
        if name not in self._waiting:
            LOG.warning("node `%s` waits for the end of the job on it before any hook is called", name)
            self._waiting.add(name)
        return False

    def _elsewhere(self, name: str) -> bool:
        """True if a remediation step runs on another node; ignores opted-out nodes."""
        records = (
            each.view.record for each in self._book.nodes.values() if each.name != name and not each.view.opted_out
        )
        return any(record is not None and record.state == "remediating" for record in records)

    async def _run_hook(self, node: NodeObject, health: NodeHealth, hook: Hook, cause: OpenCause) -> None:
        name, attempt = node.name, health.tried.count(hook.step) + 1
        await self._loop.give([Remedy(node=name, at=self._clock(), step=hook.step, outcome="started")])
        after = self._book.nodes.get(name)
        record = None if after is None else after.view.record
        if record is None or record.state != "remediating" or record.step != hook.step:
            return  # not recorded, so it must not run
        key = hashlib.sha256(f"{name}\0{record.since}\0{hook.step}\0{attempt}".encode()).hexdigest()[:20]
        LOG.warning("node `%s` hook %s, attempt %d, for %s", name, hook.step, attempt, cause.named)
        answer = await call_hook(
            self._kube, hook, Call(node=name, cause=cause, attempt=attempt, key=key), namespace=self._namespace
        )
        LOG.warning("node `%s` hook %s %s: %s", name, hook.step, "answered" if answer.ok else "failed", answer.text)
        if hook.step not in REBOOTS:
            await self._ended(name, hook.step, ok=answer.ok)
        elif answer.ok:
            await self._await_boot(name, hook)
        else:
            await self._ended(name, hook.step, ok=self._rebooted(name))

    async def _await_boot(self, name: str, hook: Hook) -> None:
        """Waits for another boot id; other nodes wait too."""
        until = time.monotonic() + hook.prove_s
        # The node may also disappear.
        while name in self._book.nodes and not self._rebooted(name) and time.monotonic() < until:  # noqa: ASYNC110
            await asyncio.sleep(self._poll_interval_s)
        await self._ended(name, hook.step, ok=self._rebooted(name))

    async def _proof(self, node: NodeObject, health: NodeHealth) -> None:
        """Ends a step that an earlier controller began, by its proof or time-out."""
        hook = next((each for each in self._config.config.hooks if each.step == health.step), None)
        limit = 0 if hook is None else hook.timeout_s + hook.prove_s
        proven = health.step in REBOOTS and self._rebooted(node.name)
        if health.step is not None and (proven or self._clock() - (health.since or 0) > limit * _SECOND):
            await self._ended(node.name, health.step, ok=proven)

    def _rebooted(self, name: str) -> bool:
        node = self._book.nodes.get(name)
        record = None if node is None else node.view.record
        if node is None or record is None or record.step_boot is None or not node.view.ready:
            return False
        return node.view.boot is not None and node.view.boot != record.step_boot

    async def _ended(self, name: str, step: str, *, ok: bool) -> None:
        LOG.warning("node `%s` hook %s: %s", name, step, "done" if ok else "not proven")
        await self._loop.give([Remedy(node=name, at=self._clock(), step=step, outcome="ended", ok=ok)])


#: Seconds between checks of pods on waiting nodes.
OCCUPIED_LOOK_S: Final = 10.0


class NodeOccupancy:
    """Checks which nodes run no job."""

    def __init__(
        self,
        kube: Kube,
        *,
        book: NodeCache,
        loop: Loop,
        namespace: str,
        poll_interval_s: float = OCCUPIED_LOOK_S,
        clock: Callable[[], int] = time.time_ns,
    ) -> None:
        self._kube, self._book, self._loop, self._namespace = kube, book, loop, namespace
        self._poll_interval_s, self._clock = poll_interval_s, clock
        self._reported: set[str] = set()
        self._waiting: set[str] = set()

    async def run(self) -> None:
        """Checks forever."""
        while True:
            await self.look()
            await asyncio.sleep(self._poll_interval_s)

    async def look(self) -> None:
        """Checks once each node with a fault that waits for the end of its job."""
        if not self._loop.in_force.policy.after_job:
            return
        for name, node in list(self._book.nodes.items()):
            record = node.view.record
            if record is not None and node_state.awaits_idle(record, self._loop.in_force.rules):
                begun = self._clock()
                if await self.idle(name):
                    self._book.idle[name] = begun
                    self._waiting.discard(name)
                    continue
                self._book.idle.pop(name, None)
                if name not in self._waiting:
                    LOG.info(
                        "node `%s`: a job still runs on the node; actions that need an idle node wait for the job's end",
                        name,
                    )
                    self._waiting.add(name)

    async def idle(self, name: str) -> bool:
        """True if no job runs on a node; False if unknown."""
        try:
            # With the controller's namespace only, every node would seem idle.
            found = await self._kube.list(PODS, namespace=ALL_NAMESPACES, fields=f"spec.nodeName={name}")
        except KubeError as error:
            if name not in self._reported:
                LOG.warning("cannot read whether a job runs on node `%s`: %s", name, error.message)
                self._reported.add(name)
            return False
        self._reported.discard(name)
        return not any(_is_job(each, own=self._namespace) for each in found.items)


def _is_job(pod: Mapping[str, Any], *, own: str) -> bool:
    meta, spec, status = pod["metadata"], pod.get("spec") or {}, pod.get("status") or {}
    if status.get("phase") in {"Succeeded", "Failed"} or meta.get("namespace") == own:
        return False
    if any(each.get("kind") in {"DaemonSet", "Node"} for each in meta.get("ownerReferences") or ()):
        return False
    if spec.get("resourceClaims"):
        return True
    containers = [*(spec.get("containers") or ()), *(spec.get("initContainers") or ())]
    asked = [(each.get("resources") or {}).get(kind) or {} for each in containers for kind in ("requests", "limits")]
    return any("/" in name for each in asked for name in each)


#: Seconds between searches for a node to check.
CHECK_INTERVAL_S: Final = 2.0
#: Seconds after a round that could not begin.
REFUSED_S: Final = 60.0


class Validator:
    """Runs rounds of checks."""

    def __init__(
        self,
        kube: Kube,
        *,
        book: NodeCache,
        loop: Loop,
        config: ConfigFile,
        namespace: str,
        check: Callable[..., Awaitable[Round]] = run_checks,
        poll_interval_s: float = CHECK_INTERVAL_S,
        refused_s: float = REFUSED_S,
    ) -> None:
        self._kube, self._book, self._loop, self._config = kube, book, loop, config
        self._namespace, self._check = namespace, check
        self._poll_interval_s, self._refused_s = poll_interval_s, refused_s

    async def run(self) -> None:
        """Checks forever."""
        while True:
            await asyncio.sleep(self._poll_interval_s)
            found = self.next_node(now=time.time_ns())
            if found is not None:
                await self._round(*found)

    def next_node(self, *, now: int) -> tuple[NodeObject, NodeHealth] | None:
        """Returns the node that waited longest for its next round; None if none is due or none may return."""
        policy = self._loop.in_force.policy
        if not self._config.config.checks or policy.kill_switch:
            return None
        # More frequent rounds would prove no more.
        apart = policy.clean_s * _SECOND // max(1, policy.clean_rounds - 1)
        waiting = [
            (node, record)
            for node in self._book.nodes.values()
            if (record := node.view.record) is not None
            and record.state == "validating"
            and not node.view.hands_off
            and (record.checked_at is None or now - record.checked_at >= apart)
        ]
        return min(waiting, key=lambda each: (each[1].checked_at or 0, each[0].name), default=None)

    async def _round(self, node: NodeObject, record: NodeHealth) -> None:
        word = hashlib.blake2b(f"{record.since} {record.checked_at}".encode(), digest_size=4).hexdigest()
        try:
            done = await self._check(
                self._kube,
                self._config.config.checks,
                node=node.name,
                peer=self._peer(node.name),
                namespace=self._namespace,
                policy=self._loop.in_force.policy,
                round_=word,
            )
        except KubeError as error:
            LOG.warning("node `%s` cannot be checked now: %s", node.name, error.message)
            await asyncio.sleep(self._refused_s)
            return
        LOG.info(
            "node `%s`: checks %s%s", node.name, done.round.outcome, f": {done.round.check}" if done.round.check else ""
        )
        rounds: Sequence[CheckRound] = [done.round]
        await self._loop.give(rounds)

    def _peer(self, name: str) -> str | None:
        policy = self._loop.in_force.policy
        good = (
            each.name
            for each in self._book.nodes.values()
            if each.name != name
            and each.view.ready
            and not each.cordoned
            and not each.view.tainted(policy)
            and (each.view.record is None or each.view.record.state == "healthy")
        )
        return min(good, default=None)
