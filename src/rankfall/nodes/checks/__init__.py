"""Checks of a node before it is returned: their table, the Jobs that run them, and rounds of them.

``jobs`` is pure but for packaged data; ``rounds`` uses ``kube``. May import: ``nodes.rules``, ``kube``,
``model``.
"""
