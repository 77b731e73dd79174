"""Which cluster, which user, and the credentials of requests: kubeconfig, service account, plug-ins, TLS.

May import: ``kube.errors``, ``kube.secret`` and ``rankfall.model``. Never aiohttp or anything of
``kube.http``: the agent runs on every node, and aiohttp alone would take 20 of its 50 MiB.
"""
