"""Creates and removes objects so that every step can be killed and repeated.

Independent of specs, plans and run directories. Imports `kube`, `model.errors` and `manifests.names` only.
"""
