"""Metrics in Prometheus' text format, and their HTTP server with the probes.

Label values of the controller are never node names or foreign texts.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from types import MappingProxyType
from typing import Final

from aiohttp import web

from rankfall.model.errors import UsageError

#: Name -> kind and help; printed with ``rankfall_``.
NAMES: Final[Mapping[str, tuple[str, str]]] = MappingProxyType({
    "health_evidence_total": ("counter", "Observations, by source, kind of code and outcome."),
    "health_nodes": ("gauge", "Nodes by state."),
    "health_held_nodes": ("gauge", "Nodes that should be quarantined but are not, by reason."),
    "health_quarantined_total": ("counter", "Taints placed."),
    "health_returned_total": ("counter", "Taints removed."),
    "health_breaker_open": ("gauge", "1 while the breaker is open: no node is quarantined until a person closes it."),
    "health_kill_switch": ("gauge", "1 while the kill switch stops all changes of taints."),
    "health_leader": ("gauge", "1 while this process is the leader."),
    "health_source_blind_seconds": ("gauge", "Seconds since a source stopped answering; 0 = it answers."),
    "health_source_lag_seconds": ("gauge", "Age of the newest data read from a source."),
    "health_source_lines_total": ("counter", "Lines read from a source."),
    "health_source_errors_total": ("counter", "Failed queries to a source."),
    "health_exporters_silent": ("gauge", "Exporters of metrics that did not answer the last query."),
    "health_lines_lost_total": ("counter", "Nanoseconds with more lines than one answer of Loki can hold."),
    "health_lines_without_node_total": ("counter", "Lines whose collector named no node."),
    "health_writes_total": ("counter", "Writes to Nodes, by outcome."),
    "health_waiting": ("gauge", "Observations that wait for their Node."),
    "health_config_bad": ("gauge", "1 while the settings file is invalid and the previous settings are active."),
    "health_requests_total": ("counter", "Requests sent to the API server."),
})  # fmt: skip
#: Series of one name: driver codes are few.
_MAX_SERIES: Final = 2_000


class Metrics:
    """Values of the metrics ``names``, as :data:`NAMES`: those of one controller."""

    def __init__(self, names: Mapping[str, tuple[str, str]] = NAMES) -> None:
        self._names = names
        self._values: dict[str, dict[tuple[tuple[str, str], ...], float]] = {name: {} for name in names}

    def add(self, name: str, amount: float = 1, /, **labels: str) -> None:
        """Increments a counter."""
        series = self._values[name]
        key = tuple(sorted(labels.items()))
        if key in series or len(series) < _MAX_SERIES:
            series[key] = series.get(key, 0) + amount

    def set(self, name: str, value: float, /, **labels: str) -> None:
        """Sets a value."""
        self._values[name][tuple(sorted(labels.items()))] = value

    def replace(self, name: str, label: str, values: Mapping[str, float]) -> None:
        """Sets all values of one name and drops the others."""
        self._values[name] = {((label, key),): value for key, value in values.items()}

    def get(self, name: str, /, **labels: str) -> float:
        """Returns one value; 0 if unset."""
        return self._values[name].get(tuple(sorted(labels.items())), 0)

    def text(self) -> str:
        """Returns the text format, version 0.0.4."""
        lines = []
        for name, (kind, reported) in self._names.items():
            lines += [f"# HELP rankfall_{name} {reported}", f"# TYPE rankfall_{name} {kind}"]
            for labels, value in sorted(self._values[name].items()):
                labels_text = ",".join(f'{key}="{_escaped(each)}"' for key, each in labels)
                lines.append(
                    f"rankfall_{name}{{{labels_text}}} {value:.15g}" if labels_text else f"rankfall_{name} {value:.15g}"
                )
        return "\n".join([*lines, ""])


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


@asynccontextmanager
async def serving(
    address: tuple[str, int],
    *,
    text: Callable[[], str],
    alive: Callable[[], bool] = lambda: True,
    ready: Callable[[], bool] = lambda: True,
) -> AsyncIterator[int]:
    """Serves ``text`` at ``/metrics``, and ``/healthz`` and ``/readyz``, inside the block; yields the port.

    A controller that waits for the lease is ready.

    Raises:
        UsageError: The address is not available.
    """

    def probe(*, holds: bool) -> web.Response:
        return web.Response(text="ok\n") if holds else web.Response(text="not ok\n", status=503)

    async def handle(request: web.BaseRequest) -> web.StreamResponse:
        if request.path == "/metrics":
            found = await asyncio.to_thread(text)
            return web.Response(text=found, content_type="text/plain", charset="utf-8")
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
                hint="choose another address with --metrics-address",
            ) from None
        yield int(runner.addresses[0][1])  # foreign-text: the number of an own port
    finally:
        await runner.cleanup()
