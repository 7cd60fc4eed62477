"""Algorithms on the same splits, schedules and initial weights, and what may be concluded from it.

A comparison is a folder: comparison.json says what was to be compared and how, cells/ALGORITHM/SPLIT/ are run folders.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cached_property
from html import escape
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from pydantic import TypeAdapter

from fedarena.common.formatting import format_duration, format_size
from fedarena.config.components import Component
from fedarena.config.errors import BadValue, FedarenaError, quoted
from fedarena.config.experiment import COMPONENTS, Experiment
from fedarena.config.seeds import derived_seed
from fedarena.data.folds import has_own_folds
from fedarena.data.published_files import reading
from fedarena.engine.record import RoundRecord
from fedarena.results import client_gains as gains_of_clients
from fedarena.results import leave_one_out as left_out
from fedarena.results import tradeoff_points
from fedarena.results.client_gains import ClientGains
from fedarena.results.leave_one_out import LeaveOneOut
from fedarena.results.run import Run, load
from fedarena.results.run_folder import read_table, write_table
from fedarena.results.scoring import VALIDATED, Score, Scoring, View
from fedarena.results.sequential_looks import LookRecord, last_look, stopping_sentence
from fedarena.statistics.bayes import Posterior, posterior, verdict
from fedarena.statistics.curve_summary import relative_accuracy
from fedarena.statistics.joint import Ranking, rank
from fedarena.statistics.metric_registry import OPTIMISTIC
from fedarena.statistics.more_splits import more_repeats, more_splits
from fedarena.statistics.repeats import repeat_posterior
from fedarena.statistics.sequential import look

Part = Literal["partition", "start", "schedule"]
Protocol = Literal["independent", "shared"]
PARTS: tuple[Part, ...] = get_args(Part)  # what is drawn for every split, unless it is fixed or drawn once a repeat
PART_NAMES = {"partition": "partition", "start": "initial weights", "schedule": "client schedule"}
MOST_OUTLOOKS = 4  # undecided pairs of which it is said how many further splits would decide them
LEAST_REPEATS = 5  # that show how much something matters which the folds of a repeat share
DAMAGED = "restore the file from a copy, or compare again in a new folder"
OWN_PARTS = ("algorithm", "local")  # of a contestant; all else is the same for everyone: so scores are pairs
MOST_LETTERS = 80  # of a client's name in the name of a folder
SIGNS = {"+": "better", "=": "practically equal", "-": "worse", "?": "undecided"}


@dataclass(frozen=True)
class Split:
    """One repetition of all that is random: a repeat, and the fold that is held out of it (None without folds)."""

    repeat: int
    fold: int | None = None

    @property
    def name(self) -> str:
        """Of its folder."""
        return f"seed{self.repeat}" if self.fold is None else f"repeat{self.repeat}-fold{self.fold}"


@dataclass(frozen=True)
class Plan:
    """What is compared, and how: everything that comparison.json holds. Build it with `Plan.make`."""

    experiment: dict[str, Any]  # the common part, as a table
    contestants: dict[str, dict[str, Any]]  # label -> what the experiment has instead: algorithm, local settings
    reference: str | None = None  # label of a baseline that is shown beside, not judged
    folds: int | None = None
    repeats: int = 1
    rope: float = 0.01
    threshold: float = 0.95
    tuning: dict[str, Any] = field(
        default_factory=dict
    )  # trials for everyone, how, and of which spaces; see experiments/tune.py
    tuned: dict[str, dict[str, dict[str, Any]]] = field(default_factory=dict)  # label -> split -> settings found by it
    sweep: dict[str, Any] = field(default_factory=dict)  # a key, and of each label its value; see experiments/sweep.py
    notes: tuple[str, ...] = ()  # e.g. how it was tuned
    versions: dict[str, Any] = field(default_factory=dict)
    protocol: Protocol = "shared"  # how splits are seeded; of a file that does not say it, as it was first done
    fixed: tuple[str, ...] = ()  # parts that are the same in all splits; "test": the data set's own test samples
    per_repeat: tuple[str, ...] = ()  # parts that are drawn once a repeat, and shared by its folds
    test_share: float | None = None  # of the pooled samples, where every split divides them at random
    score: Score = "best"  # which round counts; of a file that does not say it, as it was first done
    metric: str = "accuracy"
    evaluate_on: View = "common"
    at_most: int | None = None  # splits, where repeats are added until it is decided; see experiments/until_decided.py
    looks: tuple[LookRecord, ...] = ()  # that were made so far
    leave_one_out: tuple[str, ...] = ()  # clients without each of which it is repeated
    own: dict[str, Any] = field(default_factory=dict, repr=False, compare=False)  # from Python, not in the file

    @classmethod
    def make(cls, experiment: Experiment, contestants: dict[str, dict[str, Any]], **how: Any) -> Plan:
        """Everything as complete, plain tables; objects that no text can name are kept aside."""
        own: dict[str, Any] = {}
        tables = {}
        for label, table in contestants.items():
            theirs = experiment.with_(**table)
            complete = theirs.as_table()
            tables[label] = {key: _same_keys(complete[key], value) for key, value in table.items()}
            if theirs.algorithm.own:
                own[f"algorithm {label}"] = theirs.algorithm
        common = {k: v for k, v in experiment.as_table().items() if k not in ("algorithm", "folds", "fold")}
        own |= {k: c for k in COMPONENTS if (c := getattr(experiment, k)).own and k != "algorithm"}
        plan = cls(_finite(common), _finite(tables), own=own, **{"protocol": "independent", **how})
        return plan if plan.protocol == "shared" else plan._settled(experiment)

    def _settled(self, experiment: Experiment) -> Plan:
        """Complete what follows from data and partition: folds of their own, clients that are not drawn, test share."""
        partitioner, own_folds = experiment.partition.made, has_own_folds(experiment.partition.made)
        given = {part for part in PARTS if getattr(experiment, f"{part}_seed") is not None}
        fixed = [name for name in (*PARTS, "test") if name in given or name in self.fixed]
        asked = {*self.per_repeat, *(["partition"] if own_folds and self.folds else [])}
        drawn = [part for part in PARTS if part != "partition" or getattr(partitioner, "seeded", True)]
        share = None
        if not self.folds and own_folds:
            share = 1 / partitioner.folds
        elif not self.folds and "test" not in fixed:
            data = experiment.data.made.load(experiment.seed_for("split"))
            share = 1 - data.n_train / len(data.x)
        shared = tuple(part for part in drawn if part in asked and part not in fixed)
        return replace(self, fixed=tuple(fixed), per_repeat=shared, test_share=share)

    @property
    def splits(self) -> list[Split]:
        """Repetition by repetition, fold by fold: the order of all scores."""
        folds = range(self.folds) if self.folds else (None,)
        return [Split(repeat, fold) for repeat in range(self.repeats) for fold in folds]

    @property
    def stopped(self) -> LookRecord | None:
        """The look after which no repeats were added; None before it, and where the number of splits is fixed."""
        return last_look(self.looks, self.repeats, self.folds, self.at_most)

    @property
    def rho(self) -> float:
        """Correlation of the scores: the share of the test samples of a split, 0 where all splits have the same ones."""
        if self.folds:
            return 1 / (self.folds + self.is_forward)
        return self.test_share or 0.0

    @property
    def is_forward(self) -> bool:
        """Whether every fold is tested on later samples than it is trained on."""
        data = self.experiment.get("data")
        return self.folds is not None and isinstance(data, Mapping) and bool(data.get("time"))

    @property
    def test(self) -> str:
        """The statistic, by name."""
        n = len(self.splits)
        if self.folds:
            return (
                f"correlated Bayesian t-test, {self.repeats} x {self.folds} folds, n = {n}, correlation {self.rho:.3g}"
            )
        if self.rho:
            return f"correlated Bayesian t-test, n = {n} random divisions, correlation {self.rho:.3g}"
        return f"Bayesian t-test for independent repetitions, n = {n} seeds"

    @property
    def about(self) -> str:
        """What the conclusion is about, and what was repeated, in one sentence."""
        shared: Sequence[str] = self.per_repeat
        fixed = self.fixed
        if self.protocol == "shared":
            shared, fixed = (PARTS, ()) if self.folds else ((), ("test",))
        drawn = [part for part in PARTS if part != "partition" or self._draws_clients]
        subject = "federations drawn like this one"
        if not self._draws_clients:
            subject = "this federation"
        elif "partition" in fixed:
            subject = "this partition"
        names = {"start": "with these initial weights", "schedule": "under this client schedule"}
        conditions = [words for part, words in names.items() if part in fixed]
        conditions += ["on these test samples"] if "test" in fixed else []
        repeated = [] if "test" in fixed else ["later test samples" if self.is_forward else "test samples"]
        repeated += [PART_NAMES[part] for part in drawn if part not in fixed and part not in shared]
        once = [PART_NAMES[part] for part in drawn if part in shared]
        (once if self.protocol == "shared" and self.folds else repeated).append("batch order")
        told = f"The conclusion is about {' '.join([subject, *conditions])}; every split has its own {_and(repeated)}"
        return told + (f", and the folds of a repeat share {_and(once)}." if once else ".")

    @property
    def undecidable(self) -> str:
        """Why no pair can be decided, in one sentence; empty if pairs can."""
        shared = [PART_NAMES[part] for part in PARTS if part in self.per_repeat]
        if self.protocol == "shared" or not shared or self.repeats >= LEAST_REPEATS:
            return ""
        return (
            f"No pair is decided: the folds of a repeat share {_and(shared)}, and {self.repeats} "
            f"repeat{'s' * (self.repeats != 1)} cannot show how much that matters; {LEAST_REPEATS} can."
        )

    @property
    def keeps_clients(self) -> bool:
        """Whether all splits have the same clients: those of the data, or of a partition that is fixed."""
        return not self._draws_clients or "partition" in self.fixed

    @property
    def _draws_clients(self) -> bool:
        """Whether a seed bears on which clients there are; natural ones are those of the data."""
        try:
            partition = self._given("partition", self.experiment.get("partition", "iid"))
            return bool(getattr(Component.choose("partition", partition, "partition").made, "seeded", True))
        except FedarenaError:  # it came from Python, or from a file that is not loaded here
            return True

    @cached_property
    def federated(self) -> list[str]:
        """The contestants that communicate, which are repeated without each client that is left out."""
        made = {label: self.cell(label, self.splits[0]).algorithm.made for label in self.contestants}
        return [label for label, algorithm in made.items() if algorithm.communicates and not algorithm.pooled]

    def cell(self, label: str, split: Split, without: str | None = None) -> Experiment:
        """The experiment of one cell. Paired: nothing that is random depends on the algorithm, or on who is left out."""
        base = Experiment.make({key: self._given(key, value) for key, value in self.experiment.items()})
        paired: dict[str, Any] = {**self._seeds(base, split), "folds": self.folds, "fold": split.fold}
        theirs = {key: self._given(f"{key} {label}", value) for key, value in self.contestants[label].items()}
        found = self.tuned.get(label, {}).get(split.name, {})
        if without is not None:
            paired["exclude"] = (*(base.exclude or ()), without)
        return base.with_(**{k: v for k, v in paired.items() if v is not None}, **theirs, **found)

    def _seeds(self, base: Experiment, split: Split) -> dict[str, int]:
        """Return the seeds of a split; other splits, and other seeds of the experiment, have unrelated ones."""
        if self.protocol == "shared":
            return {"seed": base.seed + split.repeat}
        seeds = {"seed": derived_seed(base.seed, "split", split.repeat, split.fold)}
        if "test" not in self.fixed:
            seeds["fold_seed"] = derived_seed(base.seed, "folds", split.repeat)
        for part in PARTS:
            if part in self.fixed:
                own = getattr(base, f"{part}_seed")
                seeds[f"{part}_seed"] = base.seed if own is None else own
            elif part in self.per_repeat:
                seeds[f"{part}_seed"] = derived_seed(base.seed, part, split.repeat)
        return seeds

    def _given(self, key: str, value: Any) -> Any:
        """A value of the tables, or the object from Python that it stands for."""
        if not (isinstance(value, dict) and value.get("own")):
            return value
        if key not in self.own:
            raise BadValue(
                f"the {key} of this comparison ('{value['name']}') came from Python, no file can bring it back",
                remedy="give it again: fa.compare(source, algorithms, resume=...)",
            )
        return self.own[key]

    def folder(self, root: Path, label: str, split: Split, without: str | None = None) -> Path:
        """Where the run of one cell lies."""
        above = root / "cells" if without is None else root / "leave_one_out" / client_folder(without)
        return above / folder_name(label) / split.name

    def as_dict(self) -> dict[str, Any]:
        """What comparison.json holds."""
        table = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "own"}
        return {**table, "looks": [asdict(found) for found in self.looks]}

    def write(self, root: Path) -> None:
        """comparison.json, atomically."""
        write_table(root / "comparison.json", self.as_dict())

    @classmethod
    def read(cls, root: Path) -> Plan:
        """Back from the folder."""
        file = root / "comparison.json"
        if not file.exists():
            raise BadValue(f"{root} holds no comparison", remedy="give the folder of one", where=str(root))
        return cls.of_table(read_table(file, DAMAGED), file)

    @classmethod
    def of_table(cls, table: dict[str, Any], file: Path) -> Plan:
        """Return the plan that a table of this file holds, or raise if the table is damaged."""
        with reading(file, remedy=DAMAGED):
            lists = {key: tuple(table.get(key, ())) for key in ("notes", "fixed", "per_repeat", "leave_one_out")}
            lists["looks"] = TypeAdapter(tuple[LookRecord, ...]).validate_python(table.get("looks", ()))
            TypeAdapter(cls).validate_python({**table, **lists, "own": {}})
            return cls(**{**table, **lists})


@dataclass(frozen=True)
class PairwiseVerdict:
    """Row against column: how likely is the row practically better, equal, worse?"""

    row: str
    column: str
    p_better: float
    p_equal: float
    p_worse: float
    verdict: str  # + = - ?
    mean: float  # difference, row minus column
    interval: tuple[float, float]  # 90 % credible


@dataclass(frozen=True, repr=False)
class Comparison:
    """The result of comparing. `runs` has one run a split for every label, in the order of `plan.splits`."""

    plan: Plan
    runs: dict[str, list[Run]]
    failures: dict[str, str] = field(default_factory=dict)  # label -> why one of its cells has no result
    dir: Path | None = None
    without: dict[str, dict[str, list[Run]]] = field(default_factory=dict)  # client left out -> label -> a run a split
    without_failures: dict[str, str] = field(default_factory=dict)  # "fedavg without Cleveland" -> why

    @classmethod
    def load(cls, root: str | Path) -> Comparison:
        """From a folder whose cells are all finished."""
        plan = Plan.read(Path(root))
        if plan.at_most is not None and plan.stopped is None:
            raise BadValue(
                f"the comparison is not decided after {len(plan.splits)} splits, and its limit is {plan.at_most}",
                remedy=f"go on with it: fedarena compare --resume {root}",
                where=str(root),
            )
        return cls.of(plan, Path(root))

    @classmethod
    def of(cls, plan: Plan, root: Path) -> Comparison:
        """The runs of a plan, from a folder whose cells are all finished."""
        runs: dict[str, list[Run]] = {}
        failures: dict[str, str] = {}
        for label in plan.contestants:
            found = _finished_runs(plan, root, label)
            if isinstance(found, str):
                failures[label] = found
            else:
                runs[label] = found
        without: dict[str, dict[str, list[Run]]] = {client: {} for client in plan.leave_one_out}
        lost: dict[str, str] = {}
        for client in plan.leave_one_out:
            for label in plan.federated:
                found = _finished_runs(plan, root, label, client)
                if isinstance(found, str):
                    lost[f"{label} without {client}"] = found
                else:
                    without[client][label] = [replace(run, state={}) for run in found]  # nobody asks for the models
        return cls(plan, runs, failures, root, without, lost)

    @property
    def labels(self) -> list[str]:
        """The contestants that have results, in the order they were named."""
        return [label for label in self.runs if label != self.plan.reference]

    def scoring(self, which: Score | None = None) -> Scoring:
        """Return how runs become scores, by the plan or by another round."""
        view: View = "common" if which == "best" else self.plan.evaluate_on
        return Scoring(which or self.plan.score, self.plan.metric, view)

    def scores(self, which: Score | None = None) -> dict[str, list[float]]:
        """Return the score of every algorithm on every split, by the plan or by another round.

        A split on which the metric is undefined, because of its labels, is left out for all.
        """
        found = self._scores_of(which or self.plan.score)
        return {label: list(found[label]) for label in self.labels}

    @cached_property
    def _scores(self) -> dict[Score, dict[str, list[float]]]:
        """The scores that were asked for so far."""
        return {}

    def _scores_of(self, which: Score) -> dict[str, list[float]]:
        if which not in self._scores:
            value, undefined = self.scoring(which).value, self._undefined(which)
            self._scores[which] = {
                label: [value(run) for i, run in enumerate(runs) if i not in undefined]
                for label, runs in self.runs.items()
            }
        return self._scores[which]

    def _undefined(self, which: Score | None = None) -> set[int]:
        """Return the splits on which the labels leave the metric undefined; a model that diverged is another matter."""
        scoring = self.scoring(which)
        return {
            i
            for runs in self.runs.values()
            for i, run in enumerate(runs)
            if math.isnan(scoring.value(run)) and not scoring.is_diverged(run)
        }

    @property
    def is_validated(self) -> bool:
        """Return whether every run chose a round on held-out training samples."""
        return bool(self.runs) and all(run.chosen is not None for runs in self.runs.values() for run in runs)

    @cached_property
    def dropped_splits(self) -> int:
        """How many splits were left out because the metric is undefined on their labels."""
        return len(self._undefined())

    @property
    def has_repeat_effect(self) -> bool:
        """Whether the folds of a repeat share something random, so that repeats are judged instead of splits."""
        return self.plan.protocol != "shared" and bool(self.plan.per_repeat) and self.plan.repeats >= 2

    @property
    def _repeats(self) -> list[int] | None:
        """Return the repeat of every scored split where its folds share something; else None."""
        if not self.has_repeat_effect:
            return None
        undefined = self._undefined()
        return [split.repeat for i, split in enumerate(self.plan.splits) if i not in undefined]

    @property
    def repeats_of_splits(self) -> list[int] | None:
        """The repeat of every scored split where the folds of a repeat share something; else None."""
        return self._repeats

    def is_baseline(self, label: str) -> bool:
        """Does it send nothing? Then it is a level to compare with, not a choice that a federation has."""
        return not self.runs[label][0].experiment.algorithm.made.communicates

    def is_reference(self, label: str) -> bool:
        """Return whether it never competes: training on pooled samples, and local training on common samples."""
        made = self.runs[label][0].experiment.algorithm.made
        return made.pooled or (self.is_baseline(label) and self.plan.evaluate_on == "common")

    def candidate_scores(self) -> dict[str, list[float]]:
        """Return the scores of the algorithms that compete, larger is better."""
        sign = self.scoring().sign
        return {
            label: [sign * x for x in values]
            for label, values in self.scores().items()
            if not self.is_reference(label) and np.isfinite(values).all()
        }

    def look(self) -> LookRecord:
        """Return whether the splits so far decide the comparison, by the rule for a look among several."""
        scores, plan = self.candidate_scores(), self.plan
        n = len(next(iter(scores.values()), ()))
        if len(scores) < 2:
            reason = "fewer than two algorithms have results that can be compared"
            return LookRecord(len(plan.splits), n, len(scores), plan.threshold, (), 0.0, False, reason)
        seen = look(scores, plan.rho, rope=plan.rope, threshold=plan.threshold, repeats=self._repeats)
        found = (seen.level, seen.best_set, seen.p_equal, seen.decided, seen.reason)
        return LookRecord(len(plan.splits), n, len(scores), *found)

    @cached_property
    def ranking(self) -> Ranking | None:
        """The joint posterior of all candidates: P(best), expected loss, the 95 % set; None with fewer than two."""
        scores = self.candidate_scores()
        lengths = {len(values) for values in scores.values()}
        if len(scores) < 2 or len(lengths) > 1 or min(lengths) < 2:
            return None
        return rank(scores, self.plan.rho, rope=self.plan.rope, level=self.plan.threshold, repeats=self._repeats)

    @property
    def ranked(self) -> list[str]:
        """From the smallest expected loss to the largest; references after all that a federation can choose from."""
        standings = self.ranking.standings if self.ranking else {}
        sign = self.scoring().sign
        means = {label: sign * float(np.mean(s)) for label, s in self.scores().items()}
        order = {label: i for i, label in enumerate(standings)}
        return sorted(means, key=lambda label: (self.is_reference(label), order.get(label, len(order)), -means[label]))

    def diverged(self, label: str) -> int:
        """How many of its runs did. They keep the accuracy they had: no pair is dropped."""
        return sum(run.diverged for run in self.runs[label])

    def posterior(self, row: str, column: str, which: Score | None = None) -> Posterior:
        """Return the posterior of the mean difference, row minus column, in units of the metric."""
        scores = self.scores(which)
        for label in (row, column):
            if label not in scores:
                known = ", ".join(scores)
                raise BadValue(f"'{quoted(label)}' was not compared", remedy=f"there are: {known}")
        if self._repeats is not None:
            return repeat_posterior(scores[column], scores[row], self._repeats, self.plan.rho)
        return posterior(scores[column], scores[row], self.plan.rho)

    def duel(self, row: str, column: str, which: Score | None = None, rope: float | None = None) -> PairwiseVerdict:
        """One cell of the table."""
        scores = self.scores(which)
        if row in scores and column in scores and not np.isfinite([*scores[row], *scores[column]]).all():
            unknown = math.nan  # a model diverged, and the metric has no worst value
            return PairwiseVerdict(row, column, unknown, unknown, unknown, "?", unknown, (unknown, unknown))
        known = self.posterior(row, column, which)
        below, equal, above = known.regions(self.plan.rope if rope is None else rope)
        better, worse = (above, below) if self.scoring(which).sign > 0 else (below, above)
        sign = "?" if self.plan.undecidable else verdict(better, equal, worse, self.plan.threshold)
        return PairwiseVerdict(row, column, better, equal, worse, sign, known.mean, known.interval(0.9))

    def duels(self, which: Score | None = None) -> list[PairwiseVerdict]:
        """Every ordered pair."""
        return [self.duel(a, b, which) for a in self.labels for b in self.labels if a != b]

    def versus(self, label: str, rope: float | None = None) -> list[PairwiseVerdict]:
        """Everyone against this one."""
        return [self.duel(other, label, rope=rope) for other in self.labels if other != label]

    @property
    def given_target(self) -> float | None:
        """The value to reach that the experiment sets; that of a data set is an accuracy, and serves no other metric."""
        experiment = self.runs[self.labels[0]][0].experiment
        wanted, usual = experiment.evaluate.target, getattr(experiment.data.made, "defaults", {}).get("evaluate", {})
        return None if self.plan.metric != "accuracy" and wanted == usual.get("target") else wanted

    @cached_property
    def target(self) -> float:
        """The value to reach: the experiment's, or the best whole percent that everyone reaches on average."""
        if not self.labels:
            return math.nan
        if self.given_target is not None:
            return self.given_target
        means = [float(np.mean(s)) for s in self.scores("best").values()]
        means = [mean for mean in means if math.isfinite(mean)]  # an algorithm that diverged reaches no target
        if not means:
            return math.nan
        if self.scoring().sign > 0:
            return math.floor(100 * min(means) + 1e-9) / 100
        return math.ceil(100 * max(means) - 1e-9) / 100

    def rows(self) -> list[dict[str, Any]]:
        """One row an algorithm: what it gave and what it cost, over all splits (mean, deviation, median to the target)."""
        everyone = [*self.labels, *([self.plan.reference] if self.plan.reference in self.runs else [])]
        return [self._row(label) for label in everyone]

    def _row(self, label: str) -> dict[str, Any]:
        runs = self.runs[label]
        arrived = [r for r in (_first_at(run, self.target) for run in runs) if r is not None]

        def middle(values: list[float]) -> float | None:
            """The median over all runs; those that never got there took longer than any."""
            found = float(np.median([*values, *[math.inf] * (len(runs) - len(values))]))
            return found if math.isfinite(found) else None

        def over(values: list[float | None]) -> float | None:
            known = [v for v in values if v is not None and math.isfinite(v)]
            return float(np.mean(known)) if known else None

        best, final = self._scores_of("best")[label], self._scores_of("final")[label]
        validated = self._scores_of("validated")[label] if self.is_validated else []
        which: Score = "validated" if self.plan.score == "validated" else "final"
        own, common = Scoring(which, self.plan.metric, "own").value, Scoring(which, self.plan.metric, "common").value
        standing = self.ranking.standings.get(label) if self.ranking else None
        weighted = over([run.final.weighted_accuracy for run in runs])
        centre = self.centralized
        return {
            "algorithm": label,
            "runs": len(runs),
            "diverged": self.diverged(label),
            "best": float(np.mean(best)),
            "best_sd": float(np.std(best, ddof=1)) if len(best) > 1 else 0.0,
            "final": float(np.mean(final)),
            "final_sd": float(np.std(final, ddof=1)) if len(final) > 1 else 0.0,
            "validated": float(np.mean(validated)) if validated else None,
            "validated_sd": float(np.std(validated, ddof=1)) if len(validated) > 1 else 0.0 if validated else None,
            "p_best": standing.p_best if standing else None,
            "expected_loss": standing.expected_loss if standing else None,
            "common": over([common(run) for run in runs]),
            "own": over([own(run) for run in runs]),
            "reached": len(arrived),
            "rounds_to_target": middle([r.round for r in arrived]),
            "uploads_to_target": middle([r.uploads for r in arrived]),
            "bytes_to_target": middle([r.bytes_up + r.bytes_down for r in arrived]),
            "clock_to_target": middle([r.clock for r in arrived]),
            "uploads": over([run.records[-1].uploads for run in runs]),
            "bytes": over([run.bytes for run in runs]),
            "bytes_up": over([run.records[-1].bytes_up for run in runs]),
            "epsilon": over([run.epsilon for run in runs]),
            "clock": over([run.records[-1].clock for run in runs]),
            "wall_seconds": over([run.records[-1].wall_seconds for run in runs]),
            "weighted_accuracy": weighted,
            "relative_accuracy": None if weighted is None or not centre else relative_accuracy(weighted, centre),
            "client_std": over([run.fairness.get("std") for run in runs]),
            "client_worst": over([run.fairness.get("worst_tenth") for run in runs]),
        }

    @cached_property
    def centralized(self) -> float | None:
        """Mean final accuracy of training on all rows in one place, where that was run."""
        for runs in self.runs.values():
            if runs[0].experiment.algorithm.name == "centralized":
                return float(np.mean([run.final.accuracy or 0.0 for run in runs]))
        return None

    def client_gains(self) -> ClientGains | None:
        """Return what every client gains over training alone on its own test samples; None without `local`."""
        return self._client_gains

    def leave_one_out(self) -> LeaveOneOut | None:
        """Return what the other clients lose without each client that was left out; None where none was."""
        return self._leave_one_out

    @cached_property
    def _leave_one_out(self) -> LeaveOneOut | None:
        return left_out.leave_one_out(self)

    @cached_property
    def _client_gains(self) -> ClientGains | None:
        return gains_of_clients.client_gains(self)

    @property
    def words(self) -> list[str]:
        """The verdict in sentences: the answer, how sure it is, against whom it holds, and what stays open."""
        failed = [f"{label} has no result: {why}" for label, why in self.failures.items()]
        if len(self.labels) < 2:
            return ["There is nothing to compare: fewer than two algorithms have results.", *failed]
        stopped = [stopping_sentence(self.plan.stopped)] if self.plan.stopped else []
        lead = [*self._headline(), *stopped, *self._against_leader(), *self._beside_references()]
        lead += filter(None, [gains_of_clients.sentence(self), left_out.sentence(self)])
        failed += [f"{cell} has no result: {why}" for cell, why in self.without_failures.items()]
        for label in self.ranked:
            if self.diverged(label):
                lead.append(f"{label} diverged in {self.diverged(label)} of {len(self.runs[label])} runs.")
        return [*lead, *filter(None, [self.plan.undecidable, self.majority_warning]), *failed]

    def _headline(self) -> list[str]:
        """Name the algorithm with the smallest expected loss, and how sure that is."""
        scoring, found, first = self.scoring(), self.ranking, self.ranked[0]
        mean = scoring.shown(float(np.mean(self.scores()[first])))
        if found is None or first not in found.standings:
            return [f"{first} has the best mean, {mean} ({scoring.name})."]
        standing = found.standings[first]
        told = [
            f"{first} is the best choice: {mean} ({scoring.name}), P(best) {standing.p_best:.2f}, expected loss "
            f"{scoring.loss(standing.expected_loss)}."
        ]
        if len(found.standings) > 2:
            level = f"{self.plan.threshold:.0%}"
            names = _and(list(found.best_set), "or") if len(found.best_set) < 6 else f"one of {len(found.best_set)}"
            told.append(f"The best is {names} with at least {level} probability ({found.pairs} pairs were compared).")
        return [*told, *self._cost_of(first)]

    def _cost_of(self, label: str) -> list[str]:
        """Say what the algorithm costs: to the target if most runs reach it, else the whole run."""
        row = self._row(label)
        to, rounds = self.scoring().shown(self.target, 0), row["rounds_to_target"]
        common = " on the common test samples" if self.plan.evaluate_on != "common" else ""
        if rounds is None:
            sent, clock, rounds = (
                row["bytes"],
                row["clock"],
                float(np.mean([r.records[-1].round for r in self.runs[label]])),
            )
            start = f"Its runs take {rounds:g} round{'s' * (rounds != 1)}"
        else:
            sent, clock = row["bytes_to_target"], row["clock_to_target"]
            start = f"To reach {to}{common} it takes {rounds:g} round{'s' * (rounds != 1)}"
        costs = [start, *([f"{format_size(sent)} of messages"] if sent else [])]
        costs += [f"{format_duration(clock)} of simulated time"] if clock else []
        return [f"{_and(costs)}."]

    def _against_leader(self) -> list[str]:
        first, *others = [label for label in self.ranked if not self.is_reference(label)] or self.ranked
        against: dict[str, list[str]] = {}
        for other in others:
            against.setdefault(self.duel(first, other).verdict, []).append(other)
        rope, sure = self.scoring().difference(self.plan.rope), f"{self.plan.threshold:.0%}"
        told = []
        if "+" in against:
            told.append(
                f"It is better than {_and(against['+'])} by more than {rope}, with over {sure} probability each."
            )
        if "=" in against:
            told.append(f"It is practically equal to {_and(against['='])} (within {rope}).")
        if "-" in against:
            told.append(
                f"It is worse than {_and(against['-'])} by more than {rope}, with over {sure} probability each."
            )
        if "?" in against:
            n = len(self.scores()[first])
            further = self.outlook(first, against["?"])
            open_question = f"between it and {_and(against['?'], 'or')}"
            if self.plan.stopped is not None and self.plan.stopped.best_set == (first,):
                open_question = f"whether it is better by more than {rope} than {_and(against['?'], 'or')}"
            told.append(f"These {n} splits do not decide {open_question}.{further}")
        return told

    def outlook(self, first: str, others: Sequence[str]) -> str:
        """Say how many further splits would decide if mean and spread persist, or that none would."""
        if self.plan.undecidable or self.plan.protocol == "shared" or len(others) > MOST_OUTLOOKS:
            return ""
        scores, rope, threshold = self.scores(), self.plan.rope, self.plan.threshold
        found_by: dict[int | None, list[str]] = {}
        unit = "split" if self._repeats is None else "repeat"
        for other in others:
            pair = (scores[other], scores[first])
            if not np.isfinite(pair).all():
                continue
            if self._repeats is None:
                found = more_splits(*pair, self.plan.rho, rope=rope, threshold=threshold).further
            else:
                found = more_repeats(*pair, self._repeats, self.plan.rho, rope=rope, threshold=threshold).further
            found_by.setdefault(found, []).append(other)
        said = [
            f"about {found} further {unit}{'s' * (found != 1)} would decide it for {_and(names)}"
            for found, names in found_by.items()
            if found is not None
        ]
        if None in found_by:
            said.append(f"no number of further {unit}s would decide it for {_and(found_by[None], 'or')}")
        return f" If mean and spread persist, {'; '.join(said)}." if said else ""

    def _beside_references(self) -> list[str]:
        first, *_ = self.ranked
        signs = {
            "+": "it is better",
            "-": "it is worse",
            "=": "it is practically equal",
            "?": "the splits do not decide it",
        }
        means = {label: self.scoring().shown(float(np.mean(s))) for label, s in self.scores().items()}
        return [
            f"Against the reference {label} ({means[label]}), {signs[self.duel(first, label).verdict]}."
            for label in self.ranked[1:]
            if self.is_reference(label) and not self.is_reference(first)
        ]

    @cached_property
    def majority_warning(self) -> str:
        """Say so where always predicting the most frequent class comes within one rope of the best algorithm."""
        if self.plan.metric != "accuracy" or self.plan.evaluate_on != "common" or not self.labels:
            return ""
        first = self.ranked[0]
        counts = [run.measured.confusion for run in self.runs[first]]
        if any(count is None or not count.sum() for count in counts):
            return ""
        share = float(np.mean([c.sum(axis=1).max() / c.sum() for c in counts if c is not None]))
        if share < float(np.mean(self.scores()[first])) - self.plan.rope:
            return ""
        return (
            f"Always predicting the most frequent class gives {share:.1%}: within {points(self.plan.rope)} of the best. "
            "Accuracy says little here; use --metric balanced_accuracy or auc."
        )

    @property
    def notes(self) -> list[str]:
        """How it was tuned, and what runs noted: once for all where all did, else by algorithm, with the first case."""
        kinds: dict[str, dict[str, tuple[int, str]]] = {}  # note without its numbers -> label -> how often, the first
        for label, runs in self.runs.items():
            for note in (note for run in runs for note in dict.fromkeys(run.notes)):
                seen = kinds.setdefault(re.sub(r"\d+", "#", note), {})
                count, first = seen.get(label, (0, note))
                seen[label] = (count + 1, first)
        told = list(self.plan.notes)
        if self.plan.score == "best":
            told.append(f"scores are the best round of each run ({OPTIMISTIC})")
        if self.plan.score == "validated":
            told.append(f"scores are the validated round of each run ({VALIDATED}: {self.validation_share:.0%})")
        if self.dropped_splits:
            told.append(f"{self.dropped_splits} splits are left out: {self.plan.metric} is undefined on their labels")
        for seen in kinds.values():
            firsts = {first for _, first in seen.values()}
            if len(firsts) == 1 and len(seen) == len(self.runs):
                told.append(firsts.pop())
                continue
            for label, (count, first) in seen.items():
                told.append(f"{label}: {first} (in {count} of {len(self.runs[label])} runs)")
        return told

    @property
    def validation_share(self) -> float:
        """The share of every client's training samples that is held out to choose a round."""
        return float(self.plan.experiment.get("evaluate", {}).get("validation") or 0.0)

    def as_dict(self) -> dict[str, Any]:
        """What `fedarena compare --json` prints."""
        standings = self.ranking.standings if self.ranking else {}
        return {
            "algorithms": self.labels,
            "score": self.plan.score,
            "metric": self.plan.metric,
            "evaluate_on": self.plan.evaluate_on,
            "scores": self.scores(),
            "final_scores": self.scores("final"),
            "best_scores": self.scores("best"),
            "validated_scores": self.scores("validated") if self.is_validated else None,
            "validation_share": self.validation_share,
            "table": [asdict(duel) for duel in self.duels()],
            "final_table": [asdict(duel) for duel in self.duels("final")],
            "p_best": {label: s.p_best for label, s in standings.items()},
            "p_near_best": {label: s.p_near_best for label, s in standings.items()},
            "expected_loss": {label: s.expected_loss for label, s in standings.items()},
            "best_set": list(self.ranking.best_set) if self.ranking else [],
            "rows": self.rows(),
            "target": self.target,
            "rope": self.plan.rope,
            "threshold": self.plan.threshold,
            "test": self.plan.test,
            "about": self.plan.about,
            "protocol": self.plan.protocol,
            "fixed": list(self.plan.fixed),
            "per_repeat": list(self.plan.per_repeat),
            "correlation": self.plan.rho,
            "at_most": self.plan.at_most,
            "looks": [asdict(found) for found in self.plan.looks],
            "stopped": self._stopped(),
            "verdict": self.words,
            "failures": self.failures,
            "sweep": tradeoff_points.as_dict(self),
            "client_gains": None if (gains := self.client_gains()) is None else gains.as_dict(),
            "leave_one_out": None if (left := self.leave_one_out()) is None else left.as_dict(),
            "notes": self.notes,
            "dir": None if self.dir is None else str(self.dir),
        }

    def _stopped(self) -> dict[str, Any] | None:
        """Return after how many splits no repeats were added any more, and why; None where their number is fixed."""
        last = self.plan.stopped
        if last is None:
            return None
        return {"splits": last.splits, "decided": last.decided, "reason": stopping_sentence(last)}

    def __str__(self) -> str:
        return "\n".join([*self.words, self.plan.about, self.plan.test])

    def _repr_html_(self) -> str:
        """In a notebook: the verdict in words, and the table of signs."""
        duels = {(duel.row, duel.column): duel for duel in self.duels()}

        def cell(row: str, column: str) -> str:
            if row == column:
                return "<td></td>"
            duel = duels[row, column]
            chances = f"{duel.p_better:.2f} / {duel.p_equal:.2f} / {duel.p_worse:.2f}"
            return f"<td style='text-align:center' title='{chances}'><b>{duel.verdict}</b><br><small>{chances}</small></td>"

        names = self.ranked
        head = "".join(f"<th>{escape(name)}</th>" for name in names)
        rows = "".join(f"<tr><th>{escape(a)}</th>{''.join(cell(a, b) for b in names)}</tr>" for a in names)
        words = "".join(f"<p>{escape(line)}</p>" for line in self.words)
        about = f"{self.plan.about} {self.plan.test[0].upper()}{self.plan.test[1:]}."
        return f"<div>{words}<table><tr><th></th>{head}</tr>{rows}</table><small>{escape(about)}</small></div>"

    def __repr__(self) -> str:
        return f"<Comparison of {', '.join(self.labels)}: {self.plan.test}>"


