"""Algorithms compared on several federations, and what may be concluded about the next federation like them.

Every federation is an ordinary comparison. For each pair of algorithms the posteriors of all federations enter the
hierarchical model of `statistics/hierarchical.py`; metrics with units enter as log ratios, so that a federation with large
values does not outweigh the others.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from html import escape
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

import numpy as np

from fedarena.config.errors import BadValue, quoted
from fedarena.config.limits import check_path
from fedarena.results.comparison import Comparison
from fedarena.results.scoring import Scoring
from fedarena.results.suite_plan import SuitePlan, holds_suite
from fedarena.statistics.bayes import Posterior, Regions, posterior, verdict
from fedarena.statistics.hierarchical import LEAST_FEDERATIONS, Hierarchy, hierarchy
from fedarena.statistics.metric_registry import OPTIMISTIC, all_metrics
from fedarena.statistics.repeats import repeat_posterior
from fedarena.statistics.signed_rank import mean_ranks, signed_rank
from fedarena.statistics.trend import LEAST_VALUES, Trend, fit_trend

LinePoint = tuple[float, float, float, float]  # setting, mean, low, high
LEVEL = 0.9  # of all intervals
LINE_POINTS = 21  # of a trend in JSON
MOST_SENTENCES = 5  # algorithms beside the first that get a sentence each; more are grouped by verdict
NOT_SETTINGS = ("seed", "partition_seed", "start_seed", "schedule_seed", "fold_seed")
ANSWER_WORDS = {"left": "worse", "rope": "practically equal", "right": "better"}
WORDS = {"+": "better", "=": "practically equal", "-": "worse", "?": "undecided"}


@dataclass(frozen=True)
class PairEstimate:
    """Row against column, of one federation, of the average or of the next one; numbers are NaN where nothing is known."""

    p_better: float
    p_equal: float
    p_worse: float
    verdict: str  # + = - ?
    mean: float  # row minus column, or the log of row over column
    interval: tuple[float, float]  # 90 % credible

    @property
    def is_known(self) -> bool:
        """Return whether there is a posterior."""
        return not math.isnan(self.mean)


UNKNOWN = PairEstimate(math.nan, math.nan, math.nan, "?", math.nan, (math.nan, math.nan))


@dataclass(frozen=True)
class FederationEstimate:
    """Row against column on one federation: from its own splits alone, and shrunk towards the others."""

    federation: str
    own: PairEstimate
    shrunk: PairEstimate


@dataclass(frozen=True)
class SignedRank:
    """The Bayesian signed-rank test, which assumes no distribution of the differences, and what it contradicts."""

    p_better: float
    p_equal: float
    p_worse: float
    verdict: str
    contradicts: tuple[str, ...] = ()  # "next", "average"


@dataclass(frozen=True)
class SuitePair:
    """Row against column over all federations."""

    row: str
    column: str
    next: PairEstimate  # a further federation like these
    average: PairEstimate  # the mean over all federations like these
    by_federation: tuple[FederationEstimate, ...]
    signed_rank: SignedRank
    tau: float  # standard deviation of the difference between federations, posterior median
    why_not: str = ""  # why there is no verdict over federations


@dataclass(frozen=True, eq=False)
class Setting:
    """A numeric setting with at least 3 different values over the federations."""

    key: str
    values: dict[str, float]  # federation -> value


@dataclass(frozen=True, repr=False)
class SuiteComparison:
    """The result of comparing algorithms on several federations: the comparison of each, and the verdict over all."""

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
        """Probability above which a verdict is given."""
        return self._first.plan.threshold

    @property
    def scoring(self) -> Scoring:
        """How runs become scores; it is the same for all federations."""
        return self._first.scoring()

    @property
    def is_ratio(self) -> bool:
        """Whether differences are log ratios, because the metric has units: it has no upper bound and is never negative."""
        return has_units(self.scoring.metric)

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
        """Return the rope as it is read: 1 point, 1%, or a number."""
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
        """The federations that count."""
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
        """Say why an algorithm has no score on a federation; empty if it has one."""
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
        """From the best mean rank to the worst; references after all that a federation can choose from."""
        ranks = self.mean_ranks

        def order(label: str) -> tuple[bool, float, float]:
            values = [v for v in self.means[label].values() if math.isfinite(v)]
            return self.is_reference(label), ranks[label], -float(np.mean(values)) if values else math.inf

        return sorted(self.labels, key=order)

    # Pairs

    @cached_property
    def pairs(self) -> tuple[SuitePair, ...]:
        """Every pair, the better mean rank first."""
        return tuple(self._judge(row, column) for row, column in combinations(self.ranked, 2))

    def pair(self, row: str, column: str) -> SuitePair:
        """Return one pair, in either order."""
        for known in self.pairs:
            if (known.row, known.column) == (row, column):
                return known
            if (known.column, known.row) == (row, column):
                return _mirrored(known)
        raise BadValue(
            f"'{quoted(row)}' against '{quoted(column)}' was not compared",
            remedy=f"there are: {', '.join(self.labels)}",
        )

    def _posterior(self, federation: str, row: str, column: str) -> Posterior:
        """Return the posterior of the mean advantage of the row on one federation; its own protocol decides which."""
        result = self.federations[federation]
        pair = self._scores(federation, column), self._scores(federation, row)
        if result.repeats_of_splits is not None:
            return repeat_posterior(*pair, result.repeats_of_splits, result.plan.rho)
        return posterior(*pair, result.plan.rho)

    def _known(self, row: str, column: str) -> dict[str, Posterior]:
        """Return the posteriors of the federations on which both algorithms have scores."""
        return {
            name: self._posterior(name, row, column)
            for name in self.judged
            if not self._why_unknown(name, row) and not self._why_unknown(name, column)
        }

    def _estimate(self, mean: float, interval: tuple[float, float], regions: Regions, decidable: bool) -> PairEstimate:
        """Return an estimate of the advantage as one of the difference, in the direction of the metric."""
        worse, equal, better = regions
        sign = self.scoring.sign
        low, high = sorted(sign * end for end in interval)
        told = verdict(better, equal, worse, self.threshold) if decidable else "?"
        return PairEstimate(better, equal, worse, told, sign * mean, (low, high))

    @property
    def undecidable(self) -> str:
        """Why no pair can be decided, in one sentence; empty if pairs can."""
        if len(self.judged) < LEAST_FEDERATIONS:
            return f"No pair is decided: {len(self.judged)} federations with scores do not show how federations differ."
        return next(filter(None, (result.plan.undecidable for result in self.judged.values())), "")

    def _judge(self, row: str, column: str) -> SuitePair:
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

    def _signed_rank(self, row: str, column: str, judged: Mapping[str, PairEstimate], decidable: bool) -> SignedRank:
        a, b = ([self.means[label][name] for name in self.judged] for label in (column, row))
        worse, equal, better = signed_rank(a, b, self.limit)
        told = verdict(better, equal, worse, self.threshold) if decidable else "?"
        against = tuple(
            name for name, other in judged.items() if "?" not in (told, other.verdict) and told != other.verdict
        )
        return SignedRank(better, equal, worse, told, against)

    # Settings that vary

    @cached_property
    def varying(self) -> list[Setting]:
        """Numeric settings with at least 3 different values over the federations, and what follows from them."""
        tables = {name: _numbers(result.plan.experiment) for name, result in self.judged.items()}
        for name, result in self.judged.items():
            tables[name] |= self._sizes(result)
        keys = dict.fromkeys(key for table in tables.values() for key in table)
        found = [Setting(key, {name: table[key] for name, table in tables.items() if key in table}) for key in keys]
        return [s for s in found if len(set(s.values.values())) >= LEAST_VALUES]

    def _sizes(self, result: Comparison) -> dict[str, float]:
        """Return the number of parameters where models differ, and that of clients where the data names them."""
        models = {str(r.plan.experiment.get("model")) for r in self.judged.values()}
        run = next((runs[0] for runs in result.runs.values()), None)
        sizes: dict[str, float] = {}
        if run is not None and len(models) >= LEAST_VALUES and run.state:
            sizes["parameters of the model"] = float(sum(np.asarray(v).size for v in run.state.values()))
        if run is not None and "clients" not in _numbers(result.plan.experiment):
            sizes["clients"] = float(len(run.client_sizes))
        return sizes

    def trend(self, pair: SuitePair, setting: Setting) -> Trend | None:
        """Return the advantage of the row over a setting; None where fewer than 3 values have scores of both."""
        known = self._known(pair.row, pair.column)
        names = [name for name in setting.values if name in known]
        if len({setting.values[name] for name in names}) < LEAST_VALUES:
            return None
        return fit_trend(
            [known[name] for name in names], [setting.values[name] for name in names], rope=self.limit, level=LEVEL
        )

    # In words

    @property
    def about(self) -> str:
        """What the conclusion is about, in one or two sentences."""
        told = (
            f"The conclusion is about federations like these {len(self.judged)}, taken as a random sample of the federations "
            "that matter."
        )
        clauses = {result.plan.about.partition("; ")[2] for result in self.federations.values()}
        return f"{told} In each of them {clauses.pop()}" if len(clauses) == 1 else told

    @property
    def test(self) -> str:
        """The statistic, by name."""
        tests = {result.plan.test for result in self.federations.values()}
        each = f": {tests.pop()}" if len(tests) == 1 else ""
        ratio = ", of log ratios" if self.is_ratio else ""
        return f"hierarchical Bayesian model over {len(self.judged)} federations{ratio}{each}"

    @property
    def words(self) -> list[str]:
        """The verdict in sentences: the next federation, the average, where the answer changes, and what failed."""
        if len(self.labels) < 2:
            return ["There is nothing to compare: fewer than two algorithms have results.", *self._failures()]
        told = [*self._next_sentences(), *self._average_sentences(), *self._contradictions(), *self._flips()]
        told += filter(None, [self.undecidable])
        return [*told, *self._diverged(), *self._failures()]

    @property
    def _against_first(self) -> list[SuitePair]:
        """The algorithm with the best mean rank against every other one that competes."""
        first, *others = [label for label in self.ranked if not self.is_reference(label)] or self.ranked
        return [self.pair(first, other) for other in others or self.ranked[1:]]

    def _next_sentences(self) -> list[str]:
        pairs = self._against_first
        start = f"On the next federation like these {len(self.judged)}, "
        if len(pairs) <= MOST_SENTENCES:
            return [start + self.told(pair, pair.next) for pair in pairs]
        groups: dict[str, list[str]] = {}
        for pair in pairs:
            groups.setdefault(pair.next.verdict, []).append(pair.column)
        sure = f"with over {self.threshold:.0%} probability"
        texts = {
            "+": f"is better by more than {self.margin}, {sure}, than",
            "=": f"is practically equal (within {self.margin}) to",
            "-": f"is worse by more than {self.margin}, {sure}, than",
            "?": "is neither surely better nor worse than",
        }
        return [f"{start}{pairs[0].row} {texts[sign]} {_and(names)}." for sign, names in groups.items()]

    def told(self, pair: SuitePair, found: PairEstimate) -> str:
        """Return an estimate as the rest of a sentence that begins with where it holds."""
        if not found.is_known:
            why = pair.why_not.removeprefix("No pair is decided: ").rstrip(".")
            return f"nothing can be said about {pair.row} and {pair.column}: {why}."
        p = {"+": found.p_better, "=": found.p_equal, "-": found.p_worse}
        sign = max(p, key=lambda s: p[s])
        chance = _chance(p[sign])
        open_ = ": undecided" if found.verdict == "?" else ""
        if sign == "=":
            return f"{pair.row} and {pair.column} are within {self.margin} with probability {chance}{open_}."
        by = f" by more than {self.margin}" if self.rope else ""
        return f"{pair.row} is {WORDS[sign]} than {pair.column}{by} with probability {chance}{open_}."

    def _average_sentences(self) -> list[str]:
        told = []
        for pair in self._against_first[:MOST_SENTENCES]:
            if pair.average.is_known:
                low, high = (self.difference(end) for end in pair.average.interval)
                mean = self.difference(pair.average.mean)
                told.append(
                    f"On average over such federations {pair.row} minus {pair.column} is {mean} (90% between {low} "
                    f"and {high}): {WORDS[pair.average.verdict]}{self._counts(pair)}."
                )
        return told

    def _counts(self, pair: SuitePair) -> str:
        """Say on how many of the federations themselves each verdict holds."""
        signs = [estimate.shrunk.verdict for estimate in pair.by_federation]
        counted = [f"{WORDS[sign]} on {signs.count(sign)}" for sign in WORDS if sign in signs]
        return f"; on these {len(signs)} themselves: {_and(counted)}"

    def _contradictions(self) -> list[str]:
        told = []
        for pair in self.pairs:
            test = pair.signed_rank
            for name in test.contradicts:
                other: PairEstimate = getattr(pair, name)
                where = "for the next federation" if name == "next" else "on average"
                told.append(
                    f"The signed-rank test contradicts: by it {pair.row} is {WORDS[test.verdict]} against {pair.column}, by "
                    f"the hierarchical model {WORDS[other.verdict]} {where}. The answer depends on the model: treat it as "
                    "open."
                )
        return told

    def _flips(self) -> list[str]:
        """Say at which values of a setting the most probable answer changes, for pairs with the leader."""
        told = []
        for pair in self._against_first[:MOST_SENTENCES]:
            for setting in self.varying:
                found = self.trend(pair, setting)
                if found is not None and found.changes:
                    told.append(
                        f"Along {setting.key}, {pair.row} against {pair.column} is most probably {_segments(found)}; "
                        f"{self._decided(found)}."
                    )
        return told

    def _decided(self, found: Trend) -> str:
        """Say over which range of a setting an answer along the fitted line is decided."""
        sure = f"with over {self.threshold:.0%} probability"
        ranges = []
        for name, word in ANSWER_WORDS.items():
            at = [
                x for x, regions in zip(found.x, found.regions, strict=True) if _answer(regions, name) > self.threshold
            ]
            if at:
                ranges.append(f"{word} from {min(at):.3g} to {max(at):.3g}")
        return f"{sure}, {_and(ranges)}" if ranges else f"nowhere {sure}"

    def _diverged(self) -> list[str]:
        told = []
        for label in self.labels:
            where = [
                name for name, result in self.federations.items() if label in result.runs and result.diverged(label)
            ]
            if where:
                told.append(f"{label} diverged on {_and(where)}; no score was dropped.")
        return told

    def _failures(self) -> list[str]:
        return [
            f"{label} has no result on {name}: {why}"
            for name, result in self.federations.items()
            for label, why in result.failures.items()
        ]

    @property
    def notes(self) -> list[str]:
        """What should be known beside the verdict: once where all federations note it, else with the federation's name."""
        told = list(self.own_notes)
        told += [
            f"{name} is left out: {self.scoring.metric} is undefined on the labels of its splits"
            for name in self.dropped
        ]
        noted: dict[str, list[str]] = {}
        for name, result in self.federations.items():
            for note in filter(None, [*result.notes, result.majority_warning]):
                noted.setdefault(note, []).append(name)
        everywhere = len(self.federations)
        told += [note if len(who) == everywhere else f"{_and(who)}: {note}" for note, who in noted.items()]
        return told

    def as_dict(self) -> dict[str, Any]:
        """Return what `fedarena compare --json` prints for a suite."""
        plan = self._first.plan
        return {
            "algorithms": self.labels,
            "score": plan.score,
            "metric": plan.metric,
            "evaluate_on": plan.evaluate_on,
            "scale": "log ratio" if self.is_ratio else "difference",
            "rope": self.rope,
            "threshold": self.threshold,
            "federations": [{"name": name, **result.as_dict()} for name, result in self.federations.items()],
            "pairs": [asdict(pair) for pair in self.pairs],
            "mean_ranks": self.mean_ranks,
            "varying": [self._setting_dict(setting) for setting in self.varying],
            "about": self.about,
            "test": self.test,
            "verdict": self.words,
            "notes": self.notes,
            "dir": None if self.dir is None else str(self.dir),
        }

    def _setting_dict(self, setting: Setting) -> dict[str, Any]:
        fits = [(pair, found) for pair in self.pairs if (found := self.trend(pair, setting)) is not None]
        return {
            "key": setting.key,
            "values": setting.values,
            "trends": [self._trend_dict(pair, found) for pair, found in fits],
        }

    def _trend_dict(self, pair: SuitePair, found: Trend) -> dict[str, Any]:
        names = {"left": "-", "rope": "=", "right": "+"}
        chosen = np.unique(np.linspace(0, len(found.x) - 1, LINE_POINTS).round().astype(int))
        line = self.line(found)
        return {
            "row": pair.row,
            "column": pair.column,
            "axis": "log" if found.logarithmic else "linear",
            "line": [dict(zip(("at", "mean", "low", "high"), line[k], strict=True)) for k in chosen],
            "changes": [{"at": c.at, "below": names[c.before], "above": names[c.after]} for c in found.changes],
        }

    def line(self, found: Trend) -> list[LinePoint]:
        """Return a trend as points (setting, mean, low, high) of row minus column, in the units of all estimates."""
        sign = self.scoring.sign
        ends = (found.low, found.high) if sign > 0 else (-found.high, -found.low)
        points = zip(found.x, sign * found.mean, *ends, strict=True)
        return [(float(at), float(mean), float(low), float(high)) for at, mean, low, high in points]

    def __str__(self) -> str:
        return "\n".join([*self.words, self.about, f"{self.test[0].upper()}{self.test[1:]}."])

    def __repr__(self) -> str:
        return f"<SuiteComparison of {', '.join(self.labels)} on {len(self.federations)} federations>"

    def _repr_html_(self) -> str:
        """In a notebook: the verdict in words, and a row for every pair."""
        words = "".join(f"<p>{escape(line)}</p>" for line in self.words)
        head = "".join(f"<th>{name}</th>" for name in ("", "next federation", "average", "signed-rank"))

        def cell(found: PairEstimate | SignedRank) -> str:
            chances = " / ".join(_chance(p) for p in (found.p_better, found.p_equal, found.p_worse))
            return f"<td style='text-align:center'><b>{found.verdict}</b><br><small>{chances}</small></td>"

        rows = "".join(
            f"<tr><th>{escape(pair.row)} against {escape(pair.column)}</th>{cell(pair.next)}{cell(pair.average)}"
            f"{cell(pair.signed_rank)}</tr>"
            for pair in self.pairs
        )
        return f"<div>{words}<table><tr>{head}</tr>{rows}</table><small>{escape(self.about)}</small></div>"


