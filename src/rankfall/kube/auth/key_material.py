"""Token, certificate and key files, read again when they change, and the TLS contexts made of them.

A mounted Secret changes by a swapped link, ``cp`` keeps the inode, some tools keep the time: each alone is
enough to read again. While a file is missing or empty its last content stands. ``shrink_tls_buffers`` patches
asyncio's TLS read buffer (256 KiB) to one TLS record for the whole process: with 1,000 followed pods a stream
costs 63 KiB instead of 303 (measured). There is no public setting; this is the only place.
"""

from __future__ import annotations

import contextlib
import os
import ssl
import stat
import tempfile
import time
from asyncio import sslproto
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from rankfall.kube.errors import CredentialsError, KubeConfigError
from rankfall.model.patterns import bounded

# Credentials are small; more is a wrong path.
_LARGEST: Final = 1 << 20
# A file changed so recently may change again within the same tick of its file system's clock.
_RACY_NS: Final = 2_000_000_000
# However equal it looks, it is read again after so long: network file systems may cache what stat says.
_TRUSTED_S: Final = 10.0


class WatchedFile:
    """One file.

    Args:
        path: of the file.
        what: its role, for messages: ``token of user "bob"``.
    """

    def __init__(self, path: str, *, what: str) -> None:
        self.path, self._what = Path(path), what
        self._data: bytes | None = None
        self._mark: tuple[int, ...] = ()
        self._read_again_at = 0.0

    def read(self, *, anew: bool = False) -> bytes:
        """The content.

        Args:
            anew: read it however equal it looks, and do not fall back on the last content.

        Raises:
            CredentialsError: it cannot be read, and never could be, or ``anew`` was asked for.
        """
        try:
            found = self.path.stat()
            mark = (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)
            if self._data is not None and not anew and mark == self._mark and time.monotonic() < self._read_again_at:
                return self._data
            data = self._content(found.st_mode)
        except OSError as error:
            why = error.strerror or type(error).__name__
        else:
            if data.strip():
                racy = time.time_ns() - max(found.st_mtime_ns, found.st_ctime_ns) < _RACY_NS
                self._data, self._mark = data, mark
                self._read_again_at = 0.0 if racy else time.monotonic() + _TRUSTED_S
                return data
            why = "it is empty"
        if self._data is not None and not anew:
            return self._data
        raise CredentialsError(
            f"cannot read {self.path} ({self._what}): {why}", hint="log in again, or correct the path in the kubeconfig"
        )

    def _content(self, mode: int) -> bytes:
        if not stat.S_ISREG(mode):
            raise OSError(0, "it is no ordinary file")  # opening a pipe would wait for its writer
        with self.path.open("rb") as file:
            data = file.read(_LARGEST + 1)
        if len(data) > _LARGEST:
            raise OSError(0, f"it is larger than {_LARGEST} bytes")
        return data


READ_BUFFER: Final = 16 * 1024
"""Bytes: the largest TLS record."""

_CERTIFICATES: Final = bounded(
    rb"-----BEGIN (?:TRUSTED |X509 )?CERTIFICATE-----[^-]+-----END (?:TRUSTED |X509 )?CERTIFICATE-----", limit=1 << 24
)


def shrink_tls_buffers() -> None:
    """Cut the read buffer of the TLS connections that this process opens from now on."""
    # Typed as a constant of the class, because nobody is meant to set it.
    sslproto.SSLProtocol.max_size = READ_BUFFER


def context(
    *, authorities: bytes | None, insecure: bool, certificate: bytes | None, key: bytes | None, what: str
) -> ssl.SSLContext:
    """How to check the server, and how to prove who we are.

    Args:
        authorities: certificates as PEM; None = the system's.
        insecure: do not check the server.
        certificate: of the client, as PEM, with its chain; None = none.
        key: of ``certificate``, as PEM.
        what: names the cluster or user in messages.

    Raises:
        KubeConfigError: the authorities cannot be read.
        CredentialsError: the client's certificate and key cannot be read, or do not belong together.
    """
    made = ssl.create_default_context() if authorities is None else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    made.minimum_version = ssl.TLSVersion.TLSv1_2
    # As Go's client: any authority given is trusted, whoever signed it, and old ones without key identifiers are good enough. Python 3.13
    # became stricter than the authorities of many clusters.
    made.verify_flags |= ssl.VerifyFlags.VERIFY_X509_PARTIAL_CHAIN
    made.verify_flags &= ~ssl.VerifyFlags.VERIFY_X509_STRICT
    # Some builds of Python take a TCP connection that ends without TLS's own word for a whole answer; anybody on the way can end one.
    made.options &= ~ssl.OP_IGNORE_UNEXPECTED_EOF
    made.set_alpn_protocols(["http/1.1"])
    if insecure:
        made.check_hostname = False
        made.verify_mode = ssl.CERT_NONE
    elif authorities is not None:
        _trust(made, authorities, what)
    if certificate is not None and key is not None:
        _identify(made, certificate, key, what)
    return made


def _trust(made: ssl.SSLContext, authorities: bytes, what: str) -> None:
    blocks = b"\n".join(_CERTIFICATES.findall(authorities))
    try:
        made.load_verify_locations(cadata=blocks.decode("ascii"))
    except (ssl.SSLError, ValueError):
        refusal = KubeConfigError(
            f"the certificate authority of {what} holds no certificate that can be read",
            hint="it must be PEM text (in certificate-authority-data: base64 of it)",
        )
    else:
        return
    raise refusal


def _identify(made: ssl.SSLContext, certificate: bytes, key: bytes, what: str) -> None:
    if b"ENCRYPTED" in key:
        raise CredentialsError(
            f"the client key of {what} is protected by a password",
            hint="give a key without a password, or an exec plug-in",
        )
    try:
        # OpenSSL reads chains from files only. The password is never asked for at the terminal.
        with _as_file(certificate + b"\n" + key) as path:
            made.load_cert_chain(path, password="")
    except (ssl.SSLError, OSError) as error:
        why = getattr(error, "reason", None) or "unreadable"
        refusal = CredentialsError(
            f"the client certificate and key of {what} cannot be used ({why})",
            hint="both must be PEM and belong together; fetch new ones",
        )
    else:
        return
    raise refusal


@contextlib.contextmanager
def _as_file(data: bytes) -> Iterator[str]:
    """A path that holds ``data`` while the context lasts; in memory where the system can, so that no key reaches a disk."""
    if hasattr(os, "memfd_create"):
        fd = os.memfd_create("rankfall-tls", os.MFD_CLOEXEC)
        try:
            with os.fdopen(os.dup(fd), "wb") as file:
                file.write(data)
            yield f"/proc/self/fd/{fd}"
        finally:
            os.close(fd)
        return
    with tempfile.NamedTemporaryFile(prefix="rankfall-tls-") as file:
        file.write(data)
        file.flush()
        yield file.name
