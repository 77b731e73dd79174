"""Backends plan, start, stop and remove a run's slots; they make no decisions.

May import `model`, `rundir`, `kube`, `verdict`, the pod modules of `collect.pods`, `evidence.cluster` and
`rankfall_inside.transfer`.
"""
