"""Run the trials of one or several searches in parallel, and show their progress."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

from fedarena.common.progress import ProgressReporter
from fedarena.config.errors import FedarenaError
from fedarena.config.registry import Entry, Kind, adopt, components
from fedarena.experiments.study import MACHINE_ERRORS, Search, Study, Trial, TrialTask
from fedarena.runtimes.pool import LostTask
from fedarena.runtimes.ray_nodes import ClusterNodes
from fedarena.runtimes.run_pool import check_called, embed_data, open_pool
from fedarena.runtimes.worker_count import usable_cores

TICK = 60.0  # seconds between two empty results of the pool


def run_trials(
    studies: Sequence[Study], workers: int | None, progress: bool = False, nodes: ClusterNodes | None = None
) -> None:
    """Run the trials of all studies in worker processes; where several could continue, the earlier study goes first."""
    searches, own = [study.search for study in studies], _own_components()
    if nodes is not None:
        embedded = embed_data([search.experiment for search in searches])
        searches = [replace(search, experiment=exp) for search, exp in zip(searches, embedded, strict=True)]
    pool = open_pool(lambda order, folder: _run_trial(searches, own, order, folder), workers, nodes)
    given: dict[int, tuple[int, TrialTask]] = {}
    reporter = TrialProgress(progress)

    def fill() -> None:
        """Give every free worker one trial and no more: the next trials may depend on the results."""
        most = workers or (usable_cores() if nodes is None else nodes.cpus)
        for index, study in enumerate(studies):
            while len(given) < most and (task := study.next()) is not None:
                given[pool.submit((index, task), folder=task.folder)] = index, task

    try:
        fill()
        for ended in pool.results(TICK):
            if ended is None:
                continue
            position, trial = ended
            index, task = given.pop(position)
            check_called(trial)
            if isinstance(trial, FedarenaError):
                raise trial
            if isinstance(trial, LostTask):
                trial = Trial(task.number, task.values, "failed", None, {}, f"its process {trial}")
            studies[index].take(trial)
            reporter.report(studies[index], trial)
            fill()
    finally:
        pool.close()


def _own_components() -> list[Entry]:
    """Return the components that the user registered, which workers need to check values by name."""
    everything = (entry for kind in get_args(Kind) for entry in components(kind).values())
    own = [entry for entry in everything if not entry.make.__module__.startswith("fedarena.")]
    for entry in own:
        _ = entry.parameters  # computed here, where the names of its types are known
    return own


def _run_trial(
    searches: Sequence[Search], own: Sequence[Entry], order: tuple[int, TrialTask], folder: Path
) -> Trial | FedarenaError:
    adopt(own)
    index, task = order
    try:
        return replace(task, folder=folder).run(searches[index])
    except MACHINE_ERRORS as error:
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
            {"done": "", "pruned": "pruned", "failed": f"failed: {trial.reason}"}[trial.state],
        ]
        self.print_line("  ".join(filter(None, parts)))


def format_values(values: Mapping[str, Any]) -> str:
    """Return the values of a trial in one line."""
    return "  ".join(f"{key} {_short(value)}" for key, value in values.items())


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def columns(trials: Sequence[Trial], keys: Sequence[str]) -> Iterator[str]:
    """Yield the lines of a table of trials."""
    rows = [["trial", "score", *keys]]
    rows += [[str(t.number), f"{t.score:.4f}", *(_short(t.values[key]) for key in keys)] for t in trials]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "  " + "  ".join(f"{cell:>{width}}" for cell, width in zip(row, widths, strict=True))
