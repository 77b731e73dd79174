"""What the bed's server and controllers offer to a compiler of manifests, from the table of the versions that it was built with."""

from __future__ import annotations

import os

from rankfall.backends.kubernetes.manifests.request import ServedFacts
from testbed import components

_ROWS = components.core(os.environ.get("TESTBED_VERSIONS", ""))
# Major and minor number of the bed's Kubeflow Trainer.
TRAINER = components.table()[_ROWS["trainer"]].minor


SERVED = ServedFacts(
    version=components.table()[_ROWS["kubernetes"]].minor,
    kinds=frozenset({"Job", "JobSet", "TrainJob", "TrainingRuntime", "ClusterTrainingRuntime"}),
    pod_overrides="podSpecOverrides" if TRAINER == (2, 0) else "runtimePatches",
)
