"""A real Kubernetes on one machine, for tests: no Docker, no image registry, nothing downloaded but packages.

``python -m testbed up`` starts a control plane and nodes, ``down`` leaves nothing behind. docs/testbed.md tells how it works.
"""
