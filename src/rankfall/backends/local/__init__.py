"""The local backend: slots are process groups on this machine.

`backend` is the face, named by the registry only; `planning` decides what would start, `processes` starts it.
Needs no cluster: imports the shared modules of `backends`, `rundir`, `model` and `verdict.diagnose`, never `kube` or
another backend. `ports` is free of imports, because `rankfall doctor` uses it.
"""
