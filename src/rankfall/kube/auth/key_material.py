"""Credential files that are read again after changes, and TLS contexts.

A mounted Secret changes its link, ``cp`` retains the inode, some tools the time. Missing or empty files retain
their last content.
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

# More means a wrong path.
_LARGEST: Final = 1 << 20
# A second change within one clock tick would be missed.
_RACY_NS: Final = 2_000_000_000
# Seconds until a forced read: network file systems may cache stat.
_TRUSTED_S: Final = 10.0


class WatchedFile:
    """One file that is read again when it changes.

    ``what`` is its role in messages: ``token of user "bob"``.
    """

    def __init__(self, path: str, *, what: str) -> None:
        self.path, self._what = Path(path), what
        self._data: bytes | None = None
        self._mark: tuple[int, ...] = ()
        self._read_again_at = 0.0

    def read(self, *, anew: bool = False) -> bytes:
        """Returns the content; ``anew`` forces a read and never returns the last content.

        Raises:
            CredentialsError: The file is unreadable, and ``anew`` is set or it was never read before.
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
            raise OSError(0, "it is not a regular file")  # opening a pipe would wait for its writer
        with self.path.open("rb") as file:
            data = file.read(_LARGEST + 1)
        if len(data) > _LARGEST:
            raise OSError(0, f"it is larger than {_LARGEST} bytes")
        return data


READ_BUFFER: Final = 16 * 1024
"""Size in bytes of the largest TLS record."""

_CERTIFICATES: Final = bounded(
    rb"-----BEGIN (?:TRUSTED |X509 )?CERTIFICATE-----[^-]+-----END (?:TRUSTED |X509 )?CERTIFICATE-----", limit=1 << 24
)


def shrink_tls_buffers() -> None:
    """Reduces the read buffer of future TLS connections from 256 KiB to one record.

    With 1,000 followed pods a stream takes 63 KiB, not 303 (measured).
    """
    sslproto.SSLProtocol.max_size = READ_BUFFER


def context(
    *, authorities: bytes | None, insecure: bool, certificate: bytes | None, key: bytes | None, what: str
) -> ssl.SSLContext:
    """Returns a TLS context; certificates are PEM.

    ``authorities`` None = the system's; ``insecure`` does not verify the server.

    Raises:
        KubeConfigError: Unreadable certificate authorities.
        CredentialsError: Certificate and key are unreadable or mismatched.
    """
    made = ssl.create_default_context() if authorities is None else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    made.minimum_version = ssl.TLSVersion.TLSv1_2
    # Any given authority is trusted, as in Go; Python 3.13 is stricter.
    made.verify_flags |= ssl.VerifyFlags.VERIFY_X509_PARTIAL_CHAIN
    made.verify_flags &= ~ssl.VerifyFlags.VERIFY_X509_STRICT
    # Some Python builds accept a TCP end without TLS close.
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
            f"the certificate authority of {what} contains no readable certificate",
            hint="write it as PEM text (in certificate-authority-data: base64 of it)",
        )
    else:
        return
    raise refusal


def _identify(made: ssl.SSLContext, certificate: bytes, key: bytes, what: str) -> None:
    if b"ENCRYPTED" in key:
        raise CredentialsError(
            f"the client key of {what} is protected by a password",
            hint="use a key without a password, or an exec plug-in",
        )
    try:
        # OpenSSL reads chains only from files. The empty password prevents a prompt.
        with _as_file(certificate + b"\n" + key) as path:
            made.load_cert_chain(path, password="")
    except (ssl.SSLError, OSError) as error:
        why = getattr(error, "reason", None) or "unreadable"
        refusal = CredentialsError(
            f"the client certificate and key of {what} cannot be used ({why})",
            hint="fetch new ones: both must be PEM, and the key must match the certificate",
        )
    else:
        return
    raise refusal


@contextlib.contextmanager
def _as_file(data: bytes) -> Iterator[str]:
    """Yields a path to ``data``; in memory if possible: no key reaches a disk."""
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
