"""Maps the backend name of a spec to its class and loads it when it is used.

The only place that knows the classes. Refuses a name that this version has no backend for, before anything is
created.
"""

from __future__ import annotations

import importlib
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from rankfall.model import JobSpec, Refused
from rankfall.model.foreign import FOREIGN

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from rankfall.backends.plan import Plan
    from rankfall.backends.protocol import Backend, NativeBackend

# Name in a spec -> module and class; the class is called without arguments.
BACKENDS: Final[Mapping[str, tuple[str, str]]] = MappingProxyType(
    {
        "local": ("rankfall.backends.local.backend", "LocalBackend"),
        "job": ("rankfall.backends.kubernetes.backend", "ClusterBackend"),
        "jobset": ("rankfall.backends.kubernetes.backend", "ClusterBackend"),
        "trainjob": ("rankfall.backends.kubernetes.backend", "ClusterBackend"),
        FOREIGN: ("rankfall.backends.foreign.backend", "ForeignBackend"),
    }
)


def backend_for(spec: JobSpec) -> Backend:
    """A new backend for one run of this job.

    Raises:
        Refused: this version has no such backend.
    """
    found = BACKENDS.get(spec.backend)
    if found is None:
        raise Refused(
            f"$.backend: {spec.backend} is not available in this version of Rankfall",
            hint=f"allowed: {', '.join(name for name in BACKENDS if name != FOREIGN)}; as --backend local",
        )
    module, name = found
    backend: Backend = getattr(importlib.import_module(module), name)()
    return backend


def first_plan(spec: JobSpec, *, home: Path, elsewhere: bool) -> Plan:
    """The plan of the first attempt; nothing is created, so that what cannot work is refused without a trace.

    Args:
        spec: the job.
        home: where its run would be; need not exist.
        elsewhere: another process will supervise it, and must find its strategy too.

    Raises:
        UsageError: something that the job needs is missing, or fields contradict the command.
        InfrastructureError: no port is free, or the cluster does not answer.
    """
    from rankfall.collect.stores.record_store import require_reader  # noqa: PLC0415 - as the strategies
    from rankfall.rundir import RunDir  # noqa: PLC0415 - who names backends only needs none
    from rankfall.strategy_registry import find_strategy  # noqa: PLC0415 - loads the signatures

    find_strategy(spec.strategy, elsewhere=elsewhere)
    require_reader(spec.record_store)
    require_reader(spec.kubernetes.log_store, field="$.kubernetes.log_store")
    backend = backend_for(spec)
    try:
        return backend.plan(spec, RunDir(home / "runs" / f"{spec.name}-000000"), 1)
    finally:
        backend.release()


def native_of(backend: Backend) -> NativeBackend:
    """The same backend, for a run without a supervisor.

    Raises:
        Refused: it has no platform that could run a job alone.
    """
    from rankfall.backends.protocol import NativeBackend  # noqa: PLC0415 - who names backends only needs none

    if not isinstance(backend, NativeBackend):
        raise Refused(
            "$.unattended: this backend has no platform that would run the job alone",
            hint="leave unattended out; rankfall submit keeps a supervisor in the background",
        )
    return backend
