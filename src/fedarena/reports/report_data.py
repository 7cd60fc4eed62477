"""The data of a report: a comparison, with everything that several sections need computed once."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import permutations
from typing import Any

from fedarena.algorithms.tree_algorithm import TreeAlgorithm
from fedarena.config.comparison_plan import Plan, Score
from fedarena.config.components import without_folders
from fedarena.config.errors import FedarenaError
from fedarena.config.experiment import Experiment
from fedarena.data.dataset import Dataset, Partition
from fedarena.engine.setup import partition_data
from fedarena.reports.charts.lines import Series
from fedarena.reports.charts.posteriors import PosteriorPair
from fedarena.reports.collect import why_no_verdict
from fedarena.reports.curves import Axis, SplitCurve, axes, curve
from fedarena.results.comparison import Comparison
from fedarena.results.run import Run
from fedarena.results.scoring import Scoring

NUMBERS = "no one two three four five six seven eight nine ten eleven twelve".split()


@dataclass(frozen=True)
class ReportData:
    """A comparison and how it is shown: the order, colours and curves of its algorithms, and the verdict if there is one."""

    result: Comparison
    _curves: dict[tuple[str, str], SplitCurve] = field(default_factory=dict)

    @cached_property
    def no_verdict_reason(self) -> str | None:
        """Return why there is no verdict; None where there is one."""
        return why_no_verdict(self.result)

    @cached_property
    def all_labels(self) -> list[str]:
        """Return the algorithms that were compared, and last the reference."""
        return [row["algorithm"] for row in self.rows]

    @cached_property
    def rows(self) -> list[dict[str, Any]]:
        """Return the scores and costs of every algorithm."""
        return self.result.rows()

    @cached_property
    def has_splits(self) -> bool:
        """Return whether an algorithm was run more than once."""
        return any(len(runs) > 1 for runs in self.result.runs.values())

    @cached_property
    def ranked(self) -> list[str]:
        """Return the algorithms from the best to the worst; baselines last."""
        return self.result.ranked

    def is_aside(self, label: str) -> bool:
        """Return whether an algorithm is the reference, shown for comparison only."""
        return label == self.result.plan.reference

    def index(self, label: str) -> int:
        """Return the number of an algorithm's colour and mark."""
        return colour_index(self.result.plan, label)

    def key(self, label: str, values: Sequence[float] = ()) -> Series:
        """Return an algorithm with its colour and mark, and with values to draw."""
        return Series(label, y=values, index=self.index(label), aside=self.is_aside(label))

    @cached_property
    def first(self) -> Run:
        """Return the first run, for what it has in common with the others."""
        return self.result.runs[self.all_labels[0]][0]

    @property
    def experiment(self) -> Experiment:
        """Return the experiment of the first run: all have it in common, but for the algorithm."""
        return self.first.experiment

    @property
    def curve_scoring(self) -> Scoring:
        """Return the metric that the runs evaluated round by round, on the common test samples."""
        return Scoring("final", self.first.measured.metric, "common")

    @cached_property
    def axes(self) -> list[Axis]:
        """Return the rounds and the costs that curves are drawn over."""
        return axes([run for runs in self.result.runs.values() for run in runs])

    def curve(self, label: str, axis: Axis) -> SplitCurve:
        """Return the curve of one algorithm, over its splits."""
        if (label, axis.name) not in self._curves:
            self._curves[label, axis.name] = curve(self.result.runs[label], axis)
        return self._curves[label, axis.name]

    def series(self, axis: Axis) -> list[Series]:
        """Return the curves of all algorithms, to be drawn."""
        drawn = []
        for label in self.all_labels:
            c = self.curve(label, axis)
            several = len(self.result.runs[label]) > 1
            band: dict[str, Any] = {"low": c.low.tolist(), "high": c.high.tolist()} if several else {}
            look: dict[str, Any] = {"index": self.index(label), "aside": self.is_aside(label)}
            drawn.append(Series(label, c.x.tolist(), c.mean.tolist(), best=c.best.tolist(), **band, **look))
        return drawn

    def pair(self, row: str, column: str, which: Score | None = None) -> PosteriorPair:
        """Return one algorithm against another, by the score of the comparison or by another one."""
        result = self.result
        posterior, sign = result.posterior(row, column, which), result.duel(row, column, which).verdict
        reference = any(result.is_reference(label) for label in (row, column))
        return PosteriorPair(row, column, posterior, sign, result.scoring(which), is_reference=reference)

    def pairs(self, which: Score | None = None) -> dict[tuple[str, str], PosteriorPair]:
        """Return every ordered pair that has a posterior: a metric that has no worst value is unknown after divergence."""
        return {
            (a, b): self.pair(a, b, which)
            for a, b in permutations(self.ranked, 2)
            if math.isfinite(self.result.duel(a, b, which).mean)
        }

    @cached_property
    def partitioned_data(self) -> tuple[Dataset, Partition] | FedarenaError:
        """Return the samples and the clients that hold them in the first split; or why they are not available."""
        try:
            return partition_data(self.experiment)
        except FedarenaError as error:
            return error

    @property
    def title(self) -> str:
        """Return the question that the report answers, or what ran."""
        data = self.experiment.data.title
        if len(self.result.labels) > 1:
            return f"Which algorithm for {data}?"
        return f"{self.all_labels[0]} on {data}"

    @property
    def subtitle(self) -> str:
        """Return the algorithms, clients, model and budget in one line."""
        n = len(self.result.labels)
        algorithms = "one algorithm" if n == 1 else f"{in_words(n)} algorithms"
        exp = self.experiment
        clients = f"{len(self.first.client_sizes)} clients"
        model = "trees" if len(self.forests) == n else exp.model.name
        return f"{algorithms} · {clients}, {exp.partition.name} · {model} · {self.budget}"

    @property
    def forests(self) -> list[str]:
        """Return the algorithms that grow trees, and do not use the model of the experiment."""
        made = {label: self.result.runs[label][0].experiment.algorithm.made for label in self.result.labels}
        return [label for label, algorithm in made.items() if isinstance(algorithm, TreeAlgorithm)]

    @property
    def budget(self) -> str:
        """Return how long the algorithms may train, each where their number of rounds is their own."""
        exps = {label: self.result.runs[label][0].experiment for label in self.result.labels}
        own = {label: rounds for label, exp in exps.items() if (rounds := exp.algorithm.made.own_rounds)}
        if len(own) == len(exps) and len({*own.values()}) == 1:
            return f"{next(iter(own.values()))} rounds"
        exp = self.experiment
        usual = f"{exp.rounds} rounds" if exp.rounds else f"{exp.uploads} uploads"
        return "; ".join([usual, *(f"{rounds} of {label}" for label, rounds in own.items())])


def colour_index(plan: Plan, label: str) -> int:
    """Return the number of an algorithm's colour and mark: its place in the plan, the same in every chart and page."""
    return [other for other in plan.contestants if other != plan.reference or label == other].index(label)


def in_words(n: int) -> str:
    """Return a number in words, where it is small."""
    return NUMBERS[n] if n < len(NUMBERS) else str(n)


def describe(component: Any) -> str:
    """Return the name of a component with its settings."""
    shown = {k: v for k, v in without_folders(component.settings).items() if v not in (None, (), [], component.name)}
    if shown.get("path") == component.title:
        del shown["path"]
    settings = ", ".join(f"{k} = {v}" for k, v in shown.items())
    return f"{component.title} ({settings})" if settings else str(component.title)
