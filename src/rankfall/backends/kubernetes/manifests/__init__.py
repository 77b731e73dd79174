"""Compiles a job spec into manifests. Pure: no request, no clock, no file; the same input gives the same output.

`compile` is the face; other rooms also use `names`, `request` and what they need of a pod (`pod`, `code`).
Whatever a workload kind or the server cannot do is refused here, before anything is created.
Imports the shared modules of `backends`, `model`, constants of `kube` and `rankfall_inside.transfer` only.
"""
