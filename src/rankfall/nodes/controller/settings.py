"""Settings of the controller and its switches.

Log sources need a namespace: any pod of a matching name could taint nodes.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

import msgspec

from rankfall.loki import logql
from rankfall.loki.settings import PREFIX, LokiSettings, loki_settings
from rankfall.model import UsageError
from rankfall.model.node_health.records import printable
from rankfall.model.node_health.run_verdicts import NAMESPACE
from rankfall.model.patterns import anchored

NAME: Final = "rankfall-controller"
_ON: Final = frozenset({"true", "on", "yes", "1"})
_OFF: Final = frozenset({"", "false", "off", "no", "0"})


class Switches(msgspec.Struct, frozen=True, kw_only=True):
    """Switches in the ConfigMap ``rankfall-controller``.

    ``kill-switch: "true"`` stops taint changes, also if unreadable; each new ``breaker-reset: WORD`` closes the breaker
    once.
    """

    kill: bool = False
    reset_word: str = ""
    problem: str | None = None


def read_switches(item: Mapping[str, Any] | None) -> Switches:
    """Returns the switches of the ConfigMap; defaults for None."""
    data = (item or {}).get("data") or {}
    word = str(data.get("kill-switch", "")).strip().lower()
    problem = None
    if word not in _ON | _OFF:
        problem = f"ConfigMap {NAME}: kill-switch {printable(word, 40)!r} is neither true nor false; it counts as true"
    return Switches(
        kill=word not in _OFF, reset_word=printable(str(data.get("breaker-reset", "")), 128), problem=problem
    )


POLL_S: Final = 5.0
LOOK_BACK_S: Final = 600
_NAME: Final = anchored(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", limit=256)


class Labels(msgspec.Struct, frozen=True, kw_only=True):
    """Names of a collector's labels or structured metadata in Loki."""

    node: str
    namespace: str
    pod: str
    daemon_set: str


#: Konduktor's users have ``skypilot``, with the labels of ``otlp``.
LOG_TYPES: Final[Mapping[str, Labels]] = MappingProxyType(
    {
        "otlp": Labels(
            node="k8s_node_name", namespace="k8s_namespace_name", pod="k8s_pod_name", daemon_set="k8s_daemonset_name"
        ),
        "skypilot": Labels(
            node="k8s_node_name", namespace="k8s_namespace_name", pod="k8s_pod_name", daemon_set="k8s_daemonset_name"
        ),
        "promtail": Labels(node="node_name", namespace="namespace", pod="pod", daemon_set="app"),
    }
)


class Stream(msgspec.Struct, frozen=True, kw_only=True):
    """A DaemonSet with a trusted log: only administrators may start pods there."""

    namespace: str
    daemon_set: str


#: Konduktor's ``dmesg`` DaemonSet, and Rankfall's agent.
DMESG: Final = Stream(namespace="dmesg-logging", daemon_set="dmesg")
AGENT: Final = Stream(namespace=NAMESPACE, daemon_set="rankfall-agent")


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of a controller.

    Attributes:
        namespace: Namespace of lease, state and switches.
        identity: Name in the lease.
        loki: Address of Loki, or None.
        log_type: Collector's naming scheme.
        watched: Namespaces whose untrusted pod output is read.
        streams: Streams with trusted kernel lines.
        poll_s: Seconds between Loki polls.
        look_back_s: Reach of the first poll in seconds.
        shared_kernel_node: Owner of a ring that several Nodes report, or None.
        web: Address of metrics and probes, or None.
        dry_run: True to write nothing.
        accept_injected: Test mode: trusts records that processes wrote.
    """

    namespace: str = NAMESPACE
    identity: str = "controller"
    loki: LokiSettings | None = None
    log_type: str = "otlp"
    watched: tuple[str, ...] = ()
    streams: tuple[Stream, ...] = (DMESG, AGENT)
    poll_s: float = POLL_S
    look_back_s: int = LOOK_BACK_S
    shared_kernel_node: str | None = None
    web: tuple[str, int] | None = None
    dry_run: bool = False
    accept_injected: bool = False

    @property
    def labels(self) -> Labels:
        """Label names of the collector."""
        return LOG_TYPES[self.log_type]


def loki_of(url: str | None, environ: Mapping[str, str]) -> LokiSettings | None:
    """Returns the Loki settings by flag, ``LOG_ENDPOINT`` or ``RANKFALL_LOKI_URL``; None without any.

    Raises:
        UsageError: An address or setting is invalid.
    """
    address = url or environ.get("LOG_ENDPOINT") or environ.get(f"{PREFIX}URL")
    return loki_settings(address, environ) if address else None


def log_type_of(environ: Mapping[str, str]) -> str:
    """Returns ``POD_LOG_TYPE``; defaults to that of OpenTelemetry's collector.

    Raises:
        UsageError: The type is unknown.
    """
    found = environ.get("POD_LOG_TYPE") or "otlp"
    if found not in LOG_TYPES:
        raise UsageError(f"POD_LOG_TYPE {found[:60]!r} is unknown", hint=f"known: {', '.join(LOG_TYPES)}")
    return found


def watched_of(text: str | None) -> tuple[str, ...]:
    """Parses comma-separated names of namespaces.

    Raises:
        UsageError: A name is invalid.
    """
    return tuple(_name(part, "WATCHED_NAMESPACES") for part in (text or "").split(",") if part.strip())


def stream_of(text: str) -> Stream:
    """Parses a DaemonSet as ``NAMESPACE/NAME``.

    Raises:
        UsageError: The text has another form.
    """
    namespace, slash, name = text.partition("/")
    if not slash:
        raise UsageError(
            f"{text[:60]!r} is not NAMESPACE/NAME of a DaemonSet", hint="give both, as dmesg-logging/dmesg: without a namespace any pod could pose as it"
        )  # fmt: skip
    return Stream(namespace=_name(namespace, "namespace"), daemon_set=_name(name, "DaemonSet"))


def kernel_query(stream: Stream, labels: Labels, *, texts: tuple[str, ...]) -> str:
    """Returns the Loki query for lines of a DaemonSet with one of these texts."""
    names = {labels.namespace: stream.namespace, labels.daemon_set: stream.daemon_set}
    return logql.selector(names) + logql.containing(texts)


def pod_query(namespaces: tuple[str, ...], labels: Labels, *, texts: tuple[str, ...]) -> str:
    """Returns the Loki query for pod lines."""
    any_of = "|".join(logql.literal(name) for name in namespaces)
    return logql.selector({}, like={labels.namespace: any_of}) + logql.containing(texts)


def namespace_of(text: str | None, environ: Mapping[str, str]) -> str:
    """Returns the controller's namespace: flag, ``POD_NAMESPACE``, or default.

    Raises:
        UsageError: The name is invalid.
    """
    return _name(text or environ.get("POD_NAMESPACE") or NAMESPACE, "namespace")


def _name(text: str, what: str) -> str:
    name = text.strip()
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"{what}: {name[:60]!r} cannot be a name in Kubernetes", hint="use lower-case letters, digits, -"
        )
    return name
