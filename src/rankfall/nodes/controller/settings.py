"""Settings of the controller from flags and environment, and the switches that people set while it runs.

The variables of Konduktor's controller are accepted (``LOG_ENDPOINT``, ``POD_LOG_TYPE``,
``WATCHED_NAMESPACES``). A log source without a namespace is refused: any pod of a fitting name could taint
nodes. Switches are the ConfigMap ``rankfall-controller``: ``kill-switch: "true"`` stops every change of a
taint, an unreadable value counts as on, and ``breaker-reset: WORD`` closes the breaker once for each new
word.
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
    """As they stand.

    Attributes:
        kill: no taint changes.
        reset_word: the breaker is closed when this is another word than before.
        problem: what of it cannot be read.
    """

    kill: bool = False
    reset_word: str = ""
    problem: str | None = None


def read_switches(item: Mapping[str, Any] | None) -> Switches:
    """The switches of the ConfigMap; None = there is none, and nothing is switched."""
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
    """How a collector names what we ask for: labels or structured metadata of Loki."""

    node: str
    namespace: str
    pod: str
    daemon_set: str


#: Values of ``POD_LOG_TYPE``. ``skypilot`` stands in the logs of Konduktor's users; its lines came with the same labels.
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
    """A DaemonSet whose log is believed, because only administrators may start pods in its namespace."""

    namespace: str
    daemon_set: str


#: The DaemonSet that prints ``dmesg`` in Konduktor's manifests, and our own agent.
DMESG: Final = Stream(namespace="dmesg-logging", daemon_set="dmesg")
AGENT: Final = Stream(namespace=NAMESPACE, daemon_set="rankfall-agent")


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """A controller's settings.

    Attributes:
        namespace: of its own objects: lease, state, switches.
        identity: names this process in the lease.
        loki: where Loki is; None = it is not asked.
        log_type: how the collector names things; ``labels`` are its names.
        watched: namespaces whose pods' own output is looked at; nobody believes it without more.
        streams: whose kernel lines are believed.
        poll_s: seconds between the beginnings of two looks at Loki.
        look_back_s: how far back the very first look goes.
        shared_kernel_node: whose ring it is where several Nodes tell one boot id; None = then nothing of that kernel is acted on.
        web: address and port of metrics and probes; None = none.
        dry_run: nothing at all is written.
        accept_injected: the test mode: records that processes wrote into the kernel's log count as the kernel's.
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
        """Names of the collector."""
        return LOG_TYPES[self.log_type]


def loki_of(url: str | None, environ: Mapping[str, str]) -> LokiSettings | None:
    """Where Loki is: a flag, ``LOG_ENDPOINT``, ``RANKFALL_LOKI_URL``; None = nobody says.

    Raises:
        UsageError: an address or a setting is none.
    """
    address = url or environ.get("LOG_ENDPOINT") or environ.get(f"{PREFIX}URL")
    return loki_settings(address, environ) if address else None


def log_type_of(environ: Mapping[str, str]) -> str:
    """``POD_LOG_TYPE``; without one that of OpenTelemetry's collector.

    Raises:
        UsageError: there is no such type.
    """
    found = environ.get("POD_LOG_TYPE") or "otlp"
    if found not in LOG_TYPES:
        raise UsageError(f"POD_LOG_TYPE {found[:60]!r} is not known", hint=f"known: {', '.join(LOG_TYPES)}")
    return found


def watched_of(text: str | None) -> tuple[str, ...]:
    """Names of namespaces with commas between them.

    Raises:
        UsageError: one cannot be the name of a namespace.
    """
    return tuple(_name(part, "WATCHED_NAMESPACES") for part in (text or "").split(",") if part.strip())


def stream_of(text: str) -> Stream:
    """A DaemonSet as ``NAMESPACE/NAME``.

    Raises:
        UsageError: it is of another form; a namespace must be named.
    """
    namespace, slash, name = text.partition("/")
    if not slash:
        raise UsageError(
            f"{text[:60]!r} names no DaemonSet with its namespace", hint="as dmesg-logging/dmesg; without a namespace any pod could pass for it"
        )  # fmt: skip
    return Stream(namespace=_name(namespace, "namespace"), daemon_set=_name(name, "DaemonSet"))


def kernel_query(stream: Stream, labels: Labels, *, texts: tuple[str, ...]) -> str:
    """Lines of a DaemonSet that hold one of these texts, in Loki's language."""
    names = {labels.namespace: stream.namespace, labels.daemon_set: stream.daemon_set}
    return logql.selector(names) + logql.containing(texts)


def pod_query(namespaces: tuple[str, ...], labels: Labels, *, texts: tuple[str, ...]) -> str:
    """Lines of all pods of these namespaces that hold one of these texts."""
    any_of = "|".join(logql.literal(name) for name in namespaces)
    return logql.selector({}, like={labels.namespace: any_of}) + logql.containing(texts)


def namespace_of(text: str | None, environ: Mapping[str, str]) -> str:
    """The controller's own namespace: a flag, ``POD_NAMESPACE``, the default.

    Raises:
        UsageError: no namespace can have that name.
    """
    return _name(text or environ.get("POD_NAMESPACE") or NAMESPACE, "namespace")


def _name(text: str, what: str) -> str:
    name = text.strip()
    if not _NAME.fullmatch(name):
        raise UsageError(f"{what}: {name[:60]!r} cannot be a name in Kubernetes", hint="lower-case letters, digits, -")
    return name
