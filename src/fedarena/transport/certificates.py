"""Certificates and keys of all parties, and a small certificate authority for trials.

Organisations that have an authority of their own use its files instead of those made here.

A vertical federation (`make_vertical_keys`, `Identity`): every party has a certificate with its name.

    keys/ca.key, ca.pem       the authority; ca.key stays with the party that made it
    keys/NAME/                ca.pem, cert.pem, key.pem

A horizontal federation (`make_federation_keys`, `ServerKeys`, `ClientKeys`): the server has a certificate, each client a
key pair as Flower's own commands make it (elliptic curve P-384, OpenSSH format). A client may make its own, and sends
`node.pub` to the server.

    keys/ca.key, ca.pem       the authority
    keys/organiser/           ca.pem, cert.pem, key.pem; participants/NAME.pub: the clients that may join
    keys/NAME/                ca.pem, node.key, node.pub

Each party gets its own folder and nothing else.
"""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import ipaddress
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedarena.common.optional_imports import import_optional
from fedarena.config.errors import BadValue, CannotWrite, DataMissing

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
    from cryptography.x509 import Certificate

NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
CA_NAME = "fedarena trial authority"
SERVER = "organiser"  # the name in the server's certificate, and of its folder
CLIENTS = "participants"  # the server's folder with the public keys of its clients
THIS_MACHINE = ("localhost", "127.0.0.1")
DNS = "DNSName:"


@dataclass(frozen=True)
class CertificateAuthority:
    """The key and the certificate of an authority that issues certificates to parties."""

    key: EllipticCurvePrivateKey
    cert: Certificate

    @classmethod
    def at(cls, folder: Path, days: int) -> CertificateAuthority:
        """Return the authority in the folder (`ca.key`, `ca.pem`); make one if there is none."""
        x509, ec, serialization = _x509(), _curves(), _serialization()
        folder.mkdir(parents=True, exist_ok=True)
        if (folder / "ca.key").exists():
            key = serialization.load_pem_private_key((folder / "ca.key").read_bytes(), None)
            return cls(key, x509.load_pem_x509_certificate((folder / "ca.pem").read_bytes()))
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, CA_NAME)])
        usage = dict.fromkeys(("content_commitment", "key_encipherment", "data_encipherment", "key_agreement"), False)
        signs = x509.KeyUsage(
            False, **usage, key_cert_sign=True, crl_sign=True, encipher_only=False, decipher_only=False
        )
        extensions = ((x509.BasicConstraints(ca=True, path_length=0), True), (signs, True))
        authority = cls(key, _signed(name, name, key.public_key(), days, extensions, key))
        write_secret(folder / "ca.key", _private_pem(key))
        (folder / "ca.pem").write_bytes(authority.pem)
        return authority

    def issue(self, folder: Path, name: str, days: int, also: Sequence[str] = ()) -> Path:
        """Make a folder with a new key, its certificate for `name` and the machines `also`, and the authority's."""
        x509, ec = _x509(), _curves()
        folder.mkdir(mode=0o700)
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
        usage = x509.ExtendedKeyUsage([x509.ExtendedKeyUsageOID.SERVER_AUTH, x509.ExtendedKeyUsageOID.CLIENT_AUTH])
        names = x509.SubjectAlternativeName([x509.DNSName(name), *map(_machine, also)])
        extensions = ((x509.BasicConstraints(ca=False, path_length=None), True), (names, False), (usage, False))
        cert = _signed(self.cert.subject, subject, key.public_key(), days, extensions, self.key)
        write_secret(folder / "key.pem", _private_pem(key))
        (folder / "cert.pem").write_bytes(cert.public_bytes(_serialization().Encoding.PEM))
        (folder / "ca.pem").write_bytes(self.pem)
        return folder

    @property
    def pem(self) -> bytes:
        """Return the certificate that others need to check those it issued."""
        return self.cert.public_bytes(_serialization().Encoding.PEM)


