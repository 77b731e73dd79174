"""Sources of observations: watches of Nodes and switches, kernel and pod lines in Loki, metric exporters.

A source moves its own position only after the loop has acted on what it gave, or stored it. No answer is
never taken for "no fault". May import: the controller's loop, cache and stored state, ``kube``, ``loki``,
``nodes.rules``.
"""
