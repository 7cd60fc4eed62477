"""The main numbers of a run, as `fedarena run --json` prints them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from fedarena.engine.task_metrics import UnseenMetrics
from fedarena.statistics.metric_registry import is_better

if TYPE_CHECKING:
    from fedarena.results.run import Run


def run_summary(run: Run) -> dict[str, Any]:
    """Return the main numbers, as `fedarena run --json` prints them."""
    exp, last, best = run.experiment, run.records[-1], run.best
    accuracies = [a for _, a in run.curve]
    target = exp.evaluate.target
    return {
        "algorithm": exp.algorithm.name,
        "algorithm_settings": run.used,
        "dataset": exp.data.name,
        "partition": exp.partition.name,
        "model": exp.model.name,
        "seed": exp.seed,
        "rounds": last.round,
        "final_accuracy": run.final.accuracy if run.has_classes else None,
        "best_accuracy": best.accuracy if run.has_classes else None,
        "best_round": best.round,
        "mean_accuracy": float(np.mean(accuracies)) if run.has_classes else None,
        "metric": run.measured.metric,
        "direction": run.measured.direction,
        "final_metric": run.value_in(run.final),
        "best_metric": run.value_in(best),
        "metrics": run.metrics,
        "metric_bounds": {name: list(bounds) for name, bounds in run.metric_bounds.items()},
        "own_metrics": run.own_metrics,
        "own_undefined": run.measured.undefined,
        "task": run.measured.task or None,
        "diverged": run.diverged,
        "final_loss": run.final.loss,
        "min_loss": min(r.loss for r in run.evaluations if r.loss is not None),
        "weighted_accuracy": run.final.weighted_accuracy if run.has_classes else None,
        "target": target,
        "rounds_to_target": None if target is None else _rounds_to_target(run, target),
        "fairness": run.fairness if run.has_classes else {},
        "uploads": last.uploads,
        "bytes_up": last.bytes_up,
        "bytes_down": last.bytes_down,
        "epsilon": run.epsilon,
        "delta": run.delta,
        "record_epsilon": run.record_epsilon,
        "record_delta": run.record_delta,
        "simulated_seconds": last.clock,
        "outdated": last.outdated,
        "overactive": last.overactive,
        "ages": run.ages,
        "steps": last.steps,
        "samples": last.samples,
        "dropped": sum(r.dropped for r in run.records),
        "wall_seconds": last.wall_seconds,
        "samples_per_second": last.samples / max(sum(r.seconds_train for r in run.records), 1e-9),
        "weights_sha256": run.weights_sha256,
        "run_dir": None if run.dir is None else str(run.dir),
        "notes": list(run.notes),
        **({} if run.experiment.attack is None else {"attack_success": run.attack_success}),
        **_unseen_summary("", run.unseen),
        **_validated_summary(run),
    }


def _validated_summary(run: Run) -> dict[str, Any]:
    """Return the numbers of the validated round; nothing where no samples are held out to choose it."""
    record = run.validated
    if record is None or run.chosen is None:
        return {}
    return {
        "validated_round": record.round,
        "validated_accuracy": record.accuracy if run.has_classes else None,
        "validated_metric": run.value_in(record),
        "validated_loss": record.loss,
        "validated_metrics": run.validated_metrics,
        "validated_own_metrics": run.validated_own_metrics,
        "validated_own_undefined": run.chosen.measured.undefined,
        "validation_metric": run.chosen.value,  # on the validation samples
        **_unseen_summary("validated_", run.chosen.measured.unseen),
    }


def _rounds_to_target(run: Run, target: float) -> int | None:
    if run.measured.metric == "accuracy":
        return run.rounds_to(target)
    reached = (
        t for t, value in run.metric_curve if value == target or is_better(run.measured.direction, value, target)
    )
    return next(reached, None)


def _unseen_summary(prefix: str, unseen: UnseenMetrics | None) -> dict[str, Any]:
    """Return the metrics of clients that never trained, as means over them; nothing where all clients train."""
    if unseen is None:
        return {}
    found = {"clients": list(unseen.clients), "steps": unseen.steps, "before": unseen.before, "after": unseen.after}
    return {f"{prefix}unseen": found}
