"""Comparisons that add whole repeats until they are decided, up to a limit of splits.

The first look is at 10 splits or more, the next ones after 5 further splits or more, in whole repeats. The result of a look
is written to comparison.json together with the repeats that it adds, before any of them begins: a folder that is killed at
any moment resumes with the same looks, and no look is repeated.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from fedarena.config.comparison_plan import LookRecord, Plan, next_look
from fedarena.config.errors import BadValue
from fedarena.experiments.split_options import MOST, Splitting
from fedarena.results.comparison import Comparison
from fedarena.results.plan_file import write_plan
from fedarena.runtimes.single_thread import one_thread
from fedarena.statistics.repeats import LEAST_REPEATS
from fedarena.statistics.sequential import FIRST_LOOK

AT_MOST = 50  # splits, unless another limit is given
LEAST_FOLD_REPEATS = 2  # before the first look: one repeat does not show what its folds have in common


def first_look(folds: int | None, has_repeat_effect: bool) -> int:
    """Return the number of repeats before the first look: at least 10 splits, 2 repeats, and 5 with an effect per repeat.

    >>> first_look(5, False), first_look(10, False), first_look(5, True), first_look(None, False)
    (2, 2, 5, 10)
    """
    if folds is None:
        return FIRST_LOOK
    return max(math.ceil(FIRST_LOOK / folds), LEAST_REPEATS if has_repeat_effect else LEAST_FOLD_REPEATS)


def check_limit(until_decided: bool, at_most: int | None) -> None:
    """Raise if the options are not a switch and a whole number of splits."""
    if not isinstance(until_decided, bool):
        raise BadValue(f"until_decided = {until_decided!r}", remedy="give True or False", where="--until-decided")
    is_whole = isinstance(at_most, int) and not isinstance(at_most, bool)
    if at_most is not None and not (is_whole and 1 <= at_most <= MOST):
        raise BadValue(
            f"at_most = {at_most!r}", remedy=f"give a whole number of splits, at most {MOST}", where="--at-most"
        )


def with_limit(plan: Plan, splitting: Splitting, until_decided: bool, at_most: int | None) -> Plan:
    """Return the plan up to its first look, with the limit in it; a plan with a fixed number of splits stays as it is."""
    if not until_decided:
        if at_most is not None:
            raise BadValue(
                "a limit of splits is for comparisons that add them until they are decided",
                remedy="add --until-decided, or leave out --at-most",
                where="--at-most",
            )
        return plan
    for option, other in (("--tune", plan.tuning), ("--sweep", plan.sweep)):
        if other:
            raise BadValue(
                f"{option} and --until-decided exclude each other",
                remedy=f"leave out one of them; {option} needs all splits before the first run",
                where="--until-decided",
            )
    size, least = plan.folds or 1, first_look(plan.folds, bool(plan.per_repeat))
    option, given = ("--seeds", splitting.seeds) if splitting.seeds else ("--repeats", splitting.repeats)
    if given is not None and given < least:
        raise BadValue(
            f"the first look is at {least * size} splits, and {option} {given} has {given * size}",
            remedy=f"give {option} {least} or more" + (", or leave it out" if option == "--repeats" else ""),
            where=option,
        )
    first = given or least
    limit = max(AT_MOST, first * size) if at_most is None else at_most
    if limit < first * size:
        raise BadValue(
            f"at most {limit} splits, and the first look is at {first * size}",
            remedy=f"give --at-most {first * size} or more",
            where="--at-most",
        )
    return replace(plan, repeats=first, at_most=limit)


def continued(before: Plan, until_decided: bool, at_most: int | None) -> Plan:
    """Return the plan of a folder to resume, with a limit that was raised.

    A higher limit changes no look that was made: the result is that of the higher limit from the start.
    """
    if before.at_most is None:
        if until_decided or at_most is not None:
            raise BadValue(
                "the folder compares a fixed number of splits, which are not continued until they are decided: continuing "
                "because a result is undecided needs the stricter rule from the first look on",
                remedy="compare again with --until-decided, in a new folder and with another seed (--set seed=1)",
                where="--until-decided",
            )
        return before
    if at_most is None or at_most == before.at_most:
        return before
    if at_most < before.at_most:
        raise BadValue(
            f"the limit of this comparison is {before.at_most} splits",
            remedy=f"leave out --at-most, or give {before.at_most} or more",
            where="--at-most",
        )
    if before.stopped is not None and before.stopped.decided:
        raise BadValue(
            f"the comparison is decided: {before.stopped.reason}", remedy="leave out --at-most", where="--at-most"
        )
    note = f"the limit was {before.at_most} splits at first, and became {at_most} after {len(before.splits)} splits"
    return replace(before, at_most=at_most, notes=(*before.notes, note))


def at_first_look(plan: Plan) -> Plan:
    """Return the plan as it was before its first look."""
    return replace(plan, repeats=plan.looks[0].splits // (plan.folds or 1)) if plan.looks else plan


def at_limit(plan: Plan) -> Plan:
    """Return the plan with as many splits as its limit allows."""
    if plan.at_most is None or plan.stopped is not None:
        return plan
    return replace(plan, repeats=max(plan.repeats, plan.at_most // (plan.folds or 1)))


def run_until_decided(
    plan: Plan, root: Path, run_from: Callable[[Plan, int], None], report: Callable[[LookRecord], None]
) -> Plan:
    """Run a plan and, if it has a limit, add repeats until it is decided; return it with all looks.

    `run_from` runs the cells of a plan from a repeat on; `report` shows a look.
    """
    if plan.looks and not plan.looks[-1].is_comparable:  # nothing was compared; failed runs are run again
        plan = replace(plan, looks=plan.looks[:-1])
    limit = plan.at_most
    run_from(plan, 0)
    while limit is not None and plan.stopped is None:
        if not plan.looks or plan.looks[-1].splits < len(plan.splits):
            with one_thread():
                found = Comparison.of(plan, root).look()
            plan = replace(plan, looks=(*plan.looks, found))
            report(found)
        begun = plan.repeats
        if plan.stopped is None:
            plan = replace(plan, repeats=next_look(begun, plan.folds, limit) or begun)
        write_plan(plan, root)
        if plan.repeats > begun:
            run_from(plan, begun)
    return plan
