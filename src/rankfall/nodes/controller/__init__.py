"""``rankfall controller``: collects observations, decides by ``nodes.rules``, writes taints.

Lasting state is on the Nodes and in one ConfigMap. Without the lease the controller writes nothing.
"""
