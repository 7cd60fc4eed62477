"""Four backends of the same arithmetic; the fastest that runs on this machine is used."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable

from fedarena.config.errors import BadValue, check_known
from fedarena.vertical.crypto.backends import integers, kernels

SWITCH = "FEDARENA_PAILLIER"  # environment variable with the name of a backend


Backend = kernels.KernelBackend | integers.IntegerBackend
Ring = kernels.KernelRing | integers.IntegerRing
FixedBase = kernels.KernelPowers | integers.IntegerPowers

MAKERS: dict[str, Callable[[], Backend | None]] = {
    "ifma": kernels.ifma,
    "portable": kernels.portable,
    "gmpy2": integers.gmpy2,
    "python": integers.python,
}


@functools.cache
def backend_called(name: str) -> Backend | None:
    """Return the backend of this name, or None if it does not run on this machine."""
    return MAKERS[name]()


def available() -> list[str]:
    """Return the backends that run on this machine, the fastest first."""
    return [name for name in MAKERS if backend_called(name) is not None]


def backend() -> Backend:
    """Return the fastest backend that runs on this machine, or the one that the environment names."""
    wanted = os.environ.get(SWITCH, "")
    if wanted:
        check_known(
            wanted, MAKERS, f"no Paillier backend is called '{wanted}'", f"there are {', '.join(MAKERS)}", SWITCH
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
    """Return the arithmetic modulo n² of a public key, prepared once."""
    found = backend_called(name)
    assert found is not None
    return found.ring(n)
