"""The kinds of checks that a recipe may contain, each as a function from a score sheet to its findings.

A check names a measure, the cells it is about, and a condition on them:

within      the published value, give or take `tolerance`        factor   the published value, times or by `factor`
range       at least `low`, at most `high`                       spread   largest less smallest at most `most`
ordering    rising in the order of `choices`                     ratio    of one choice `to` another, within `between`
difference  of one choice `minus` another, within `between`      top      the best choice of an axis is one of `among`
trend       rising (`sign` 1) or falling (-1) along an axis      effects  axes that matter more than another
signs       the published table of + = -, by the Bayesian test

An ordering, a top, a trend and effects must hold on every split; numbers are means. An unknown number (a run that diverged)
satisfies no condition. A target that was not reached took more rounds than were run, and nothing else is known about it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np

from fedarena.reproduction.measures import is_cost
from fedarena.reproduction.score_sheet import (
    Cell,
    Scores,
    ScoreSheet,
    along,
    format_number,
    label,
    means_of,
    selected_scores,
    split_by_split,
    together,
)
from fedarena.statistics.bayes import Posterior, posterior, verdict

THRESHOLD = 0.95  # probability above which a sign is given
ROPE = 0.01
DIVERGED = "diverged"  # in place of a sign


@dataclass(frozen=True)
class Finding:
    """The result of a check in one case."""

    what: str
    value: str
    held: bool


def _published(
    sheet: ScoreSheet, how: Mapping[str, Any], fits: Callable[[Mapping[str, Any], float, float], bool]
) -> Iterator[Finding]:
    """Yield one finding per published number, which the measured mean must fit."""
    printed = sheet.published.get(how["measure"], {})
    for cell, values in selected_scores(sheet, how).items():
        if isinstance(theirs := printed.get(cell), int | float):
            ours = float(np.mean(values))
            held = ours == theirs if math.inf in (ours, theirs) else fits(how, ours, theirs)
            yield Finding(label(cell), f"{format_number(ours)}, published {format_number(theirs)}", held)


def _is_within(how: Mapping[str, Any], ours: float, printed: float) -> bool:
    return bool(abs(ours - printed) <= how["tolerance"] + 1e-12)


def _is_within_factor(how: Mapping[str, Any], ours: float, printed: float) -> bool:
    return bool(max(ours, printed) <= how["factor"] * min(ours, printed) + 1e-12)


def _range(sheet: ScoreSheet, how: Mapping[str, Any]) -> Iterator[Finding]:
    low, high = how.get("low", -math.inf), how.get("high", math.inf)
    for cell, values in selected_scores(sheet, how).items():
        ours = float(np.mean(values))
        yield Finding(label(cell), format_number(ours), low <= ours <= high)


def _spread(sheet: ScoreSheet, how: Mapping[str, Any]) -> Iterator[Finding]:
    for common, each in together(sheet, how):
        means = [*means_of(each).values()]
        if all(mean == math.inf for mean in means):
            continue  # their spread is unknown
        whole = float(np.mean(means)) if how.get("relative") else 1.0
        known = all(map(math.isfinite, means)) and whole != 0
        wide = (max(means) - min(means)) / whole if known else math.nan
        yield Finding(label(common), format_number(wide), known and wide <= how["most"])


def _ordering(sheet: ScoreSheet, how: Mapping[str, Any]) -> Iterator[Finding]:
    margin = how.get("margin", 0.0)
    limits = dict(along(selected_scores(sheet, how, sheet.limits), how["choices"]))
    found = []

    def rises(split: Mapping[str, float], limit: Mapping[str, float]) -> bool:
        """Return whether the values rise; a target that was not reached comes last if it had enough rounds."""
        return all(
            b - a > margin and (b < math.inf or a <= limit.get(name, math.inf))
            for (_, a), (name, b) in pairwise(split.items())
        )

    for common, each in along(selected_scores(sheet, how), how["choices"]):
        splits = split_by_split(each)
        waited = split_by_split(limits[common]) if common in limits else [{} for _ in splits]
        found.append(Finding(label(common), _chain(means_of(each)), all(map(rises, splits, waited))))
    yield from _or_share(found, how)


def _chain(means: Mapping[str, float]) -> str:
    """Return the means with the signs that hold between them: fedavg 13 > coop 11."""
    text, last = "", math.nan
    for choice, mean in means.items():
        text += (" < " if last < mean else " > " if last > mean else " = " if last == mean else ", ") if text else ""
        text, last = text + f"{choice} {format_number(mean)}", mean
    return text


def _or_share(found: list[Finding], how: Mapping[str, Any]) -> Iterator[Finding]:
    """Yield all findings, or one finding on the share of them that must hold (`share`)."""
    share = how.get("share")
    if share is None or not found:
        yield from found
        return
    held = [finding for finding in found if finding.held]
    cases = ", ".join(finding.what or finding.value for finding in held)
    yield Finding(f"{len(held)} of {len(found)} cases", cases or "none", len(held) >= share * len(found) - 1e-9)


def _pairs(
    sheet: ScoreSheet, how: Mapping[str, Any], second: str, between: Callable[[float, float], float]
) -> Iterator[Finding]:
    """Yield one finding per pair; of a target that was not reached only a lower bound is known."""
    (low, high), other = how["between"], how[second]
    limits = dict(along(selected_scores(sheet, how, sheet.limits), [how["of"], other]))
    found = []
    for common, each in along(selected_scores(sheet, how), [how["of"], other]):
        (ours, theirs), limit = means_of(each).values(), means_of(limits.get(common, {}))
        if ours == theirs == math.inf:
            continue  # neither of them reached the target
        least = between(min(ours, limit.get(how["of"], math.inf)), theirs)
        most = between(ours, min(theirs, limit.get(other, math.inf)))
        bound = "" if least == most else "at least " if most == math.inf else "at most "
        value = bound + format_number(most if bound == "at most " else least)
        found.append(Finding(label(common), value, low - 1e-12 <= least and most <= high + 1e-12))
    yield from _or_share(found, how)


def _top(sheet: ScoreSheet, how: Mapping[str, Any]) -> Iterator[Finding]:
    worst, better = (math.inf, min) if is_cost(how["measure"]) else (-math.inf, max)

    def first(scores: Mapping[str, float]) -> str:
        known = {name: worst if math.isnan(score) else score for name, score in scores.items()}
        return better(known, key=known.__getitem__)

    for common, each in together(sheet, how):
        means = means_of(each)
        best = f"{first(means)} ({format_number(means[first(means)])})"
        yield Finding(label(common), best, all(first(split) in how["among"] for split in split_by_split(each)))


def _trend(sheet: ScoreSheet, how: Mapping[str, Any]) -> Iterator[Finding]:
    from scipy.stats import spearmanr

    def rank(scores: Mapping[str, float]) -> float:
        values = [*scores.values()]
        return float(spearmanr(range(len(values)), values).statistic) if len({*values}) > 1 else 0.0

    for common, each in along(_gains(sheet, how), sheet.axes[how["axis"]], least=3):
        rises = all(rank(split) * how["sign"] > 0 for split in split_by_split(each))
        yield Finding(label(common), f"rank correlation {rank(means_of(each)):.2f}", rises)


def _gains(sheet: ScoreSheet, how: Mapping[str, Any]) -> Scores:
    """Return the scores or, with `of` and `minus`, the differences of two choices."""
    scores = selected_scores(sheet, how)
    if "of" not in how:
        return scores
    rows = along(scores, [how["of"], how["minus"]])
    return {common: [a - b for a, b in zip(*each.values(), strict=True)] for common, each in rows}


def _effects(sheet: ScoreSheet, how: Mapping[str, Any]) -> Iterator[Finding]:
    """Compare the ranges of the means along axes, averaged over all others."""

    def ranges(axis: str) -> list[float]:
        """Return the range along an axis in each split."""
        others = [name for name in sheet.axes if name != axis]
        each = {label(cell): v for cell, v in selected_scores(sheet, {**how, "mean_over": others}).items()}
        return [float(np.ptp([*split.values()])) for split in split_by_split(each)] if len(each) > 1 else []

    small = ranges(how["than"])
    for axis in how["larger"]:
        if small and (large := ranges(axis)):
            value = f"{format_number(np.mean(large))} against {format_number(np.mean(small))} by {how['than']}"
            yield Finding(axis, value, all(a > b for a, b in zip(large, small, strict=True)))


def _signs(sheet: ScoreSheet, how: Mapping[str, Any]) -> Iterator[Finding]:
    undecided = [set(pair) for pair in how.get("undecided", ())]
    for where, printed in sheet.published.get("sign", {}).items():
        *_, row, column = where
        about = {row, column} & {*how["about"]} if "about" in how else fnmatchcase(row, how.get("rows", "*"))
        ours = sign(sheet, how["measure"], where)
        if ours is not None and about:
            held = ours in printed or (ours == "?" and {row, column} in undecided)
            yield Finding(f"{label(where[:-1])} against {column}", f"{ours}, published {printed}", held)


def compared(sheet: ScoreSheet, measure: str, where: Cell) -> Posterior | None:
    """Return the posterior of row minus column, the last two names of `where`; None where one of them diverged."""
    pair = _on_the_same_splits(sheet, measure, where)
    return posterior(*pair, sheet.rho) if pair is not None and np.isfinite(pair).all() else None


def _on_the_same_splits(sheet: ScoreSheet, measure: str, where: Cell) -> tuple[Sequence[float], Sequence[float]] | None:
    """Return the scores of column and row if both were run."""
    *common, row, column = where
    scores = sheet.scores.get(measure, {})
    ours, theirs = scores.get((*common, row), ()), scores.get((*common, column), ())
    return (theirs, ours) if len(ours) == len(theirs) > 1 else None


def sign(sheet: ScoreSheet, measure: str, where: Cell) -> str | None:
    """Return the sign of row against column by the Bayesian test; None where they were not run.

    Where two signs are published ("=+": equal or better), the answer is both if only together they reach the threshold.
    """
    known = compared(sheet, measure, where)
    if known is None:
        return None if _on_the_same_splits(sheet, measure, where) is None else DIVERGED
    worse, equal, better = known.regions(ROPE)
    alone, either = verdict(better, equal, worse, THRESHOLD), sheet.published.get("sign", {}).get(where, "")
    together = sum({"-": worse, "=": equal, "+": better}[one] for one in either)
    return either if alone == "?" and together > THRESHOLD else alone


KINDS: dict[str, Callable[[ScoreSheet, Mapping[str, Any]], Iterator[Finding]]] = {
    "within": partial(_published, fits=_is_within),
    "factor": partial(_published, fits=_is_within_factor),
    "range": _range,
    "spread": _spread,
    "ordering": _ordering,
    "ratio": partial(_pairs, second="to", between=lambda a, b: a / b if b else math.nan),
    "difference": partial(_pairs, second="minus", between=lambda a, b: a - b),
    "top": _top,
    "trend": _trend,
    "effects": _effects,
    "signs": _signs,
}
ORDERINGS = ("ordering", "top", "trend", "effects")
