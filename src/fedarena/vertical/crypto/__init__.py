"""Paillier encryption: keys, ciphertexts, and the arithmetic in several backends."""

from __future__ import annotations

from fedarena.vertical.crypto.ciphertexts import Ciphertexts, Plaintexts, plaintexts, unpack
from fedarena.vertical.crypto.keys import Exponents, PrivateKey, PublicKey, generate
from fedarena.vertical.crypto.plain import PlainKey, PlainPublicKey

__all__ = [
    "Ciphertexts",
    "Exponents",
    "PlainKey",
    "PlainPublicKey",
    "Plaintexts",
    "PrivateKey",
    "PublicKey",
    "generate",
    "plaintexts",
    "unpack",
]
