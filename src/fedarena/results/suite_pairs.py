"""The estimates of a suite: one pair of algorithms on each federation, on average, and on the next federation."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

FLIPPED = {"+": "-", "-": "+"}


@dataclass(frozen=True)
class PairChances:
    """The probabilities that the row is practically better, equal and worse than the column; NaN where unknown."""

    p_better: float
    p_equal: float
    p_worse: float
    verdict: str  # + = - ?


@dataclass(frozen=True)
class PairEstimate(PairChances):
    """Row against column on one federation, on average or on the next one; numbers are NaN where nothing is known."""

    mean: float  # row minus column, or the log of row over column
    interval: tuple[float, float]  # 90 % credible

    @property
    def is_known(self) -> bool:
        """Whether there is a posterior."""
        return not math.isnan(self.mean)


UNKNOWN = PairEstimate(math.nan, math.nan, math.nan, "?", math.nan, (math.nan, math.nan))


@dataclass(frozen=True)
class FederationEstimate:
    """Row against column on one federation: from its own splits alone, and shrunk towards the others."""

    federation: str
    own: PairEstimate
    shrunk: PairEstimate


@dataclass(frozen=True)
class SignedRank(PairChances):
    """The Bayesian signed-rank test, which assumes no distribution of the differences, and what it contradicts."""

    contradicts: tuple[str, ...] = ()  # "next", "average"


@dataclass(frozen=True)
class SuitePair:
    """Row against column over all federations."""

    row: str
    column: str
    next: PairEstimate  # a further federation like these
    average: PairEstimate  # the mean over all federations like these
    by_federation: tuple[FederationEstimate, ...]
    signed_rank: SignedRank
    tau: float  # standard deviation of the difference between federations, posterior median
    why_not: str = ""  # why there is no verdict over federations


def mirrored(pair: SuitePair) -> SuitePair:
    """Return the same pair seen from the column."""

    def turned(e: PairEstimate) -> PairEstimate:
        low, high = e.interval
        return PairEstimate(e.p_worse, e.p_equal, e.p_better, FLIPPED.get(e.verdict, e.verdict), -e.mean, (-high, -low))

    each = tuple(replace(e, own=turned(e.own), shrunk=turned(e.shrunk)) for e in pair.by_federation)
    test = pair.signed_rank
    sign = FLIPPED.get(test.verdict, test.verdict)
    check = SignedRank(test.p_worse, test.p_equal, test.p_better, sign, test.contradicts)
    ends = turned(pair.next), turned(pair.average)
    return SuitePair(pair.column, pair.row, *ends, each, check, pair.tau, pair.why_not)
