"""Tolerant access to API object fields, and pod labels. Pure.

Missing or wrong fields are unknown; texts are bounded.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from rankfall.model import numbers

# Index of an Indexed Job's pod, never its rank; a label since Kubernetes 1.28.
COMPLETION_INDEX: Final = "batch.kubernetes.io/job-completion-index"
JOB_UID: Final = "batch.kubernetes.io/controller-uid"
# The prefixed successor exists since 1.27.
JOB_NAME: Final = "job-name"

# JobSet labels; the restart count is from 0.
JOBSET_NAME: Final = "jobset.sigs.k8s.io/jobset-name"
JOBSET_UID: Final = "jobset.sigs.k8s.io/jobset-uid"
JOBSET_ROLE: Final = "jobset.sigs.k8s.io/replicatedjob-name"
JOBSET_JOB: Final = "jobset.sigs.k8s.io/job-index"
JOBSET_RESTART: Final = "jobset.sigs.k8s.io/restart-attempt"
# Annotation; also counts suspensions. KEP-1282, after JobSet 0.12.
JOBSET_EXECUTION: Final = "jobset.sigs.k8s.io/execution-attempt"

TRAINING_JOB: Final = "training.kubeflow.org/job-name"
TRAINING_TYPE: Final = "training.kubeflow.org/replica-type"
TRAINING_INDEX: Final = "training.kubeflow.org/replica-index"


# Characters of a name, reason or timestamp; of a message.
MAX_WORD: Final = 256
MAX_TEXT: Final = 4096
# No index, code or count of the API is larger.
MOST: Final = 1 << 31


def mapping(data: Mapping[str, Any], field: str) -> Mapping[str, Any]:
    """Returns the field if it is an object, else an empty one."""
    value = data.get(field)
    return value if isinstance(value, Mapping) else {}


def mappings(data: Mapping[str, Any], field: str) -> list[Mapping[str, Any]]:
    """Returns those items of a list field that are objects."""
    value = data.get(field)
    return [one for one in value if isinstance(one, Mapping)] if isinstance(value, list) else []


def word(value: Any, most: int = MAX_WORD) -> str | None:
    """Returns a text's first ``most`` characters; None if empty or no text."""
    return value[:most] if isinstance(value, str) and value else None


def text(value: Any) -> str | None:
    """Returns a message text, truncated; None if empty or no text."""
    return word(value, MAX_TEXT)


def number(value: Any) -> int | None:
    """Returns a whole number from 0, also from digits (labels are texts), or None."""
    if isinstance(value, str):
        value = numbers.whole(value)
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < MOST else None


def execution_of(pod: Mapping[str, Any]) -> int | None:
    """Returns the execution of its JobSet that a pod belongs to; None if unknown."""
    meta = mapping(pod, "metadata")
    marks = (mapping(meta, "annotations"), mapping(meta, "labels"))
    return next((found for one in marks if (found := number(one.get(JOBSET_EXECUTION))) is not None), None)


def condition(item: Mapping[str, Any], kind: str) -> Mapping[str, Any]:
    """Returns the status condition of this type, or empty."""
    return next((one for one in mappings(mapping(item, "status"), "conditions") if one.get("type") == kind), {})
