"""``rankfall agent``: reads one node's kernel log, each record once, and reports faults on its Node.

It has no right to taint. It runs on every node in about 50 MiB: never import aiohttp here, so of ``kube``
only ``auth``, ``errors``, ``request``, ``resources`` and ``secret``. May also import: ``nodes.rules``, the
kernel-log reader, ``model``. Face: ``main.run``.
"""
