"""``Access``: what it takes to reach one cluster as one user, as frozen data. Does no input or output.

It pins one context at the launch. Files, tokens and plug-ins that change later are read by ``credentials``.
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from rankfall.kube.secret import Secret

IN_CLUSTER: Final = "in-cluster"
"""Name of the context, cluster and user of a pod's own service account."""


Version = Literal["client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1"]
"""Of the protocol of exec plug-ins."""
Mode = Literal["Never", "IfAvailable", "Always"]
"""Whether an exec plug-in may ask at the terminal."""


class Endpoint(msgspec.Struct, frozen=True, kw_only=True):
    """Where the API server is and how it is recognised.

    Attributes:
        server: its address, without a slash at the end; may have a path.
        tls_server_name: name that its certificate must have, when that is not the address's.
        insecure: do not check its certificate.
        ca_file: authorities to check it with; neither this nor ``ca_data`` = the system's.
        ca_data: the same as PEM.
        proxy: address of a proxy on the way; may hold a password; None = the environment's.
        compress: large answers may come compressed.
    """

    server: str
    tls_server_name: str | None = None
    insecure: bool = False
    ca_file: str | None = None
    ca_data: bytes | None = None
    proxy: Secret | None = None
    compress: bool = True


class Impersonation(msgspec.Struct, frozen=True, kw_only=True):
    """Act as somebody else, as ``kubectl --as``."""

    user: str
    uid: str | None = None
    groups: tuple[str, ...] = ()
    extra: tuple[tuple[str, tuple[str, ...]], ...] = ()


class ExecPlugin(msgspec.Struct, frozen=True, kw_only=True):
    """A program that knows the credentials.

    Attributes:
        version: of its protocol.
        command: path, or a name to look up on the PATH.
        args: may hold secrets; never shown.
        env: added to our environment; may hold secrets; never shown.
        interactive: whether it may ask at the terminal.
        install_hint: what to tell when it is not there.
        tell_cluster: tell it of the cluster in ``KUBERNETES_EXEC_INFO``.
        cluster_config: what the kubeconfig has for it in the cluster's extensions, as JSON text.
    """

    version: Version
    command: str
    args: tuple[Secret, ...] = ()
    env: tuple[tuple[str, Secret], ...] = ()
    interactive: Mode = "IfAvailable"
    install_hint: str | None = None
    tell_cluster: bool = False
    cluster_config: Secret | None = None


class Login(msgspec.Struct, frozen=True, kw_only=True):
    """Who we are. Nothing given: anonymous. ``key_data`` is PEM, its bytes read as Latin-1."""

    token: Secret | None = None
    token_file: str | None = None
    cert_file: str | None = None
    cert_data: bytes | None = None
    key_file: str | None = None
    key_data: Secret | None = None
    username: str | None = None
    password: Secret | None = None
    plugin: ExecPlugin | None = None
    impersonate: Impersonation | None = None

    def __repr__(self) -> str:
        given = [name for name in self.__struct_fields__ if getattr(self, name) is not None]
        return f"Login({', '.join(given)})"


class Origin(msgspec.Struct, frozen=True, kw_only=True):
    """The kubeconfig files an access came from, so that the same user can be read again when the server no longer knows us."""

    paths: tuple[str, ...]


class Access(msgspec.Struct, frozen=True, kw_only=True):
    """One cluster, one user, one namespace: all that a client needs, pinned at the launch.

    Attributes:
        context: its name in the kubeconfig, or ``in-cluster``.
        cluster: name in the kubeconfig.
        user: name in the kubeconfig; empty = anonymous.
        namespace: where objects without a namespace of their own go.
        endpoint: where the server is.
        login: who we are.
        origin: where this was read; None = in the cluster, or made by hand.
    """

    context: str
    cluster: str
    user: str
    namespace: str
    endpoint: Endpoint
    login: Login = Login()
    origin: Origin | None = None

    @property
    def server(self) -> str:
        """The API server's address."""
        return self.endpoint.server

    def __repr__(self) -> str:
        return (
            f"Access(context={self.context!r}, cluster={self.cluster!r}, user={self.user!r}, "
            f"namespace={self.namespace!r}, server={self.server!r}, login={self.login!r})"
        )
