"""The result of a suite: algorithms compared on several federations, and the verdict on the next federation like them.

Every federation is an ordinary comparison. For each pair of algorithms the posteriors of all federations enter the
hierarchical model of `statistics/hierarchical.py`; metrics with units enter as log ratios, so that a federation with large
values does not outweigh the others.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from fedarena.config.errors import BadValue, quoted
from fedarena.config.limits import check_path
from fedarena.results import suite_trends, suite_verdict
from fedarena.results.comparison import Comparison
from fedarena.results.notebook import suite_html
from fedarena.results.scoring import Scoring
from fedarena.results.suite_pairs import UNKNOWN, FederationEstimate, PairEstimate, SignedRank, SuitePair, mirrored
from fedarena.results.suite_plan import SuitePlan
from fedarena.results.suite_trends import VaryingSetting
from fedarena.statistics.bayes import Posterior, Regions, verdict
from fedarena.statistics.hierarchical import LEAST_FEDERATIONS, Hierarchy, hierarchy
from fedarena.statistics.repeats import paired_posterior
from fedarena.statistics.signed_rank import mean_ranks, signed_rank
from fedarena.statistics.trend import LEAST_VALUES, Trend, fit_trend

LinePoint = tuple[float, float, float, float]  # setting, mean, low, high
LEVEL = 0.9  # of all intervals


@dataclass(frozen=True, repr=False)
class SuiteComparison:
    """The result of comparing algorithms on several federations: the comparison of each, and the verdict over all.

    >>> import fedarena as fa
    >>> federations = ["digits", "wine", "breast_cancer"]
    >>> suite = fa.compare(federations, ["fedavg", "fedprox"], seeds=2, rounds=2, model="logreg", out=False)
    >>> list(suite.federations), suite.labels
    (['digits', 'wine', 'breast_cancer'], ['fedavg', 'fedprox'])
    """

    federations: dict[str, Comparison]
    rope: float = 0.01
    seeds: dict[str, int] = field(default_factory=dict)  # as they were given, before each federation got its own
    own_notes: tuple[str, ...] = field(default=())
    dir: Path | None = None

    @classmethod
    def load(cls, root: str | Path) -> SuiteComparison:
        """Return the suite of a folder in which all runs have ended."""
        folder = check_path(root, "the folder of a suite")
        return cls.of(SuitePlan.read(folder), folder)

    @classmethod
    def of(cls, plan: SuitePlan, root: Path) -> SuiteComparison:
        """Return the suite of a plan, from a folder in which all runs have ended."""
        found = {}
        for name, planned in plan.plans.items():
            folder = plan.folder(root, name)
            if not (folder / "comparison.json").exists():
                raise BadValue(
                    f"the federation '{quoted(name)}' of this suite has not begun",
                    remedy=f"continue the suite: fedarena compare --resume {root}",
                    where=str(root),
                )
            found[name] = Comparison.of(planned, folder)
        return cls(found, plan.rope, plan.seeds, plan.notes, root)

    def without_folders(self) -> SuiteComparison:
        """Return the same suite without the paths of its folders, which are about to be removed."""
        return replace(
            self, federations={name: one.without_folders() for name, one in self.federations.items()}, dir=None
        )

    # What is compared

    @property
    def _first(self) -> Comparison:
        return next(iter(self.federations.values()))

    @property
    def labels(self) -> list[str]:
        """The algorithms that have results on at least one federation, in the order they were named."""
        plan = self._first.plan
        known = {label for result in self.federations.values() for label in result.labels}
        return [label for label in plan.contestants if label != plan.reference and label in known]

    @property
    def threshold(self) -> float:
        """The probability above which a verdict is given."""
        return self._first.plan.threshold

    @property
    def scoring(self) -> Scoring:
        """The scoring of runs, which is the same for all federations."""
        return self._first.scoring()

    @property
    def is_ratio(self) -> bool:
        """Whether differences are log ratios, because the metric has units: it has no upper bound and is never negative."""
        return self.scoring.known.has_units

    @property
    def limit(self) -> float:
        """The largest difference that does not matter, in the units of all estimates."""
        return math.log1p(self.rope) if self.is_ratio else self.rope

    def difference(self, value: float, sign: bool = True) -> str:
        """Return a difference as it is read: +1.3 points, -4.0%, or a number."""
        plus = "+" if sign else ""
        if self.is_ratio:
            return f"{100 * math.expm1(value):{plus}.1f}%"
        return f"{100 * value:{plus}.1f} points" if self.scoring.is_share else f"{value:{plus}.3g}"

    @property
    def margin(self) -> str:
        """The rope as it is read: 1 point, 1%, or a number."""
        return f"{100 * self.rope:g}%" if self.is_ratio else self.scoring.difference(self.rope)

    # Scores of federations

    @cached_property
    def dropped(self) -> list[str]:
        """Federations left out for all algorithms, because the metric is undefined on the labels of their splits."""
        return [
            name
            for name, result in self.federations.items()
            if result.dropped_splits and len(result.plan.splits) - result.dropped_splits < 2
        ]

    @property
    def judged(self) -> dict[str, Comparison]:
        """The federations that are not dropped."""
        return {name: result for name, result in self.federations.items() if name not in self.dropped}

    def _scores(self, federation: str, label: str) -> list[float]:
        """Scores of an algorithm on a federation, larger is better; NaN where it has none."""
        result, sign = self.federations[federation], self.scoring.sign
        if label not in result.runs:
            return [math.nan]
        values = np.asarray(result.scores()[label], dtype=np.float64)
        if self.is_ratio:
            with np.errstate(divide="ignore", invalid="ignore"):
                values = np.log(values)
        return [float(sign * value) for value in values]

    @cached_property
    def means(self) -> dict[str, dict[str, float]]:
        """label -> federation -> mean score over splits, larger is better (of log values where those are compared)."""
        return {
            label: {name: float(np.mean(self._scores(name, label))) for name in self.judged} for label in self.labels
        }

    def _why_unknown(self, federation: str, label: str) -> str:
        """Return why an algorithm has no score on a federation; empty if it has one."""
        if np.isfinite(self.means[label][federation]):
            return ""
        result = self.federations[federation]
        if label not in result.runs:
            return f"{label} has no result on {federation}"
        if result.diverged(label):
            return f"{label} diverged on {federation}, and {self.scoring.metric} has no worst value"
        return f"the {self.scoring.metric} of {label} on {federation} has no logarithm"

    def is_reference(self, label: str) -> bool:
        """Return whether an algorithm never competes: training on pooled samples, and local training on common samples."""
        return next(r.is_reference(label) for r in self.federations.values() if label in r.runs)

    @cached_property
    def mean_ranks(self) -> dict[str, float]:
        """Mean rank of every algorithm over the federations; 1 is the best, and one without a score comes last there."""
        if not self.labels or not self.judged:
            return {}
        table = np.array([[self.means[label][name] for label in self.labels] for name in self.judged])
        known = np.isfinite(table)
        lowest = table[known].min() if known.any() else 0.0
        ranks = mean_ranks(np.where(known, table, lowest - 1))
        return dict(zip(self.labels, ranks.tolist(), strict=True))

    @cached_property
    def ranked(self) -> list[str]:
        """All algorithms from the best mean rank to the worst, references last."""
        ranks = self.mean_ranks

        def order(label: str) -> tuple[bool, float, float]:
            values = [v for v in self.means[label].values() if math.isfinite(v)]
            return self.is_reference(label), ranks[label], -float(np.mean(values)) if values else math.inf

        return sorted(self.labels, key=order)

    # Pairs

    @cached_property
    def pairs(self) -> tuple[SuitePair, ...]:
        """All pairs, the algorithm with the better mean rank first."""
        return tuple(self._estimate_pair(row, column) for row, column in combinations(self.ranked, 2))

    def pair(self, row: str, column: str) -> SuitePair:
        """Return one pair, in either order."""
        for known in self.pairs:
            if (known.row, known.column) == (row, column):
                return known
            if (known.column, known.row) == (row, column):
                return mirrored(known)
        raise BadValue(
            f"'{quoted(row)}' against '{quoted(column)}' was not compared",
            remedy=f"there are: {', '.join(self.labels)}",
        )

    def _known(self, row: str, column: str) -> dict[str, Posterior]:
        """Return the posteriors of the federations on which both algorithms have scores."""
        return {
            name: paired_posterior(
                self._scores(name, column), self._scores(name, row), result.plan.rho, result.repeats_of_splits
            )
            for name, result in self.judged.items()
            if not self._why_unknown(name, row) and not self._why_unknown(name, column)
        }

    def _estimate(self, mean: float, interval: tuple[float, float], regions: Regions, decidable: bool) -> PairEstimate:
        """Return an estimate of the advantage as one of the difference, in the direction of the metric."""
        worse, equal, better = regions
        sign = self.scoring.sign
        low, high = sorted(sign * end for end in interval)
        answer = verdict(better, equal, worse, self.threshold) if decidable else "?"
        return PairEstimate(better, equal, worse, answer, sign * mean, (low, high))

    @property
    def undecidable(self) -> str:
        """One sentence that says why no pair can be decided; empty if pairs can."""
        if len(self.judged) < LEAST_FEDERATIONS:
            return f"No pair is decided: {len(self.judged)} federations with scores do not show how federations differ."
        return next(filter(None, (result.plan.undecidable for result in self.judged.values())), "")

    def _estimate_pair(self, row: str, column: str) -> SuitePair:
        known = self._known(row, column)
        reasons = (self._why_unknown(name, label) for name in self.judged for label in (row, column))
        why_not = next(filter(None, reasons), "") or self.undecidable
        decidable, all_known = not self.undecidable, len(known) == len(self.judged) >= LEAST_FEDERATIONS
        own = {
            name: self._estimate(p.mean, p.interval(LEVEL), p.regions(self.limit), decidable)
            for name, p in known.items()
        }
        if not all_known:
            each = tuple(FederationEstimate(name, own.get(name, UNKNOWN), UNKNOWN) for name in self.judged)
            nothing = SignedRank(math.nan, math.nan, math.nan, "?")
            return SuitePair(row, column, UNKNOWN, UNKNOWN, each, nothing, math.nan, why_not)
        found: Hierarchy = hierarchy(list(known.values()), rope=self.limit, level=LEVEL)
        further, average, *shrunk = (
            self._estimate(e.mean, e.interval, e.regions, decidable)
            for e in (found.next, found.average, *found.federations)
        )
        each = tuple(
            FederationEstimate(name, own[name], estimate) for name, estimate in zip(known, shrunk, strict=True)
        )
        check = self._signed_rank(row, column, {"next": further, "average": average}, decidable)
        return SuitePair(row, column, further, average, each, check, found.tau, why_not)

    def _signed_rank(self, row: str, column: str, estimates: Mapping[str, PairEstimate], decidable: bool) -> SignedRank:
        a, b = ([self.means[label][name] for name in self.judged] for label in (column, row))
        worse, equal, better = signed_rank(a, b, self.limit)
        answer = verdict(better, equal, worse, self.threshold) if decidable else "?"
        against = tuple(
            name for name, other in estimates.items() if "?" not in (answer, other.verdict) and answer != other.verdict
        )
        return SignedRank(better, equal, worse, answer, against)

    # Settings that vary

    @cached_property
    def varying(self) -> list[VaryingSetting]:
        """The numeric settings with at least 3 different values over the federations, and the sizes that follow."""
        return suite_trends.varying(self.judged)

    def trend(self, pair: SuitePair, setting: VaryingSetting) -> Trend | None:
        """Return the advantage of the row over a setting; None where fewer than 3 values have scores of both."""
        known = self._known(pair.row, pair.column)
        names = [name for name in setting.values if name in known]
        if len({setting.values[name] for name in names}) < LEAST_VALUES:
            return None
        return fit_trend(
            [known[name] for name in names], [setting.values[name] for name in names], rope=self.limit, level=LEVEL
        )

    def line(self, found: Trend) -> list[LinePoint]:
        """Return a trend as points (setting, mean, low, high) of row minus column, in the units of all estimates."""
        sign = self.scoring.sign
        ends = (found.low, found.high) if sign > 0 else (-found.high, -found.low)
        points = zip(found.x, sign * found.mean, *ends, strict=True)
        return [(float(at), float(mean), float(low), float(high)) for at, mean, low, high in points]

    # Sentences

    @property
    def about(self) -> str:
        """One or two sentences that say what the conclusion is about."""
        sentence = (
            f"The conclusion is about federations like these {len(self.judged)}, taken as a random sample of the federations "
            "that matter."
        )
        clauses = {result.plan.about.partition("; ")[2] for result in self.federations.values()}
        return f"{sentence} In each of them {clauses.pop()}" if len(clauses) == 1 else sentence

    @property
    def test(self) -> str:
        """The name of the statistical model, with the test of each federation."""
        tests = {result.plan.test for result in self.federations.values()}
        each = f": {tests.pop()}" if len(tests) == 1 else ""
        ratio = ", of log ratios" if self.is_ratio else ""
        return f"hierarchical Bayesian model over {len(self.judged)} federations{ratio}{each}"

    @property
    def words(self) -> list[str]:
        """The verdict in sentences: the next federation, the average, where the answer changes, and what failed."""
        return suite_verdict.sentences(self)

    @property
    def notes(self) -> list[str]:
        """The notes of all federations, each once, with the names of the federations where it does not concern all."""
        return suite_verdict.notes(self)

    def as_dict(self) -> dict[str, Any]:
        """Return what `fedarena compare --json` prints for a suite."""
        plan = self._first.plan
        return {
            "algorithms": self.labels,
            **{key: getattr(plan, key) for key in ("score", "metric", "evaluate_on")},
            "scale": "log ratio" if self.is_ratio else "difference",
            "rope": self.rope,
            "threshold": self.threshold,
            "federations": [{"name": name, **result.as_dict()} for name, result in self.federations.items()],
            "pairs": [asdict(pair) for pair in self.pairs],
            "mean_ranks": self.mean_ranks,
            "varying": [suite_trends.setting_table(self, setting) for setting in self.varying],
            "about": self.about,
            "test": self.test,
            "verdict": self.words,
            "notes": self.notes,
            "dir": None if self.dir is None else str(self.dir),
        }

    def __str__(self) -> str:
        return "\n".join([*self.words, self.about, f"{self.test[0].upper()}{self.test[1:]}."])

    def __repr__(self) -> str:
        return f"<SuiteComparison of {', '.join(self.labels)} on {len(self.federations)} federations>"

    def _repr_html_(self) -> str:
        return suite_html(self)
