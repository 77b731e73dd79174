"""Numbers for Prometheus, in its text format. Counters and gauges are all there is, so a library for it would be more than what it replaces.

Values of labels are codes, sources and words of ours; names of nodes and texts of others never become labels, so their number stays bounded.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

#: Name -> kind and help. Each begins with ``rankfall_`` in the output.
NAMES: Final[Mapping[str, tuple[str, str]]] = MappingProxyType({
    "health_evidence_total": ("counter", "Observations, by source, kind of code and what became of them."),
    "health_nodes": ("gauge", "Nodes by state."),
    "health_held_nodes": ("gauge", "Nodes that should be quarantined and are not, by the reason."),
    "health_quarantined_total": ("counter", "Taints placed."),
    "health_returned_total": ("counter", "Taints taken away."),
    "health_breaker_open": ("gauge", "1 while nothing more is quarantined until a person says so."),
    "health_kill_switch": ("gauge", "1 while no taint changes."),
    "health_leader": ("gauge", "1 while this process acts."),
    "health_source_blind_seconds": ("gauge", "How long a source could not be asked; 0 = it answers."),
    "health_source_lag_seconds": ("gauge", "Age of what a source has been read up to."),
    "health_source_lines_total": ("counter", "Lines read from a source."),
    "health_source_errors_total": ("counter", "Questions to a source that were not answered."),
    "health_exporters_silent": ("gauge", "Exporters of metrics that did not answer at the last look."),
    "health_lines_lost_total": ("counter", "Nanoseconds that held more lines than Loki gives at once."),
    "health_lines_without_node_total": ("counter", "Lines whose collector did not say of which node."),
    "health_writes_total": ("counter", "Writes to Nodes, by what came of them."),
    "health_waiting": ("gauge", "Observations that wait for their Node."),
    "health_config_bad": ("gauge", "1 while the file of settings is not usable and the one before is in force."),
    "health_requests_total": ("counter", "Requests sent to the API server."),
})  # fmt: skip
#: More than this of one name are not kept: codes of new drivers are few.
_MAX_SERIES: Final = 2_000


class Metrics:
    """All numbers of one controller."""

    def __init__(self) -> None:
        self._values: dict[str, dict[tuple[tuple[str, str], ...], float]] = {name: {} for name in NAMES}

    def add(self, name: str, amount: float = 1, **labels: str) -> None:
        """Count."""
        series = self._values[name]
        key = tuple(sorted(labels.items()))
        if key in series or len(series) < _MAX_SERIES:
            series[key] = series.get(key, 0) + amount

    def set(self, name: str, value: float, **labels: str) -> None:
        """Say how it stands."""
        self._values[name][tuple(sorted(labels.items()))] = value

    def replace(self, name: str, label: str, values: Mapping[str, float]) -> None:
        """Say how all of one name stand; those that are not named are gone."""
        self._values[name] = {((label, key),): value for key, value in values.items()}

    def get(self, name: str, **labels: str) -> float:
        """One value; 0 where nothing was counted."""
        return self._values[name].get(tuple(sorted(labels.items())), 0)

    def text(self) -> str:
        """The text format, version 0.0.4."""
        lines = []
        for name, (kind, told) in NAMES.items():
            lines += [f"# HELP rankfall_{name} {told}", f"# TYPE rankfall_{name} {kind}"]
            for labels, value in sorted(self._values[name].items()):
                shown = ",".join(f'{key}="{_escaped(each)}"' for key, each in labels)
                lines.append(f"rankfall_{name}{{{shown}}} {value:.15g}" if shown else f"rankfall_{name} {value:.15g}")
        return "\n".join([*lines, ""])


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')
