"""Trials made side by side over cores, those of one search or of many, and what a person sees of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

from fedarena.common.progress import ProgressReporter
from fedarena.config.errors import FedarenaError
from fedarena.config.registry import Entry, Kind, adopt, components
from fedarena.experiments.study import OUR_TROUBLE, Search, Study, Trial, TrialTask
from fedarena.runtimes.pool import LostTask
from fedarena.runtimes.ray_nodes import ClusterNodes
from fedarena.runtimes.run_pool import check_called, embed_data, open_pool
from fedarena.runtimes.worker_count import usable_cores

TICK = 60.0  # seconds; nothing is done at a tick


def run_trials(
    studies: Sequence[Study], workers: int | None, progress: bool, nodes: ClusterNodes | None = None
) -> None:
    """Make the trials of all studies, in worker processes; the earlier study goes first where several could go on."""
    searches, own = [study.search for study in studies], _own_components()
    if nodes is not None:
        there = embed_data([search.experiment for search in searches])
        searches = [replace(search, experiment=exp) for search, exp in zip(searches, there, strict=True)]
    crew = open_pool(lambda order, folder: _make(searches, own, order, folder), workers, nodes)
    given: dict[int, tuple[int, TrialTask]] = {}
    reporter = TrialProgress(progress)

    def fill() -> None:
        """Work for every free hand and no more: what comes next may depend on what comes back."""
        for place, study in enumerate(studies):
            hands = workers or (usable_cores() if nodes is None else nodes.cpus)
            while len(given) < hands and (attempt := study.next()) is not None:
                given[crew.submit((place, attempt), folder=attempt.folder)] = place, attempt

    try:
        fill()
        for answer in crew.results(TICK):
            if answer is None:
                continue
            position, trial = answer
            place, attempt = given.pop(position)
            check_called(trial)
            if isinstance(trial, FedarenaError):
                raise trial
            if isinstance(trial, LostTask):
                trial = Trial(attempt.number, attempt.values, "failed", None, {}, f"its process {trial}")
            studies[place].take(trial)
            reporter.report(studies[place], trial)
            fill()
    finally:
        crew.close()


def _own_components() -> list[Entry]:
    """What the user registered: a worker that begins afresh does not know it, and values are checked by name."""
    everything = (entry for kind in get_args(Kind) for entry in components(kind).values())
    own = [entry for entry in everything if not entry.make.__module__.startswith("fedarena.")]
    for entry in own:
        _ = entry.parameters  # found out here, where the names of its types are known
    return own


def _make(
    searches: Sequence[Search], own: Sequence[Entry], order: tuple[int, TrialTask], folder: Path
) -> Trial | FedarenaError:
    adopt(own)
    place, attempt = order
    try:
        return replace(attempt, folder=folder).make(searches[place])
    except OUR_TROUBLE as error:
        return error


class TrialProgress(ProgressReporter):
    """Reports trials, which end in any order: the first number counts those that have ended."""

    def report(self, study: Study, trial: Trial) -> None:
        """Print a line about a trial that has ended."""
        width, best = len(str(study.trials)), study.best
        parts = [
            study.title,
            f"{len(study.all):>{width}}/{study.trials}",
            f"trial {trial.number:<{width}}",
            "     -" if trial.score is None else f"{trial.score:.4f}",
            "" if best is None else f"best {best.score:.4f} (trial {best.number:<{width}})",
            format_values(trial.values),
            {"done": "", "pruned": "hopeless", "failed": f"failed: {trial.reason}"}[trial.state],
        ]
        self.print_line("  ".join(filter(None, parts)))


def format_values(values: Mapping[str, Any]) -> str:
    """Values in a line."""
    return "  ".join(f"{key} {_short(value)}" for key, value in values.items())


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def columns(trials: Sequence[Trial], keys: Sequence[str]) -> Iterator[str]:
    """The trials as a table."""
    rows = [["trial", "score", *keys]]
    rows += [[str(t.number), f"{t.score:.4f}", *(_short(t.values[key]) for key in keys)] for t in trials]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "  " + "  ".join(f"{cell:>{width}}" for cell, width in zip(row, widths, strict=True))
