"""The progress of a run: a bar with the current round on a terminal, a plain line each tenth of the way elsewhere."""

from __future__ import annotations

import math

from fedarena.common.formatting import format_size
from fedarena.common.progress import ProgressReporter
from fedarena.config.experiment import Experiment
from fedarena.engine.record import RoundRecord
from fedarena.statistics.metric_registry import Metric

WITHOUT_BAR = 108  # columns: a terminal that has fewer gets the texts alone


class RunProgress(ProgressReporter):
    """Reports the rounds of a run."""

    def start(self, experiment: Experiment, clients: int, participants: int, rounds: int, metric: Metric) -> None:
        """Print the title, and show an empty bar; `metric` is that of the task where it has no accuracy."""
        self._rounds, self._main, self._best, self._best_round = rounds, metric, math.nan, 0
        self._first: int | None = None  # the round before the first that was reported
        self._evaluated: RoundRecord | None = None
        followed = experiment.evaluate.metric
        # shown beside accuracy and loss
        self._metric = followed if followed not in (metric.name, "accuracy", "loss") else None
        self._title(experiment, clients, participants)
        self._show(0, "")

    def _title(self, experiment: Experiment, clients: int, participants: int) -> None:
        if self.enabled:
            self._console.print(f"[bold]{experiment.algorithm.name}[/bold]", end="")
            self.print_line(
                f" · {experiment.data.name} · {experiment.partition.name} · {experiment.model.name} · "
                f"{clients} clients, {participants} a round · seed {experiment.seed}"
            )

    @property
    def _is_narrow(self) -> bool:
        return self.is_live and self._console.width < WITHOUT_BAR

    def _show(self, round: int, facts: str) -> None:
        if self.is_live:
            width = None if self._is_narrow else min(self._console.width - 96, 26)
            title = f"round {round:>{len(str(self._rounds))}}/{self._rounds}"
            self.show_bar(title, round / max(self._rounds, 1), facts, width)

    def update(self, record: RoundRecord) -> None:
        """Report that a round has ended."""
        if not self.enabled:
            return
        if self._first is None:
            self._first = record.round - 1
        value = record.value_of(self._main.name)
        if value is not None:
            self._evaluated = record
            if self._main.better(value, self._best):
                self._best, self._best_round = value, record.round
        facts, rounds = self._facts(record), self._rounds
        if self.is_live:
            eta = self.remaining(record.round - self._first, rounds - self._first)
            self._show(record.round, f"{facts}  eta {eta}")
        elif record.round == rounds or record.round * 10 // rounds > (record.round - 1) * 10 // rounds:
            self.print_line(f"round {record.round}/{rounds}  {facts}")

    def _facts(self, record: RoundRecord) -> str:
        up = f"{format_size(record.bytes_up)} up" if record.bytes_up else ""
        last = self._evaluated
        if last is None:
            return up
        parts = [
            f"{self._main.name} {last.value_of(self._main.name):.4f}",
            "" if self._is_narrow else f"loss {last.loss:.4f}",
            f"best {self._best:.4f} @{self._best_round}",
            f"{self._metric} {last.metric:.4f}" if self._metric is not None and last.metric is not None else "",
            up,
        ]
        return "  ".join(filter(None, parts))
