"""Foreign jobs: found, recorded and explained, never changed.

Imports shared modules of `backends`, `kube`, `rundir` and `model`. From `collect.pods` it imports one function, which selects
the pods of one attempt.
"""
