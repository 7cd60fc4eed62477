"""Who is who in a federation: the organiser's certificate, and a key pair for each participant.

    keys/ca.key, ca.pem       the authority; ca.key stays with whoever made it
    keys/organiser/           ca.pem, cert.pem, key.pem; participants/NAME.pub: who may join
    keys/NAME/                ca.pem, node.key, node.pub

Each party gets its own folder and nothing else. Key pairs are those that Flower's own commands use (elliptic curve
P-384, OpenSSH format); an organisation may make its own, and sends `node.pub` to the organiser.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedarena.config.errors import BadValue, CannotWrite, DataMissing
from fedarena.transport.certificates import (
    CertificateAuthority,
    check_name,
    check_pair,
    cryptography_modules,
    names_of,
    write_secret,
)

ORGANISER = "organiser"
HERE = ("localhost", "127.0.0.1")
DNS = "DNSName:"


@dataclass(frozen=True)
class ServerKeys:
    """What the organiser needs to prove who it is, and to know its participants."""

    folder: Path
    name: str  # that its certificate bears, and participants expect
    ca: bytes
    participants: Mapping[str, bytes]  # public keys by name, in PEM

    @classmethod
    def load(cls, folder: str | Path) -> ServerKeys:
        """The keys in a folder that `make_keys` made, checked before anything is started."""
        folder = Path(folder)
        cert, key = _read(folder / "cert.pem"), _read(folder / "key.pem")
        check_pair(folder, cert, key)
        names = [name.removeprefix(DNS) for name in names_of(cert) if name.startswith(DNS)]
        if not names:
            raise BadValue(f"the certificate in {folder} bears no DNS name", remedy=f"give it the name '{ORGANISER}'")
        files = sorted((folder / "participants").glob("*.pub"))
        if not files:
            raise DataMissing(f"no public key in {folder / 'participants'}", remedy="put NAME.pub of each one there")
        participants = {check_name(file.stem, "participant"): _public_pem(file) for file in files}
        if len(set(participants.values())) < len(participants):
            raise BadValue(f"two participants in {folder} have the same key", remedy="give each a key of its own")
        return cls(folder, ORGANISER if ORGANISER in names else names[0], _read(folder / "ca.pem"), participants)


@dataclass(frozen=True)
class ClientKeys:
    """What a participant needs to prove who it is, and to know the organiser."""

    name: str
    ca: bytes
    key: Any
    organiser: str = ORGANISER  # the name that its certificate must bear, whatever its address

    def __repr__(self) -> str:  # a private key has no place in a message
        return f"ParticipantKeys('{self.name}')"

    @classmethod
    def load(cls, folder: str | Path, organiser: str = ORGANISER) -> ClientKeys:
        """The keys in a folder that `make_keys` made, or that the participant filled itself."""
        folder = Path(folder)
        comment = _read(folder / "node.pub").split()[2:]
        name = check_name(comment[0].decode(errors="replace") if comment else folder.name, "participant")
        key = _private_key(folder / "node.key")
        if _pem(key.public_key()) != _public_pem(folder / "node.pub"):
            raise BadValue(f"node.key in {folder} does not belong to node.pub", remedy="keep the two together")
        return cls(name, _read(folder / "ca.pem"), key, organiser)

    @property
    def public(self) -> bytes:
        """The public key, in PEM."""
        return _pem(self.key.public_key())


def make_keys(
    folder: str | Path, participants: Sequence[str], *, hosts: Sequence[str] = (), days: int = 365
) -> dict[str, Path]:
    """Make a folder for the organiser and for each participant; files that are there are never replaced.

    `hosts` are names and addresses of the organiser's machine: fedarena's participants do not need them, other Flower
    software does. Participants can be added later by another call.
    """
    folder = Path(folder)
    for name in participants:
        check_name(name, "participant")
    if len({*participants, ORGANISER}) < len(participants) + 1 or not participants:
        raise BadValue(f"name each participant once, and none '{ORGANISER}'", remedy="e.g. clinic-a clinic-b")
    taken = [name for name in participants if (folder / name).exists()]
    if taken:
        raise CannotWrite(f"{folder / taken[0]} is already there", remedy="name another folder, or remove it")
    try:
        authority = CertificateAuthority.at(folder, days)
        if not (folder / ORGANISER).exists():
            authority.issue(folder / ORGANISER, ORGANISER, days, also=list(dict.fromkeys([*HERE, *hosts])))
        (folder / ORGANISER / "participants").mkdir(exist_ok=True)
        made = {name: _participant(folder, name, authority.pem) for name in participants}
    except OSError as error:
        raise CannotWrite(
            f"cannot write keys to {folder}: {error}", remedy="name a folder that can be written"
        ) from None
    return {ORGANISER: folder / ORGANISER, **made}


def number(public: bytes) -> int:
    """The number by which a link calls the owner of a public key."""
    return int.from_bytes(hashlib.sha256(public).digest()[:7])


def fingerprint(public: bytes) -> str:
    """A public key in a message to people."""
    return hashlib.sha256(public).hexdigest()[:16]


def _participant(folder: Path, name: str, ca: bytes) -> Path:
    form = cryptography_modules().serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP384R1())
    private = key.private_bytes(form.Encoding.PEM, form.PrivateFormat.OpenSSH, form.NoEncryption())
    public = key.public_key().public_bytes(form.Encoding.OpenSSH, form.PublicFormat.OpenSSH)
    own = folder / name
    own.mkdir(mode=0o700)
    write_secret(own / "node.key", private)
    (own / "node.pub").write_bytes(public + f" {name}\n".encode())
    (own / "ca.pem").write_bytes(ca)
    (folder / ORGANISER / "participants" / f"{name}.pub").write_bytes(public + f" {name}\n".encode())
    return own


def _private_key(path: Path) -> Any:
    form = cryptography_modules().serialization
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric import ec

    raw = _read(path)
    load = form.load_ssh_private_key if b"OPENSSH" in raw[:64] else form.load_pem_private_key
    try:
        key = load(raw, None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise BadValue(f"{path} is not a private key without a password: {error}", remedy="make it anew") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise BadValue(f"{path} is not a key on an elliptic curve", remedy="`ssh-keygen -t ecdsa -b 384` makes one")
    return key


def _public_pem(path: Path) -> bytes:
    form = cryptography_modules().serialization
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric import ec

    try:
        key = form.load_ssh_public_key(_read(path))
    except (ValueError, UnsupportedAlgorithm) as error:
        raise BadValue(f"{path} is not a public key: {error}", remedy="ask the participant for its node.pub") from None
    if not isinstance(key, ec.EllipticCurvePublicKey):
        raise BadValue(f"{path} is not a key on an elliptic curve", remedy="`ssh-keygen -t ecdsa -b 384` makes one")
    return _pem(key)


def _pem(public: Any) -> bytes:
    form = cryptography_modules().serialization
    pem: bytes = public.public_bytes(form.Encoding.PEM, form.PublicFormat.SubjectPublicKeyInfo)
    return pem


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise DataMissing(
            f"cannot read {path}: {error.strerror}",
            remedy="`fedarena federation keys NAME ...` makes a folder for each party",
            where="--keys",
        ) from None
