"""Headers and TLS context of the next request, renewed after changes or a 401.

Open connections retain their old credentials.
"""

from __future__ import annotations

import asyncio
import base64
import ssl
from typing import Final
from urllib.parse import quote

from rankfall.kube.auth import key_material
from rankfall.kube.auth.access import Access, Endpoint, Login
from rankfall.kube.auth.exec_plugin import ExecCredential, Plugin
from rankfall.kube.auth.key_material import WatchedFile
from rankfall.kube.auth.kubeconfig import reread
from rankfall.kube.errors import CredentialsError, KubeConfigError
from rankfall.kube.secret import Secret

_HEADER_CHARS: Final = frozenset(chr(code) for code in range(0x21, 0x7F))


class Proof:
    """Credentials of one request; ``context`` None = no TLS, ``number`` counts renewals."""

    __slots__ = ("context", "headers", "number")

    def __init__(self, headers: list[tuple[str, str]], context: ssl.SSLContext | None, number: int) -> None:
        self.headers, self.context, self.number = headers, context, number

    def __repr__(self) -> str:
        return f"Proof({', '.join(name for name, _ in self.headers)}, number={self.number})"


class Credentials:
    """Credentials of one access."""

    def __init__(self, access: Access, *, plugin_timeout: float | None = None) -> None:
        self._access = access
        self._plugin_timeout = plugin_timeout
        self._number = 0
        self._lock = asyncio.Lock()
        self._files: dict[str, WatchedFile] = {}
        self._made: tuple[tuple[object, ...], ssl.SSLContext] | None = None
        self._seen: set[Secret] = set()
        self.note = ""
        """Error of the last kubeconfig read, or empty."""
        self._plugin = self._new_plugin()

    @property
    def secrets(self) -> frozenset[str]:
        """All credentials used so far, for masking in foreign messages."""
        return frozenset(secret.reveal() for secret in self._seen)

    async def current(self) -> Proof:
        """Returns the credentials for the next request.

        Raises:
            CredentialsError: Unreadable file or failed plug-in.
            KubeConfigError: Unreadable certificate authorities.
        """
        given = await self._plugin.get() if self._plugin is not None else ExecCredential()
        return Proof(self._headers(given), self._context(given), self._number)

    async def refresh(self, refused: Proof) -> None:
        """Renews all credentials after the server refused ``refused``; once for concurrent callers.

        Raises:
            CredentialsError: Unreadable file or failed plug-in.
        """
        async with self._lock:
            if refused.number != self._number:
                return
            await self._reread()
            for file in self._files.values():
                file.read(anew=True)
            if self._plugin is not None:
                await self._plugin.renew()
            self._number += 1

    async def close(self) -> None:
        """Ends a running plug-in."""
        if self._plugin is not None:
            await self._plugin.close()

    async def changed(self, refused: Proof) -> bool:
        """True if the TLS context has changed since ``refused``, as for new certificate authorities.

        Raises:
            CredentialsError: Unreadable file or failed plug-in.
            KubeConfigError: Unreadable certificate authorities.
        """
        async with self._lock:
            await self._reread()
        return (await self.current()).context is not refused.context

    async def _reread(self) -> None:
        """Reads the kubeconfig again; retains the old entries if the new ones are unusable."""
        try:
            found = await asyncio.to_thread(reread, self._access)
        except KubeConfigError as error:
            self.note = error.message
            return
        self.note = ""
        if found.login == self._access.login and found.endpoint == self._access.endpoint:
            return
        self._access = found
        self._files.clear()
        await self.close()
        self._plugin = self._new_plugin()

    def _new_plugin(self) -> Plugin | None:
        login = self._access.login
        # As in kubectl, a token or password has priority.
        if login.plugin is None or login.token or login.token_file or login.username:
            return None
        return Plugin(
            login.plugin,
            self._access,
            authorities=lambda: self.authorities(self._access.endpoint),
            timeout=self._plugin_timeout,
        )

    def _headers(self, given: ExecCredential) -> list[tuple[str, str]]:
        login = self._access.login
        headers: list[tuple[str, str]] = []
        token = self._token(login, given)
        if token is not None:
            headers.append(("Authorization", f"Bearer {token}"))
        elif login.username is not None or login.password is not None:
            password = login.password.reveal() if login.password else ""
            pair = base64.b64encode(f"{login.username or ''}:{password}".encode()).decode("ascii")
            self._seen |= {Secret(pair), Secret(password)}
            headers.append(("Authorization", f"Basic {pair}"))
        who = login.impersonate
        if who is not None:
            headers.append(("Impersonate-User", who.user))
            headers += [("Impersonate-Uid", who.uid)] if who.uid else []
            headers += [("Impersonate-Group", group) for group in who.groups]
            headers += [
                (f"Impersonate-Extra-{quote(key.lower(), safe='')}", value)
                for key, values in who.extra
                for value in values
            ]
        return headers

    def _token(self, login: Login, given: ExecCredential) -> str | None:
        if login.token_file is not None:
            text = self._read(login.token_file, "token").decode("utf-8", "replace").strip()
        elif login.token is not None:
            text = login.token.reveal().strip()
        elif login.username is None and given.token is not None:
            text = given.token.reveal().strip()
        else:
            return None
        if not text or not _HEADER_CHARS.issuperset(text):
            raise CredentialsError(
                f"the token of user {self._access.user!r} has characters that are invalid in a token",
                hint="log in again",
            )
        self._seen.add(Secret(text))
        return text

    def _context(self, given: ExecCredential) -> ssl.SSLContext | None:
        endpoint, login = self._access.endpoint, self._access.login
        if not endpoint.server.startswith("https:"):
            return None
        authorities = self.authorities(endpoint)
        certificate, key = self._pair(login, given)
        wanted = (authorities, endpoint.insecure, certificate, key)
        if self._made is not None and self._made[0] == wanted:
            return self._made[1]
        try:
            made = key_material.context(
                authorities=authorities,
                insecure=endpoint.insecure,
                certificate=certificate,
                key=None if key is None else key.reveal().encode("latin-1"),
                what=f"user {self._access.user!r}, cluster {self._access.cluster!r}",
            )
        except (CredentialsError, KubeConfigError):
            # Between two writes, certificate and key do not match.
            if self._made is None or not self._files:
                raise
            return self._made[1]
        if key is not None:
            self._seen.add(key)
        self._made = (wanted, made)
        return made

    def authorities(self, endpoint: Endpoint) -> bytes | None:
        """Certificate authorities as PEM; None = the system's."""
        if endpoint.ca_data is not None:
            return endpoint.ca_data
        return None if endpoint.ca_file is None else self._read(endpoint.ca_file, "certificate authority")

    def _pair(self, login: Login, given: ExecCredential) -> tuple[bytes | None, Secret | None]:
        certificate, key = login.cert_data, login.key_data
        if certificate is None and login.cert_file is not None:
            certificate = self._read(login.cert_file, "client certificate")
        if key is None and login.key_file is not None:
            key = Secret(self._read(login.key_file, "client key").decode("latin-1"))
        if certificate is None and given.certificate is not None and given.key is not None:
            return given.certificate, given.key
        return certificate, key

    def _read(self, path: str, role: str) -> bytes:
        file = self._files.get(path)
        if file is None:
            what = f"{role} of user {self._access.user!r}, cluster {self._access.cluster!r}"
            file = self._files[path] = WatchedFile(path, what=what)
        return file.read()
