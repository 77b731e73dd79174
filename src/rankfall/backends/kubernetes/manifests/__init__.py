"""Compiles a job spec into manifests. Pure: output depends on input only.

Imports shared modules of `backends`, `model`, constants of `kube` and `rankfall_inside.transfer` only.
"""
