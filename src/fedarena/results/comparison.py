"""The result of a comparison: the scores of all algorithms on the same splits, and the posteriors of their differences."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedarena.common.optional_imports import import_optional
from fedarena.config.comparison_plan import LookRecord, Plan, Score, View
from fedarena.config.errors import BadValue, quoted
from fedarena.results import client_gains as gains_of_clients
from fedarena.results import comparison_json, comparison_rows, comparison_verdict
from fedarena.results import leave_one_out as left_out
from fedarena.results import unseen_scores as scores_of_unseen
from fedarena.results.client_gains import ClientGains
from fedarena.results.comparison_loading import finished_runs, with_python_parts
from fedarena.results.comparison_outputs import Over, presentation
from fedarena.results.leave_one_out import LeaveOneOut
from fedarena.results.notebook import comparison_html
from fedarena.results.plan_file import read_plan
from fedarena.results.run import Run
from fedarena.results.scoring import Scoring
from fedarena.results.unseen_scores import UnseenScores
from fedarena.statistics.bayes import Posterior, verdict
from fedarena.statistics.joint import Ranking, rank
from fedarena.statistics.repeats import paired_posterior
from fedarena.statistics.sequential import look

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes


@dataclass(frozen=True)
class PairwiseVerdict:
    """Row against column: the probabilities that the row is practically better, equal and worse."""

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
    """The result of comparing. `runs` has one run per split for every label, in the order of `plan.splits`.

    >>> import fedarena as fa
    >>> duel = fa.compare("digits", ["fedavg", "scaffold"], seeds=3, rounds=2, model="logreg", out=False)
    >>> duel.labels, len(duel.scores()["fedavg"])
    (['fedavg', 'scaffold'], 3)
    >>> verdict = duel.duel("scaffold", "fedavg")
    >>> abs(verdict.p_better + verdict.p_equal + verdict.p_worse - 1) < 1e-9
    True
    """

    plan: Plan
    runs: dict[str, list[Run]]
    failures: dict[str, str] = field(default_factory=dict)  # label -> why one of its cells has no result
    dir: Path | None = None
    without: dict[str, dict[str, list[Run]]] = field(
        default_factory=dict
    )  # client left out -> label -> a run per split
    without_failures: dict[str, str] = field(default_factory=dict)  # "fedavg without Cleveland" -> why

    @classmethod
    def load(cls, root: str | Path, *, algorithms: Mapping[str, Any] | None = None, **own: Any) -> Comparison:
        """Return the comparison of a folder in which all runs have finished.

        Parts that came from Python can be given again: `model`, `data`, `partition`, and `algorithms` by label.
        """
        named = {f"algorithm {label}": made for label, made in (algorithms or {}).items()}
        plan = replace(read_plan(Path(root)), own=named | own)
        if plan.at_most is not None and plan.stopped is None:
            raise BadValue(
                f"the comparison is not decided after {len(plan.splits)} splits, and its limit is {plan.at_most}",
                remedy=f"resume it: fedarena compare --resume {root}",
                where=str(root),
            )
        return cls.of(plan, Path(root))

    @classmethod
    def of(cls, plan: Plan, root: Path) -> Comparison:
        """Return the comparison of a plan, from a folder in which all its runs have finished."""
        runs: dict[str, list[Run]] = {}
        failures: dict[str, str] = {}
        for label in plan.contestants:
            found = finished_runs(plan, root, label)
            if isinstance(found, str):
                failures[label] = found
            else:
                runs[label] = found
        plan = with_python_parts(plan, runs)
        without: dict[str, dict[str, list[Run]]] = {client: {} for client in plan.leave_one_out}
        without_failures: dict[str, str] = {}
        for client in plan.leave_one_out:
            for label in plan.federated:
                found = finished_runs(plan, root, label, client)
                if isinstance(found, str):
                    without_failures[f"{label} without {client}"] = found
                else:
                    without[client][label] = [replace(run, state={}) for run in found]  # their models are never used
        return cls(plan, runs, failures, root, without, without_failures)

    def without_folders(self) -> Comparison:
        """Return the same comparison without the paths of its folders, which are about to be removed."""

        def detached(runs: dict[str, list[Run]]) -> dict[str, list[Run]]:
            return {label: [replace(run, dir=None) for run in each] for label, each in runs.items()}

        without = {client: detached(runs) for client, runs in self.without.items()}
        return replace(self, runs=detached(self.runs), without=without, dir=None)

    @property
    def labels(self) -> list[str]:
        """The contestants that have results, in the order they were named."""
        return [label for label in self.runs if label != self.plan.reference]

    # Scores

    def scoring(self, which: Score | None = None) -> Scoring:
        """Return how runs become scores, by the plan or by another round."""
        view: View = "common" if which == "best" else self.plan.evaluate_on
        return Scoring(which or self.plan.score, self.plan.metric, view)

    def scores(self, which: Score | None = None) -> dict[str, list[float]]:
        """Return the score of every algorithm on every split, by the plan or by another round.

        A split on which the metric is undefined, because of its labels, is left out for all.
        """
        found = self.all_scores(which or self.plan.score)
        return {label: list(found[label]) for label in self.labels}

    @cached_property
    def _scores(self) -> dict[Score, dict[str, list[float]]]:
        return {}  # filled by `all_scores`

    def all_scores(self, which: Score) -> dict[str, list[float]]:
        """Return the scores of all algorithms by a round, those of the reference included."""
        if which not in self._scores:
            value, undefined = self.scoring(which).value, self._undefined(which)
            self._scores[which] = {
                label: [value(run) for i, run in enumerate(runs) if i not in undefined]
                for label, runs in self.runs.items()
            }
        return self._scores[which]

    def _undefined(self, which: Score | None = None) -> set[int]:
        """Return the splits whose labels leave the metric undefined; models that diverged do not count here."""
        scoring = self.scoring(which)
        return {
            i
            for runs in self.runs.values()
            for i, run in enumerate(runs)
            if math.isnan(scoring.value(run)) and not scoring.is_diverged(run)
        }

    @property
    def is_validated(self) -> bool:
        """Whether every run chose a round on held-out training samples."""
        return bool(self.runs) and all(run.chosen is not None for runs in self.runs.values() for run in runs)

    @property
    def validation_share(self) -> float:
        """The share of every client's training samples that is held out to choose a round."""
        return float(self.plan.experiment.get("evaluate", {}).get("validation") or 0.0)

    @cached_property
    def dropped_splits(self) -> int:
        """The number of splits left out because the metric is undefined on their labels."""
        return len(self._undefined())

    def diverged(self, label: str) -> int:
        """Return the number of diverged runs of an algorithm; they keep their last accuracy, so no pair is dropped."""
        return sum(run.diverged for run in self.runs[label])

    # The statistics

    @property
    def has_repeat_effect(self) -> bool:
        """Whether the folds of a repeat share something random, so that repeats are compared instead of splits."""
        return self.plan.protocol != "shared" and bool(self.plan.per_repeat) and self.plan.repeats >= 2

    @property
    def repeats_of_splits(self) -> list[int] | None:
        """The repeat of every scored split where the folds of a repeat share something random; else None."""
        if not self.has_repeat_effect:
            return None
        undefined = self._undefined()
        return [split.repeat for i, split in enumerate(self.plan.splits) if i not in undefined]

    def is_baseline(self, label: str) -> bool:
        """Return whether an algorithm does not communicate: it is a level to compare with, not a federated choice."""
        return not self.runs[label][0].experiment.algorithm.made.communicates

    def is_reference(self, label: str) -> bool:
        """Return whether an algorithm never competes: training on pooled samples, and local training on common samples."""
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
        seen = look(scores, plan.rho, rope=plan.rope, threshold=plan.threshold, repeats=self.repeats_of_splits)
        found = (seen.level, seen.best_set, seen.p_equal, seen.decided, seen.reason)
        return LookRecord(len(plan.splits), n, len(scores), *found)

    @cached_property
    def ranking(self) -> Ranking | None:
        """The joint posterior of all candidates: P(best), expected loss, the 95 % set; None with fewer than two."""
        scores, plan = self.candidate_scores(), self.plan
        lengths = {len(values) for values in scores.values()}
        if len(scores) < 2 or len(lengths) > 1 or min(lengths) < 2:
            return None
        return rank(scores, plan.rho, rope=plan.rope, level=plan.threshold, repeats=self.repeats_of_splits)

    @property
    def ranked(self) -> list[str]:
        """All algorithms from the smallest expected loss to the largest, references last."""
        standings = self.ranking.standings if self.ranking else {}
        sign = self.scoring().sign
        means = {label: sign * float(np.mean(s)) for label, s in self.scores().items()}
        order = {label: i for i, label in enumerate(standings)}
        return sorted(means, key=lambda label: (self.is_reference(label), order.get(label, len(order)), -means[label]))

    def posterior(self, row: str, column: str, which: Score | None = None) -> Posterior:
        """Return the posterior of the mean difference, row minus column, in units of the metric."""
        scores = self.scores(which)
        for label in (row, column):
            if label not in scores:
                known = ", ".join(scores)
                raise BadValue(f"'{quoted(label)}' was not compared", remedy=f"there are: {known}")
        return paired_posterior(scores[column], scores[row], self.plan.rho, self.repeats_of_splits, self._test_samples)

    @cached_property
    def _test_samples(self) -> float:
        """The test samples of the smallest split where the score is a share of them; infinite for other metrics."""
        if self.plan.metric != "accuracy":
            return math.inf
        counts = (run.measured.confusion for runs in self.runs.values() for run in runs)
        return min((int(count.sum()) for count in counts if count is not None), default=math.inf)

    def duel(self, row: str, column: str, which: Score | None = None, rope: float | None = None) -> PairwiseVerdict:
        """Return the verdict on one ordered pair of algorithms."""
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
        """Return the verdicts on all ordered pairs."""
        return [self.duel(a, b, which) for a in self.labels for b in self.labels if a != b]

    def versus(self, label: str, rope: float | None = None) -> list[PairwiseVerdict]:
        """Return the verdicts on all other algorithms against this one."""
        return [self.duel(other, label, rope=rope) for other in self.labels if other != label]

    # Tables and sentences

    @property
    def given_target(self) -> float | None:
        """The target of the experiment; the default of a data set is an accuracy, and applies to no other metric."""
        experiment = self.runs[self.labels[0]][0].experiment
        wanted, usual = experiment.evaluate.target, getattr(experiment.data.made, "defaults", {}).get("evaluate", {})
        return None if self.plan.metric != "accuracy" and wanted == usual.get("target") else wanted

    @cached_property
    def target(self) -> float:
        """The target of the experiment, or the best whole percent that all algorithms reach on average."""
        if not self.labels:
            return math.nan
        if self.given_target is not None:
            return self.given_target
        means = [float(np.mean(s)) for s in self.scores("best").values() if len(s)]
        means = [mean for mean in means if math.isfinite(mean)]  # an algorithm that diverged reaches no target
        if not means:
            return math.nan
        if self.scoring().sign > 0:
            return math.floor(100 * min(means) + 1e-9) / 100
        return math.ceil(100 * max(means) - 1e-9) / 100

    def rows(self) -> list[dict[str, Any]]:
        """Return one row per algorithm with its scores and costs over all splits (means, and medians to the target)."""
        return comparison_rows.rows(self)

    def to_pandas(self, *, summary: bool = False) -> pd.DataFrame:
        """Return a table with one row per algorithm and split: its score, all metrics of the final model, and its costs.

        With `summary`, one row per algorithm: means and standard deviations over splits, P(best) and costs to the target.
        """
        pandas = import_optional("pandas", needed_by="comparison.to_pandas()", install="'fedarena[notebook]'")
        frame: pd.DataFrame = pandas.DataFrame(self.rows() if summary else comparison_rows.split_rows(self))
        return frame

    def to_latex(self) -> str:
        """Return the tables of scores, costs and pairs in LaTeX, as `fedarena report --table latex` prints them."""
        return presentation().write_latex(self)

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw the posterior of the best algorithm's difference to each other one, and return the axes."""
        return presentation().draw_posteriors(self, ax)

    def curves(self, ax: Axes | None = None, *, over: Over = "rounds") -> Axes:
        """Draw the metric over rounds, or over a cost: the mean over splits, and their range as a band."""
        return presentation().draw_curves(self, ax, over)

    def report(self, path: str | Path | None = None) -> Path:
        """Write the report as one HTML file: to `path`, or as report.html into the folder of the comparison."""
        return presentation().write_report(self, path)

    @cached_property
    def centralized(self) -> float | None:
        """Mean final accuracy of training on all samples in one place; None where that was not run."""
        for runs in self.runs.values():
            if runs[0].experiment.algorithm.name == "centralized":
                return float(np.mean([run.final.accuracy or 0.0 for run in runs]))
        return None

    def client_gains(self) -> ClientGains | None:
        """Return what every client gains over training alone on its own test samples; None without `local`."""
        return self._client_gains

    @cached_property
    def _client_gains(self) -> ClientGains | None:
        return gains_of_clients.client_gains(self)

    def leave_one_out(self) -> LeaveOneOut | None:
        """Return what the other clients lose without each client that was left out; None where none was."""
        return self._leave_one_out

    @cached_property
    def _leave_one_out(self) -> LeaveOneOut | None:
        return left_out.leave_one_out(self)

    def unseen_scores(self) -> UnseenScores | None:
        """Return what each algorithm gives to clients that never trained; None where all clients train."""
        return self._unseen_scores

    @cached_property
    def _unseen_scores(self) -> UnseenScores | None:
        return scores_of_unseen.unseen_scores(self)

    @property
    def words(self) -> list[str]:
        """The verdict in sentences: the best algorithm, its probability, the pairs, and what is undecided."""
        return comparison_verdict.sentences(self)

    @cached_property
    def majority_warning(self) -> str:
        """A warning where always predicting the most frequent class comes within one rope of the best algorithm."""
        return comparison_verdict.majority_warning(self)

    @property
    def notes(self) -> list[str]:
        """Notes of the plan and of the runs, each once, with the algorithm it concerns where it does not concern all."""
        return comparison_verdict.notes(self)

    def as_dict(self) -> dict[str, Any]:
        """Return what `fedarena compare --json` prints."""
        return comparison_json.as_dict(self)

    def __str__(self) -> str:
        return "\n".join([*self.words, self.plan.about, self.plan.test])

    def _repr_html_(self) -> str:
        return comparison_html(self)

    def __repr__(self) -> str:
        return f"<Comparison of {', '.join(self.labels)}: {self.plan.test}>"