@dataclass(frozen=True)
class Identity:
    """The certificates and the private key, as PEM, with which a party of a vertical federation proves its name."""

    name: str
    ca: bytes
    cert: bytes
    key: bytes

    def __repr__(self) -> str:  # a private key has no place in a message
        return f"Identity('{self.name}')"

    @classmethod
    def load(cls, folder: str | Path) -> Identity:
        """Read and check the identity in a folder that `fedarena vertical keys` made."""
        folder = Path(folder)
        ca, cert, key = (
            _read(folder / name, "vertical keys guest HOST ...") for name in ("ca.pem", "cert.pem", "key.pem")
        )
        check_pair(folder, cert, key)
        found = names_of(cert)
        if len(found) != 1 or not found[0].startswith(DNS):
            raise BadValue(
                f"the certificate in {folder} has {', '.join(found) or 'no alternative name'}",
                remedy="give it one alternative name, a DNS name: the party's",
            )
        return cls(check_name(found[0].removeprefix(DNS)), ca, cert, key)


@dataclass(frozen=True)
class ServerKeys:
    """The server's folder of keys, and the public keys of the clients that may join."""

    folder: Path
    name: str  # in its certificate, which clients check
    ca: bytes
    clients: Mapping[str, bytes]  # public keys by name, in PEM

    @classmethod
    def load(cls, folder: str | Path) -> ServerKeys:
        """Read and check the keys in a folder that `make_federation_keys` made."""
        folder = Path(folder)
        cert, key = _read(folder / "cert.pem"), _read(folder / "key.pem")
        check_pair(folder, cert, key)
        names = [name.removeprefix(DNS) for name in names_of(cert) if name.startswith(DNS)]
        if not names:
            raise BadValue(f"the certificate in {folder} has no DNS name", remedy=f"give it the name '{SERVER}'")
        files = sorted((folder / CLIENTS).glob("*.pub"))
        if not files:
            raise DataMissing(f"no public key in {folder / CLIENTS}", remedy="put NAME.pub of each client there")
        clients = {check_name(file.stem, "client"): _public_pem(file) for file in files}
        if len(set(clients.values())) < len(clients):
            raise BadValue(f"two clients in {folder} have the same key", remedy="give each a key of its own")
        return cls(folder, SERVER if SERVER in names else names[0], _read(folder / "ca.pem"), clients)


@dataclass(frozen=True)
class ClientKeys:
    """The key pair of a client, and the authority that vouches for the server."""

    name: str
    ca: bytes
    key: Any
    server: str = SERVER  # the name that its certificate must have, under any address

    def __repr__(self) -> str:  # a private key has no place in a message
        return f"ClientKeys('{self.name}')"

    @classmethod
    def load(cls, folder: str | Path, server: str = SERVER) -> ClientKeys:
        """Read and check the keys in a folder that `make_federation_keys` made, or that the client filled itself."""
        folder = Path(folder)
        comment = _read(folder / "node.pub").split()[2:]
        name = check_name(comment[0].decode(errors="replace") if comment else folder.name, "client")
        key = _private_key(folder / "node.key")
        if _public_bytes(key.public_key()) != _public_pem(folder / "node.pub"):
            raise BadValue(f"node.key in {folder} does not belong to node.pub", remedy="keep the two together")
        return cls(name, _read(folder / "ca.pem"), key, server)

    @property
    def public(self) -> bytes:
        """Return the public key, in PEM."""
        return _public_bytes(self.key.public_key())


def make_vertical_keys(folder: str | Path, names: Sequence[str], days: int = 365) -> dict[str, Path]:
    """Make an authority and a folder with a certificate for each party; existing files are never replaced.

    An authority that is already in the folder is used again, so that a party can be added later.
    """
    folder = Path(folder)
    if len(set(names)) < len(names) or not names:
        raise BadValue("name each party once", remedy="e.g. `fedarena vertical keys guest bank`")
    with _writing_keys(folder, names, "party"):
        authority = CertificateAuthority.at(folder, days)
        return {name: authority.issue(folder / name, name, days) for name in names}


