"""Keys and certificates of one bed: one authority for the cluster, one for the front proxy, made new at each ``up``."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

# Long enough for a bed that stays up over a weekend, short enough that a lost key is soon worth nothing.
_VALID = timedelta(days=30)
# Clocks of a node may be shifted back by a test.
_BEFORE = timedelta(days=2)


@dataclass(frozen=True)
class Pair:
    """A certificate and its key as PEM files."""

    cert: Path
    key: Path


class Authority:
    """A certificate authority in a folder; made when it is not there."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder = folder
        self.cert = folder / f"{name}.crt"
        self._key_file = folder / f"{name}.key"
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        if self.cert.exists():
            self._key = _read_key(self._key_file)
            self._subject = x509.load_pem_x509_certificate(self.cert.read_bytes()).subject
            return
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._subject = _name(f"rankfall-testbed-{name}")
        own = _builder(self._subject, self._subject, self._key)
        own = own.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        _write_key(self._key_file, self._key)
        self.cert.write_bytes(own.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))

    def issue(
        self,
        file: str,
        *,
        user: str,
        groups: Iterable[str] = (),
        hosts: Iterable[str] = (),
        valid: timedelta = _VALID,
    ) -> Pair:
        """A certificate for servers and clients.

        Args:
            file: name of the files, without an ending; written anew when they exist.
            user: common name: what the API server takes for the user.
            groups: organisations: what the API server takes for the user's groups.
            hosts: names and addresses that it serves.
            valid: from now on; negative = it has run out.
        """
        key = ec.generate_private_key(ec.SECP256R1())
        made = _builder(_name(user, groups), self._subject, self._key, public=key, valid=valid)
        names = [_host(host) for host in hosts]
        if names:
            made = made.add_extension(x509.SubjectAlternativeName(names), critical=False)
        made = made.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True).add_extension(
            x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]), critical=False
        )
        pair = Pair(self._folder / f"{file}.crt", self._folder / f"{file}.key")
        _write_key(pair.key, key)
        pair.cert.write_bytes(made.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
        return pair


def signing_keys(folder: Path) -> Pair:
    """The key pair that signs the tokens of service accounts; ``cert`` is the bare public key."""
    pair = Pair(folder / "accounts.pub", folder / "accounts.key")
    if not pair.cert.exists():
        key = ec.generate_private_key(ec.SECP256R1())
        _write_key(pair.key, key)
        pair.cert.write_bytes(
            key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
        )
    return pair


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    signer: ec.EllipticCurvePrivateKey,
    *,
    public: ec.EllipticCurvePrivateKey | None = None,
    valid: timedelta = _VALID,
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    key = (public or signer).public_key()
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _BEFORE)
        .not_valid_after(now + valid)
        # Go and OpenSSL 3 choose the issuer by key identifier where two authorities share a name.
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False)
    )


def _name(user: str, groups: Iterable[str] = ()) -> x509.Name:
    parts = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, group) for group in groups]
    return x509.Name([*parts, x509.NameAttribute(NameOID.COMMON_NAME, user)])


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _write_key(path: Path, key: ec.EllipticCurvePrivateKey) -> None:
    text = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(text)


def _read_key(path: Path) -> ec.EllipticCurvePrivateKey:
    key = serialization.load_pem_private_key(path.read_bytes(), password=None)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise TypeError(f"{path} holds no elliptic-curve key")
    return key
