"""Private set intersection by Diffie-Hellman on Curve25519: ids become points, and each party multiplies them by its key.

Multiplications commute: an id that both parties have becomes the same point under both keys, in either order (Meadows
1986; Huberman, Franklin, Hogg 1999). Other points look random to a party without the other's key, if the decisional
Diffie-Hellman problem is hard on the curve and SHA-256 behaves as a random oracle. Only first coordinates are used, as
in X25519 (RFC 7748), whose keys are multiples of the cofactor.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Iterable
from typing import Any

from fedarena.common.optional_imports import import_optional

POINT = 32  # bytes of a point's first coordinate
FIELD = 2**255 - 19
A = 486_662  # y^2 = x^3 + A x^2 + x
DOMAIN = b"fedarena private set intersection, version 1"


class InvalidPoint(ValueError):
    """A point that no honest party sends: of the wrong length, or of a small order, which would cancel the key."""


class BlindingKey:
    """The secret factor of one party in one alignment."""

    def __init__(self) -> None:
        self._curve = _x25519()
        self._key = self._curve.X25519PrivateKey.generate()

    def blind(self, ids: Iterable[str]) -> list[bytes]:
        """Return the points of these ids, multiplied by the key."""
        return self.blind_again(map(curve_point, ids))

    def blind_again(self, points: Iterable[bytes]) -> list[bytes]:
        """Return points of the other party, multiplied by the key."""
        multiply, read = self._key.exchange, self._curve.X25519PublicKey.from_public_bytes
        try:
            return [multiply(read(point)) for point in points]
        except ValueError as error:
            raise InvalidPoint(str(error)) from None


def curve_point(name: str) -> bytes:
    """Return the first coordinate of the point that stands for an id: the first hash that is on the curve.

    Every other number is on the twist of the curve instead. Multiplications keep a point where it is, so that a mixture
    of both would reveal a bit of each id.
    """
    counter = 0
    while True:
        hashed = hashlib.sha256(DOMAIN + counter.to_bytes(4, "little") + name.encode()).digest()
        x = int.from_bytes(hashed, "little") % 2**255  # X25519 ignores the highest bit
        if x < FIELD and _legendre()(x * (x * x + A * x + 1) % FIELD) == 1:
            return x.to_bytes(POINT, "little")
        counter += 1


@functools.cache
def _legendre() -> Callable[[int], int]:
    """Return a function that is 1 for squares of the field; gmpy2 has one that is thirty times as fast."""
    try:
        import gmpy2
    except ImportError:
        return lambda number: pow(number, (FIELD - 1) // 2, FIELD)
    symbol = gmpy2.jacobi
    return lambda number: int(symbol(number, FIELD))


def _x25519() -> Any:
    return import_optional(
        "cryptography.hazmat.primitives.asymmetric.x25519",
        needed_by="private set intersection",
        install="'fedarena[vertical]'",
        alternative="align by hashes that can be guessed: --insecure-hashed-ids",
    )
