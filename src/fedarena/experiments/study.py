"""One search under way: it suggests trials, prunes them, and stores their results in an Optuna study on disk.

Trial number t is suggested from its own random stream and from the results of trials 0 .. t - `ahead` only, and pruning
compares it with the same ones. So trials do not depend on the order in which they finish: they are the same for any number
of workers, and after a kill.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import shutil
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal

from fedarena.common.files import writing
from fedarena.common.optional_imports import import_optional
from fedarena.config.comparison_plan import View
from fedarena.config.errors import BadValue, CannotWrite, DataBroken, DataMissing, FedarenaError, ResumeMismatch
from fedarena.config.experiment import Experiment
from fedarena.config.seeds import stream, torch_seed
from fedarena.engine.record import RoundRecord
from fedarena.engine.tasks import FailedTask
from fedarena.experiments.search_space import Method, Range, Space
from fedarena.experiments.task_folder import run_in_folder
from fedarena.experiments.task_metric import metric_of
from fedarena.results.run import Run
from fedarena.results.scoring import Scoring
from fedarena.statistics.metric_registry import Metric

State = Literal["done", "pruned", "failed"]
TrialScore = Literal["final", "best"]  # the last round, or the best one on the held-out samples
AHEAD = 4
AT_RANDOM = 6  # results that TPE needs before its suggestions are more than random
HELD_OUT = 0.2  # of each client's training samples, unless the experiment sets another share
FINISHED_FIRST = 5  # trials that must have finished before one is pruned
UNTOUCHED = 4  # no trial is pruned in the first quarter of its rounds
POINTS = 100  # of a stored curve, about; more are slow in a database
MACHINE_ERRORS = (CannotWrite, DataBroken, DataMissing, ResumeMismatch)  # of the machine, not of the values tried


@dataclass(frozen=True)
class Search:
    """Everything that determines the trials of a search."""

    experiment: Experiment
    space: Space
    method: Method = "tpe"
    seed: int = 0
    score: TrialScore = "best"
    ahead: int = AHEAD  # trials that may be under way at once; part of the result, as the number of workers is not
    prune: bool = True
    evaluate_on: View = "common"  # all held-out samples together, or those of each client by its own model

    @cached_property
    def validating(self) -> Experiment:
        """The experiment evaluated on samples held out of its training samples; its test samples are not used.

        A target does not stop it, or all trials that reach it would have the same score.
        """
        share = self.experiment.validate_share or HELD_OUT
        return self.experiment.with_(validate_share=share, **{"evaluate.stop_at_target": False})

    def as_dict(self) -> dict[str, Any]:
        """Return the complete search as plain values."""
        plain = {name: getattr(self, name) for name in ("method", "seed", "score", "ahead", "prune")}
        view = {} if self.evaluate_on == "common" else {"evaluate_on": self.evaluate_on}  # older searches have no view
        return {"experiment": self.experiment.to_toml(), "space": self.space.as_table(), **plain, **view}

    def name(self, begins: Mapping[str, str] | None = None) -> str:
        """Return the name of its study, which identifies the search and the hashes of its data."""
        digest = sha256(json.dumps([self.as_dict(), begins]).encode()).hexdigest()
        return f"{self.experiment.data.name}-{self.experiment.algorithm.name}-{digest[:12]}"

    @cached_property
    def grid(self) -> list[dict[str, Any]]:
        """The points of the grid in a random order by the seed, so that the first ones are a fair sample."""
        points = self.space.grid
        return [points[i] for i in stream(self.seed, "search").permutation(len(points))]

    @cached_property
    def metric(self) -> Metric:
        """The metric by which trials are compared."""
        return metric_of(self.experiment)

    def score_of(self, record: RoundRecord) -> float | None:
        """Return the score of a round, larger is better: an error is negated; None if it was not evaluated.

        On clients' own samples only the accuracy is known in every round.
        """
        if self.evaluate_on == "common":
            value = record.value_of(self.metric.name)
            return value if value is None or self.metric.maximize else -value
        return record.weighted_accuracy if self.metric.name == "accuracy" and self.evaluate_on == "own" else None

    def score_of_run(self, run: Run) -> float | None:
        """Return the score of a trial that has ended; None where the metric is undefined.

        On clients' own samples a metric other than the accuracy is that of the last round.
        """
        if self.evaluate_on == "common":
            return self.score_of(run.best if self.score == "best" else run.final)
        known = [score for record in run.records if (score := self.score_of(record)) is not None]
        if known:
            return max(known) if self.score == "best" else known[-1]
        value = Scoring("final", self.metric.name, self.evaluate_on).value(run)
        return None if math.isnan(value) else value if self.metric.maximize else -value

    @property
    def size(self) -> int | None:
        """The number of trials of a grid; None for other methods."""
        return len(self.grid) if self.method == "grid" else None


def held_out_text(share: float | None, view: View) -> str:
    """Return the samples on which trials are compared, as part of a sentence."""
    where = {"common": "", "own": ", each client's by its own model", "own:uniform": ", every client alike"}[view]
    return f"{share or HELD_OUT:.0%} of the training samples{where}"


@dataclass(frozen=True)
class Trial:
    """One experiment of a search: the values, how it ended, and its score."""

    number: int
    values: dict[str, Any]
    state: State
    score: float | None  # by the metric, on the held-out samples, larger is better; None where it failed
    curve: dict[int, float] = field(default_factory=dict)  # round -> score so far
    reason: str = ""  # why it failed

    def as_dict(self) -> dict[str, Any]:
        """Return the trial as plain values, without its curve."""
        return {k: v for k, v in asdict(self).items() if k != "curve"} | {"rounds": max(self.curve, default=0)}


@dataclass(frozen=True)
class TrialTask:
    """A trial to run: everything that a worker needs besides the search."""

    number: int
    values: dict[str, Any]
    folder: Path
    rivals: list[dict[int, float]]  # curves of the finished trials that it is compared with

    def run(self, search: Search) -> Trial:
        """Run or resume the experiment until it ends or is pruned; an error of these values is a failed trial."""
        curve: dict[int, float] = {}
        best = -math.inf
        pruner = Pruner(self.rivals if search.prune else [])
        every = search.experiment.evaluate.every
        apart = every * max((search.experiment.rounds or 1) // (every * POINTS), 1)

        def watch(record: RoundRecord) -> bool:
            nonlocal best
            seen = search.score_of(record)
            if seen is None:
                return False
            best = max(best, seen)
            if record.round % apart:
                return False
            curve[record.round] = best if search.score == "best" else seen
            return pruner(record.round, curve[record.round])

        try:
            done = run_in_folder(search.validating.with_(**self.values), self.folder, watch)
        except MACHINE_ERRORS:
            raise
        except Exception as error:
            why = error.what if isinstance(error, FedarenaError) else FailedTask.by(error).error
            return Trial(self.number, self.values, "failed", None, curve, why)
        score = search.score_of_run(done)
        if score is None:
            why = f"{search.metric.name} is undefined on clients' own held-out samples"
            return Trial(self.number, self.values, "failed", None, curve, why)
        return Trial(self.number, self.values, "pruned" if pruner.is_pruned else "done", score, curve)


class Pruner:
    """Prunes a trial that is below the median of finished trials at the same round, by Optuna's rule."""

    def __init__(self, rivals: list[dict[int, float]]) -> None:
        self.is_pruned = False
        if len(rivals) < FINISHED_FIRST:
            self._trial: Any = None
            return
        with quiet_optuna() as optuna:
            warm = max(max(curve) for curve in rivals) // UNTOUCHED
            study = optuna.create_study(direction="maximize", pruner=optuna.pruners.MedianPruner(FINISHED_FIRST, warm))
            study.add_trials([optuna.create_trial(value=max(c.values()), intermediate_values=c) for c in rivals])
            self._trial = study.ask()

    def __call__(self, round: int, seen: float) -> bool:
        """Return whether the trial is pruned after this round."""
        if self._trial is not None:
            self._trial.report(seen, round)
            self.is_pruned = bool(self._trial.should_prune())
        return self.is_pruned


