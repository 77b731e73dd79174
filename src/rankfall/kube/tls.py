"""TLS: contexts made of what a kubeconfig says, and asyncio's read buffer cut to a size that thousands of streams can afford.

asyncio gives each TLS connection a read buffer of 256 KiB, whatever flows through it. A follower of 1,000 pods has 1,000 connections: with
the buffer cut to one TLS record, a stream costs 63 KiB instead of 303 (measured). There is no public setting; this is the one place, and a
test looks at a real connection.
"""

from __future__ import annotations

import contextlib
import os
import ssl
import tempfile
from asyncio import sslproto
from collections.abc import Iterator
from typing import Final

from rankfall.kube.errors import CredentialsError, KubeConfigError
from rankfall.model.patterns import bounded

READ_BUFFER: Final = 16 * 1024
"""Bytes: the largest TLS record."""

_CERTIFICATES: Final = bounded(
    rb"-----BEGIN (?:TRUSTED |X509 )?CERTIFICATE-----[^-]+-----END (?:TRUSTED |X509 )?CERTIFICATE-----", limit=1 << 24
)


def cut_buffers() -> None:
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
