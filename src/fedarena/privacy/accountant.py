"""The privacy accountant: epsilon at delta of everything that was released, by Renyi differential privacy.

The unit is a client: all of its updates are in the sums, or zeros in their place. Releases are Gaussian; `noise` is their
deviation in units of the longest update. The sampling of clients decides how much an observer learns:

  everyone   each release is a plain Gaussian one
  poisson    each client takes part independently, and the size of a round is not shown (Mironov et al. 2019)
  fixed      a fixed number without replacement. Either the sample counts as known, and each release is a plain Gaussian
             one; or it hides who took part (Wang et al. 2019), but then another client replaces a missing one, a sum
             may change by two updates, and all noise counts half. Both bounds hold, and the smaller one is reported

The arithmetic is that of the library dp-accounting.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any, Literal

from fedarena.config.errors import MissingDependency

RARE = 0.25  # share of clients above which sampling hides less than half the noise does

Drawn = Literal["everyone", "poisson", "fixed"]
Release = tuple[Drawn, int, float]  # sampling of clients, their (expected) number, noise
Spent = dict[Release, int]  # release -> how often


def need_accountant() -> None:
    """Refuse noise where the library for its accounting is not installed."""
    if find_spec("dp_accounting") is None:  # importing it takes seconds
        raise MissingDependency(
            "uplink.noise needs the package dp-accounting, which computes epsilon",
            remedy="pip install 'fedarena[privacy]', or set uplink.noise = 0",
            where="uplink.noise",
        )


def usual_delta(clients: int) -> float:
    """Return one over a little more than the number of clients (McMahan et al. 2018)."""
    return float(min(clients**-1.1, 0.5))


def epsilon(spent: Mapping[Release, int], clients: int, delta: float) -> float:
    """Return epsilon of all releases together.

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
    log = logging.getLogger("absl")  # logs every order that does not converge; leaving it out is safe
    before, log.disabled = log.disabled, True
    try:
        for event, times in events:
            accountant.compose(event, times)
        return float(accountant.get_epsilon(delta))
    finally:
        log.disabled = before