def make_federation_keys(
    folder: str | Path, clients: Sequence[str], *, hosts: Sequence[str] = (), days: int = 365
) -> dict[str, Path]:
    """Make a folder for the server and for each client; existing files are never replaced.

    `hosts` are names and addresses of the server's machine: fedarena's clients do not need them, other Flower software
    does. Clients can be added later by another call.
    """
    folder = Path(folder)
    if len({*clients, SERVER}) < len(clients) + 1 or not clients:
        raise BadValue(f"name each client once, and none '{SERVER}'", remedy="e.g. clinic-a clinic-b")
    with _writing_keys(folder, clients, "client"):
        authority = CertificateAuthority.at(folder, days)
        if not (folder / SERVER).exists():
            authority.issue(folder / SERVER, SERVER, days, also=list(dict.fromkeys([*THIS_MACHINE, *hosts])))
        (folder / SERVER / CLIENTS).mkdir(exist_ok=True)
        made = {name: _make_client_keys(folder, name, authority.pem) for name in clients}
    return {SERVER: folder / SERVER, **made}


@contextlib.contextmanager
def _writing_keys(folder: Path, names: Sequence[str], whose: str) -> Iterator[None]:
    """Refuse names that cannot be in certificates and folders that exist; report what cannot be written."""
    for name in names:
        check_name(name, whose)
    taken = [name for name in names if (folder / name).exists()]
    if taken:
        raise CannotWrite(f"{folder / taken[0]} is already there", remedy="name another folder, or remove it")
    try:
        yield
    except OSError as error:
        raise CannotWrite(f"cannot write keys to {folder}: {error}", remedy="name a writable folder") from None


def _make_client_keys(folder: Path, name: str, ca: bytes) -> Path:
    ec, form = _curves(), _serialization()
    key = ec.generate_private_key(ec.SECP384R1())
    private = key.private_bytes(form.Encoding.PEM, form.PrivateFormat.OpenSSH, form.NoEncryption())
    public = key.public_key().public_bytes(form.Encoding.OpenSSH, form.PublicFormat.OpenSSH) + f" {name}\n".encode()
    own = folder / name
    own.mkdir(mode=0o700)
    write_secret(own / "node.key", private)
    (own / "node.pub").write_bytes(public)
    (own / "ca.pem").write_bytes(ca)
    (folder / SERVER / CLIENTS / f"{name}.pub").write_bytes(public)
    return own


def check_name(name: str, whose: str = "party") -> str:
    """Return a name that can be in a certificate, which is a DNS label; refuse any other."""
    if not NAME.fullmatch(name):
        raise BadValue(f"'{name}' cannot be a {whose}'s name", remedy="use lower-case letters, digits and hyphens")
    return name


def check_pair(folder: Path, cert_pem: bytes, key_pem: bytes) -> None:
    """Refuse a certificate that is not valid now, or that does not belong to the key."""
    try:
        cert = _x509().load_pem_x509_certificate(cert_pem)
        key = _serialization().load_pem_private_key(key_pem, None)
    except (ValueError, TypeError) as error:
        raise BadValue(f"{folder} does not hold a certificate and its key: {error}", remedy="make new ones") from None
    now = datetime.datetime.now(datetime.UTC)
    if not cert.not_valid_before_utc <= now <= cert.not_valid_after_utc:
        span = f"{cert.not_valid_before_utc:%Y-%m-%d} to {cert.not_valid_after_utc:%Y-%m-%d}"
        raise BadValue(f"the certificate in {folder} is valid from {span}, not now", remedy="make a new one")
    if _public_bytes(key.public_key()) != _public_bytes(cert.public_key()):
        raise BadValue(f"key.pem in {folder} does not belong to cert.pem", remedy="keep the files of a party together")


