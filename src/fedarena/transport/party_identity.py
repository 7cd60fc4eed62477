"""Who is who on the line: a small certificate authority for a trial, and the certificate that a party shows.

A party's folder holds `ca.pem`, `cert.pem` and `key.pem`. Organisations that have an authority of their own put its
files there instead; the certificate's DNS name must be the party's name.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fedarena.config.errors import BadValue, CannotWrite, DataMissing
from fedarena.transport.certificates import CertificateAuthority, check_name, check_pair, names_of

__all__ = ["DNS", "Identity", "check_name", "make_keys", "names_of"]

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
        authority = CertificateAuthority.at(folder, days)
        return {name: authority.issue(folder / name, name, days) for name in names}
    except OSError as error:
        raise CannotWrite(
            f"cannot write keys to {folder}: {error}", remedy="name a folder that can be written"
        ) from None


def _checked_name(folder: Path, cert_pem: bytes, key_pem: bytes) -> str:
    """The one DNS name of a certificate that is valid now and belongs to the key."""
    check_pair(folder, cert_pem, key_pem)
    found = names_of(cert_pem)
    if len(found) != 1 or not found[0].startswith(DNS):
        raise BadValue(
            f"the certificate in {folder} bears {', '.join(found) or 'no alternative name'}",
            remedy="give it one alternative name, a DNS name: the party's",
        )
    return check_name(found[0].removeprefix(DNS))
