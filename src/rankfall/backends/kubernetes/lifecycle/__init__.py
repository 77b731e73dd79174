"""Creates and removes objects so that every step can be killed and repeated.

`launch` ends with exactly one workload, `remove` and `wait_gone` with none; `ownership` decides whose an object is.
Objects are given as manifests: nothing here knows a spec, a plan or a run directory.
Imports `kube`, `model.errors` and `manifests.names` only.
"""
