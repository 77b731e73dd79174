"""Foreign jobs: found, recorded and explained, never changed.

Imports shared modules of `backends`, `kube`, `rundir`, `model`, and `collect.pods` for gang states.
"""
