"""In a pod, without a kubeconfig: its service account (S44 of the seed)."""

from __future__ import annotations

import pytest

from rankfall.kube.auth import kubeconfig
from rankfall.kube.auth.kubeconfig import IN_CLUSTER, load_access, reread
from rankfall.kube.errors import KubeConfigError

POD = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "KUBERNETES_SERVICE_PORT": "443"}


@pytest.fixture
def account(tmp_path, monkeypatch):
    folder = tmp_path / "serviceaccount"
    folder.mkdir()
    for name, text in (("token", "t"), ("ca.crt", "c"), ("namespace", "team\n")):
        (folder / name).write_text(text)
    monkeypatch.setattr(kubeconfig, "POD_FOLDER", str(folder))
    return folder


def test_launch_s44_in_cluster_is_the_last_resort(account, tmp_path):
    access = load_access(environ=POD)
    assert (access.server, access.namespace, access.context) == ("https://10.0.0.1:443", "team", IN_CLUSTER)
    assert access.login.token_file == str(account / "token")
    assert access.endpoint.ca_file == str(account / "ca.crt")
    assert reread(access) == access
    # A kubeconfig without a current context is as good as none; one that names it is not asked past.
    config = tmp_path / "config"
    config.write_text("contexts: []")
    assert load_access(environ={**POD, "KUBECONFIG": str(config)}).context == IN_CLUSTER
    config.write_text(
        "{clusters: [{name: a, cluster: {server: 'https://a'}}], contexts: [{name: a, context: {cluster: a}}], current-context: a}"
    )
    assert load_access(environ={**POD, "KUBECONFIG": str(config)}).server == "https://a"
    # The name that a run remembers leads back here.
    assert load_access(context=IN_CLUSTER, environ={**POD, "KUBECONFIG": str(config)}).context == IN_CLUSTER


@pytest.mark.parametrize(
    ("host", "address"), [("fd00::1", "https://[fd00::1]:443"), ("api.internal", "https://api.internal:443")]
)
def test_ipv6_and_names(account, host, address):
    assert load_access(environ={**POD, "KUBERNETES_SERVICE_HOST": host}).server == address


def test_where_the_namespace_comes_from(account):
    assert load_access(environ={**POD, "POD_NAMESPACE": "other"}).namespace == "other"
    assert load_access(environ=POD, namespace="mine").namespace == "mine"
    (account / "namespace").unlink()
    (account / "ca.crt").unlink()
    access = load_access(environ=POD)
    assert (access.namespace, access.endpoint.ca_file) == ("default", None)


def test_no_pod_is_said_with_what_to_do(account, tmp_path):
    with pytest.raises(KubeConfigError, match="no cluster to work with"):
        load_access(environ={"HOME": str(tmp_path)})
    with pytest.raises(KubeConfigError, match="not a pod with a service account"):
        load_access(context=IN_CLUSTER, environ={})
    with pytest.raises(KubeConfigError, match=r"at \$KUBECONFIG"):
        load_access(environ={})
    (account / "token").unlink()
    with pytest.raises(KubeConfigError, match="no cluster to work with"):
        load_access(environ=POD)
