"""How much privacy is spent: epsilon at delta of everything that was released, by Renyi differential privacy.

The unit is a client: all of its answers are in the sums, or zeros in their place. Releases are Gaussian; `noise` is their
deviation in units of the longest answer. How clients were drawn decides what is left to an observer:

  everyone   each release is a plain Gaussian one
  poisson    each client was in by its own coin, and the size of a round does not show (Mironov et al. 2019)
  fixed      so many of all without replacement. Either the draw is taken as known, and each release is a plain Gaussian
             one; or it hides who was in (Wang et al. 2019), but then another stands in for who is not, a sum may change
             by two answers, and all noise counts half. Both bounds hold, the smaller one is told

The arithmetic is that of the library dp-accounting.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any, Literal

from fedarena.config.errors import MissingDependency

RARE = 0.25  # share of clients above which a draw hides less than half the noise does

Drawn = Literal["everyone", "poisson", "fixed"]
Release = tuple[Drawn, int, float]  # how clients were drawn, (expected) number of them, noise
Spent = dict[Release, int]  # how often


def need_accountant() -> None:
    """Refuse what could not be accounted for."""
    if find_spec("dp_accounting") is None:
        raise MissingDependency(
            "uplink.noise needs the package dp-accounting, which computes epsilon",
            remedy="pip install 'fedarena[privacy]', or set uplink.noise = 0",
            where="uplink.noise",
        )


def usual_delta(clients: int) -> float:
    """One over a little more than the number of clients (McMahan et al. 2018)."""
    return float(min(clients**-1.1, 0.5))


def epsilon(spent: Mapping[Release, int], clients: int, delta: float) -> float:
    """Of all releases together.

    >>> round(epsilon({("poisson", 100, 1.0): 1000}, 100_000, 1e-5), 2)
    0.68
    """
    import dp_accounting as dp

    special, one = dp.NeighboringRelation.REPLACE_SPECIAL, dp.NeighboringRelation.REPLACE_ONE
    known, hidden = [], []
    for (how, asked, noise), times in sorted(spent.items()):
        plain: Any = dp.GaussianDpEvent(noise)
        half: Any = dp.GaussianDpEvent(noise / 2)
        coins = dp.PoissonSampledDpEvent(asked / clients, plain)
        drawn = dp.SampledWithoutReplacementDpEvent(clients, asked, half)
        known.append((coins if how == "poisson" else plain, times))
        hidden.append((drawn if how == "fixed" else half, times))
    found = _composed(known, special, delta)
    if any(how == "fixed" and asked <= RARE * clients for how, asked, _ in spent):
        found = min(found, _composed(hidden, one, delta))
    return found


def _composed(events: list[tuple[Any, int]], relation: Any, delta: float) -> float:
    from dp_accounting import rdp

    accountant = rdp.RdpAccountant(neighboring_relation=relation)
    log = logging.getLogger("absl")  # tells of every order that does not converge; it is left out, which is safe
    before, log.disabled = log.disabled, True
    try:
        for event, times in events:
            accountant.compose(event, times)
        return float(accountant.get_epsilon(delta))
    finally:
        log.disabled = before
