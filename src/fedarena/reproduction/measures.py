"""The measures that recipes read from runs: a name, or a name with a value.

best  final  mean  rounds_to:0.97  interpolated_rounds_to:0.99  rounds_to_target  at:20  relative  ...
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from fedarena.config.errors import BadValue, check_known, quoted
from fedarena.engine.setup import open_context
from fedarena.results.run import Run
from fedarena.statistics.curve_summary import area, relative_accuracy, rounds_to

NEVER = math.inf  # the value of a target that was not reached


def read(text: str, run: Run, reference: Run | None = None) -> float:
    """Return the value of a measure in a run; some measures compare it with a reference run."""
    name, value = parsed(text)
    if not run.evaluations:
        return math.nan  # it was first evaluated later than this cell reads
    if value is not None:
        return WITH_VALUE[name](run, value)
    if name in BESIDE:
        return math.nan if reference is None else BESIDE[name](run, reference)
    return PLAIN[name](run)


def parsed(text: str) -> tuple[str, float | None]:
    """Return the name and the value of a measure, or raise if there is none of that form.

    >>> parsed("rounds_to:0.97"), parsed("best")
    (('rounds_to', 0.97), ('best', None))
    """
    name, colon, value = text.partition(":")
    known = [*PLAIN, *BESIDE, *WITH_VALUE]
    check_known(name, known, f"no measure is called '{quoted(name)}'", f"there are: {', '.join(known)}")
    if (name in WITH_VALUE) != bool(colon):
        raise BadValue(
            f"'{quoted(text)}' is not a measure",
            remedy=f"write {name}:VALUE" if name in WITH_VALUE else f"write {name}",
        )
    try:
        return name, float(value) if colon else None
    except ValueError:
        raise BadValue(f"'{quoted(text)}' is not a measure", remedy=f"write a number: {name}:0.9") from None


def has_target(text: str) -> bool:
    """Return whether the measure is the time to reach a target."""
    return "_to" in text.partition(":")[0]


def limit(text: str, run: Run) -> float:
    """Return the length of a run, in the unit of this measure."""
    last = run.records[-1]
    return float(last.steps if text.startswith("steps") else last.round)


def is_cost(text: str) -> bool:
    """Return whether smaller values of the measure are better."""
    return text.partition(":")[0] in COSTS


def applies(text: str, run: Run) -> bool:
    """Return whether a run has this measure; a model with its own loss has no accuracy, and records 0 for it."""
    if text.partition(":")[0] in WITHOUT_ACCURACY or any(record.accuracy for record in run.evaluations):
        return True
    return not open_context(run.experiment).task.has_own_loss


def _accuracies(run: Run) -> list[float]:
    """Return the accuracy at every evaluation; NaN after the model diverged."""
    return [math.nan if math.isnan(loss) else a for (_, a), loss in zip(run.curve, _losses(run), strict=True)]


def _weighted(run: Run) -> float:
    return math.nan if math.isnan(_losses(run)[-1]) else run.final.weighted_accuracy or 0.0


def _losses(run: Run) -> list[float]:
    """Return the loss at every evaluation; NaN where it is infinite, which means a missed target elsewhere."""
    return [math.nan if r.loss is None or math.isinf(r.loss) else r.loss for r in run.evaluations]


def _roughness(run: Run) -> float:
    """Return the mean change between evaluations in the second half of the curve."""
    half = _accuracies(run)[len(run.curve) // 2 :]
    return float(np.abs(np.diff(half)).mean()) if len(half) > 1 else math.nan


def _rounds_to(run: Run, target: float, interpolate: bool = False) -> float:
    found = rounds_to(run.curve, target, interpolate)
    return NEVER if found is None else float(found)


def _target(run: Run) -> float:
    target = run.experiment.evaluate.target
    if target is None:
        raise BadValue("the run has no target", remedy="set evaluate.target in the recipe", where="rounds_to_target")
    return target


def _steps_to(run: Run, target: float) -> float:
    """Return the local steps of all clients until the accuracy reaches the target."""
    return next((float(r.steps) for r in run.evaluations if (r.accuracy or 0.0) >= target), NEVER)


def _at(run: Run, round: float) -> float:
    """Return the accuracy at the last evaluation up to this round."""
    known = zip(run.curve, _accuracies(run), strict=True)
    return next((a for (t, _), a in reversed([*known]) if t <= round), math.nan)


def _moved(run: Run) -> float:
    """Return the distance of the final weights from the initial weights."""
    return float(np.linalg.norm(_weights(run) - open_context(run.experiment).initial))


def weight_divergence(run: Run, reference: Run) -> float:
    """Return ||w - w_ref|| / ||w_ref|| of two runs from the same initial weights (Zhao et al. 2018, arXiv:1806.00582)."""
    ours, theirs = _weights(run), _weights(reference)
    return float(np.linalg.norm(ours - theirs) / np.linalg.norm(theirs))


def _weights(run: Run) -> Any:
    """Return the trained weights as one vector, without running statistics."""
    task = open_context(run.experiment).task
    task.module.load_state_dict(run.state)
    return task.vector()


PLAIN: dict[str, Callable[[Run], float]] = {
    "best": lambda run: max((a for a in _accuracies(run) if math.isfinite(a)), default=math.nan),
    "final": lambda run: _accuracies(run)[-1],
    "mean": lambda run: float(np.mean(_accuracies(run))),
    "weighted": _weighted,  # on clients' own test samples, weighted by their number
    "min_loss": lambda run: min((loss for loss in _losses(run) if math.isfinite(loss)), default=math.nan),
    "final_loss": lambda run: _losses(run)[-1],
    "area": lambda run: math.nan if any(map(math.isnan, _losses(run))) else area(run.curve),
    "roughness": _roughness,
    "diverged": lambda run: float(run.diverged),
    "c_index": lambda run: run.metrics.get("c_index", math.nan),  # of survival, on the common test samples
    "client_std": lambda run: run.fairness.get("std", math.nan),
    "bytes_up": lambda run: float(run.records[-1].bytes_up),
    "bytes_down": lambda run: float(run.records[-1].bytes_down),
    "merges": lambda run: float(run.ages.get("merges", math.nan)),  # of asynchronous algorithms
    "deadlock": lambda run: float(run.ages.get("deadlock", math.nan)),
    "moved": _moved,
    "rounds_to_target": lambda run: _rounds_to(run, _target(run), interpolate=True),  # its own: evaluate.target
}
WITH_VALUE: dict[str, Callable[[Run, float], float]] = {
    "rounds_to": _rounds_to,
    "interpolated_rounds_to": lambda run, target: _rounds_to(run, target, interpolate=True),
    "steps_to": _steps_to,
    "at": _at,
    "client": lambda run, number: float(run.client_accuracy[int(number)]),  # on its own test samples, at the end
}
BESIDE: dict[str, Callable[[Run, Run], float]] = {
    "relative": lambda run, other: relative_accuracy(_weighted(run), _accuracies(other)[-1]),
    "lost": lambda run, other: (other.best.accuracy or 0.0) - (run.best.accuracy or 0.0),
    "divergence": weight_divergence,
}
WITHOUT_ACCURACY = {
    *("min_loss", "final_loss", "diverged", "bytes_up", "bytes_down", "merges", "deadlock", "moved", "divergence"),
    "c_index",
}
COSTS = {
    *("min_loss", "final_loss", "roughness", "diverged", "client_std", "bytes_up", "bytes_down", "moved"),
    *("rounds_to", "interpolated_rounds_to", "rounds_to_target", "steps_to", "divergence", "lost"),
}
