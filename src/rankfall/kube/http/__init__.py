"""HTTP below the client: pools, directly read connections, streamed bodies, retries, responses.

Knows statuses and headers, and nothing of Kubernetes objects. May import: ``kube.auth``, ``kube.errors``,
``kube.request``, ``kube.secret``. The face is ``transport.Transport``; only ``kube.client`` and
``kube.objects`` use it.
"""
