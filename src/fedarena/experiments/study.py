"""One search under way: what to try next, what is hopeless, and what is known, kept in an Optuna study on disk.

Trial number t is suggested from a random stream of its own and from the results of trials 0 .. t - `ahead`, no others;
whether it is hopeless is judged against the same ones. So trials do not depend on who finishes first: they are the same
for any number of workers, and after a kill.
"""

from __future__ import annotations

import contextlib
import json
import logging
import shutil
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal

from fedarena.common.files import writing
from fedarena.common.optional_imports import import_optional
from fedarena.config.errors import BadValue, CannotWrite, DataBroken, DataMissing, FedarenaError, ResumeMismatch
from fedarena.config.experiment import Experiment
from fedarena.config.seeds import stream, torch_seed
from fedarena.engine.record import RoundRecord
from fedarena.engine.tasks import FailedTask
from fedarena.experiments.run import run
from fedarena.experiments.search_space import Method, Range, Space
from fedarena.results.run import Run

State = Literal["done", "pruned", "failed"]
TrialScore = Literal["final", "best"]  # the last round, or the best one on the rows held out
AHEAD = 4
AT_RANDOM = 6  # results that TPE must know before it is more than random
HELD_OUT = 0.2  # of each client's training rows, unless the experiment says otherwise
FINISHED_FIRST = 5  # trials that must have finished before one is called hopeless
UNTOUCHED = 4  # nor is it in the first quarter of its rounds
POINTS = 100  # of a curve, about; a database is slow with more
OUR_TROUBLE = (CannotWrite, DataBroken, DataMissing, ResumeMismatch)  # of the machine, not of the values tried


@dataclass(frozen=True)
class Search:
    """What is searched, and how: everything that decides the trials."""

    experiment: Experiment
    space: Space
    method: Method = "tpe"
    seed: int = 0
    score: TrialScore = "best"
    ahead: int = AHEAD  # trials that may be under way at once; part of the result, as the number of workers is not
    prune: bool = True

    @cached_property
    def validating(self) -> Experiment:
        """The experiment judged on rows held out of its training rows; its test rows are not looked at.

        A target does not stop it, or all trials that reach it would look alike.
        """
        share = self.experiment.validate_share or HELD_OUT
        return self.experiment.with_(validate_share=share, **{"evaluate.stop_at_target": False})

    def with_values(self, values: dict[str, Any]) -> Experiment:
        """The experiment that these values make, judged on its test rows."""
        return self.experiment.with_(**values, validate_share=None)

    def as_dict(self) -> dict[str, Any]:
        """Plain values, complete."""
        plain = {name: getattr(self, name) for name in ("method", "seed", "score", "ahead", "prune")}
        return {"experiment": self.experiment.to_toml(), "space": self.space.as_table(), **plain}

    def name(self, begins: Mapping[str, str] | None = None) -> str:
        """Of its study: the same for the same search of the same data (told by its hashes), and for no other."""
        digest = sha256(json.dumps([self.as_dict(), begins]).encode()).hexdigest()
        return f"{self.experiment.data.name}-{self.experiment.algorithm.name}-{digest[:12]}"

    @cached_property
    def grid(self) -> list[dict[str, Any]]:
        """Its points, in an order that the seed decides: any beginning of it is a fair sample."""
        points = self.space.grid
        return [points[i] for i in stream(self.seed, "search").permutation(len(points))]

    @property
    def size(self) -> int | None:
        """How many trials there can be, if not any number."""
        return len(self.grid) if self.method == "grid" else None


@dataclass(frozen=True)
class Trial:
    """One experiment of a search: the values, how it ended, and its score."""

    number: int
    values: dict[str, Any]
    state: State
    score: float | None  # accuracy on the rows held out; None where it failed
    curve: dict[int, float] = field(default_factory=dict)  # round -> score so far
    reason: str = ""  # why it failed

    def as_dict(self) -> dict[str, Any]:
        """Without its curve."""
        return {k: v for k, v in asdict(self).items() if k != "curve"} | {"rounds": max(self.curve, default=0)}


