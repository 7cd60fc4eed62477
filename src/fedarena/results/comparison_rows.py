"""The table of a comparison: what every algorithm achieved and what it cost, over all splits."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from fedarena.config.comparison_plan import Score, Split
from fedarena.engine.record import RoundRecord
from fedarena.results.privacy_guarantees import empty_promises
from fedarena.results.run import Run
from fedarena.results.scoring import Scoring
from fedarena.statistics.curve_summary import relative_accuracy

if TYPE_CHECKING:
    from fedarena.results.comparison import Comparison


def rows(result: Comparison) -> list[dict[str, Any]]:
    """Return one row per algorithm, the reference last."""
    reference = [result.plan.reference] if result.plan.reference in result.runs else []
    return [algorithm_row(result, label) for label in (*result.labels, *reference)]


def split_rows(result: Comparison) -> list[dict[str, Any]]:
    """Return one row per algorithm and split, the reference last: the score, the metrics of the final model, and costs."""
    value = result.scoring().value
    reference = [result.plan.reference] if result.plan.reference in result.runs else []
    return [
        {
            "algorithm": label,
            "repeat": split.repeat,
            **({} if split.fold is None else {"fold": split.fold}),
            "score": value(run),
            **run.metrics,
            **{f"own_{name}": number for name, number in run.own_metrics.items()},
            "rounds": run.records[-1].round,
            "uploads": run.records[-1].uploads,
            "bytes_up": run.records[-1].bytes_up,
            "bytes_down": run.records[-1].bytes_down,
            "epsilon": math.nan if run.epsilon is None else run.epsilon,
            "simulated_seconds": run.records[-1].clock,
            "wall_seconds": run.records[-1].wall_seconds,
            "diverged": run.diverged,
        }
        for label in (*result.labels, *reference)
        for split, run in zip(_splits(result, label), result.runs[label], strict=True)
    ]


def _splits(result: Comparison, label: str) -> list[Split]:
    """Return the split of each run of a label; runs that were collected one by one have them in their experiments."""
    runs, planned = result.runs[label], result.plan.splits
    if len(planned) == len(runs):
        return planned
    return [Split(number, run.experiment.fold) for number, run in enumerate(runs)]


def algorithm_row(result: Comparison, label: str) -> dict[str, Any]:
    """Return the scores and costs of one algorithm: means, standard deviations, and medians to the target."""
    runs, plan = result.runs[label], result.plan
    reached = [record for run in runs if (record := _first_at(run, result.target)) is not None]
    missed = len(runs) - len(reached)
    which: Score = "validated" if plan.score == "validated" else "final"
    own, common = Scoring(which, plan.metric, "own").value, Scoring(which, plan.metric, "common").value
    standing = result.ranking.standings.get(label) if result.ranking else None
    with_accuracy = [run for run in runs if run.has_classes]
    weighted = _mean([run.final.weighted_accuracy for run in with_accuracy])
    centre = result.centralized
    validated = result.all_scores("validated")[label] if result.is_validated else []
    last = [run.records[-1] for run in runs]
    return {
        "algorithm": label,
        "runs": len(runs),
        "diverged": result.diverged(label),
        **_mean_and_deviation("best", result.all_scores("best")[label]),
        **_mean_and_deviation("final", result.all_scores("final")[label]),
        **(_mean_and_deviation("validated", validated) if validated else {"validated": None, "validated_sd": None}),
        "p_best": standing.p_best if standing else None,
        "expected_loss": standing.expected_loss if standing else None,
        "common": _mean([common(run) for run in runs]),
        "own": _mean([own(run) for run in runs]),
        "reached": len(reached),
        "rounds_to_target": _median([record.round for record in reached], missed),
        "uploads_to_target": _median([record.uploads for record in reached], missed),
        "bytes_to_target": _median([record.bytes_up + record.bytes_down for record in reached], missed),
        "clock_to_target": _median([record.clock for record in reached], missed),
        "uploads": _mean([record.uploads for record in last]),
        "bytes": _mean([run.bytes for run in runs]),
        "bytes_up": _mean([record.bytes_up for record in last]),
        "epsilon": _mean([run.epsilon for run in runs]),
        "record_epsilon": _mean([run.record_epsilon for run in runs]),
        "attack_success": _mean([run.attack_success for run in runs]),
        "empty_promises": sorted(set().union(*map(empty_promises, runs))),
        "clock": _mean([record.clock for record in last]),
        "wall_seconds": _mean([record.wall_seconds for record in last]),
        "weighted_accuracy": weighted,
        "relative_accuracy": None if weighted is None or not centre else relative_accuracy(weighted, centre),
        "client_std": _mean([run.fairness.get("std") for run in with_accuracy]),
        "client_worst": _mean([run.fairness.get("worst_tenth") for run in with_accuracy]),
    }


def _mean(values: list[float | None]) -> float | None:
    known = [v for v in values if v is not None and math.isfinite(v)]
    return float(np.mean(known)) if known else None


def _mean_and_deviation(name: str, scores: list[float]) -> dict[str, float]:
    deviation = float(np.std(scores, ddof=1)) if len(scores) > 1 else 0.0
    return {name: float(np.mean(scores)) if scores else math.nan, f"{name}_sd": deviation}


def _median(values: list[float], missed: int) -> float | None:
    """Return the median over all runs; `missed` further runs never reached the target and took longer than any."""
    found = float(np.median([*values, *[math.inf] * missed]))
    return found if math.isfinite(found) else None


def _first_at(run: Run, target: float) -> RoundRecord | None:
    """Return the first evaluation at which the metric of the run reaches the target."""
    rising = run.measured.direction == "maximize"
    values = zip(run.evaluations, run.metric_curve, strict=True)
    return next((record for record, (_, value) in values if (value >= target if rising else value <= target)), None)
