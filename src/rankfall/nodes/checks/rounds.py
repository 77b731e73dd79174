"""Runs one round of checks on a node until one does not pass.

Jobs are named after the round, so a later caller finds them. A check that cannot run does not pass.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec

from rankfall.kube.client import Kube
from rankfall.kube.errors import Conflict, KubeError, ObjectNotFound
from rankfall.kube.resources import JOBS, NODES, PODS
from rankfall.nodes.checks import jobs as check_jobs
from rankfall.nodes.checks.jobs import Check, CheckResult
from rankfall.nodes.rules.node_state import CheckRound
from rankfall.nodes.rules.policy import Policy

POLL_S: Final = 1.0
# Seconds for the kubelet after a deadline; a hung program never ends.
_GRACE_S: Final = 30.0

Clock = Callable[[], float]


class Round(msgspec.Struct, frozen=True, kw_only=True):
    """A round of checks: its result, and each check's result for users."""

    round: CheckRound
    results: tuple[CheckResult, ...]


async def run_checks(
    kube: Kube,
    checks: Sequence[Check],
    *,
    node: str,
    peer: str | None = None,
    namespace: str,
    policy: Policy,
    round_: str,
    poll_s: float = POLL_S,
    tell: Callable[[CheckResult], None] = lambda _: None,
) -> Round:
    """Runs one round on one node. ``peer`` is a healthy node for checks of two, or None.

    Raises:
        KubeError: The API server refuses or fails; result unknown.
    """
    before = await kube.get(NODES, node)
    results: list[CheckResult] = []
    for check in checks:
        one = _One(kube, check, before, peer=peer, namespace=namespace, policy=policy, round_=round_, poll_s=poll_s)
        results.append(await one.run())
        tell(results[-1])
        if results[-1].outcome != "passed":
            break
    if not checks:
        results = [CheckResult(check="none", outcome="unable", text="no check is configured")]
    elif _boot(await kube.get(NODES, node)) != _boot(before):
        results.append(CheckResult(check="boot", outcome="unable", text="the node rebooted meanwhile"))
    last = results[-1]
    text = "" if last.outcome == "passed" else f"{last.check}: {last.text}"
    return Round(
        round=CheckRound(node=node, at=time.time_ns(), outcome=last.outcome, check=text, boot=_boot(before)),
        results=tuple(results),
    )


class _One:
    """One check: its Jobs from creation to removal."""

    def __init__(
        self,
        kube: Kube,
        check: Check,
        node: dict[str, Any],
        *,
        peer: str | None,
        namespace: str,
        policy: Policy,
        round_: str,
        poll_s: float,
    ) -> None:
        self._kube, self._check, self._item = kube, check, node
        self._peer, self._namespace, self._policy = peer, namespace, policy
        self._round, self._poll_s = round_, poll_s
        self._node = str(node["metadata"]["name"])
        self._gpus = check_jobs.gpus_of(node, check.gpu_resource)
        self._made: list[str] = []

    async def run(self) -> CheckResult:
        check = self._check
        if check.gpus and self._gpus == 0:
            # The device plug-in reports no GPUs: a finding if GPUs are expected.
            return self._result_of(
                "failed" if check.needs_expected else "unable", f"the node offers no {check.gpu_resource}"
            )
        if check.nodes > 1 and self._peer is None:
            return self._result_of("unable", "there is no healthy node to check it with")
        try:
            first = await self._start(self._node, rank=0)
            if check.nodes == 1:
                return await self._end(first, limit=check.timeout_s + _GRACE_S)
            return await self._both(first)
        finally:
            for name in self._made:
                with contextlib.suppress(KubeError):
                    await self._kube.delete(JOBS, name, namespace=self._namespace, grace=0)

    async def _both(self, first: str) -> CheckResult:
        assert self._peer is not None  # noqa: S101 - checked before any Job was created
        pod = await self._begun(first)
        if isinstance(pod, CheckResult):
            return pod
        second = await self._start(self._peer, rank=1, master=check_jobs.address(pod))
        theirs, ours = await asyncio.gather(
            self._end(second, limit=self._check.timeout_s + _GRACE_S),
            self._end(first, limit=self._check.timeout_s + self._check.wait_s + _GRACE_S),
        )
        # Without the healthy node's part the failure proves nothing.
        worst = theirs if theirs.outcome == "unable" or ours.outcome == "passed" else ours
        return msgspec.structs.replace(worst, text=f"with {self._peer}: {worst.text}".rstrip(": "))

    async def _start(self, node: str, *, rank: int, master: str | None = None) -> str:
        name = check_jobs.job_name(self._check, self._node, round_=self._round, rank=rank)
        body = check_jobs.job(
            self._check, node, name=name, namespace=self._namespace, gpus=self._gpus, keys=self._policy.keys, rank=rank, master=master
        )  # fmt: skip
        self._made.append(name)
        try:
            await self._kube.create(JOBS, body, namespace=self._namespace)
        except Conflict as error:
            if not error.already_exists:
                raise
        return name

    async def _begun(self, name: str) -> dict[str, Any] | CheckResult:
        """Pod once it runs and has an address, or the check's result if it never runs."""
        limit = _now() + self._check.wait_s
        while True:
            pods = await self._pods(name)
            if pods and check_jobs.running(pods[0]) and check_jobs.address(pods[0]):
                return pods[0]
            ended = check_jobs.result(self._check, pods[0]) if pods else None
            if ended is not None:
                return ended
            if _now() > limit:
                return self._result_of(
                    "unable", f"did not start within {self._check.wait_s} s: {check_jobs.waiting(pods)}"
                )
            await asyncio.sleep(self._poll_s)

    async def _end(self, name: str, *, limit: float) -> CheckResult:
        pod = await self._begun(name)
        if isinstance(pod, CheckResult):
            return pod
        until = _now() + limit
        while _now() <= until:
            pods = await self._pods(name)
            ended = check_jobs.result(self._check, pods[0]) if pods else None
            if ended is not None:
                return ended
            if not pods and not await self._is_there(name):
                return self._result_of("unable", "the Job was deleted")
            await asyncio.sleep(self._poll_s)
        return self._result_of("failed", f"had not ended after {self._check.timeout_s} s and could not be stopped")

    async def _pods(self, name: str) -> list[dict[str, Any]]:
        listing = await self._kube.list(PODS, namespace=self._namespace, labels=f"batch.kubernetes.io/job-name={name}")
        return listing.items

    async def _is_there(self, name: str) -> bool:
        try:
            await self._kube.get(JOBS, name, namespace=self._namespace)
        except ObjectNotFound:
            return False
        return True

    def _result_of(self, outcome: check_jobs.Outcome, text: str) -> CheckResult:
        return CheckResult(check=self._check.name, outcome=outcome, text=text)


def _boot(node: dict[str, Any]) -> str | None:
    found = ((node.get("status") or {}).get("nodeInfo") or {}).get("bootID")
    return str(found) if found else None


def _now() -> float:
    return time.monotonic()
