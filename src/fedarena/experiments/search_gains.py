"""What each client gains from the best trial of a search over training alone, on its own held-out samples."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from fedarena.config.errors import BadValue
from fedarena.experiments.run import run
from fedarena.experiments.study import Search
from fedarena.results.client_gains import client_values, names_of, shown_name
from fedarena.results.scoring import Scoring


@dataclass(frozen=True)
class HeldOutGain:
    """The final scores of one client on its held-out samples; None where its labels leave the metric undefined."""

    client: str
    local: float | None
    federated: float | None
    gain: float | None  # with the sign of the metric, so that more is better


def held_out_gains(search: Search, values: dict[str, Any]) -> list[HeldOutGain]:
    """Train with the values of a trial and by `local` with the same local settings, and return the gain of each client."""
    tuned = search.validating.with_(**values)
    if not tuned.algorithm.made.communicates or tuned.algorithm.made.pooled:
        raise BadValue(
            f"{tuned.algorithm.name} has no clients that could gain over training alone",
            remedy="leave out --gains, or search an algorithm that communicates",
            where="--gains",
        )
    alone = tuned.with_(algorithm="local", select="none", attack="none")
    ours, theirs = (run(one, out=False, runtime="serial") for one in (tuned, alone))
    metric, sign = search.metric.name, Scoring("final", search.metric.name, "own").sign
    pairs = zip(names_of(ours), client_values(theirs, metric).tolist(), client_values(ours, metric).tolist(), strict=True)
    return [HeldOutGain(shown_name(n), _known(a), _known(b), _known(sign * (b - a))) for n, a, b in pairs]


def _known(score: float) -> float | None:
    return score if math.isfinite(score) else None


def gain_lines(search: Search, gains: list[HeldOutGain]) -> list[str]:
    """Return the gains as lines of text: a row for each client, its score alone, its score with the others, the gain."""
    scoring = Scoring("final", search.metric.name, "own")
    rows = [["client", "alone", "with the others", "gain"]]
    for one in gains:
        gain = "-" if one.gain is None else scoring.signed(one.gain)
        rows.append([one.client, scoring.shown(one.local), scoring.shown(one.federated), gain])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    head = f"gains over local training, final {search.metric.name} on each client's held-out samples:"
    return [head, *("  " + "  ".join(f"{c:>{w}}" for c, w in zip(row, widths, strict=True)) for row in rows)]
