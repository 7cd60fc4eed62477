"""The result of one experiment: its rounds, metrics and trained model."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedarena.common.optional_imports import import_optional
from fedarena.config.errors import BadValue
from fedarena.config.experiment import Experiment
from fedarena.engine.context import ExperimentContext
from fedarena.engine.record import RoundRecord, plain_record
from fedarena.engine.setup import open_context
from fedarena.engine.task_metrics import (
    FinalMetrics,
    Predictions,
    TaskMetrics,
    UnseenMetrics,
    calibration_bins,
    confusion_counts,
)
from fedarena.engine.validated_round import ValidatedRound
from fedarena.models.task import Keep
from fedarena.privacy.accountant import usual_delta, usual_record_delta
from fedarena.results.built_model import load_own_model
from fedarena.results.notebook import run_html, run_text
from fedarena.results.run_files import client_columns, client_rows, read_clients
from fedarena.results.run_summary import run_summary
from fedarena.results.samples_elsewhere import has_samples_elsewhere
from fedarena.results.trained_model import model_in_use, trained_model
from fedarena.statistics.curve_summary import monotone, recalls, rounds_to
from fedarena.statistics.fairness import fairness
from fedarena.statistics.metric_registry import DISCRETE, is_better

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from torch import nn


_run_experiment: list[Callable[..., Run]] = []  # the function behind `Run.again`, which lies in a layer above this one


def set_runner(run: Callable[..., Run]) -> None:
    """Set the function that `Run.again` calls; `fedarena.experiments.run` does so when it is imported."""
    _run_experiment[:] = [run]


@dataclass(frozen=True, repr=False)
class Run:
    """The result of an experiment.

    `final` and `best` are its last and best evaluations; `validated` is the one that held-out training samples choose.

    >>> import fedarena as fa
    >>> run = fa.run("digits", rounds=2, clients=5, out=False)
    >>> len(run.evaluations), run.final.round, run.weights_sha256 == run.again().weights_sha256
    (2, 2, True)
    """

    experiment: Experiment
    records: list[RoundRecord]
    weights_sha256: str
    client_accuracy: NDArray[np.float64]  # of each client on its own test samples; NaN without any
    client_sizes: NDArray[np.int64]  # training samples of each client
    dir: Path | None = None
    state: dict[str, Any] = field(default_factory=dict)  # parameters and buffers by name
    notes: tuple[str, ...] = ()
    used: dict[str, Any] = field(default_factory=dict)  # the algorithm's settings, those left open as they were chosen
    ages: dict[str, Any] = field(default_factory=dict)  # staleness of updates in asynchronous algorithms
    measured: FinalMetrics = field(default_factory=FinalMetrics)  # all metrics at the end
    chosen: ValidatedRound | None = None  # on validation samples; None without `evaluate.validation`
    record_epsilons: NDArray[np.float64] | None = None  # of each client's records; None without `local.privacy`

    @property
    def evaluations(self) -> list[RoundRecord]:
        """The rounds at which the model was evaluated."""
        return [r for r in self.records if r.accuracy is not None]

    @property
    def final(self) -> RoundRecord:
        """The last evaluation of the run."""
        return self.evaluations[-1]

    @property
    def best(self) -> RoundRecord:
        """The evaluation with the best value of `evaluate.metric`, the accuracy by default; the earliest of several."""
        first, *others = self.evaluations
        for record in others:
            if is_better(self.measured.direction, self.value_in(record), self.value_in(first)):
                first = record
        return first

    @property
    def validated(self) -> RoundRecord | None:
        """The evaluation with the best value on validation samples, the earliest of several; None without such samples.

        >>> import fedarena as fa
        >>> settings = {"rounds": 3, "clients": 5, "model": "logreg", "evaluate": {"validation": 0.1}}
        >>> run = fa.run("digits", **settings, out=False, runtime="serial")
        >>> run.validated.validation == max(value for _, value in run.validation_curve)
        True
        """
        if self.chosen is None:
            return None
        return self.records[self.chosen.round - 1]

    @property
    def validation_curve(self) -> list[tuple[int, float]]:
        """(round, value of `evaluate.metric` on validation samples) at every evaluation; empty without such samples."""
        return [(r.round, r.validation) for r in self.records if r.validation is not None]

    @property
    def validated_metrics(self) -> dict[str, float]:
        """Every metric of the validated round on the common test samples; empty without validation samples."""
        return {} if self.chosen is None else dict(self.chosen.measured.common)

    @property
    def validated_own_metrics(self) -> dict[str, float]:
        """The same on clients' own test samples: the mean over clients, weighted by these samples."""
        return {} if self.chosen is None else dict(self.chosen.measured.own)

    @property
    def validated_client_metrics(self) -> dict[str, NDArray[np.float64]]:
        """The same of each client; NaN where its samples leave a metric undefined."""
        return {} if self.chosen is None else dict(self.chosen.measured.clients)

    @property
    def metrics(self) -> dict[str, float]:
        """Every metric of the final model on the common test samples; empty for a run from before there were metrics."""
        return dict(self.measured.common)

    @property
    def metric_bounds(self) -> dict[str, tuple[float, float]]:
        """The least and the largest possible value of each of `metrics` that comes from score histograms."""
        return dict(self.measured.bounds)

    @property
    def own_metrics(self) -> dict[str, float]:
        """The same on clients' own test samples: the mean over clients, weighted by these samples."""
        return dict(self.measured.own)

    @property
    def client_metrics(self) -> dict[str, NDArray[np.float64]]:
        """The same of each client; NaN where its samples leave a metric undefined."""
        return dict(self.measured.clients)

    @property
    def unseen(self) -> UnseenMetrics | None:
        """The metrics of the clients that `evaluate.unseen` held out of training; None where all clients train.

        >>> import fedarena as fa
        >>> settings = {"rounds": 3, "clients": 5, "model": "logreg", "evaluate": {"unseen": 0.2, "unseen_steps": 20}}
        >>> run = fa.run("digits", **settings, out=False, runtime="serial")
        >>> len(run.unseen.clients), run.unseen.steps, run.unseen.after["accuracy"] > run.unseen.before["accuracy"] - 0.1
        (1, 20, True)
        """
        return self.measured.unseen

    @property
    def metric_curve(self) -> list[tuple[int, float]]:
        """(round, value of `evaluate.metric`) at every evaluation."""
        return [(r.round, self.value_in(r)) for r in self.evaluations]

    def value_in(self, record: RoundRecord) -> float:
        """Return the metric by which rounds are compared."""
        value = record.value_of(self.measured.metric)
        return (record.accuracy or 0.0) if value is None else value

    @property
    def has_classes(self) -> bool:
        """Whether the task has an accuracy."""
        return self.measured.task in ("", *DISCRETE)

    @property
    def curve(self) -> list[tuple[int, float]]:
        """(round, accuracy) at every evaluation."""
        return [(r.round, r.accuracy or 0.0) for r in self.evaluations]

    @property
    def monotone_curve(self) -> list[tuple[int, float]]:
        """(round, best accuracy so far)."""
        return monotone(self.curve)

    def rounds_to(self, accuracy: float, interpolate: bool = False) -> int | None:
        """Return the first round with at least this accuracy, or None."""
        return rounds_to(self.curve, accuracy, interpolate)

    @property
    def bytes(self) -> int:
        """Bytes sent in both directions."""
        return self.records[-1].bytes_up + self.records[-1].bytes_down

    @property
    def diverged(self) -> bool:
        """Whether the loss is not finite, or no client of the last round sent a finite update."""
        last = self.records[-1]
        return not np.isfinite(self.final.loss or 0.0) or (last.non_finite > 0 and last.answered == 0)

    @property
    def fairness(self) -> dict[str, float]:
        """Spread of accuracy over clients on their own test samples, unweighted and weighted by samples."""
        return fairness(self.client_accuracy, self.client_sizes)

    @property
    def attack_success(self) -> float | None:
        """Share of triggered test samples that the final model takes for the class of a backdoor; None without one."""
        return self.final.attack_success

    @property
    def epsilon(self) -> float | None:
        """Privacy spent by the end, at `delta`; None where nothing bounds it."""
        return self.final.epsilon

    @property
    def delta(self) -> float | None:
        """The delta at which epsilon is computed."""
        if self.epsilon is None:
            return None
        own: float | None = getattr(self.experiment.uplink, "delta", None)
        return own or usual_delta(int((self.client_sizes > 0).sum()))

    @property
    def record_epsilon(self) -> float | None:
        """Privacy of a record spent by the end, at `record_delta`, the largest of all clients; None if nothing bounds it."""
        return self.final.record_epsilon

    @property
    def record_delta(self) -> float | None:
        """The delta at which the epsilon of records is computed."""
        privacy = self.experiment.local.privacy
        if self.record_epsilon is None or privacy is None:
            return None
        return privacy.delta or usual_record_delta(int(self.client_sizes.sum()))

    def summary(self) -> dict[str, Any]:
        """Return the main numbers, as `fedarena run --json` prints them."""
        return run_summary(self)

    def to_pandas(self) -> pd.DataFrame:
        """Return the records as a table with one row per round."""
        pandas = import_optional("pandas", needed_by="run.to_pandas()", install="'fedarena[notebook]'")
        frame: pd.DataFrame = pandas.DataFrame([plain_record(r) for r in self.records])
        return frame

    @cached_property
    def clients(self) -> pd.DataFrame:
        """A table with one row per client: its samples and its metrics."""
        pandas = import_optional("pandas", needed_by="run.clients", install="'fedarena[notebook]'")
        columns = client_columns(self.measured, self.chosen, self.record_epsilons)
        if self.dir is not None and has_samples_elsewhere(self.dir, self.experiment):
            rows = read_clients(self.dir)
        else:
            rows = client_rows(open_context(self.experiment), self.client_accuracy, columns)
        frame: pd.DataFrame = pandas.DataFrame(rows)
        return frame

    def model(self, client: int | None = None) -> nn.Module:
        """Return the trained model in evaluation mode; that of one client where each has its own.

        For tables, and for tasks beside classification and text, it is a `TrainedModel`, which also encodes tables and has
        outputs in the units of the labels. Otherwise it is the module itself.
        """
        return model_in_use(self, client)

    def predict(self, table: Any, level: float = 0.9, client: int | None = None) -> dict[str, NDArray[Any]]:
        """Return the predictions for a table, column by column; see `TrainedModel.predict`."""
        names = self.measured.client_names
        own = None if client is None or client >= len(names) else names[client]
        return trained_model(self, client).predict(table, level, own)

    def export(self, path: str | Path, client: int | None = None) -> Path:
        """Write the model on the encoded matrix as ONNX (`.onnx`) or as a torch program (`.pt2`); return the path."""
        return trained_model(self, client).export(path)

    def context(self, client: int | None = None) -> ExperimentContext:
        """Return the data and the trained model of this run; that of one client where each has its own."""
        if has_samples_elsewhere(self.dir, self.experiment):
            raise BadValue(
                "the samples of this run stayed with the clients of its federation, so this cannot be computed here",
                remedy="see run.metrics for the metrics it has, and run.notes for those that are missing",
            )
        context = open_context(self.experiment)
        context.task.module.load_state_dict(self.state)
        if context.has_personal_models:
            load_own_model(self.dir, context.task, context.algorithm, client)
        return context

    def confusion(self, client: int | None = None) -> NDArray[np.int64]:
        """Return the confusion matrix of the global test set: true classes in rows, predicted classes in columns."""
        if client is None and self.measured.confusion is not None:
            return self.measured.confusion.copy()
        context = self.context(client)
        return confusion_counts(self._predictions(context, "classes"), context.data.classes)

    def calibration(self, client: int | None = None) -> list[dict[str, float]]:
        """Return the calibration curve on the global test set: confidence, accuracy and samples of each bin."""
        if client is None and self.measured.calibration is not None:
            return [dict(one) for one in self.measured.calibration]
        context = self.context(client)
        bins = None if context.task_name != "classification" else calibration_bins(self._predictions(context, "logits"))
        if bins is None:
            raise BadValue(
                "there is no calibration curve of this model",
                remedy="it exists for classification with one class per sample, where all outputs are finite",
            )
        return [dict(one) for one in bins]

    @staticmethod
    def _predictions(context: ExperimentContext, keep: Keep) -> Predictions:
        """Return the predictions of the loaded model for the global test set."""
        test = context.owners.test
        return TaskMetrics(context).predictions(test, context.evaluate(test, None, keep, context.cut))

    def recalls(self, client: int | None = None) -> NDArray[np.float64]:
        """Return the recall of each class on the global test set; their mean is the macro recall."""
        return recalls(self.confusion(client))

    def plot(self, ax: Axes | None = None, label: str | None = None) -> Axes:
        """Draw the metric over rounds and return the axes; a second run on the same axes gets its own colour and a legend."""
        from fedarena.results.run_plots import draw_curve

        return draw_curve(self, ax, label)

    def again(self, **settings: Any) -> Run:
        """Run the experiment again, with other settings if any are given; without, the result has the same bits."""
        if not _run_experiment:
            raise BadValue("nothing can run an experiment yet", remedy="import fedarena.api before run.again()")
        return _run_experiment[-1](self.experiment, **settings)

    def save(self, path: str | Path) -> Path:
        """Copy the run folder to another path."""
        if self.dir is None:
            raise BadValue("this run has no folder", remedy="run it with out='some/folder'")
        return Path(shutil.copytree(self.dir, path))

    def __repr__(self) -> str:
        s = self.summary()
        rounds = f"{s['rounds']} round{'s' * (s['rounds'] != 1)}"
        result = f"{s['metric']} {s['final_metric']:.4f}"
        return f"<Run {s['algorithm']} on {self.experiment.data.title}: {rounds}, {result}>"

    def __str__(self) -> str:
        return run_text(self)

    def _repr_html_(self) -> str:
        from fedarena.results.run_plots import curve_as_svg

        return run_html(self, curve_as_svg(self))
