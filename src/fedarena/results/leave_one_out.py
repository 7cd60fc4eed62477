"""The effect of one client on all others: comparisons of runs with it and without it.

A run without a client has the same samples, folds, initial weights and streams for all other clients. The effect of a
client in a split is the mean score of the others on their own test samples with it, minus that without it, with the sign of
the metric: above zero the others lose without it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fedarena.config.comparison_plan import View
from fedarena.results.client_gains import LEVEL, MOST_NAMED, ClientEstimate, client_values, names_of, shown_name
from fedarena.results.run import Run
from fedarena.results.scoring import VIEW_NAMES
from fedarena.statistics.bayes import verdict
from fedarena.statistics.repeats import paired_posterior

if TYPE_CHECKING:
    from fedarena.results.comparison import Comparison


@dataclass(frozen=True)
class ClientEffect(ClientEstimate):
    """The effect of one client on all others under one algorithm: their score with it, minus without it."""

    p_helps: float | None  # probability that the others lose more than one rope without it
    p_equal: float | None
    p_harms: float | None
    with_client: float | None  # mean score of the others over the splits that count
    without_client: float | None
    splits: int  # that count
    undefined: int  # splits in which the metric is undefined for all others


@dataclass(frozen=True)
class LeaveOneOut:
    """The effects of all clients that were left out."""

    metric: str
    rope: float
    evaluate_on: View
    effects: tuple[ClientEffect, ...]
    failures: dict[str, str]  # "fedavg without Cleveland" -> why it has no result

    @property
    def algorithms(self) -> list[str]:
        """The algorithms that were repeated without a client."""
        return list(dict.fromkeys(effect.algorithm for effect in self.effects))

    def of(self, algorithm: str) -> list[ClientEffect]:
        """Return the effects under one algorithm, in the order of the clients."""
        return [effect for effect in self.effects if effect.algorithm == algorithm]


def leave_one_out(result: Comparison) -> LeaveOneOut | None:
    """Return the effects of a comparison; None where no client was left out."""
    plan = result.plan
    if not plan.leave_one_out:
        return None
    view: View = "own:uniform" if plan.evaluate_on == "own:uniform" else "own"
    effects = [
        _effect(result, client, label, runs, view)
        for client, by_label in result.without.items()
        for label, runs in by_label.items()
        if label in result.runs
    ]
    return LeaveOneOut(plan.metric, plan.rope, view, tuple(effects), dict(result.without_failures))


def _effect(result: Comparison, client: str, label: str, runs: Sequence[Run], view: View) -> ClientEffect:
    plan, sign = result.plan, result.scoring().sign
    pairs = [
        others_scores(one, two, client, plan.metric, view) for one, two in zip(result.runs[label], runs, strict=True)
    ]
    scores = np.array(pairs, np.float64)
    there: NDArray[np.bool_] = np.asarray(~np.isnan(scores).any(axis=1))
    broken = [
        not np.isfinite(pair).all() and (one.diverged or two.diverged)
        for pair, one, two in zip(scores, result.runs[label], runs, strict=True)
    ]
    repeats = [split.repeat for split, known in zip(plan.splits, there, strict=True) if known]
    facts = {"splits": int(there.sum()), "undefined": int((~there).sum())}
    name = shown_name(client)
    few = there.sum() < 2 or (result.has_repeat_effect and len(set(repeats)) < 2)
    if any(broken) or few or np.isinf(scores).any():
        return ClientEffect(name, label, "?", None, None, None, None, None, None, None, **facts)
    first, second = sign * scores[there, 1], sign * scores[there, 0]
    known = paired_posterior(first, second, plan.rho, repeats if result.has_repeat_effect else None)
    harms, equal, helps = known.regions(plan.rope)
    decided = "?" if plan.undecidable else verdict(helps, equal, harms, plan.threshold)
    means = scores[there].mean(axis=0).tolist()
    return ClientEffect(name, label, decided, known.mean, known.interval(LEVEL), helps, equal, harms, *means, **facts)


def others_scores(whole: Run, without: Run, client: str, metric: str, view: View) -> tuple[float, float]:
    """Return the mean score of all clients but one, with it and without it, over clients that have both.

    Clients are weighted as the view does; NaN where no client has both scores.
    """
    values = client_values(whole, metric), client_values(without, metric)
    weights: NDArray[np.float64] = np.asarray(_weights(whole), np.float64)
    if view == "own:uniform":
        weights = (weights > 0).astype(np.float64)
    others = np.array([name != client for name in names_of(whole)])
    known = others & ~np.isnan(values[0]) & ~np.isnan(values[1]) & (weights > 0)
    if not known.any():
        return float("nan"), float("nan")
    first, second = (float(np.average(one[known], weights=weights[known])) for one in values)
    return first, second


def _weights(run: Run) -> NDArray[np.int64]:
    """Return the samples that each client is compared on."""
    if run.experiment.evaluate.on == "train" or not len(run.measured.client_tests):
        return run.client_sizes
    return run.measured.client_tests


def sentence(result: Comparison) -> str:
    """Return without which clients the others lose, for the best algorithm that communicates; empty without effects."""
    found = result.leave_one_out()
    if found is None or not found.effects:
        return ""
    label = next(label for label in result.ranked if label in found.algorithms)
    effects, rope = found.of(label), result.scoring().difference(found.rope)
    clauses = []
    for sign, word in (("+", "lose"), ("-", "gain")):
        decided = [effect for effect in effects if effect.verdict == sign]
        if decided:
            order = sorted(decided, key=lambda effect: -abs(effect.mean or 0.0))
            chances = [(e.p_helps if sign == "+" else e.p_harms) or 0.0 for e in order]
            named = [f"{e.client} (P = {p:.2f})" for e, p in zip(order, chances, strict=True)][:MOST_NAMED]
            more = f" or {len(order) - MOST_NAMED} more" if len(order) > MOST_NAMED else ""
            clauses.append(f"{word} by more than {rope} without {' or '.join(named)}{more}")
    equal = sum(effect.verdict == "=" for effect in effects)
    undecided = sum(effect.verdict == "?" for effect in effects)
    if equal:
        clauses.append(f"do practically as well without {equal} of {len(effects)} clients")
    if not clauses:
        return (
            f"With {label}, the splits do not decide for any of {len(effects)} clients what the others lose without it."
        )
    rest = f"; for {undecided} of {len(effects)} clients it is undecided" if undecided else ""
    return f"With {label}, the other clients {', '.join(clauses)}{rest}."


def about(found: LeaveOneOut) -> str:
    """Return how the effects were measured, in one sentence."""
    return (
        f"Every comparison was repeated without one client, and the score is the mean {found.metric} of the others "
        f"{VIEW_NAMES[found.evaluate_on]}: with that client, minus without it, paired by split."
    )
