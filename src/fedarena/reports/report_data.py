"""What a report is about, with everything that several of its parts ask for, worked out once."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from fedarena.config.components import without_folders
from fedarena.config.errors import FedarenaError
from fedarena.config.experiment import Experiment
from fedarena.data.dataset import Dataset, Partition
from fedarena.reports.charts import PosteriorPair, Series
from fedarena.reports.collect import why_no_verdict
from fedarena.reports.curves import Axis, SplitCurve, axes, curve
from fedarena.results.comparison import Comparison
from fedarena.results.run import Run
from fedarena.results.scoring import Scoring

NUMBERS = "no one two three four five six seven eight nine ten eleven twelve".split()


@dataclass(frozen=True)
class ReportData:
    """A comparison and how it is shown: who has which colour, who leads, what may be said."""

    result: Comparison

    @cached_property
    def why_not(self) -> str | None:
        """Why there is no verdict; None where there is one."""
        return why_no_verdict(self.result)

    @cached_property
    def everyone(self) -> list[str]:
        """The judged, and last the one shown beside."""
        return [row["algorithm"] for row in self.rows]

    @cached_property
    def rows(self) -> list[dict[str, Any]]:
        """What everyone gave and what it cost."""
        return self.result.rows()

    @cached_property
    def ranked(self) -> list[str]:
        """The best first; baselines last."""
        return self.result.ranked

    def index(self, label: str) -> int:
        """Its colour and mark: by the order in which they were named."""
        return self.everyone.index(label)

    def is_aside(self, label: str) -> bool:
        """Is it shown for comparison only?"""
        return label == self.result.plan.reference

    @cached_property
    def first(self) -> Run:
        """Any run: what it has in common with the others."""
        return self.result.runs[self.everyone[0]][0]

    @property
    def experiment(self) -> Experiment:
        """What all have in common, with the algorithm of the first."""
        return self.first.experiment

    @property
    def followed(self) -> Scoring:
        """The metric that the runs followed round by round, on the common test samples."""
        return Scoring("final", self.first.measured.metric, "common")

    @cached_property
    def axes(self) -> list[Axis]:
        """What curves can be drawn over."""
        return axes([run for runs in self.result.runs.values() for run in runs])

    def curve(self, label: str, axis: Axis) -> SplitCurve:
        """Of one algorithm, over its splits."""
        if (label, axis.name) not in self._curves:
            self._curves[label, axis.name] = curve(self.result.runs[label], axis)
        return self._curves[label, axis.name]

    @cached_property
    def _curves(self) -> dict[tuple[str, str], SplitCurve]:
        return {}

    def series(self, axis: Axis) -> list[Series]:
        """Everyone's curve."""
        drawn = []
        for label in self.everyone:
            c = self.curve(label, axis)
            several = len(self.result.runs[label]) > 1
            band: dict[str, Any] = {"low": c.low.tolist(), "high": c.high.tolist()} if several else {}
            drawn.append(
                Series(
                    label,
                    c.x.tolist(),
                    c.mean.tolist(),
                    **band,
                    best=c.best.tolist(),
                    index=self.index(label),
                    aside=self.is_aside(label),
                )
            )
        return drawn

    def pair(self, row: str, column: str) -> PosteriorPair:
        """Return one algorithm against another, by the score of the comparison."""
        result = self.result
        known, sign = result.posterior(row, column), result.duel(row, column).verdict
        beside = any(result.is_reference(label) for label in (row, column))
        return PosteriorPair(row, column, known, sign, result.scoring(), is_reference=beside)

    @cached_property
    def dealt(self) -> tuple[Dataset, Partition] | FedarenaError:
        """The rows and their owners, of the first split; or why they cannot be had any more."""
        from fedarena.engine.setup import partition_data

        try:
            return partition_data(self.experiment)
        except FedarenaError as error:
            return error

    @property
    def title(self) -> str:
        """The question, or what ran."""
        data = self.experiment.data.title
        if len(self.result.labels) > 1:
            return f"Which algorithm for {data}?"
        return f"{self.everyone[0]} on {data}"

    @property
    def subtitle(self) -> str:
        """In one line."""
        n = len(self.result.labels)
        who = "one algorithm" if n == 1 else f"{counted(n)} algorithms"
        exp = self.experiment
        clients = f"{len(self.first.client_sizes)} clients"
        return f"{who} · {clients}, {exp.partition.name} · {exp.model.name} · {budget(exp)}"


def counted(n: int) -> str:
    """A number in words, where it is small."""
    return NUMBERS[n] if n < len(NUMBERS) else str(n)


def budget(experiment: Experiment) -> str:
    """How long they may train."""
    return f"{experiment.rounds} rounds" if experiment.rounds else f"{experiment.uploads} uploads"


def described(component: Any) -> str:
    """A component with its settings."""
    told = {k: v for k, v in without_folders(component.settings).items() if v not in (None, (), [], component.name)}
    if told.get("path") == component.title:
        del told["path"]
    settings = ", ".join(f"{k} = {v}" for k, v in told.items())
    return f"{component.title} ({settings})" if settings else str(component.title)