class Study:
    """A search under way, in memory and in an Optuna study in SQLite: it suggests trials and stores their results."""

    def __init__(self, search: Search, trials: int, folder: Path, file: Path, name: str, title: str = "") -> None:
        self.search, self.folder, self.file, self.title = search, folder, file, title
        self.trials = trials if search.size is None else min(trials, search.size)
        self.values: dict[int, dict[str, Any]] = {}  # of every trial that has begun
        self.known: dict[int, Trial] = {}
        self._stored = 0
        with writing(file), quiet_optuna() as optuna:
            file.parent.mkdir(parents=True, exist_ok=True)
            self._distributions = _distributions(search.space)
            try:
                self._store = optuna.create_study(
                    storage=f"sqlite:///{file.absolute()}", study_name=name, direction="maximize", load_if_exists=True
                )
                stored = [_from_optuna(trial) for trial in self._store.get_trials()]
            except Exception as error:  # the database is damaged, or is another file
                if "disk" in _first_line(error):
                    raise self._cannot_write(error) from None
                raise BadValue(
                    f"{file} cannot be used: {_first_line(error) or type(error).__name__}",
                    remedy="give a file that Optuna made, or a new name",
                    where="--study",
                ) from None
        for trial in stored:
            self.known[trial.number], self.values[trial.number] = trial, trial.values
            self._stored += 1
            self._clear(trial)

    @property
    def over(self) -> bool:
        """Whether all trials have ended."""
        return all(number in self.known for number in range(self.trials))

    def next(self) -> TrialTask | None:
        """Return the next trial, or None while results that it depends on are missing."""
        number = len(self.values)
        first = range(number - self.search.ahead + 1)
        if number >= self.trials or any(n not in self.known for n in first):
            return None
        past = [self.known[n] for n in first]
        self.values[number] = self._suggest(number, past)
        rivals = [t.curve for t in past if t.state == "done" and t.curve]
        return TrialTask(number, self.values[number], self._folder(number), rivals)

    def take(self, trial: Trial) -> None:
        """Store the result of a trial; on disk trials are in order, so one that ended early waits in its folder."""
        self.known[trial.number] = trial
        while self._stored in self.known:
            ready = self.known[self._stored]
            with quiet_optuna() as optuna:
                try:
                    self._store.add_trial(_to_optuna(optuna, ready, self._distributions))
                except Exception as error:  # a full disk, mostly
                    raise self._cannot_write(error) from None
            self._stored += 1
            self._clear(ready)

    def _cannot_write(self, error: Exception) -> CannotWrite:
        return CannotWrite(
            f"cannot write {self.file}: {_first_line(error)}",
            remedy="free some space, then resume: the trials that ended are saved",
        )

    def _clear(self, trial: Trial) -> None:
        """Remove the run folder of a trial that the study has stored."""
        shutil.rmtree(self.folder if self.over else self._folder(trial.number), ignore_errors=True)

    def _folder(self, number: int) -> Path:
        return self.folder / f"{number:04d}"

    @property
    def all(self) -> list[Trial]:
        """The trials that have ended, in order, up to the requested number."""
        return [self.known[n] for n in range(self.trials) if n in self.known]

    @property
    def best(self) -> Trial | None:
        """The finished trial with the highest score; the earliest of several."""
        finished = [t for t in self.all if t.state == "done" and t.score is not None]
        return max(finished, key=lambda t: t.score or 0.0, default=None)

    @property
    def best_or_error(self) -> Trial:
        """The best trial; raises if no trial finished."""
        if self.best is not None:
            return self.best
        raise BadValue(
            f"none of {self.trials} trials gave a result; the first failed: {self.known[0].reason}",
            remedy="fix the cause, or search another space",
            where=self.title,
        )

    def _suggest(self, number: int, past: list[Trial]) -> dict[str, Any]:
        search = self.search
        if search.method == "grid":
            return search.grid[number]
        own = search.space.own_values(search.experiment)
        if number == 0 and own is not None and search.method == "tpe":
            return own  # the first trial has the values of the experiment
        with quiet_optuna() as optuna:
            seed = torch_seed(search.seed, "search", number) % 2**32
            samplers = {
                "random": lambda: optuna.samplers.RandomSampler(seed),
                "tpe": lambda: optuna.samplers.TPESampler(  # constant_liar: running trials are spread out
                    seed=seed, n_startup_trials=AT_RANDOM, constant_liar=True
                ),
            }
            study = optuna.create_study(direction="maximize", sampler=samplers[search.method]())
            study.add_trials([_to_optuna(optuna, t, self._distributions) for t in past])
            for n in range(len(past), number):  # under way: their values are known, not their results
                state = optuna.trial.TrialState.RUNNING
                values = self.values[n]
                study.add_trial(optuna.create_trial(state=state, params=values, distributions=self._distributions))
            suggested = study.ask(self._distributions).params
        return {key: dimension.match(suggested[key]) for key, dimension in search.space.keys.items()}


