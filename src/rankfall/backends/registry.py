"""Maps a spec's backend name to its class and loads it on first use."""

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

BACKENDS: Final[Mapping[str, tuple[str, str]]] = MappingProxyType(
    {
        "local": ("rankfall.backends.local.backend", "LocalBackend"),
        "slurm": ("rankfall.backends.slurm.backend", "SlurmBackend"),
        "job": ("rankfall.backends.kubernetes.backend", "ClusterBackend"),
        "jobset": ("rankfall.backends.kubernetes.backend", "ClusterBackend"),
        "trainjob": ("rankfall.backends.kubernetes.backend", "ClusterBackend"),
        FOREIGN: ("rankfall.backends.foreign.backend", "ForeignBackend"),
    }
)


def backend_for(spec: JobSpec) -> Backend:
    """Returns a new backend for one run of this job.

    Raises:
        Refused: No such backend.
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
    """Returns the first attempt's plan; creates nothing.

    ``elsewhere``: another process supervises and must find the strategy too.

    Raises:
        UsageError: Missing requirement or contradiction.
        InfrastructureError: No free port, or no answer.
    """
    from rankfall.collect.stores.record_store import require_reader  # noqa: PLC0415
    from rankfall.rundir import RunDir  # noqa: PLC0415
    from rankfall.strategy_registry import find_strategy  # noqa: PLC0415

    find_strategy(spec.strategy, elsewhere=elsewhere)
    require_reader(spec.record_store)
    require_reader(spec.kubernetes.log_store, field="$.kubernetes.log_store")
    backend = backend_for(spec)
    try:
        return backend.plan(spec, RunDir(home / "runs" / f"{spec.name}-000000"), 1)
    finally:
        backend.release()


def native_of(backend: Backend) -> NativeBackend:
    """Returns the same backend, for a run without a supervisor.

    Raises:
        Refused: Its platform cannot run a job alone.
    """
    from rankfall.backends.protocol import NativeBackend  # noqa: PLC0415

    if not isinstance(backend, NativeBackend):
        raise Refused(
            "$.unattended: this backend has no platform that would run the job alone",
            hint="leave unattended out; rankfall submit keeps a supervisor in the background",
        )
    return backend
