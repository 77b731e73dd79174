"""Asking for stacks by exec: which slots were told."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from rankfall.backends.kubernetes import attempt_control
from rankfall.backends.plan import ClusterPlan
from rankfall.kube.auth.access import Access, Endpoint
from rankfall.kube.client import Kube
from rankfall.kube.errors import KubeError, ObjectNotFound
from rankfall.kube.exec.session import ExecResult

ANSWERS: dict[str, ExecResult | KubeError] = {
    "told": ExecResult(b"told\n", b"", 0),
    # The API server lost the kubelet and reports a success.
    "lost": ExecResult(b"", b"", 0),
    "half": ExecResult(b"tol", b"", 0),
    "failed": ExecResult(b"", b"no python", 3),
    "gone": ObjectNotFound("no such pod", status=404),
}
PLACE = ClusterPlan(
    backend="job",
    object="x-a1",
    namespace="n",
    context="c",
    selector="a=b",
    container="main",
    token="t",  # noqa: S106
    bases={"worker": 0},
)


def test_only_a_pod_that_said_so_was_told(monkeypatch: pytest.MonkeyPatch) -> None:
    async def execute(_: Kube, pod: str, *__: Any, **___: Any) -> ExecResult:
        answer = ANSWERS[pod]
        if isinstance(answer, KubeError):
            raise answer
        return answer

    monkeypatch.setattr(attempt_control, "execute", execute)
    kube = Kube(Access(context="c", cluster="k", user="u", namespace="n", endpoint=Endpoint(server="http://nowhere")))
    pods = dict(enumerate(ANSWERS))
    assert asyncio.run(attempt_control.request_stacks(kube, PLACE, pods)) == (0,)
