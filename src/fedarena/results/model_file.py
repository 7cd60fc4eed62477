"""model.json of a run folder: what is needed to use the model without the data it was trained on."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedarena.config.errors import DataBroken, DataMissing, quoted
from fedarena.engine.context import ExperimentContext
from fedarena.engine.task_metrics import TaskMetrics
from fedarena.results.json_files import read_table
from fedarena.results.run_folder import DAMAGED

MODEL_FACTS = "model.json"
MOST_ERRORS = 1000  # absolute errors that are saved; of more samples, evenly spaced ones in their order


@dataclass(frozen=True)
class ModelFacts:
    """The task of a model, the shape of its inputs, the meaning of its outputs, and its errors on test samples."""

    task: str
    shape: tuple[int, ...]
    outputs: int
    class_names: tuple[str, ...] = ()
    label_scale: tuple[float, float] = (0.0, 1.0)  # mean and deviation of a regression's labels
    cut: tuple[int, float] | None = None  # the positive class of two, and the difference of logits that predicts it
    errors: tuple[float, ...] = ()  # absolute errors of a regression on test samples, in ascending order
    samples: int = 0  # of those test samples

    @classmethod
    def of(cls, context: ExperimentContext) -> ModelFacts:
        """Return the facts about the trained model that a context has loaded."""
        errors = _errors(context)
        data = context.data
        return cls(
            context.task_name,
            context.input_shape,
            data.classes,
            data.class_names,
            context.label_scale,
            context.cut,
            tuple(_thinned(errors).tolist()),
            len(errors),
        )

    def margin(self, level: float) -> float:
        """Return the largest distance of a new label from its prediction, with this probability; infinite if it is not known.

        This is split-conformal prediction (Lei et al. 2018, arXiv:1604.04173): of n errors on samples that the model was
        not trained on, the one in place ceil((n + 1) level). New samples must be like those test samples.

        >>> facts = ModelFacts("regression", (1,), 1, errors=tuple(range(1, 10)), samples=9)
        >>> facts.margin(0.9), facts.margin(0.5), facts.margin(0.95)
        (9, 5, inf)
        """
        place = math.ceil((self.samples + 1) * level - 1e-9)
        if place > self.samples:
            return math.inf
        return self.errors[math.ceil(place * len(self.errors) / self.samples) - 1]

    def to_json(self) -> dict[str, Any]:
        """Return the facts as plain values."""
        return {key: list(value) if isinstance(value, tuple) else value for key, value in asdict(self).items()}


def read_model_facts(folder: Path) -> ModelFacts:
    """Return the facts that a run folder holds."""
    path = folder / MODEL_FACTS
    if not path.exists():
        raise DataMissing(
            f"{folder} has no {MODEL_FACTS}: it was made by an earlier version, or is not finished",
            remedy="run the experiment again, or resume it",
        )
    try:
        table = read_table(path, DAMAGED)
        facts: dict[str, Any] = {key: tuple(v) if isinstance(v, list) else v for key, v in table.items()}
        return ModelFacts(**facts)
    except TypeError as error:
        raise DataBroken(f"{path} is damaged: {quoted(str(error))}", remedy=DAMAGED) from None


def _errors(context: ExperimentContext) -> NDArray[np.float64]:
    """Return the absolute errors of a regression on the common test samples, sorted; none where clients have own models."""
    if context.task_name != "regression" or context.has_personal_models:
        return np.empty(0)
    found = TaskMetrics(context).predictions(context.owners.test, context.evaluate(context.owners.test, None, "logits"))
    errors: NDArray[np.float64] = np.sort(np.abs(found.predicted - found.labels))
    return errors if np.isfinite(errors).all() else np.empty(0)  # not so where labels stayed with the clients


def _thinned(errors: NDArray[np.float64]) -> NDArray[np.float64]:
    if len(errors) <= MOST_ERRORS:
        return errors
    places = np.ceil(np.arange(1, MOST_ERRORS + 1) * len(errors) / MOST_ERRORS).astype(np.int64) - 1
    return errors[places]
