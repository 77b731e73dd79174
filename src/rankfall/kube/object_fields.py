"""Tolerant access to fields of API objects, and the well-known labels of pods. Pure.

Other controllers, other versions and people write these objects. A missing field or one of a wrong type is
unknown, never an error, and every text is bounded. The labels are those by which Kubernetes and job
controllers say whose a pod is.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from rankfall.model import numbers

# Of an Indexed Job's pod, as a label since Kubernetes 1.28, as an annotation ever since there are such jobs: which pod it is, never which rank.
COMPLETION_INDEX: Final = "batch.kubernetes.io/job-completion-index"
JOB_UID: Final = "batch.kubernetes.io/controller-uid"
# Known to every server that has Indexed Jobs; its successor with a prefix only since 1.27.
JOB_NAME: Final = "job-name"

# Of JobSet: its name, its UID, which of its replicated jobs, which replica of that, and which start of the whole gang (from 0).
JOBSET_NAME: Final = "jobset.sigs.k8s.io/jobset-name"
JOBSET_UID: Final = "jobset.sigs.k8s.io/jobset-uid"
JOBSET_ROLE: Final = "jobset.sigs.k8s.io/replicatedjob-name"
JOBSET_JOB: Final = "jobset.sigs.k8s.io/job-index"
JOBSET_RESTART: Final = "jobset.sigs.k8s.io/restart-attempt"

# Of the training operator (v1): PyTorchJob, TFJob, MPIJob.
TRAINING_JOB: Final = "training.kubeflow.org/job-name"
TRAINING_TYPE: Final = "training.kubeflow.org/replica-type"
TRAINING_INDEX: Final = "training.kubeflow.org/replica-index"


# Characters kept of a name, a reason, a stamp; and of a message.
MAX_WORD: Final = 256
MAX_TEXT: Final = 4096
# Not a number of the API: it has no index, code or count that is larger.
MOST: Final = 1 << 31


def mapping(data: Mapping[str, Any], field: str) -> Mapping[str, Any]:
    """A field that holds an object; empty where it does not."""
    value = data.get(field)
    return value if isinstance(value, Mapping) else {}


def mappings(data: Mapping[str, Any], field: str) -> list[Mapping[str, Any]]:
    """A field that holds a list of objects: those of its items that are objects."""
    value = data.get(field)
    return [one for one in value if isinstance(one, Mapping)] if isinstance(value, list) else []


def word(value: Any, most: int = MAX_WORD) -> str | None:
    """The first ``most`` characters of a text; None where it is empty or none."""
    return value[:most] if isinstance(value, str) and value else None


def text(value: Any) -> str | None:
    """A message, bounded."""
    return word(value, MAX_TEXT)


def number(value: Any) -> int | None:
    """A whole number from 0, as a number or in digits (labels are texts); None where it is neither."""
    if isinstance(value, str):
        value = numbers.whole(value)
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < MOST else None


def condition(item: Mapping[str, Any], kind: str) -> Mapping[str, Any]:
    """The condition of this type in an object's status; empty where there is none."""
    return next((one for one in mappings(mapping(item, "status"), "conditions") if one.get("type") == kind), {})