@dataclass(frozen=True)
class TrialTask:
    """A trial to be made: what a process needs for it, beside the search."""

    number: int
    values: dict[str, Any]
    folder: Path
    rivals: list[dict[int, float]]  # curves of the finished trials that it is judged against

    def make(self, search: Search) -> Trial:
        """Run the experiment, or go on with it; stop where it is hopeless. What these values cannot do is a failure."""
        curve: dict[int, float] = {}
        judge = Pruner(self.rivals if search.prune else [])
        every = search.experiment.evaluate.every
        apart = every * max((search.experiment.rounds or 1) // (every * POINTS), 1)

        def watch(record: RoundRecord) -> bool:
            seen = record.best_accuracy if search.score == "best" else record.accuracy
            if record.accuracy is None or seen is None or record.round % apart:
                return False
            curve[record.round] = seen
            return judge(record.round, seen)

        try:
            done = self._run(search.validating.with_(**self.values), watch)
        except OUR_TROUBLE:
            raise
        except Exception as error:
            why = error.what if isinstance(error, FedarenaError) else FailedTask.by(error).error
            return Trial(self.number, self.values, "failed", None, curve, why)
        record = done.best if search.score == "best" else done.final
        return Trial(self.number, self.values, "pruned" if judge.hopeless else "done", record.accuracy, curve)

    def _run(self, experiment: Experiment, watch: Callable[[RoundRecord], bool]) -> Run:
        if (self.folder / "experiment.toml").exists():
            return run(experiment, resume=self.folder, runtime="serial", on_round=watch)
        shutil.rmtree(self.folder, ignore_errors=True)  # killed before it had begun
        return run(experiment, out=self.folder, runtime="serial", on_round=watch)


class Pruner:
    """Says when a trial is hopeless: below the median of finished trials at the same round, by Optuna's rule."""

    def __init__(self, rivals: list[dict[int, float]]) -> None:
        self.hopeless = False
        if len(rivals) < FINISHED_FIRST:
            self._trial: Any = None
            return
        with quiet_optuna() as optuna:
            warm = max(max(curve) for curve in rivals) // UNTOUCHED
            study = optuna.create_study(direction="maximize", pruner=optuna.pruners.MedianPruner(FINISHED_FIRST, warm))
            study.add_trials([optuna.create_trial(value=max(c.values()), intermediate_values=c) for c in rivals])
            self._trial = study.ask()

    def __call__(self, round: int, seen: float) -> bool:
        """Is it, after this round?"""
        if self._trial is not None:
            self._trial.report(seen, round)
            self.hopeless = bool(self._trial.should_prune())
        return self.hopeless


class Study:
    """A search under way: hands out attempts, takes in trials, in memory and in an Optuna study in SQLite."""

    def __init__(self, search: Search, trials: int, folder: Path, file: Path, name: str, title: str = "") -> None:
        self.search, self.folder, self.file, self.title = search, folder, file, title
        self.trials = trials if search.size is None else min(trials, search.size)
        self.values: dict[int, dict[str, Any]] = {}  # of every trial that was begun
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
            except Exception as error:  # of a database that is damaged, or is none
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
        """All trials are known."""
        return all(number in self.known for number in range(self.trials))

    def next(self) -> TrialTask | None:
        """The next trial that may begin now: all that it must know is known."""
        number = len(self.values)
        first = range(number - self.search.ahead + 1)
        if number >= self.trials or any(n not in self.known for n in first):
            return None
        past = [self.known[n] for n in first]
        self.values[number] = self._suggest(number, past)
        rivals = [t.curve for t in past if t.state == "done" and t.curve]
        return TrialTask(number, self.values[number], self._folder(number), rivals)

    def take(self, trial: Trial) -> None:
        """A trial is known. On disk they stand in order: one that came too early waits in its folder."""
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
            remedy="make room, then go on: the trials that ended are safe",
        )

    def _clear(self, trial: Trial) -> None:
        """The study knows it: its run may go."""
        shutil.rmtree(self.folder if self.over else self._folder(trial.number), ignore_errors=True)

    def _folder(self, number: int) -> Path:
        return self.folder / f"{number:04d}"

    @property
    def all(self) -> list[Trial]:
        """The trials in order, as many as were asked for."""
        return [self.known[n] for n in range(self.trials) if n in self.known]

    @property
    def best(self) -> Trial | None:
        """The finished one with the highest score; the earliest of several."""
        finished = [t for t in self.all if t.state == "done" and t.score is not None]
        return max(finished, key=lambda t: t.score or 0.0, default=None)

    @property
    def best_or_error(self) -> Trial:
        """The best; an error if no trial came to its end."""
        if self.best is not None:
            return self.best
        raise BadValue(
            f"none of {self.trials} trials gave a result; the first failed: {self.known[0].reason}",
            remedy="mend that, or search elsewhere",
            where=self.title,
        )

    def _suggest(self, number: int, past: list[Trial]) -> dict[str, Any]:
        search = self.search
        if search.method == "grid":
            return search.grid[number]
        own = search.space.own_values(search.experiment)
        if number == 0 and own is not None and search.method == "tpe":
            return own  # whatever else is tried, the values one came with are
        with quiet_optuna() as optuna:
            seed = torch_seed(search.seed, "search", number) % 2**32
            samplers = {
                "random": lambda: optuna.samplers.RandomSampler(seed),
                "tpe": lambda: optuna.samplers.TPESampler(  # constant_liar: those under way do not crowd together
                    seed=seed, n_startup_trials=AT_RANDOM, constant_liar=True
                ),
            }
            study = optuna.create_study(direction="maximize", sampler=samplers[search.method]())
            study.add_trials([_to_optuna(optuna, t, self._distributions) for t in past])
            for n in range(len(past), number):  # under way: their values are known, not their results
                state = optuna.trial.TrialState.RUNNING
                values = self.values[n]
                study.add_trial(optuna.create_trial(state=state, params=values, distributions=self._distributions))
            asked = study.ask(self._distributions).params
        return {key: dimension.match(asked[key]) for key, dimension in search.space.keys.items()}


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
    """A failure is a pruned trial without a value: samplers learn to avoid it."""
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
    told = frozen.user_attrs
    score = frozen.value if told["state"] != "failed" else None
    return Trial(frozen.number, frozen.params, told["state"], score, frozen.intermediate_values, told["reason"])


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]


def need_optuna() -> Any:
    """Return the module Optuna, or raise `MissingDependency`."""
    return import_optional("optuna", needed_by="a search", install='"fedarena[search]"')


@contextlib.contextmanager
def quiet_optuna() -> Iterator[Any]:
    """Optuna, without its own remarks."""
    optuna = need_optuna()
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield optuna
    finally:
        optuna.logging.set_verbosity(before)
