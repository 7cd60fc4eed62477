"""The privacy accountant: epsilon at delta of everything that was released, by Renyi differential privacy.

The unit is a client: all of its updates are in the sums, or zeros in their place. Releases are Gaussian; `noise` is their
deviation in units of the longest update. The sampling of clients decides how much an observer learns:

  everyone   each release is a plain Gaussian one
  poisson    each client takes part independently, and the size of a round is not shown (Mironov et al. 2019)
  fixed      a fixed number without replacement. Either the sample counts as known, and each release is a plain Gaussian
             one; or it hides who took part (Wang et al. 2019), but then another client replaces a missing one, a sum
             may change by two updates, and all noise counts half. Both bounds hold, and the smaller one is reported

With `local.privacy` the unit is a record, one training sample of a client: its gradients are in the sums of its client's
private steps, or zeros in their place. Steps are Gaussian releases with Poisson sampling of samples, and a client's epsilon
counts all steps of all of its trainings.

The arithmetic is that of the library dp-accounting.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedarena.config.errors import MissingDependency

LARGEST_EPSILON = 10.0  # above it a guarantee promises nothing
LARGEST_DELTA = 0.01  # also: a test with 1 % false positives would find a member by delta alone as often as by chance
RECORD_DELTA = 1e-5  # the largest by default, for records
RARE = 0.25  # share of clients above which sampling hides less than half the noise does

Drawn = Literal["everyone", "poisson", "fixed"]
Release = tuple[Drawn, int, float]  # sampling of clients, their (expected) number, noise
Spent = dict[Release, int]  # release -> how often


def need_accountant(setting: str) -> None:
    """Refuse the noise of a setting where the library for its accounting is not installed."""
    if find_spec("dp_accounting") is None:  # importing it takes seconds
        raise MissingDependency(
            f"{setting} needs the package dp-accounting, which computes epsilon",
            remedy=f"pip install 'fedarena[privacy]', or set {setting} = 0",
            where=setting,
        )


def usual_delta(clients: int) -> float:
    """Return one over a little more than the number of clients (McMahan et al. 2018)."""
    return float(min(clients**-1.1, 0.5))


def usual_record_delta(records: int) -> float:
    """Return one over a little more than the number of records of all clients, and at most 1e-5."""
    return min(RECORD_DELTA, usual_delta(records))


def promise(epsilon: float, delta: float, unit: Literal["client", "record"], count: int) -> str:
    """Return why a guarantee for each of `count` units promises nothing; an empty text if it promises something.

    docs/privacy.md#a-guarantee-that-promises-nothing derives the three limits.

    >>> promise(0.7, 1e-5, "record", 1000)
    ''
    >>> promise(8.6, 0.2, "client", 4)
    'epsilon 8.6 at delta 0.2 promises nothing about a client: delta is above 0.01'
    """
    reasons = [f"epsilon is above {LARGEST_EPSILON:g}"] * (epsilon > LARGEST_EPSILON)
    reasons += [f"delta is above {LARGEST_DELTA:g}"] * (delta > LARGEST_DELTA)
    reasons += [f"delta is above 1 / {count}, the number of {unit}s"] * (delta * count > 1)
    if not reasons:
        return ""
    return f"epsilon {epsilon:.3g} at delta {delta:.3g} promises nothing about a {unit}: {', '.join(reasons)}"


def record_epsilon(q: float, noise: float, steps: int, delta: float) -> float:
    """Return epsilon of a record of one client, after so many private steps that each sample it with probability q.

    >>> round(record_epsilon(0.01, 1.0, 1000, 1e-5), 2)
    2.1
    """
    from dp_accounting import rdp

    if not steps:
        return 0.0
    orders, one_step = _divergences(q, noise)
    return float(rdp.compute_epsilon(orders, steps * one_step, delta)[0])


@functools.lru_cache(maxsize=10_000)
def _divergences(q: float, noise: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return orders, and the Renyi divergence of one private step at each of them: the slow part, the same in all rounds."""
    import dp_accounting as dp
    from dp_accounting import rdp

    accountant = rdp.RdpAccountant(neighboring_relation=dp.NeighboringRelation.REPLACE_SPECIAL)
    with _quiet():
        accountant.compose(dp.PoissonSampledDpEvent(q, dp.GaussianDpEvent(noise)))
    return np.array(accountant.orders), accountant.rdp


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence a log of every order that does not converge; leaving such an order out is safe."""
    log = logging.getLogger("absl")
    before, log.disabled = log.disabled, True
    try:
        yield
    finally:
        log.disabled = before


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
    with _quiet():
        for event, times in events:
            accountant.compose(event, times)
        return float(accountant.get_epsilon(delta))
