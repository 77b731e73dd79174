"""Labels by which Kubernetes and its job controllers say whose a pod is. Names of others' contracts, each spelled here once."""

from __future__ import annotations

from typing import Final

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
