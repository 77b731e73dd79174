"""Address and credentials for one cluster and user, without I/O.

Pins one context at launch; ``credentials`` reads what changes later.
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from rankfall.kube.secret import Secret

IN_CLUSTER: Final = "in-cluster"
"""Context names that mean a pod's service account."""


Version = Literal["client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1"]
"""Version of the exec plug-in protocol."""
Mode = Literal["Never", "IfAvailable", "Always"]
"""Permission to prompt at the terminal."""


class Endpoint(msgspec.Struct, frozen=True, kw_only=True):
    """Address of the API server and how to verify it.

    Attributes:
        server: Address without trailing slash.
        tls_server_name: Name in the certificate, if it differs from the address.
        insecure: True = do not verify the certificate.
        ca_file: File with certificate authorities; None = the system's.
        ca_data: Certificate authorities as PEM.
        proxy: Address of the proxy; None = as in the environment.
        compress: Allow compressed answers.
    """

    server: str
    tls_server_name: str | None = None
    insecure: bool = False
    ca_file: str | None = None
    ca_data: bytes | None = None
    proxy: Secret | None = None
    compress: bool = True


class Impersonation(msgspec.Struct, frozen=True, kw_only=True):
    """Acts as another user, like ``kubectl --as``."""

    user: str
    uid: str | None = None
    groups: tuple[str, ...] = ()
    extra: tuple[tuple[str, tuple[str, ...]], ...] = ()


class ExecPlugin(msgspec.Struct, frozen=True, kw_only=True):
    """Program that supplies the credentials.

    Attributes:
        version: Version of its protocol.
        command: Path or name on the PATH.
        args: Possibly secret.
        env: Additional variables; possibly secret.
        interactive: Permission to prompt.
        install_hint: Message if not installed.
        tell_cluster: Fill ``KUBERNETES_EXEC_INFO``.
        cluster_config: JSON from the cluster's extensions.
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
    """The user's credentials; empty = anonymous. ``key_data`` is PEM, decoded as Latin-1."""

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
    """Kubeconfig files of an access, read again when credentials are refused."""

    paths: tuple[str, ...]


class Access(msgspec.Struct, frozen=True, kw_only=True):
    """One cluster, user and namespace: all that a client needs, pinned at launch.

    An empty ``user`` is anonymous; ``origin`` is None if no kubeconfig file was read.
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
        """Address of the API server."""
        return self.endpoint.server

    def __repr__(self) -> str:
        return (
            f"Access(context={self.context!r}, cluster={self.cluster!r}, user={self.user!r}, "
            f"namespace={self.namespace!r}, server={self.server!r}, login={self.login!r})"
        )
