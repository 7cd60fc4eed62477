"""The private key of the guest: encrypt from tables of powers, decrypt, and store the key in a file."""

from __future__ import annotations

import functools
import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from fedarena.config.errors import BadValue, CannotWrite, DataBroken, DataMissing
from fedarena.transport.certificates import write_secret
from fedarena.vertical.crypto import backends, primes
from fedarena.vertical.crypto.ciphertexts import Ciphertexts, Plaintexts
from fedarena.vertical.crypto.limbs import WORD, Words, is_below, random_below, random_bits, to_numbers, to_words
from fedarena.vertical.crypto.public import PublicKey, run_evenly

Exponents = Literal["full", "short"]

SHORT_BITS = 320
FILE_FORMAT = "fedarena paillier private key"


@dataclass(frozen=True, repr=False)
class PrivateKey:
    """The factors of n, and tables of powers that are computed at first use."""

    p: int
    q: int
    _arithmetic: dict[str, _PrimeArithmetic] = field(default_factory=dict, init=False, compare=False)  # by backend

    def __post_init__(self) -> None:
        sizes = {prime.bit_length() for prime in (self.p, self.q)}
        good = all(primes.is_prime(prime) and primes.factors_of_order(prime) for prime in (self.p, self.q))
        if not good or self.p == self.q or len(sizes) > 1 or sizes.pop() % WORD:
            raise BadValue("these numbers are not the primes of a key", remedy="keys are made by `generate`")

    def __repr__(self) -> str:  # without secrets, for logs
        return f"PrivateKey({self.public.bits} bits, {self.public.fingerprint})"

    @functools.cached_property
    def public(self) -> PublicKey:
        """The public key, which other parties may have."""
        return PublicKey(self.p * self.q)

    def encrypt(self, plain: Plaintexts, exponents: Exponents = "full", threads: int | None = None) -> Ciphertexts:
        """Return one ciphertext for each plaintext, each with its own mask from the operating system's randomness."""
        plain, arithmetic = self._check_range(plain), self._current()
        arithmetic.prepare(exponents)
        encrypt = lambda start, end: arithmetic.encrypt(plain.data[start:end], exponents)
        return Ciphertexts(run_evenly(encrypt, len(plain), threads))

    def decrypt(self, c: Ciphertexts, threads: int | None = None) -> list[int]:
        """Return the plaintexts, in [0, n)."""
        n, arithmetic = self.public.n, self._current()
        numbers = [low + n * high for low, high in self.public.digits(c)]
        a_of, b_of = (arithmetic.logarithms(prime, numbers, threads) for prime in (0, 1))
        inverse = pow(self.q, -1, self.p)
        return [b + self.q * ((a - b) * inverse % self.p) for a, b in zip(a_of, b_of, strict=True)]

    def _check_range(self, plain: Plaintexts) -> Plaintexts:
        """Refuse plaintexts that are not less than n."""
        words = self.public.words
        if plain.data.shape[1] * WORD <= self.public.capacity:
            return plain
        if plain.data[:, words:].any() or not is_below(plain.data[:, :words], self.public.n).all():
            raise BadValue("a plaintext is larger than the key allows", remedy="use fewer bits, or a longer key")
        return Plaintexts(plain.data[:, :words])

    def _current(self) -> _PrimeArithmetic:
        name = backends.backend().name
        if name not in self._arithmetic:
            self._arithmetic[name] = _PrimeArithmetic(self.p, self.q)
        return self._arithmetic[name]

    def save(self, path: str | Path) -> None:
        """Write a new file that only its owner may read; an existing file is an error."""
        text = json.dumps({"format": FILE_FORMAT, "version": 1, "p": hex(self.p), "q": hex(self.q)}, indent=1)
        try:
            write_secret(Path(path), text.encode())
        except OSError as error:
            raise CannotWrite(
                f"the key cannot be written: {error}", remedy="name a new file in a folder of yours"
            ) from None

    @classmethod
    def load(cls, path: str | Path) -> PrivateKey:
        """Read the key that `save` wrote, and refuse a file that others may read."""
        try:
            if os.name == "posix" and os.stat(path).st_mode & 0o077:
                raise BadValue("the key file may be read by others", remedy=f"chmod 600 {path}", where=str(path))
            content = json.loads(Path(path).read_text(encoding="utf-8"))
            if content["format"] != FILE_FORMAT or content["version"] != 1:
                raise ValueError("another format")
            return cls(int(content["p"], 16), int(content["q"], 16))
        except OSError as error:
            raise DataMissing(f"the key cannot be read: {error}", remedy="name the file that `save` wrote") from None
        except (ValueError, KeyError, TypeError):
            raise DataBroken(
                "this is not a private key of fedarena", remedy="name another file", where=str(path)
            ) from None


class _PrimeArithmetic:
    """Arithmetic modulo p² and q² in one backend."""

    def __init__(self, p: int, q: int) -> None:
        found = backends.backend()
        self.primes, self.n = (p, q), p * q
        self.rings = [found.ring(prime) for prime in self.primes]
        self.join = found.join(p, q)
        self.tables: dict[Exponents, list[backends.FixedBase]] = {}

    def prepare(self, exponents: Exponents) -> None:
        """Compute the tables for exponents of one kind, once."""
        if exponents not in ("full", "short"):
            raise BadValue(f"exponents cannot be '{exponents}'", remedy="use 'full' or 'short'", where="exponents")
        bits = SHORT_BITS if exponents == "short" else self.primes[0].bit_length()
        if exponents not in self.tables:
            self.tables[exponents] = [
                ring.fixed_base(self._base(prime), bits) for ring, prime in zip(self.rings, self.primes, strict=True)
            ]

    def _base(self, prime: int) -> int:
        """Return an n-th power modulo prime² that generates all n-th powers."""
        factors = primes.factors_of_order(prime)
        assert factors is not None
        return pow(primes.generator(prime, factors), self.n, prime * prime)

    def encrypt(self, plain: Words, exponents: Exponents) -> Words:
        """Return (1 + m n) times a random power of the base."""
        if exponents == "short":
            sampled = [random_bits(len(plain), SHORT_BITS)] * 2  # one exponent: a power modulo n²
        else:
            sampled = [random_below(len(plain), prime - 1) for prime in self.primes]
        masks = [table.powers(e) for table, e in zip(self.tables[exponents], sampled, strict=True)]
        return self.join.encrypt(masks[0], masks[1], plain)

    def logarithms(self, index: int, numbers: list[int], threads: int | None) -> list[int]:
        """Return m modulo a prime: c^(prime - 1) is 1 + prime m (n / prime) (prime - 1) modulo prime²."""
        prime, ring = self.primes[index], self.rings[index]
        words, square = prime.bit_length() // WORD, prime * prime
        digits = (digit for c in numbers for digit in reversed(divmod(c % square, prime)))
        data = to_words(digits, words).reshape(-1, 2 * words)
        powers = run_evenly(lambda start, end: ring.powers(data[start:end], prime - 1), len(data), threads)
        factor = pow((prime - 1) * (self.n // prime), -1, prime)
        return [m * factor % prime for m in to_numbers(powers[:, words:])]
