"""``rankfall controller``: collects observations of faults, decides by ``nodes.rules``, writes taints.

One loop decides; sources hand over observations and wait until these are acted on. What must outlive the
process lies on the Nodes and in one ConfigMap. A controller without the lease writes nothing. May import:
``nodes.*``, ``kube``, ``loki``, ``model``. Face: ``main.Controller``.
"""
