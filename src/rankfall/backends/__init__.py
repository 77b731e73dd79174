"""Backends plan, start, stop and remove the slots of a run: processes, Kubernetes workloads, foreign jobs.

A supervisor knows them by `protocol` and `plan` only; `registry` maps a spec's backend name to a class and
loads it when used. A backend takes no decision. May import `model`, `rundir`, `kube`, `verdict`,
what `collect.pods` and `evidence.cluster` know of pods, and `rankfall_inside.transfer`.
"""