def _distributions(space: Space) -> dict[str, Any]:
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    def of(dimension: Any) -> Any:
        if not isinstance(dimension, Range):
            return CategoricalDistribution(dimension.choices)
        low, high, log, step = dimension.low, dimension.high, dimension.log, dimension.step
        if dimension.whole:
            return IntDistribution(int(low), int(high), log=log, step=int(step or 1))
        return FloatDistribution(low, high, log=log, step=step)

    return {key: of(dimension) for key, dimension in space.keys.items()}


def _to_optuna(optuna: Any, trial: Trial, distributions: dict[str, Any]) -> Any:
    """Return a trial for Optuna; a failed one is pruned without a value, which samplers learn to avoid."""
    state = optuna.trial.TrialState.COMPLETE if trial.state == "done" else optuna.trial.TrialState.PRUNED
    return optuna.create_trial(
        state=state,
        value=trial.score,
        params=trial.values,
        distributions=distributions,
        intermediate_values=trial.curve,
        user_attrs={"state": trial.state, "reason": trial.reason},
    )


def _from_optuna(frozen: Any) -> Trial:
    stored = frozen.user_attrs
    score = frozen.value if stored["state"] != "failed" else None
    return Trial(frozen.number, frozen.params, stored["state"], score, frozen.intermediate_values, stored["reason"])


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]


def need_optuna() -> Any:
    """Return the module Optuna, or raise `MissingDependency`."""
    return import_optional("optuna", needed_by="a search", install='"fedarena[search]"')


@contextlib.contextmanager
def quiet_optuna() -> Iterator[Any]:
    """Yield Optuna with its log messages and warnings turned off."""
    optuna = need_optuna()
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield optuna
    finally:
        optuna.logging.set_verbosity(before)
