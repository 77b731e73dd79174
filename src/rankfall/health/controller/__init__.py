"""``rankfall controller``: reads what tells of faults of nodes, decides, and writes taints. The deciding itself is pure and lies beside this package.

One loop decides (:mod:`loop`); sources give it what they saw and wait until it is acted on; all that must outlive the process lies on the
Nodes and in one ConfigMap. Whoever does not hold the lease writes nothing.
"""
