"""Algorithms on the same splits, schedules and initial weights, and what may be concluded from it.

A comparison is a folder: comparison.json says what was to be compared and how, cells/ALGORITHM/SPLIT/ are run folders.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from functools import cached_property
from html import escape
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import TypeAdapter

from fedarena.data.files import reading
from fedarena.engine.record import RoundRecord
from fedarena.errors import BadValue
from fedarena.results import tradeoff
from fedarena.results.bayes import Posterior, posterior, verdict
from fedarena.results.folder import read_table, write_table
from fedarena.results.metrics import relative_accuracy
from fedarena.results.run import Run, load
from fedarena.spec import COMPONENTS, Experiment

Score = Literal["best", "final"]
DAMAGED = "restore the file from a copy, or compare again in a new folder"
OWN_PARTS = ("algorithm", "local")  # of a contestant; all else is the same for everyone: so scores are pairs
SIGNS = {"+": "better", "=": "practically equal", "-": "worse", "?": "undecided"}


@dataclass(frozen=True)
class Split:
    """One training and test set: a repetition, and the fold that is held out of it (None without folds)."""

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
    )  # trials for everyone, how, and of which spaces; see arena/tune.py
    tuned: dict[str, dict[str, dict[str, Any]]] = field(default_factory=dict)  # label -> split -> settings found by it
    sweep: dict[str, Any] = field(default_factory=dict)  # a key, and of each label its value; see arena/sweep.py
    notes: tuple[str, ...] = ()  # e.g. how it was tuned
    versions: dict[str, Any] = field(default_factory=dict)
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
        return cls(_finite(common), _finite(tables), own=own, **how)

    @property
    def splits(self) -> list[Split]:
        """Repetition by repetition, fold by fold: the order of all scores."""
        folds = range(self.folds) if self.folds else (None,)
        return [Split(repeat, fold) for repeat in range(self.repeats) for fold in folds]

    @property
    def rho(self) -> float:
        """Correlation of the scores: the share of a test fold, 0 for independent repetitions."""
        return 1 / self.folds if self.folds else 0.0

    @property
    def test(self) -> str:
        """The statistic, by name."""
        n = len(self.splits)
        if self.folds:
            return (
                f"correlated Bayesian t-test, {self.repeats} x {self.folds} folds, n = {n}, correlation {self.rho:.3g}"
            )
        return f"Bayesian t-test for independent repetitions, n = {n} seeds"

    def cell(self, label: str, split: Split) -> Experiment:
        """The experiment of one cell. Paired: all that is random depends on the repetition, none of it on the algorithm."""
        base = Experiment.make({key: self._given(key, value) for key, value in self.experiment.items()})
        paired: dict[str, Any] = {"seed": base.seed + split.repeat, "folds": self.folds, "fold": split.fold}
        theirs = {key: self._given(f"{key} {label}", value) for key, value in self.contestants[label].items()}
        found = self.tuned.get(label, {}).get(split.name, {})
        return base.with_(**{k: v for k, v in paired.items() if v is not None}, **theirs, **found)

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

    def folder(self, root: Path, label: str, split: Split) -> Path:
        """Where the run of one cell lies."""
        return root / "cells" / folder_name(label) / split.name

    def as_dict(self) -> dict[str, Any]:
        """What comparison.json holds."""
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name != "own"}

    def write(self, root: Path) -> None:
        """comparison.json, atomically."""
        write_table(root / "comparison.json", self.as_dict())

    @classmethod
    def read(cls, root: Path) -> Plan:
        """Back from the folder."""
        file = root / "comparison.json"
        if not file.exists():
            raise BadValue(f"{root} holds no comparison", remedy="give the folder of one", where=str(root))
        table = read_table(file, DAMAGED)
        with reading(file, remedy=DAMAGED):
            TypeAdapter(cls).validate_python({**table, "own": {}})
            return cls(**{**table, "notes": tuple(table["notes"])})


@dataclass(frozen=True)
class Duel:
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

    @classmethod
    def load(cls, root: str | Path) -> Comparison:
        """From a folder whose cells are all finished."""
        return cls.of(Plan.read(Path(root)), Path(root))

    @classmethod
    def of(cls, plan: Plan, root: Path) -> Comparison:
        """The runs of a plan, from a folder whose cells are all finished."""
        runs: dict[str, list[Run]] = {}
        failures: dict[str, str] = {}
        for label in plan.contestants:
            folders = [plan.folder(root, label, split) for split in plan.splits]
            failed = next((f / "failure.txt" for f in folders if (f / "failure.txt").exists()), None)
            missing = sum(not (f / "result.json").exists() for f in folders)
            if failed is not None:
                failures[label] = failed.read_text(encoding="utf-8", errors="replace").strip()
            elif missing:
                raise BadValue(
                    f"{missing} of {len(folders)} runs of {label} are not finished",
                    remedy=f"go on with them: fedarena compare --resume {root}",
                    where=str(root),
                )
            else:
                plan.cell(label, plan.splits[0])  # says so if something of it came from Python
                own = {k.removesuffix(f" {label}"): v for k, v in plan.own.items()}
                runs[label] = [load(folder, **own) for folder in folders]
        return cls(plan, runs, failures, root)

    @property
    def labels(self) -> list[str]:
        """The contestants that have results, in the order they were named."""
        return [label for label in self.runs if label != self.plan.reference]

    def scores(self, which: Score = "best") -> dict[str, list[float]]:
        """Accuracy of every contestant on every split: the best within the budget, or the final one."""
        return {label: list(scores) for label, scores in self._scores[which].items()}

    @cached_property
    def _scores(self) -> dict[Score, dict[str, list[float]]]:
        def of(run: Run, kind: Score) -> float:
            return float(getattr(run, kind).accuracy or 0.0)

        kinds: tuple[Score, ...] = ("best", "final")
        return {kind: {label: [of(run, kind) for run in self.runs[label]] for label in self.labels} for kind in kinds}

    def is_baseline(self, label: str) -> bool:
        """Does it send nothing? Then it is a level to compare with, not a choice that a federation has."""
        return not self.runs[label][0].experiment.algorithm.made.communicates

    @property
    def ranked(self) -> list[str]:
        """From the highest mean accuracy to the lowest; baselines after all that a federation can choose from."""
        means = {label: float(np.mean(s)) for label, s in self.scores().items()}
        return sorted(means, key=lambda label: (self.is_baseline(label), -means[label]))

    def diverged(self, label: str) -> int:
        """How many of its runs did. They keep the accuracy they had: no pair is dropped."""
        return sum(run.diverged for run in self.runs[label])

    def posterior(self, row: str, column: str, which: Score = "best") -> Posterior:
        """Of the mean difference, row minus column."""
        scores = self.scores(which)
        for label in (row, column):
            if label not in scores:
                known = ", ".join(scores)
                raise BadValue(f"'{label}' was not compared", remedy=f"there are: {known}")
        return posterior(scores[column], scores[row], self.plan.rho)

    def duel(self, row: str, column: str, which: Score = "best", rope: float | None = None) -> Duel:
        """One cell of the table."""
        known = self.posterior(row, column, which)
        worse, equal, better = known.regions(self.plan.rope if rope is None else rope)
        sign = verdict(better, equal, worse, self.plan.threshold)
        return Duel(row, column, better, equal, worse, sign, known.mean, known.interval(0.9))

    def duels(self, which: Score = "best") -> list[Duel]:
        """Every ordered pair."""
        return [self.duel(a, b, which) for a in self.labels for b in self.labels if a != b]

    def versus(self, label: str, rope: float | None = None) -> list[Duel]:
        """Everyone against this one."""
        return [self.duel(other, label, rope=rope) for other in self.labels if other != label]

    @cached_property
    def target(self) -> float:
        """The accuracy to reach: the experiment's, or the highest whole percent that everyone reaches on average."""
        if not self.labels:
            return math.nan
        wanted = self.runs[self.labels[0]][0].experiment.evaluate.target
        if wanted is not None:
            return wanted
        return math.floor(100 * min(float(np.mean(s)) for s in self.scores().values()) + 1e-9) / 100

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

        best, final = ([float(getattr(run, which).accuracy or 0.0) for run in runs] for which in ("best", "final"))
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

    @property
    def words(self) -> list[str]:
        """The verdict in sentences: who leads, against whom that is certain, and what stays open."""
        means = {label: float(np.mean(s)) for label, s in self.scores().items()}
        failed = [f"{label} has no result: {why}" for label, why in self.failures.items()]
        if len(means) < 2:
            return ["There is nothing to compare: fewer than two algorithms have results.", *failed]
        ranked = self.ranked
        first, beside = ranked[0], [label for label in ranked[1:] if self.is_baseline(label)]
        against: dict[str, list[str]] = {}
        for other in ranked[1:]:
            if other not in beside:
                against.setdefault(self.duel(first, other).verdict, []).append(other)
        among = " of those that train together" if beside else ""
        told = [f"{first} has the highest mean accuracy{among}, {means[first]:.1%}."]
        rope, sure = points(self.plan.rope), f"{self.plan.threshold:.0%}"
        if "+" in against:
            told.append(f"It is better by more than {rope}, with over {sure} probability, than {_and(against['+'])}.")
        if "=" in against:
            told.append(f"It is practically equal (within {rope}) to {_and(against['='])}.")
        if "?" in against:
            told.append(f"These {len(self.plan.splits)} scores do not decide between it and {_and(against['?'])}.")
        signs = {
            "+": "better than",
            "-": "worse than",
            "=": "practically equal to",
            "?": "neither surely better nor worse than",
        }
        for label in beside:
            told.append(
                f"It is {signs[self.duel(first, label).verdict]} {label} ({means[label]:.1%}), which sends nothing."
            )
        for label in ranked:
            if self.diverged(label):
                told.append(f"{label} diverged in {self.diverged(label)} of {len(self.runs[label])} runs.")
        return told + failed

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
        for seen in kinds.values():
            firsts = {first for _, first in seen.values()}
            if len(firsts) == 1 and len(seen) == len(self.runs):
                told.append(firsts.pop())
                continue
            for label, (count, first) in seen.items():
                told.append(f"{label}: {first} (in {count} of {len(self.runs[label])} runs)")
        return told

    def as_dict(self) -> dict[str, Any]:
        """What `fedarena compare --json` prints."""
        return {
            "algorithms": self.labels,
            "scores": self.scores(),
            "final_scores": self.scores("final"),
            "table": [asdict(duel) for duel in self.duels()],
            "final_table": [asdict(duel) for duel in self.duels("final")],
            "rows": self.rows(),
            "target": self.target,
            "rope": self.plan.rope,
            "threshold": self.plan.threshold,
            "test": self.plan.test,
            "verdict": self.words,
            "failures": self.failures,
            "sweep": tradeoff.as_dict(self),
            "notes": self.notes,
            "dir": None if self.dir is None else str(self.dir),
        }

    def __str__(self) -> str:
        return "\n".join([*self.words, self.plan.test])

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
        return f"<div>{words}<table><tr><th></th>{head}</tr>{rows}</table><small>{escape(self.plan.test)}</small></div>"

    def __repr__(self) -> str:
        return f"<Comparison of {', '.join(self.labels)}: {self.plan.test}>"


def points(difference: float) -> str:
    """A difference of accuracies, as it is said: 1 point, 0.5 points."""
    return f"{100 * difference:g} point{'s' * (difference != 0.01)}"


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
    return next((r for r in run.evaluations if (r.accuracy or 0.0) >= target), None)


def _and(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
