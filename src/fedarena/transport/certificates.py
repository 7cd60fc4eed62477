"""A small certificate authority for a trial; organisations that have one of their own use its files instead."""

from __future__ import annotations

import datetime
import ipaddress
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from fedarena.config.errors import BadValue, DataMissing

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
    from cryptography.x509 import Certificate

NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
CA_NAME = "fedarena trial authority"


@dataclass(frozen=True)
class CertificateAuthority:
    """Its key and its certificate."""

    key: EllipticCurvePrivateKey
    cert: Certificate

    @classmethod
    def at(cls, folder: Path, days: int) -> CertificateAuthority:
        """The authority in the folder (`ca.key`, `ca.pem`), or a new one."""
        crypto = cryptography_modules()
        from cryptography import x509
        from cryptography.hazmat.primitives.asymmetric import ec

        folder.mkdir(parents=True, exist_ok=True)
        if (folder / "ca.key").exists():
            key = crypto.serialization.load_pem_private_key((folder / "ca.key").read_bytes(), None)
            return cls(key, x509.load_pem_x509_certificate((folder / "ca.pem").read_bytes()))
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, CA_NAME)])
        usage = dict.fromkeys(("content_commitment", "key_encipherment", "data_encipherment", "key_agreement"), False)
        signs = x509.KeyUsage(
            False, **usage, key_cert_sign=True, crl_sign=True, encipher_only=False, decipher_only=False
        )
        build = _builder(name, name, key.public_key(), days)
        build = build.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        cert = build.add_extension(signs, critical=True).sign(key, crypto.hashes.SHA256())
        write_secret(folder / "ca.key", private_pem(key))
        (folder / "ca.pem").write_bytes(cert.public_bytes(crypto.serialization.Encoding.PEM))
        return cls(key, cert)

    def issue(self, folder: Path, name: str, days: int, also: Sequence[str] = ()) -> Path:
        """A folder with a new key, its certificate for the name (and for these machines), and the authority's."""
        crypto = cryptography_modules()
        from cryptography import x509
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.x509.oid import ExtendedKeyUsageOID

        folder.mkdir(mode=0o700)
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
        both = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH])
        build = _builder(self.cert.subject, subject, key.public_key(), days)
        build = build.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        names = x509.SubjectAlternativeName([x509.DNSName(name), *map(_machine, also)])
        build = build.add_extension(names, critical=False)
        cert = build.add_extension(both, critical=False).sign(self.key, crypto.hashes.SHA256())
        write_secret(folder / "key.pem", private_pem(key))
        (folder / "cert.pem").write_bytes(cert.public_bytes(crypto.serialization.Encoding.PEM))
        (folder / "ca.pem").write_bytes(self.pem)
        return folder

    @property
    def pem(self) -> bytes:
        """The certificate that others need to check those it issued."""
        return self.cert.public_bytes(cryptography_modules().serialization.Encoding.PEM)


def check_name(name: str, whose: str = "party") -> str:
    """A name that stands in certificates is a DNS label."""
    if not NAME.fullmatch(name):
        raise BadValue(f"'{name}' cannot be a {whose}'s name", remedy="use lower-case letters, digits and hyphens")
    return name


def _machine(name: str) -> Any:
    """A machine's name or address as it stands in a certificate."""
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _builder(issuer: Any, subject: Any, public_key: Any, days: int) -> Any:
    from cryptography import x509

    now = datetime.datetime.now(datetime.UTC)
    build = x509.CertificateBuilder().issuer_name(issuer).subject_name(subject).public_key(public_key)
    build = build.serial_number(x509.random_serial_number())
    an_hour = datetime.timedelta(hours=1)  # the other machine's clock may be behind
    return build.not_valid_before(now - an_hour).not_valid_after(now + datetime.timedelta(days=days))


def private_pem(key: Any) -> bytes:
    """A private key as text."""
    form = cryptography_modules().serialization
    pem: bytes = key.private_bytes(form.Encoding.PEM, form.PrivateFormat.PKCS8, form.NoEncryption())
    return pem


def write_secret(path: Path, content: bytes) -> None:
    """A file that only its owner may read, from its first moment on."""
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)


def check_pair(folder: Path, cert_pem: bytes, key_pem: bytes) -> Certificate:
    """A certificate that is valid now and belongs to the key."""
    crypto = cryptography_modules()
    from cryptography import x509

    try:
        cert = x509.load_pem_x509_certificate(cert_pem)
        key = crypto.serialization.load_pem_private_key(key_pem, None)
    except (ValueError, TypeError) as error:
        raise BadValue(f"{folder} does not hold a certificate and its key: {error}", remedy="make it anew") from None
    now = datetime.datetime.now(datetime.UTC)
    if not cert.not_valid_before_utc <= now <= cert.not_valid_after_utc:
        span = f"{cert.not_valid_before_utc:%Y-%m-%d} to {cert.not_valid_after_utc:%Y-%m-%d}"
        raise BadValue(f"the certificate in {folder} is valid from {span}, not now", remedy="make a new one")
    form = crypto.serialization
    public = form.Encoding.DER, form.PublicFormat.SubjectPublicKeyInfo
    if key.public_key().public_bytes(*public) != cert.public_key().public_bytes(*public):
        raise BadValue(f"key.pem in {folder} does not belong to cert.pem", remedy="keep the files of a party together")
    return cert


def names_of(cert_pem: bytes) -> list[str]:
    """All alternative names of a certificate, each with its type: an address `guest` is not the DNS name `guest`."""
    cryptography_modules()
    from cryptography import x509

    cert = x509.load_pem_x509_certificate(cert_pem)
    try:
        names = cert.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return []
    return [f"{type(name).__name__}:{name.value}" for name in names]


def cryptography_modules() -> Any:
    """The parts of `cryptography` that we use, or how to get it."""
    try:
        from cryptography.hazmat.primitives import hashes, serialization
    except ImportError:
        raise DataMissing(
            "certificates need the package cryptography",
            remedy="pip install 'fedarena[vertical]' or 'fedarena[flower]'",
        ) from None
    return SimpleNamespace(hashes=hashes, serialization=serialization)
