"""What the bed's server and controllers offer to a compiler of manifests, from the table of the versions that it was built with."""

from __future__ import annotations

import os

from rankfall.backends.kubernetes.manifests.request import ServedFacts
from testbed import components


def _minor(component: str) -> tuple[int, int]:
    row = components.table()[components.core(os.environ.get("TESTBED_VERSIONS", ""))[component]]
    major, minor = row.version.removeprefix("v").split(".")[:2]
    return int(major), int(minor)


SERVED = ServedFacts(
    version=_minor("kubernetes"),
    kinds=frozenset({"Job", "JobSet", "TrainJob", "TrainingRuntime", "ClusterTrainingRuntime"}),
    pod_overrides="podSpecOverrides" if _minor("trainer") == (2, 0) else "runtimePatches",
)
