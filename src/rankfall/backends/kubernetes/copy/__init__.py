"""Copies files between this machine and a job's volume in a cluster.

`workspace` is the face; `copy_pod` mounts the volume, `transfer` moves frames through exec and resumes after cuts.
Imports `manifests`, `lifecycle.ownership`, `kube` and `rankfall_inside.transfer`, never the backend.
"""
