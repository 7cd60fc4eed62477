"""The verdict on a reproduction: whether the checks of its recipe hold.

Where a paper can be read in several ways, a check with words in braces is made once for each reading; the checks of one
reading must hold. A smaller run than the published one is subject only to checks that hold at any size: orderings, and those
that the recipe marks. Its verdict is at best "ordering agrees".
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from fedarena.config.errors import BadValue, check_known
from fedarena.reproduction.check_keys import need_keys
from fedarena.reproduction.check_kinds import KINDS, ORDERINGS, Finding
from fedarena.reproduction.score_sheet import ScoreSheet

Verdict = Literal["agrees", "ordering agrees", "differs", "not comparable"]
NAMED = 3  # broken checks that a reason names; the table below it has all
Findings = list[tuple["RecipeCheck", list[Finding]]]


@dataclass(frozen=True)
class RecipeCheck:
    """One condition that must hold.

    `any_size`: it applies to smaller runs too. `informational` (the key "told"): it is reported and does not count.
    `readings`: it belongs to these readings of an ambiguous paper, and counts only together with their other checks.
    """

    kind: str
    says: str
    how: dict[str, Any]
    any_size: bool
    informational: bool = False
    readings: tuple[str, ...] = ()

    @classmethod
    def make(cls, table: Mapping[str, Any]) -> RecipeCheck:
        """Return the check of a table of a recipe."""
        how = dict(table)
        kind, says = how.pop("kind", ""), how.pop("says", "")
        if not isinstance(says, str) or not says:
            raise BadValue(
                f"a check of kind {kind} says {says!r}",
                remedy="write a sentence that says what must hold",
                where="says",
            )
        check_known(kind, KINDS, f"no check is called '{kind}'", f"there are: {', '.join(KINDS)}", says)
        any_size, informational = how.pop("any_size", kind in ORDERINGS), how.pop("told", False)
        need_keys(kind, says, {**how, "any_size": any_size, "told": informational})
        return cls(kind, says, how, any_size, informational)

    def findings(self, sheet: ScoreSheet) -> list[Finding]:
        """Return the findings case by case; none where its cells were not run."""
        return list(KINDS[self.kind](sheet, self.how))


def checks_of(tables: Sequence[Mapping[str, Any]], readings: Mapping[str, Mapping[str, str]]) -> list[RecipeCheck]:
    """Return the checks of a recipe; one with words in braces is repeated for each reading with its own words.

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
    """Replace words in braces by those of a reading, in all texts of a value."""
    if isinstance(value, str):
        for word in re.findall(r"\{(\w+)\}", value):
            if word not in words:
                raise BadValue(
                    f"a reading has no word for {{{word}}}", remedy="give one in all readings", where="readings"
                )
        return re.sub(r"\{(\w+)\}", lambda word: words[word[1]], value)
    if isinstance(value, Mapping):
        return {key: _filled(inner, words) for key, inner in value.items()}
    return [_filled(inner, words) for inner in value] if isinstance(value, list) else value


@dataclass(frozen=True)
class RecipeJudgement:
    """The verdict with its reason, all checks with their findings, and the checks that decided."""

    verdict: Verdict
    reason: str
    checks: Findings
    deciding: list[RecipeCheck]


def judge(
    sheet: ScoreSheet, checks: Sequence[RecipeCheck], *, smaller: bool, why_not: str = "", part: str = ""
) -> RecipeJudgement:
    """Return the verdict on the measured scores.

    `smaller`: the run is smaller than the published one. `why_not`: why nothing can be compared. `part`: which part was run.
    """
    known = [(check, check.findings(sheet)) for check in checks]
    counted = [(c, found) for c, found in known if found and not c.informational and (c.any_size or not smaller)]
    if missing := sum(not found for c, found in known if not c.informational):
        part = f"{part + ', ' if part else ''}{missing} of {len(known)} checks could not be made"
    if why_not or not counted:
        reason = why_not or "what was run is not what the criterion is about"
        return RecipeJudgement("not comparable", reason, known, [])
    broken, fits = _broken_checks(counted)
    if not broken:
        decision: Verdict = "ordering agrees" if smaller or part else "agrees"  # a part is a smaller run, too
        reason = _holds([c.says for c, _ in counted if not c.readings or {*c.readings} & {*fits}])
    else:
        only_numbers = any(c.any_size for c, _ in counted) and not any(c.any_size for c, _ in broken)
        decision = "ordering agrees" if only_numbers else "differs"
        more = f"; and {len(broken) - NAMED} more" if len(broken) > NAMED else ""
        reason = f"{len(counted) - len(broken)} of {len(counted)} checks hold; not: "
        reason += "; ".join(map(_broken, broken[:NAMED])) + more
    if fits:
        reason += f" (the reading that fits: {', '.join(fits)})"
    if smaller and (numbers := sum(bool(found) and not c.any_size and not c.informational for c, found in known)):
        reason += (
            f" (a smaller run: {numbers} of {len(known)} checks, which ask for the published size, are not judged)"
        )
    if part:
        reason += f" ({part})"
    return RecipeJudgement(decision, reason, known, [check for check, _ in counted])


def _broken_checks(counted: Findings) -> tuple[Findings, list[str]]:
    """Return the checks that do not hold, and the readings that fit; if one fits, the checks of others do not count.

    A reading of which fewer checks could be made than of another does not fit.
    """
    broken = [(c, found) for c, found in counted if not all(f.held for f in found)]
    unfit = {reading for c, _ in broken for reading in c.readings}
    made = Counter(reading for c, _ in counted for reading in c.readings)
    fits = [reading for reading, count in made.items() if reading not in unfit and count == max(made.values())]
    return [(c, found) for c, found in broken if not (c.readings and fits)], fits


def _holds(says: list[str]) -> str:
    """Return that all checks hold, and name them if they are few."""
    what = {1: "the check holds:", 2: "both checks hold:", 3: "all 3 checks hold:"}.get(len(says))
    return f"all {len(says)} checks hold" if what is None else f"{what} {'; '.join(says)}"


def _broken(case: tuple[RecipeCheck, list[Finding]]) -> str:
    check, found = case
    bad = [f for f in found if not f.held]
    first = f"{bad[0].what}: {bad[0].value}" if bad[0].what else bad[0].value
    return f"{check.says} ({first}{f', and {len(bad) - 1} more' if len(bad) > 1 else ''})"
