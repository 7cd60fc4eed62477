"""The plan of a comparison: which algorithms run on which splits, and how their scores are compared.

A comparison is a folder: comparison.json holds its plan, and cells/ALGORITHM/SPLIT/ are ordinary run folders. This module
only describes the plan; `experiments/plan.py` builds one from options, `results/plan_file.py` reads and writes it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, get_args

from fedarena.config.components import Component, is_from_python
from fedarena.config.errors import BadValue, FedarenaError, join_words
from fedarena.config.experiment import Experiment
from fedarena.config.seeds import derived_seed

Part = Literal["partition", "start", "schedule"]
Protocol = Literal["independent", "shared"]
Score = Literal["final", "best", "validated"]
View = Literal["common", "own", "own:uniform"]
PARTS: tuple[Part, ...] = get_args(Part)  # drawn for every split, unless it is fixed or drawn once per repeat
PART_NAMES = {"partition": "partition", "start": "initial weights", "schedule": "client schedule"}
OWN_PARTS = ("algorithm", "local")  # tables that may differ between contestants; everything else is shared by all
LEAST_REPEATS = 5  # repeats that show the effect of what their folds share; equal to that of `statistics.repeats`
LOOK_STEP = 5  # splits between two looks, at least: the rule is made for looks that are not more frequent
MOST_LETTERS = 80  # of a client's name in the name of a folder


@dataclass(frozen=True)
class Split:
    """One repetition of everything random: a repeat, and the fold held out of it (None without folds)."""

    repeat: int
    fold: int | None = None

    @property
    def name(self) -> str:
        """The name of the folder that holds the runs of this split."""
        return f"seed{self.repeat}" if self.fold is None else f"repeat{self.repeat}-fold{self.fold}"


@dataclass(frozen=True)
class LookRecord:
    """One interim look at a comparison that adds repeats until it is decided."""

    splits: int  # that were run
    n: int  # of them with a score; fewer where the metric is undefined on the labels of a split
    candidates: int  # algorithms with a finite score on each of these
    level: float  # the probability that a decision needs at this look
    best_set: tuple[str, ...]  # the smallest set with this probability of holding the best
    p_equal: float  # probability that its members are within one rope of each other
    decided: bool
    reason: str

    @property
    def is_comparable(self) -> bool:
        """Whether there are two algorithms to compare; further splits bring none back."""
        return self.candidates > 1

    def __str__(self) -> str:
        state = "decided" if self.decided else "not decided"
        return f"{self.splits} splits: {state}, {self.reason} ({self.level:.4g} needed)"


@dataclass(frozen=True)
class Plan:
    """The plan of a comparison: the content of comparison.json. `experiments.plan.build_plan` makes one."""

    experiment: dict[str, Any]  # the common part, as a table
    contestants: dict[str, dict[str, Any]]  # label -> tables that replace those of the experiment
    reference: str | None = None  # label of a baseline that is shown beside the contestants and not compared
    folds: int | None = None
    repeats: int = 1
    rope: float = 0.01
    threshold: float = 0.95
    tuning: dict[str, Any] = field(
        default_factory=dict
    )  # trials per algorithm, method, spaces; see experiments/tune.py
    tuned: dict[str, dict[str, dict[str, Any]]] = field(default_factory=dict)  # label -> split -> settings found by it
    sweep: dict[str, Any] = field(default_factory=dict)  # the swept key, and the value of each label
    notes: tuple[str, ...] = ()
    versions: dict[str, Any] = field(default_factory=dict)
    protocol: Protocol = "shared"  # how splits are seeded; files of the first version do not name it
    fixed: tuple[str, ...] = ()  # parts that are the same in all splits; "test": the data set's own test samples
    per_repeat: tuple[str, ...] = ()  # parts that are drawn once per repeat and shared by its folds
    test_share: float | None = None  # share of test samples, where every split divides the pooled samples at random
    score: Score = "best"  # the round that counts; files of the first version do not name it
    metric: str = "accuracy"
    evaluate_on: View = "common"
    at_most: int | None = None  # limit of splits, where repeats are added until the comparison is decided
    looks: tuple[LookRecord, ...] = ()
    leave_one_out: tuple[str, ...] = ()  # clients without each of which the comparison is repeated
    own: dict[str, Any] = field(default_factory=dict, repr=False, compare=False)  # Python objects, not in the file

    @property
    def splits(self) -> list[Split]:
        """All splits, repeat by repeat and fold by fold; scores are listed in this order."""
        folds = range(self.folds) if self.folds else (None,)
        return [Split(repeat, fold) for repeat in range(self.repeats) for fold in folds]

    @property
    def stopped(self) -> LookRecord | None:
        """The look after which no repeats were added; None before it, and where the number of splits is fixed."""
        if self.at_most is None or not self.looks or self.looks[-1].splits != len(self.splits):
            return None
        last = self.looks[-1]
        is_over = last.decided or not last.is_comparable or next_look(self.repeats, self.folds, self.at_most) is None
        return last if is_over else None

    @property
    def rho(self) -> float:
        """Correlation of the scores: the share of test samples in a split, 0 where all splits have the same ones."""
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
        """The name of the statistical test, with its number of splits and their correlation."""
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
        """One sentence that says what the conclusion is about and what every split repeats."""
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
        subject = " ".join([subject, *conditions])
        sentence = f"The conclusion is about {subject}; every split has its own {join_words(repeated)}"
        return sentence + (f", and the folds of a repeat share {join_words(once)}." if once else ".")

    @property
    def undecidable(self) -> str:
        """One sentence that says why no pair can be decided; empty if pairs can."""
        shared = [PART_NAMES[part] for part in PARTS if part in self.per_repeat]
        if self.protocol == "shared" or not shared or self.repeats >= LEAST_REPEATS:
            return ""
        return (
            f"No pair is decided: the folds of a repeat share {join_words(shared)}, and {self.repeats} "
            f"repeat{'s' * (self.repeats != 1)} cannot show how much that matters; {LEAST_REPEATS} can."
        )

    @property
    def keeps_clients(self) -> bool:
        """Whether all splits have the same clients: those of the data, or of a fixed partition."""
        return not self._draws_clients or "partition" in self.fixed

    @property
    def _draws_clients(self) -> bool:
        """Whether the clients depend on a seed; natural clients are those of the data."""
        try:
            partition = self._resolve("partition", self.experiment.get("partition", "iid"))
            return bool(getattr(Component.choose("partition", partition, "partition").made, "seeded", True))
        except FedarenaError:  # it came from Python, or from a file that is not loaded here
            return True

    @cached_property
    def federated(self) -> list[str]:
        """The contestants that communicate, which are repeated without each client that is left out."""
        made = {label: self.cell(label, self.splits[0]).algorithm.made for label in self.contestants}
        return [label for label, algorithm in made.items() if algorithm.communicates and not algorithm.pooled]

    def cell(self, label: str, split: Split, without: str | None = None) -> Experiment:
        """Return the experiment of one cell. Cells are paired: no seed depends on the algorithm or on `without`."""
        base = Experiment.make({key: self._resolve(key, value) for key, value in self.experiment.items()})
        paired: dict[str, Any] = {**self._seeds(base, split), "folds": self.folds, "fold": split.fold}
        own = {key: self._resolve(f"{key} {label}", value) for key, value in self.contestants[label].items()}
        tuned = self.tuned.get(label, {}).get(split.name, {})
        if without is not None:
            paired["exclude"] = (*(base.exclude or ()), without)
        return base.with_(**{k: v for k, v in paired.items() if v is not None}, **own, **tuned)

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

    def _resolve(self, key: str, value: Any) -> Any:
        """Return a value of the tables, or the Python object that it stands for."""
        if not is_from_python(value):
            return value
        if key not in self.own:
            raise BadValue(
                f"the {key} of this comparison ('{value['name']}') came from Python, and no file can restore it",
                remedy="give it again: fa.compare(source, algorithms, resume=...)",
            )
        return self.own[key]

    def folder(self, root: Path, label: str, split: Split, without: str | None = None) -> Path:
        """Return the run folder of one cell."""
        above = root / "cells" if without is None else root / "leave_one_out" / client_folder(without)
        return above / folder_name(label) / split.name

    def as_dict(self) -> dict[str, Any]:
        """Return the content of comparison.json."""
        table = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "own"}
        return {**table, "looks": [asdict(look) for look in self.looks]}


def next_look(repeats: int, folds: int | None, at_most: int) -> int | None:
    """Return the number of repeats at the look after this one: 5 further splits or more; None at the limit.

    >>> next_look(2, folds=5, at_most=50), next_look(10, folds=None, at_most=12), next_look(10, folds=5, at_most=50)
    (3, 12, None)
    """
    size = folds or 1
    most = at_most // size
    return min(repeats + math.ceil(LOOK_STEP / size), most) if repeats < most else None


def client_folder(client: str) -> str:
    """Return the folder of a client that is left out; names that no folder can have get a hash to keep them apart."""
    clean = folder_name(client)[:MOST_LETTERS].strip(".")
    return clean if clean == client else f"{clean}-{derived_seed(client):08x}"


def folder_name(label: str) -> str:
    """Return a label as the name of a folder."""
    return re.sub(r"[^\w.,=+-]", "-", label)


def finite_table(value: Any) -> Any:
    """Return a table whose infinite numbers are texts, which JSON can hold and an experiment reads (a batch of all rows)."""
    if isinstance(value, dict):
        return {key: finite_table(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [finite_table(inner) for inner in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
