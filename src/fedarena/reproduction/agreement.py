"""Does what was measured agree with what was published? The words in which a recipe can ask, and the verdict.

A check names a measure, the cells it is about, and what must hold of them:

within      the published value, give or take `tolerance`        factor   the published value, times or by `factor`
range       at least `low`, at most `high`                       spread   largest less smallest at most `most`
ordering    rising in the order of `choices`                     ratio    of one choice `to` another, within `between`
difference  of one choice `minus` another, within `between`      top      the best choice of an axis is one of `among`
trend       rising (`sign` 1) or falling (-1) along an axis      effects  axes that matter more than another
signs       the published table of + = -, by the Bayesian test

An ordering, a top, a trend and effects must hold on every split (docs/reference/metrics.md#agreement-with-published-numbers);
numbers are means.
A number that is not known (a run that diverged) holds nothing. A target that was not reached within the rounds that
were run took more than these, and no more is known. Where a paper can be read in several ways, a check that has words
of them in braces is asked once for each; those of one way must hold.

A smaller run than the published one is asked only what holds at any size: orderings, and what the recipe
marks as such. It never "agrees", its "ordering agrees".
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from itertools import pairwise
from typing import Any, Literal

import numpy as np

from fedarena.config.errors import BadValue, UnknownName, suggest
from fedarena.reproduction.check_keys import need_keys
from fedarena.reproduction.measures import is_cost
from fedarena.statistics.bayes import Posterior, posterior, verdict

Cell = tuple[str, ...]  # the choices that make it, one of each axis
Scores = Mapping[Cell, Sequence[float]]  # one number a split
Verdict = Literal["agrees", "ordering agrees", "differs", "not comparable"]
SURE = 0.95
ROPE = 0.01
DIVERGED = "diverged"  # in place of a sign
NAMED = 3  # broken checks that a reason names; the table below it has all


def label(cell: Cell) -> str:
    """A cell, as recipes name it."""
    return " ".join(cell)


@dataclass(frozen=True)
class ScoreSheet:
    """Published and measured numbers, by measure and cell."""

    scores: Mapping[str, Scores]
    published: Mapping[str, Mapping[Cell, Any]] = field(default_factory=dict)
    axes: Mapping[str, Sequence[str]] = field(default_factory=dict)
    rho: float = 0.0  # correlation of the splits: the share of a test fold
    limits: Mapping[str, Scores] = field(default_factory=dict)  # how long each split waited for a target

    def mean(self, measure: str, cell: Cell) -> float:
        """Over splits; a target that one of them never reached was never reached."""
        return float(np.mean(self.scores[measure][cell]))

    def axis_of(self, choice: str) -> str | None:
        """The axis that has this choice."""
        return next((axis for axis, choices in self.axes.items() if choice in choices), None)


@dataclass(frozen=True)
class RecipeCheck:
    """One thing that must hold. `any_size`: a smaller run can be asked too; `told`: it decides nothing.

    `readings`: it belongs to one way to read an ambiguous paper, or to several, and decides only together with the
    others of that way.
    """

    kind: str
    says: str
    how: dict[str, Any]
    any_size: bool
    told: bool = False
    readings: tuple[str, ...] = ()

    @classmethod
    def make(cls, table: Mapping[str, Any]) -> RecipeCheck:
        """As a recipe writes it."""
        how = dict(table)
        kind, says = how.pop("kind", ""), how.pop("says", "")
        if not isinstance(says, str) or not says:
            raise BadValue(
                f"a check of kind {kind} says {says!r}", remedy="write in words what must hold", where="says"
            )
        if kind not in KINDS:
            raise UnknownName(
                f"no check is called '{kind}'",
                remedy=suggest(str(kind), KINDS, f"there are: {', '.join(KINDS)}"),
                where=says,
            )
        any_size, told = how.pop("any_size", kind in ORDERINGS), how.pop("told", False)
        need_keys(kind, says, {**how, "any_size": any_size, "told": told})
        return cls(kind, says, how, any_size, told)

    def findings(self, sheet: ScoreSheet) -> list[Finding]:
        """Case by case; none where the cells it is about were not run."""
        return list(KINDS[self.kind](sheet, self.how))


def checks_of(tables: Sequence[Mapping[str, Any]], readings: Mapping[str, Mapping[str, str]]) -> list[RecipeCheck]:
    """The checks of a recipe; one with words in braces is asked for each reading that has other words in their place.

    >>> table = {"kind": "range", "says": "rate {rate} learns", "measure": "best", "cells": "lr={rate} *"}
    >>> [check.says for check in checks_of([table], {"as printed": {"rate": "0.1"}, "the code": {"rate": "0.01"}})]
    ['rate 0.1 learns', 'rate 0.01 learns']
    """
    checks: list[RecipeCheck] = []
    for table in tables:
        ways = {name: RecipeCheck.make(_filled(table, words)) for name, words in (readings or {"": {}}).items()}
        different = [check for i, check in enumerate(ways.values()) if check not in [*ways.values()][:i]]
        if len(different) > 1:
            different = [replace(c, readings=tuple(name for name in ways if ways[name] == c)) for c in different]
        checks += different
    return checks


def _filled(value: Any, words: Mapping[str, str]) -> Any:
    """Words in braces, wherever they stand, by what a reading says."""
    if isinstance(value, str):
        for word in re.findall(r"\{(\w+)\}", value):
            if word not in words:
                raise BadValue(f"no reading has a word for {{{word}}}", remedy="give all of them one", where="readings")
        return re.sub(r"\{(\w+)\}", lambda word: words[word[1]], value)
    if isinstance(value, Mapping):
        return {key: _filled(inner, words) for key, inner in value.items()}
    return [_filled(inner, words) for inner in value] if isinstance(value, list) else value


@dataclass(frozen=True)
class Finding:
    """One case of a check."""

    what: str
    value: str
    held: bool


# Which numbers a check is about


def selected_scores(
    sheet: ScoreSheet, how: Mapping[str, Any], tables: Mapping[str, Scores] | None = None
) -> dict[Cell, list[float]]:
    """The scores (or another table's) of the cells that the patterns fit, averaged over the axes of `mean_over`."""
    patterns = how.get("cells", "*")
    patterns = [patterns] if isinstance(patterns, str) else patterns
    scores = (sheet.scores if tables is None else tables).get(how["measure"], {})
    fitting = {c: list(s) for c, s in scores.items() if any(fnmatchcase(label(c), p) for p in patterns)}
    gone = {choice for axis in how.get("mean_over", ()) for choice in sheet.axes[axis]}
    groups: dict[Cell, list[list[float]]] = {}
    for cell, values in fitting.items():
        groups.setdefault(tuple(c for c in cell if c not in gone), []).append(values)
    return {cell: np.mean(each, axis=0).tolist() for cell, each in groups.items() if len({*map(len, each)}) == 1}


def along(scores: Scores, choices: Sequence[str], least: int = 2) -> Iterator[tuple[Cell, dict[str, Sequence[float]]]]:
    """Cells that differ only in these choices: what is common to them, and their scores by choice, in that order."""
    groups: dict[Cell, dict[str, Sequence[float]]] = {}
    for choice in choices:
        for cell, values in scores.items():
            if choice in cell:
                place = cell.index(choice)
                groups.setdefault((*cell[:place], "", *cell[place + 1 :]), {})[choice] = values
    for common, each in groups.items():
        if len(each) >= least:
            yield tuple(filter(None, common)), each


def together(
    sheet: ScoreSheet, how: Mapping[str, Any], least: int
) -> Iterator[tuple[Cell, dict[str, Sequence[float]]]]:
    """Scores along the axis of a check or, where it names none, of all its cells."""
    scores = selected_scores(sheet, how)
    if "axis" in how:
        yield from along(scores, sheet.axes[how["axis"]], least)
    elif len(scores) >= least:
        yield (), {label(cell): values for cell, values in scores.items()}


def split_by_split(each: Mapping[str, Sequence[float]]) -> list[dict[str, float]]:
    """The same split of all of them at a time; their means, where they were repeated unlike often."""
    if len({*map(len, each.values())}) > 1:
        return [means_of(each)]
    return [dict(zip(each, values, strict=True)) for values in zip(*each.values(), strict=True)]


def means_of(each: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """Over splits."""
    return {name: float(np.mean(values)) for name, values in each.items()}


# The checks


def _within(sheet: ScoreSheet, how: Mapping[str, Any]) -> Iterator[Finding]:
    yield from _published(sheet, how, lambda ours, printed: abs(ours - printed) <= how["tolerance"] + 1e-12)


def _factor(sheet: ScoreSheet, how: Mapping[str, Any]) -> Iterator[Finding]:
    yield from _published(
        sheet, how, lambda ours, printed: max(ours, printed) <= how["factor"] * min(ours, printed) + 1e-12
    )


def _published(sheet: ScoreSheet, how: Mapping[str, Any], fits: Callable[[float, float], bool]) -> Iterator[Finding]:
    printed = sheet.published.get(how["measure"], {})
    for cell, values in selected_scores(sheet, how).items():
        if isinstance(theirs := printed.get(cell), int | float):
            ours = float(np.mean(values))
            held = ours == theirs if math.inf in (ours, theirs) else fits(ours, theirs)
            yield Finding(label(cell), f"{format_number(ours)}, published {format_number(theirs)}", held)


def _range(sheet: ScoreSheet, how: Mapping[str, Any]) -> Iterator[Finding]:
    low, high = how.get("low", -math.inf), how.get("high", math.inf)
    for cell, values in selected_scores(sheet, how).items():
        ours = float(np.mean(values))
        yield Finding(label(cell), format_number(ours), low <= ours <= high)


def _spread(sheet: ScoreSheet, how: Mapping[str, Any]) -> Iterator[Finding]:
    for common, each in together(sheet, how, least=2):
        means = [*means_of(each).values()]
        if all(mean == math.inf for mean in means):
            continue  # nothing is known of how unlike they are
        whole = float(np.mean(means)) if how.get("relative") else 1.0
        known = all(map(math.isfinite, means)) and whole != 0
        wide = (max(means) - min(means)) / whole if known else math.nan
        yield Finding(label(common), format_number(wide), known and wide <= how["most"])


def _ordering(sheet: ScoreSheet, how: Mapping[str, Any]) -> Iterator[Finding]:
    margin = how.get("margin", 0.0)
    limits = dict(along(selected_scores(sheet, how, sheet.limits), how["choices"]))
    found = []

    def rises(split: Mapping[str, float], limit: Mapping[str, float]) -> bool:
        """What was not reached comes later, if it was waited for long enough."""
        return all(
            b - a > margin and (b < math.inf or a <= limit.get(name, math.inf))
            for (_, a), (name, b) in pairwise(split.items())
        )

    for common, each in along(selected_scores(sheet, how), how["choices"]):
        splits = split_by_split(each)
        waited = split_by_split(limits[common]) if common in limits else [{} for _ in splits]
        found.append(Finding(label(common), _in_a_row(means_of(each)), all(map(rises, splits, waited))))
    yield from _most(found, how)


def _in_a_row(means: Mapping[str, float]) -> str:
    """As they are, not as they should be: fedavg 13 > coop 11."""
    told, last = "", math.nan
    for choice, mean in means.items():
        told += (" < " if last < mean else " > " if last > mean else " = " if last == mean else ", ") if told else ""
        told, last = told + f"{choice} {format_number(mean)}", mean
    return told


def _most(found: list[Finding], how: Mapping[str, Any]) -> Iterator[Finding]:
    """All must hold, or a share of them (`share`)."""
    share = how.get("share")
    if share is None or not found:
        yield from found
        return
    held = [finding for finding in found if finding.held]
    told = ", ".join(finding.what or finding.value for finding in held)
    yield Finding(f"{len(held)} of {len(found)} cases", told or "none", len(held) >= share * len(found) - 1e-9)


def _ratio(sheet: ScoreSheet, how: Mapping[str, Any]) -> Iterator[Finding]:
    yield from _pairs(sheet, how, how["to"], lambda a, b: a / b if b else math.nan)


def _difference(sheet: ScoreSheet, how: Mapping[str, Any]) -> Iterator[Finding]:
    yield from _pairs(sheet, how, how["minus"], lambda a, b: a - b)


def _pairs(
    sheet: ScoreSheet, how: Mapping[str, Any], other: str, between: Callable[[float, float], float]
) -> Iterator[Finding]:
    """What was not reached is above its limit, and of what lies between the two only a bound is known."""
    low, high = how["between"]
    limits = dict(along(selected_scores(sheet, how, sheet.limits), [how["of"], other]))
    found = []
    for common, each in along(selected_scores(sheet, how), [how["of"], other]):
        (ours, theirs), limit = means_of(each).values(), means_of(limits.get(common, {}))
        if ours == theirs == math.inf:
            continue  # neither of them got there
        least = between(min(ours, limit.get(how["of"], math.inf)), theirs)
        most = between(ours, min(theirs, limit.get(other, math.inf)))
        bound = "" if least == most else "at least " if most == math.inf else "at most "
        told = bound + format_number(most if bound == "at most " else least)
        found.append(Finding(label(common), told, low - 1e-12 <= least and most <= high + 1e-12))
    yield from _most(found, how)


def _top(sheet: ScoreSheet, how: Mapping[str, Any]) -> Iterator[Finding]:
    worst, better = (math.inf, min) if is_cost(how["measure"]) else (-math.inf, max)

    def first(scores: Mapping[str, float]) -> str:
        known = {name: worst if math.isnan(score) else score for name, score in scores.items()}
        return better(known, key=known.__getitem__)

    for common, each in together(sheet, how, least=2):
        means = means_of(each)
        told = f"{first(means)} ({format_number(means[first(means)])})"
        yield Finding(label(common), told, all(first(split) in how["among"] for split in split_by_split(each)))


def _trend(sheet: ScoreSheet, how: Mapping[str, Any]) -> Iterator[Finding]:
    from scipy.stats import spearmanr

    def rank(scores: Mapping[str, float]) -> float:
        values = [*scores.values()]
        return float(spearmanr(range(len(values)), values).statistic) if len({*values}) > 1 else 0.0

    for common, each in along(_gains(sheet, how), sheet.axes[how["axis"]], least=3):
        rises = all(rank(split) * how["sign"] > 0 for split in split_by_split(each))
        yield Finding(label(common), f"rank correlation {rank(means_of(each)):.2f}", rises)


def _gains(sheet: ScoreSheet, how: Mapping[str, Any]) -> Scores:
    """The scores or, with `of` and `minus`, what one choice has more than the other."""
    scores = selected_scores(sheet, how)
    if "of" not in how:
        return scores
    rows = along(scores, [how["of"], how["minus"]])
    return {common: [a - b for a, b in zip(*each.values(), strict=True)] for common, each in rows}


def _effects(sheet: ScoreSheet, how: Mapping[str, Any]) -> Iterator[Finding]:
    """The range of the means along an axis, whatever the others are."""

    def ranges(axis: str) -> list[float]:
        """Split by split."""
        others = [name for name in sheet.axes if name != axis]
        each = {label(cell): v for cell, v in selected_scores(sheet, {**how, "mean_over": others}).items()}
        return [float(np.ptp([*split.values()])) for split in split_by_split(each)] if len(each) > 1 else []

    small = ranges(how["than"])
    for axis in how["larger"]:
        if small and (large := ranges(axis)):
            told = f"{format_number(np.mean(large))} against {format_number(np.mean(small))} by {how['than']}"
            yield Finding(axis, told, all(a > b for a, b in zip(large, small, strict=True)))


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
    """What is known of row less column, the last two names of `where`: nothing, where one of them diverged."""
    pair = _on_the_same_splits(sheet, measure, where)
    return posterior(*pair, sheet.rho) if pair is not None and np.isfinite(pair).all() else None


def _on_the_same_splits(sheet: ScoreSheet, measure: str, where: Cell) -> tuple[Sequence[float], Sequence[float]] | None:
    """The scores of column and row, if both were run."""
    *common, row, column = where
    scores = sheet.scores.get(measure, {})
    ours, theirs = scores.get((*common, row), ()), scores.get((*common, column), ())
    return (theirs, ours) if len(ours) == len(theirs) > 1 else None


def sign(sheet: ScoreSheet, measure: str, where: Cell) -> str | None:
    """Row against column by the Bayesian test; None where they were not run.

    Where two signs are published ("=+": equal or better), both are the answer if only together they are sure.
    """
    known = compared(sheet, measure, where)
    if known is None:
        return None if _on_the_same_splits(sheet, measure, where) is None else DIVERGED
    worse, equal, better = known.regions(ROPE)
    alone, either = verdict(better, equal, worse, SURE), sheet.published.get("sign", {}).get(where, "")
    together = sum({"-": worse, "=": equal, "+": better}[one] for one in either)
    return either if alone == "?" and together > SURE else alone


KINDS: dict[str, Callable[[ScoreSheet, Mapping[str, Any]], Iterator[Finding]]] = {
    "within": _within,
    "factor": _factor,
    "range": _range,
    "spread": _spread,
    "ordering": _ordering,
    "ratio": _ratio,
    "difference": _difference,
    "top": _top,
    "trend": _trend,
    "effects": _effects,
    "signs": _signs,
}
ORDERINGS = ("ordering", "top", "trend", "effects")


# The verdict


@dataclass(frozen=True)
class RecipeJudgement:
    """The verdict with its reason, every check with its findings, and those of them that decided."""

    verdict: Verdict
    reason: str
    checks: list[tuple[RecipeCheck, list[Finding]]]
    deciding: list[RecipeCheck]


def judge(
    sheet: ScoreSheet, checks: Sequence[RecipeCheck], *, smaller: bool, why_not: str = "", part: str = ""
) -> RecipeJudgement:
    """Of a run as published, or of a smaller one; `why_not` it can be compared with nothing, `part` of it was run."""
    known = [(check, check.findings(sheet)) for check in checks]
    asked = [(c, found) for c, found in known if found and not c.told and (c.any_size or not smaller)]
    if missing := sum(not found for c, found in known if not c.told):
        part = f"{part + ', ' if part else ''}{missing} of {len(known)} checks could not be made"
    if why_not or not asked:
        reason = why_not or "what was run is not what the criterion is about"
        return RecipeJudgement("not comparable", reason, known, [])
    broken, fits = _broken_checks(asked)
    if not broken:
        decision: Verdict = "ordering agrees" if smaller or part else "agrees"  # a part is a smaller run, too
        reason = _holds([c.says for c, _ in asked if not c.readings or {*c.readings} & {*fits}])
    else:
        only_numbers = any(c.any_size for c, _ in asked) and not any(c.any_size for c, _ in broken)
        decision = "ordering agrees" if only_numbers else "differs"
        more = f"; and {len(broken) - NAMED} more" if len(broken) > NAMED else ""
        reason = f"{len(asked) - len(broken)} of {len(asked)} checks hold; not: "
        reason += "; ".join(map(_broken, broken[:NAMED])) + more
    if fits:
        reason += f" (the reading that fits: {', '.join(fits)})"
    if smaller and (numbers := sum(bool(found) and not c.any_size and not c.told for c, found in known)):
        reason += (
            f" (a smaller run: {numbers} of {len(known)} checks, which ask for the published size, are not judged)"
        )
    if part:
        reason += f" ({part})"
    return RecipeJudgement(decision, reason, known, [check for check, _ in asked])


Asked = list[tuple[RecipeCheck, list[Finding]]]


def _broken_checks(asked: Asked) -> tuple[Asked, list[str]]:
    """Those that do not hold, and the readings that fit; where one does, what others say is not held against us.

    A reading of which less was run than of another does not fit: it was not asked what it might fail.
    """
    broken = [(c, found) for c, found in asked if not all(f.held for f in found)]
    unfit = {reading for c, _ in broken for reading in c.readings}
    made = Counter(reading for c, _ in asked for reading in c.readings)
    fits = [reading for reading, count in made.items() if reading not in unfit and count == max(made.values())]
    return [(c, found) for c, found in broken if not (c.readings and fits)], fits


def _holds(says: list[str]) -> str:
    """Few are told one by one."""
    what = {1: "the check holds:", 2: "both checks hold:", 3: "all 3 checks hold:"}.get(len(says))
    return f"all {len(says)} checks hold" if what is None else f"{what} {'; '.join(says)}"


def _broken(case: tuple[RecipeCheck, list[Finding]]) -> str:
    check, found = case
    bad = [f for f in found if not f.held]
    first = f"{bad[0].what}: {bad[0].value}" if bad[0].what else bad[0].value
    return f"{check.says} ({first}{f', and {len(bad) - 1} more' if len(bad) > 1 else ''})"


def format_number(value: Any) -> str:
    """A number as it is printed: whole ones whole, accuracies with four digits, others with four that count."""
    if value is None or isinstance(value, str):
        return value or ""
    value = float(value)
    if math.isnan(value):
        return "-"
    if math.isinf(value):
        return "never"
    if value == int(value) and abs(value) < 1e15:
        return f"{int(value):,}" if abs(value) >= 10_000 else str(int(value))
    return f"{value:.4f}" if 0.001 <= abs(value) < 10 else f"{value:.4g}"
