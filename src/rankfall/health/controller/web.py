"""Metrics and probes over HTTP, for Prometheus and the kubelet; nothing can be changed here."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from aiohttp import web

from rankfall.health.controller.metrics import Metrics
from rankfall.model.errors import UsageError


@asynccontextmanager
async def serving(
    address: tuple[str, int], *, metrics: Metrics, alive: Callable[[], bool], ready: Callable[[], bool]
) -> AsyncIterator[int]:
    """``/metrics``, ``/healthz`` and ``/readyz`` for the life of the block; the port.

    Args:
        address: host and port; port 0 = any.
        metrics: shown.
        alive: whether the process does its work.
        ready: whether it knows the cluster; one that waits for the lease is ready.

    Raises:
        UsageError: the address cannot be had.
    """

    def numbers() -> web.Response:
        return web.Response(text=metrics.text(), content_type="text/plain", charset="utf-8")

    def probe(*, holds: bool) -> web.Response:
        return web.Response(text="ok\n") if holds else web.Response(text="not ok\n", status=503)

    async def handle(request: web.BaseRequest) -> web.StreamResponse:
        if request.path == "/metrics":
            return numbers()
        if request.path in {"/healthz", "/readyz"}:
            return probe(holds=alive() if request.path == "/healthz" else ready())
        return web.Response(status=404, text="metrics are at /metrics\n")

    runner = web.ServerRunner(web.Server(handle, access_log=None), shutdown_timeout=1.0)
    await runner.setup()
    try:
        site = web.TCPSite(runner, *address)
        try:
            await site.start()
        except OSError as error:
            raise UsageError(
                f"cannot listen on {address[0]}:{address[1]}: {error.strerror}",
                hint="--metrics-address gives another one",
            ) from None
        yield int(runner.addresses[0][1])  # foreign-text: the number of an own port
    finally:
        await runner.cleanup()
