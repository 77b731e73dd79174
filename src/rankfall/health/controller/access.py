"""Finds the cluster that a controller controls: the one of its own pod, else that of the kubeconfig."""

from __future__ import annotations

from collections.abc import Mapping

from rankfall.health.controller.telling import LOG
from rankfall.kube import incluster
from rankfall.kube.access import Access
from rankfall.kube.kubeconfig import load_access


def find_access(
    *, kubeconfig: str | None, context: str | None, environ: Mapping[str, str], folder: str | None = None
) -> Access:
    """The cluster: this pod's own, else that of the kubeconfig. Which one it is stands in the log.

    Args:
        kubeconfig: a file; the pod's own cluster is not tried then.
        context: of the kubeconfig; as above.
        environ: the environment.
        folder: of the service account, for tests.

    Raises:
        KubeConfigError: there is none.
    """
    if kubeconfig is None and context is None:
        if incluster.possible(environ, folder=folder):
            access = incluster.load(namespace=None, environ=environ, folder=folder)
            LOG.info("in-cluster config loaded: %s", access.server)
            return access
        LOG.warning("incluster config failed to load, attempting to use kubeconfig.")
    access = load_access(kubeconfig=kubeconfig, context=context, environ=environ)
    LOG.info("KUBECONFIG loaded: context %s, %s", access.context, access.server)
    return access
