"""Four ways to do the same arithmetic, the fastest that this machine can run first."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from fedarena.config.errors import BadValue, UnknownName, suggest
from fedarena.vertical.crypto.backends import integers, kernels
from fedarena.vertical.crypto.limbs import Words

SWITCH = "FEDARENA_PAILLIER"  # the name of a backend: for tests, and for whoever distrusts a kernel


class FixedBase(Protocol):
    """Powers of one base."""

    def powers(self, exponents: Words) -> Words:
        """The base to each of these exponents."""


class Ring(Protocol):
    """Arithmetic modulo n²; a number is a row of words, its two digits base n."""

    def products(self, data: Words, rows: NDArray[np.int32], starts: NDArray[np.int64]) -> Words:
        """The product of each segment of rows; 1 where it is empty."""

    def powers(self, data: Words, exponent: int) -> Words:
        """Each to the same power."""

    def pack(self, data: Words, width: int, count: int) -> Words:
        """For every `count` numbers c_0, c_1, ... the product of c_i to the power 2^(width i)."""

    def fixed_base(self, base: int, bits: int) -> FixedBase:
        """Powers of one base, with exponents of at most so many bits."""


class Join(Protocol):
    """From halves modulo p² and q² to a ciphertext modulo n²."""

    def encrypt(self, mask_p: Words, mask_q: Words, plain: Words) -> Words:
        """(1 + m n) times the mask that has these halves."""


class Backend(Protocol):
    """One way to do the arithmetic."""

    @property
    def name(self) -> str:
        """As in the switch."""

    @property
    def uses_threads(self) -> bool:
        """Whether several threads are faster than one."""

    def ring(self, n: int) -> Ring:
        """Arithmetic modulo n²."""

    def join(self, p: int, q: int) -> Join:
        """What puts the halves of a mask together."""


MAKERS: dict[str, Callable[[], Backend | None]] = {
    "ifma": kernels.ifma,
    "portable": kernels.portable,
    "gmpy2": integers.gmpy2,
    "python": integers.python,
}


@functools.cache
def backend_called(name: str) -> Backend | None:
    """The backend of this name, or None if this machine has none."""
    return MAKERS[name]()


def available() -> list[str]:
    """The backends that run here, the fastest first."""
    return [name for name in MAKERS if backend_called(name) is not None]


def backend() -> Backend:
    """The fastest that runs here, or the one that the environment names."""
    wanted = os.environ.get(SWITCH, "")
    if wanted and wanted not in MAKERS:
        raise UnknownName(
            f"no Paillier backend is called '{wanted}'",
            remedy=suggest(wanted, MAKERS, f"there are {', '.join(MAKERS)}"),
            where=SWITCH,
        )
    found = backend_called(wanted or available()[0])
    if found is None:
        raise BadValue(
            f"the Paillier backend '{wanted}' does not run on this machine",
            remedy=f"choose among {', '.join(available())}, or let fedarena choose",
            where=SWITCH,
        )
    return found


@functools.lru_cache(maxsize=8)
def ring(name: str, n: int) -> Ring:
    """Arithmetic modulo n² of a public key, prepared once."""
    found = backend_called(name)
    assert found is not None
    return found.ring(n)
