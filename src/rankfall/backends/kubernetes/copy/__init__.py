"""Copies files between this machine and a job's volume.

`workspace` is the public module. Imports `manifests`, `lifecycle.ownership`, `kube` and `rankfall_inside.transfer`.
"""
