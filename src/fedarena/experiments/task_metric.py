"""The metric by which runs of an experiment are compared, and the difference of it that does not matter."""

from __future__ import annotations

from fedarena.config.errors import FedarenaError
from fedarena.config.experiment import Experiment
from fedarena.data.dataset import Dataset
from fedarena.statistics.metric_registry import Metric, all_metrics, default_metric


def metric_of(experiment: Experiment) -> Metric:
    """Return the metric of an experiment, or the usual one of its task.

    A mistake in the data is not reported here, but when the experiment is opened.

    >>> metric_of(Experiment.make("digits")).name
    'accuracy'
    """
    if experiment.evaluate.metric is not None:
        return all_metrics()[experiment.evaluate.metric]
    data = _data(experiment)
    return default_metric("classification" if data is None else data.task)


def rope_of(experiment: Experiment, metric: Metric) -> float:
    """Return the largest difference that does not matter: of an error in units, a hundredth of the labels' deviation."""
    if metric.name not in ("rmse", "mae"):
        return metric.rope
    data = _data(experiment)
    return 0.0 if data is None or data.task != "regression" else float(f"{0.01 * data.y.std():.2g}")


def _data(experiment: Experiment) -> Dataset | None:
    try:
        data: Dataset = experiment.data.made.load(experiment.seed_for("split"))
    except FedarenaError:
        return None
    return data
