"""Who is who on the line: a small certificate authority for a trial, and the certificate that a party shows.

A party's folder holds `ca.pem`, `cert.pem` and `key.pem`. Organisations that have an authority of their own put its
files there instead; the certificate's DNS name must be the party's name.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedarena.errors import BadValue, CannotWrite, DataMissing

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
    from cryptography.x509 import Certificate

NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
CA_NAME = "fedarena trial authority"
DNS = "DNSName:"


@dataclass(frozen=True)
class Identity:
    """What a party needs to prove its name and to check the others': certificates and its own private key, as PEM."""

    name: str
    ca: bytes
    cert: bytes
    key: bytes

    def __repr__(self) -> str:  # a private key has no place in a message
        return f"Identity('{self.name}')"

    @classmethod
    def load(cls, folder: str | Path) -> Identity:
        """The identity in a folder that `fedarena vertical keys` made, checked before anything is sent."""
        folder = Path(folder)
        files = {}
        for name in ("ca.pem", "cert.pem", "key.pem"):
            try:
                files[name] = (folder / name).read_bytes()
            except OSError as error:
                raise DataMissing(
                    f"cannot read {folder / name}: {error.strerror}",
                    remedy="`fedarena vertical keys guest HOST ...` makes a folder for each party",
                    where="--keys",
                ) from None
        return cls(_checked_name(folder, files["cert.pem"], files["key.pem"]), *files.values())


def check_name(name: str) -> str:
    """A party's name is a DNS label: it stands in certificates."""
    if not NAME.fullmatch(name):
        raise BadValue(f"'{name}' cannot be a party's name", remedy="use lower-case letters, digits and hyphens")
    return name


def make_keys(folder: str | Path, names: Sequence[str], days: int = 365) -> dict[str, Path]:
    """Make an authority and, for each party, a folder with its certificate; files that are there are never replaced.

    An authority that is already in the folder is used again, so that a party can be added later.
    """
    folder = Path(folder)
    for name in names:
        check_name(name)
    if len(set(names)) < len(names) or not names:
        raise BadValue("name each party once", remedy="e.g. `fedarena vertical keys guest bank`")
    taken = [name for name in names if (folder / name).exists()]
    if taken:
        raise CannotWrite(f"{folder / taken[0]} is already there", remedy="name another folder, or remove it")
    try:
        ca_key, ca = _authority(folder, days)
        return {name: _party(folder / name, name, ca_key, ca, days) for name in names}
    except OSError as error:
        raise CannotWrite(
            f"cannot write keys to {folder}: {error}", remedy="name a folder that can be written"
        ) from None


def _authority(folder: Path, days: int) -> tuple[EllipticCurvePrivateKey, Certificate]:
    """The authority in the folder, or a new one."""
    crypto = library()
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec

    folder.mkdir(parents=True, exist_ok=True)
    if (folder / "ca.key").exists():
        key = crypto.serialization.load_pem_private_key((folder / "ca.key").read_bytes(), None)
        return key, x509.load_pem_x509_certificate((folder / "ca.pem").read_bytes())
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, CA_NAME)])
    usage = dict.fromkeys(("content_commitment", "key_encipherment", "data_encipherment", "key_agreement"), False)
    signs = x509.KeyUsage(False, **usage, key_cert_sign=True, crl_sign=True, encipher_only=False, decipher_only=False)
    build = _builder(name, name, key.public_key(), days)
    build = build.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    cert = build.add_extension(signs, critical=True).sign(key, crypto.hashes.SHA256())
    _write_secret(folder / "ca.key", _private_pem(key))
    (folder / "ca.pem").write_bytes(cert.public_bytes(crypto.serialization.Encoding.PEM))
    return key, cert


def _party(folder: Path, name: str, ca_key: Any, ca: Certificate, days: int) -> Path:
    crypto = library()
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID

    folder.mkdir(mode=0o700)
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    both = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH])
    build = _builder(ca.subject, subject, key.public_key(), days)
    build = build.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    build = build.add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
    cert = build.add_extension(both, critical=False).sign(ca_key, crypto.hashes.SHA256())
    pem = crypto.serialization.Encoding.PEM
    _write_secret(folder / "key.pem", _private_pem(key))
    (folder / "cert.pem").write_bytes(cert.public_bytes(pem))
    (folder / "ca.pem").write_bytes(ca.public_bytes(pem))
    return folder


def _builder(issuer: Any, subject: Any, public_key: Any, days: int) -> Any:
    from cryptography import x509

    now = datetime.datetime.now(datetime.UTC)
    build = x509.CertificateBuilder().issuer_name(issuer).subject_name(subject).public_key(public_key)
    build = build.serial_number(x509.random_serial_number())
    an_hour = datetime.timedelta(hours=1)  # the other machine's clock may be behind
    return build.not_valid_before(now - an_hour).not_valid_after(now + datetime.timedelta(days=days))


def _private_pem(key: Any) -> bytes:
    form = library().serialization
    pem: bytes = key.private_bytes(form.Encoding.PEM, form.PrivateFormat.PKCS8, form.NoEncryption())
    return pem


def _write_secret(path: Path, content: bytes) -> None:
    """A file that only its owner may read, from its first moment on."""
    import os

    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)


def _checked_name(folder: Path, cert_pem: bytes, key_pem: bytes) -> str:
    """The one DNS name of a certificate that is valid now and belongs to the key."""
    crypto = library()
    from cryptography import x509

    try:
        cert = x509.load_pem_x509_certificate(cert_pem)
        found = names_of(cert_pem)
        key = crypto.serialization.load_pem_private_key(key_pem, None)
    except (ValueError, TypeError) as error:
        raise BadValue(f"{folder} does not hold a certificate and its key: {error}", remedy="make it anew") from None
    if len(found) != 1 or not found[0].startswith(DNS):
        raise BadValue(
            f"the certificate in {folder} bears {', '.join(found) or 'no alternative name'}",
            remedy="give it one alternative name, a DNS name: the party's",
        )
    now = datetime.datetime.now(datetime.UTC)
    if not cert.not_valid_before_utc <= now <= cert.not_valid_after_utc:
        span = f"{cert.not_valid_before_utc:%Y-%m-%d} to {cert.not_valid_after_utc:%Y-%m-%d}"
        raise BadValue(f"the certificate in {folder} is valid from {span}, not now", remedy="make a new one")
    form = crypto.serialization
    public = form.Encoding.DER, form.PublicFormat.SubjectPublicKeyInfo
    if key.public_key().public_bytes(*public) != cert.public_key().public_bytes(*public):
        raise BadValue(f"key.pem in {folder} does not belong to cert.pem", remedy="keep the files of a party together")
    return check_name(found[0].removeprefix(DNS))


def names_of(cert_pem: bytes) -> list[str]:
    """All alternative names of a certificate, each with its type: an address `guest` is not the DNS name `guest`."""
    library()
    from cryptography import x509

    cert = x509.load_pem_x509_certificate(cert_pem)
    try:
        names = cert.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return []
    return [f"{type(name).__name__}:{name.value}" for name in names]


def library() -> Any:
    """The parts of `cryptography` that we use, or how to get it."""
    try:
        from cryptography.hazmat.primitives import hashes, serialization
    except ImportError:
        raise DataMissing(
            "certificates need the package cryptography", remedy="pip install 'fedarena[vertical]'"
        ) from None
    from types import SimpleNamespace

    return SimpleNamespace(hashes=hashes, serialization=serialization)
