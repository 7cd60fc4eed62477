"""Paillier's cryptosystem (Paillier 1999), additively homomorphic: products of ciphertexts are sums of plaintexts.

c = (1 + m n) r^n mod n². The owner of n = p q samples the mask r^n from tables of powers modulo p² and q²: with
exponents as long as p and q it is uniform, as r^n is; short exponents are faster, and need one more assumption.

>>> from fedarena.vertical.crypto import plaintexts
>>> key = generate()
>>> c = key.encrypt(plaintexts([3, 4, 5]))
>>> key.decrypt(key.public.sums(c, rows=[0, 1, 2, 0], starts=[0, 2, 4]))
[7, 8]
"""

from __future__ import annotations

import math

from fedarena.vertical.crypto import primes
from fedarena.vertical.crypto.private import Exponents, PrivateKey
from fedarena.vertical.crypto.public import PublicKey, check_size

__all__ = ["Exponents", "PrivateKey", "PublicKey", "generate"]


def generate(bits: int = 2048, *, allow_1024: bool = False) -> PrivateKey:
    """Return a new key pair of this size."""
    check_size(bits, allow_1024)
    while True:
        p, q = primes.key_prime(bits // 2), primes.key_prime(bits // 2)
        is_far_apart = abs(p - q) >> (bits // 2 - 100)  # else n can be factored from its square root
        if is_far_apart and math.gcd(p * q, (p - 1) * (q - 1)) == 1:
            return PrivateKey(p, q)