def has_units(metric: str) -> bool:
    """Return whether a metric is compared by ratios: it is never negative and has no upper bound (rmse, mae, log_loss)."""
    return all_metrics()[metric].bounds == (0.0, math.inf)


def optimistic(result: SuiteComparison) -> str:
    """Return the label of scores that were chosen on test samples; empty for others."""
    return f" ({OPTIMISTIC})" if result.scoring.score == "best" else ""


def _segments(found: Trend) -> str:
    """Return the most probable answers along a setting: better below about 0.3, practically equal above."""
    parts = [f"{ANSWER_WORDS[found.changes[0].before]} below about {found.changes[0].at:.3g}"]
    for change, after in pairwise(found.changes):
        parts.append(f"{ANSWER_WORDS[change.after]} up to about {after.at:.3g}")
    return _and([*parts, f"{ANSWER_WORDS[found.changes[-1].after]} above"])


def _answer(regions: Regions, name: str) -> float:
    return float(getattr(regions, name))


def _mirrored(pair: SuitePair) -> SuitePair:
    """Return the same pair seen from the column."""
    flip = {"+": "-", "-": "+"}

    def turned(e: PairEstimate) -> PairEstimate:
        low, high = e.interval
        return PairEstimate(e.p_worse, e.p_equal, e.p_better, flip.get(e.verdict, e.verdict), -e.mean, (-high, -low))

    each = tuple(FederationEstimate(e.federation, turned(e.own), turned(e.shrunk)) for e in pair.by_federation)
    test = pair.signed_rank
    sign = flip.get(test.verdict, test.verdict)
    check = SignedRank(test.p_worse, test.p_equal, test.p_better, sign, test.contradicts)
    ends = turned(pair.next), turned(pair.average)
    return SuitePair(pair.column, pair.row, *ends, each, check, pair.tau, pair.why_not)


def _numbers(table: Mapping[str, Any], prefix: str = "") -> dict[str, float]:
    """Return the numeric settings of an experiment by dotted key, seeds aside."""
    found: dict[str, float] = {}
    for key, value in table.items():
        if isinstance(value, Mapping):
            found |= _numbers(value, f"{prefix}{key}.")
        elif key not in NOT_SETTINGS and _is_number(value):
            found[f"{prefix}{key}"] = float(value)
    return found


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _chance(p: float) -> str:
    """Return a probability as it is read in a sentence; 1.00 and 0.00 are for what is certain."""
    if math.isnan(p):
        return "-"
    return "over 0.99" if 0.995 < p < 1 else "below 0.01" if 0 < p < 0.005 else f"{p:.2f}"


def _and(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


__all__ = ["SuiteComparison", "SuitePair", "has_units", "holds_suite"]