def names_of(cert_pem: bytes) -> list[str]:
    """Return the alternative names of a certificate with their types: an address `guest` is not the DNS name `guest`."""
    x509 = _x509()
    try:
        extensions = x509.load_pem_x509_certificate(cert_pem).extensions
        names = extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return []
    return [f"{type(name).__name__}:{name.value}" for name in names]


def number(public: bytes) -> int:
    """Return the number by which a link identifies the owner of a public key."""
    return int.from_bytes(hashlib.sha256(public).digest()[:7])


def fingerprint(public: bytes) -> str:
    """Return a short hash of a public key for messages to people."""
    return hashlib.sha256(public).hexdigest()[:16]


def write_secret(path: Path, content: bytes) -> None:
    """Write a new file that is never readable by anyone but its owner."""
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)


def _machine(name: str) -> Any:
    """Return the name or address of a machine in the form of certificates."""
    x509 = _x509()
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _signed(issuer: Any, subject: Any, public_key: Any, days: int, extensions: Sequence[Any], key: Any) -> Any:
    """Return a certificate, valid for so many days, that `key` has signed."""
    now, an_hour = datetime.datetime.now(datetime.UTC), datetime.timedelta(hours=1)  # the other clock may be behind
    build = _x509().CertificateBuilder().issuer_name(issuer).subject_name(subject).public_key(public_key)
    build = build.serial_number(_x509().random_serial_number())
    build = build.not_valid_before(now - an_hour).not_valid_after(now + datetime.timedelta(days=days))
    for extension, critical in extensions:
        build = build.add_extension(extension, critical=critical)
    return build.sign(key, _cryptography("hazmat.primitives.hashes").SHA256())


def _private_pem(key: Any) -> bytes:
    form = _serialization()
    pem: bytes = key.private_bytes(form.Encoding.PEM, form.PrivateFormat.PKCS8, form.NoEncryption())
    return pem


def _public_bytes(public: Any) -> bytes:
    form = _serialization()
    pem: bytes = public.public_bytes(form.Encoding.PEM, form.PublicFormat.SubjectPublicKeyInfo)
    return pem


def _private_key(path: Path) -> Any:
    form = _serialization()
    load = form.load_ssh_private_key if b"OPENSSH" in _read(path)[:64] else form.load_pem_private_key
    called, remedy = "a private key without a password", "make a new one"
    return _load_key(path, lambda raw: load(raw, None), _curves().EllipticCurvePrivateKey, called, remedy)


def _public_pem(path: Path) -> bytes:
    load, remedy = _serialization().load_ssh_public_key, "ask the client for its node.pub"
    return _public_bytes(_load_key(path, load, _curves().EllipticCurvePublicKey, "a public key", remedy))


def _load_key(path: Path, load: Callable[[bytes], Any], kind: type, called: str, remedy: str) -> Any:
    """Return a key on an elliptic curve, and refuse any other file."""
    raw = _read(path)
    try:
        key = load(raw)
    except (ValueError, TypeError, _cryptography("exceptions").UnsupportedAlgorithm) as error:
        raise BadValue(f"{path} is not {called}: {error}", remedy=remedy) from None
    if not isinstance(key, kind):
        raise BadValue(f"{path} is not a key on an elliptic curve", remedy="`ssh-keygen -t ecdsa -b 384` makes one")
    return key


def _read(path: Path, command: str = "federation keys NAME ...") -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise DataMissing(
            f"cannot read {path}: {error.strerror}",
            remedy=f"`fedarena {command}` makes a folder for each party",
            where="--keys",
        ) from None


def _cryptography(module: str) -> Any:
    return import_optional(
        f"cryptography.{module}", needed_by="a certificate", install="'fedarena[vertical]' or 'fedarena[flower]'"
    )


def _x509() -> Any:
    return _cryptography("x509")


def _serialization() -> Any:
    return _cryptography("hazmat.primitives.serialization")


def _curves() -> Any:
    return _cryptography("hazmat.primitives.asymmetric.ec")