def points(difference: float) -> str:
    """A difference of accuracies, as it is said: 1 point, 0.5 points."""
    return f"{100 * difference:g} point{'s' * (difference != 0.01)}"


def _finished_runs(plan: Plan, root: Path, label: str, without: str | None = None) -> list[Run] | str:
    """Return the runs of a label on all splits, or why one of them failed; refuse runs that are not finished."""
    folders = [plan.folder(root, label, split, without) for split in plan.splits]
    failed = next((f / "failure.txt" for f in folders if (f / "failure.txt").exists()), None)
    missing = sum(not (f / "result.json").exists() for f in folders)
    if failed is not None:
        return failed.read_text(encoding="utf-8", errors="replace").strip()
    if missing:
        name = label if without is None else f"{label} without {without}"
        raise BadValue(
            f"{missing} of {len(folders)} runs of {name} are not finished",
            remedy=f"go on with them: fedarena compare --resume {root}",
            where=str(root),
        )
    plan.cell(label, plan.splits[0])  # says so if something of it came from Python
    own = {k.removesuffix(f" {label}"): v for k, v in plan.own.items()}
    return [load(folder, **own) for folder in folders]


def client_folder(client: str) -> str:
    """Return the folder of a client that is left out; names that no folder can have get a hash, so that none collide."""
    clean = folder_name(client)[:MOST_LETTERS].strip(".")
    return clean if clean == client else f"{clean}-{derived_seed(client):08x}"


def folder_name(label: str) -> str:
    """A label as the name of a folder."""
    return re.sub(r"[^\w.,=+-]", "-", label)


def _same_keys(complete: Any, given: Any) -> Any:
    """A component is told in full; of other tables only what was said: it is what differs."""
    if isinstance(given, Mapping) and "name" not in complete:
        return {key: complete.get(key) for key in given}
    return complete


def _finite(value: Any) -> Any:
    """Values as JSON brings them back; it knows no infinity, an experiment does: a batch of all rows."""
    if isinstance(value, dict):
        return {k: _finite(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(v) for v in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _first_at(run: Run, target: float) -> RoundRecord | None:
    """Return the first evaluation at which the metric of the run reaches the target."""
    rising = run.measured.direction == "maximize"
    values = zip(run.evaluations, run.metric_curve, strict=True)
    return next((record for record, (_, value) in values if (value >= target if rising else value <= target)), None)


def _and(names: list[str], word: str = "and") -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} {word} {names[-1]}"
