"""The verdict of a comparison in sentences, and its notes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fedarena.common.formatting import format_duration, format_size
from fedarena.common.grouping import group_by_key
from fedarena.config.comparison_plan import LookRecord, Plan
from fedarena.config.errors import join_words
from fedarena.results import client_gains, leave_one_out
from fedarena.results.comparison_rows import algorithm_row
from fedarena.results.scoring import VALIDATED
from fedarena.statistics.metric_registry import OPTIMISTIC
from fedarena.statistics.more_splits import more_repeats, more_splits

if TYPE_CHECKING:
    from fedarena.results.comparison import Comparison

SIGNS = {"+": "better", "=": "practically equal", "-": "worse", "?": "undecided"}
NOTHING_TO_COMPARE = "There is nothing to compare: fewer than two algorithms have results."
MOST_OUTLOOKS = 4  # undecided pairs for which the number of further splits is given


def sentences(result: Comparison) -> list[str]:
    """Return the verdict: the best algorithm, its probability, the pairs, and what is undecided."""
    failed = [f"{label} has no result: {why}" for label, why in result.failures.items()]
    if len(result.labels) < 2:
        return [NOTHING_TO_COMPARE, *failed]
    failed += [f"{cell} has no result: {why}" for cell, why in result.without_failures.items()]
    diverged = [
        f"{label} diverged in {result.diverged(label)} of {len(result.runs[label])} runs."
        for label in result.ranked
        if result.diverged(label)
    ]
    optional = [client_gains.sentence(result), leave_one_out.sentence(result)]
    return [
        *_headline(result),
        *([stopping_sentence(result.plan.stopped)] if result.plan.stopped else []),
        *_against_leader(result),
        *_against_references(result),
        *filter(None, optional),
        *diverged,
        *filter(None, [result.plan.undecidable, result.majority_warning]),
        *failed,
    ]


def stopping_sentence(last: LookRecord) -> str:
    """Return why no further repeats were added, in one sentence.

    >>> stopping_sentence(LookRecord(50, 50, 2, 0.975, ("fedavg", "fedprox"), 0.4, False, "undecided"))
    'Not decided after 50 splits, the limit.'
    """
    if last.decided or not last.is_comparable:
        return f"Stopped after {last.splits} splits: {last.reason}."
    return f"Not decided after {last.splits} splits, the limit."


def stopped_table(plan: Plan) -> dict[str, Any] | None:
    """Return the number of splits at which a comparison stopped, and why; None where the number is fixed."""
    last = plan.stopped
    if last is None:
        return None
    return {"splits": last.splits, "decided": last.decided, "reason": stopping_sentence(last)}


def _headline(result: Comparison) -> list[str]:
    """Name the algorithm with the smallest expected loss, its probability and its costs."""
    scoring, found, first = result.scoring(), result.ranking, result.ranked[0]
    mean = scoring.shown(float(np.mean(result.scores()[first])))
    if found is None or first not in found.standings:
        return [f"{first} has the best mean, {mean} ({scoring.name})."]
    standing = found.standings[first]
    lines = [
        f"{first} is the best choice: {mean} ({scoring.name}), P(best) {standing.p_best:.2f}, expected loss "
        f"{scoring.loss(standing.expected_loss)}."
    ]
    if len(found.standings) > 2:
        level = f"{result.plan.threshold:.0%}"
        names = join_words(found.best_set, "or") if len(found.best_set) < 6 else f"one of {len(found.best_set)}"
        lines.append(f"The best is {names} with at least {level} probability ({found.pairs} pairs were compared).")
    return [*lines, _cost_sentence(result, first)]


def _cost_sentence(result: Comparison, label: str) -> str:
    """Return what the algorithm costs: to the target if most runs reach it, else for the whole run."""
    row = algorithm_row(result, label)
    rounds = row["rounds_to_target"]
    if rounds is None:
        sent, clock = row["bytes"], row["clock"]
        rounds = float(np.mean([run.records[-1].round for run in result.runs[label]]))
        start = f"Its runs take {rounds:g} round{'s' * (rounds != 1)}"
    else:
        sent, clock = row["bytes_to_target"], row["clock_to_target"]
        common = "" if result.plan.evaluate_on == "common" else " on the common test samples"
        if not result.runs[label][0].metrics:  # without a complete common model
            common = " on clients' own test samples"
        target = result.scoring().shown(result.target, 0)
        start = f"To reach {target}{common} it takes {rounds:g} round{'s' * (rounds != 1)}"
    costs = [start, *([f"{format_size(sent)} of messages"] if sent else [])]
    costs += [f"{format_duration(clock)} of simulated time"] if clock else []
    return f"{join_words(costs)}."


def _against_leader(result: Comparison) -> list[str]:
    plan = result.plan
    first, *others = [label for label in result.ranked if not result.is_reference(label)] or result.ranked
    against = group_by_key((result.duel(first, other).verdict, other) for other in others)
    rope = result.scoring().difference(plan.rope)
    probability = f"with over {plan.threshold:.0%} probability each"
    lines = []
    if "+" in against:
        lines.append(f"It is better than {join_words(against['+'])} by more than {rope}, {probability}.")
    if "=" in against:
        lines.append(f"It is practically equal to {join_words(against['='])} (within {rope}).")
    if "-" in against:
        lines.append(f"It is worse than {join_words(against['-'])} by more than {rope}, {probability}.")
    if "?" in against:
        names = join_words(against["?"], "or")
        question = f"between it and {names}"
        if plan.stopped is not None and plan.stopped.best_set == (first,):
            question = f"whether it is better by more than {rope} than {names}"
        n = len(result.scores()[first])
        lines.append(f"These {n} splits do not decide {question}.{outlook(result, first, against['?'])}")
    return lines


def outlook(result: Comparison, first: str, others: Sequence[str]) -> str:
    """Return how many further splits would decide if mean and spread persist, or that none would, as a sentence."""
    plan, repeats = result.plan, result.repeats_of_splits
    if plan.undecidable or plan.protocol == "shared" or len(others) > MOST_OUTLOOKS:
        return ""
    scores = result.scores()
    limits = {"rope": plan.rope, "threshold": plan.threshold}
    further: dict[int | None, list[str]] = {}
    unit = "split" if repeats is None else "repeat"
    for other in others:
        pair = (scores[other], scores[first])
        if not np.isfinite(pair).all():
            continue
        if repeats is None:
            found = more_splits(*pair, plan.rho, **limits)
        else:
            found = more_repeats(*pair, repeats, plan.rho, **limits)
        further.setdefault(found.further, []).append(other)
    clauses = [
        f"about {count} further {unit}{'s' * (count != 1)} would decide it for {join_words(names)}"
        for count, names in further.items()
        if count is not None
    ]
    if None in further:
        clauses.append(f"no number of further {unit}s would decide it for {join_words(further[None], 'or')}")
    return f" If mean and spread persist, {'; '.join(clauses)}." if clauses else ""


def _against_references(result: Comparison) -> list[str]:
    first, *_ = result.ranked
    outcomes = {
        "+": "it is better",
        "-": "it is worse",
        "=": "it is practically equal",
        "?": "the splits do not decide it",
    }
    means = {label: result.scoring().shown(float(np.mean(s))) for label, s in result.scores().items()}
    return [
        f"Against the reference {label} ({means[label]}), {outcomes[result.duel(first, label).verdict]}."
        for label in result.ranked[1:]
        if result.is_reference(label) and not result.is_reference(first)
    ]


def majority_warning(result: Comparison) -> str:
    """Return a warning where always predicting the most frequent class comes within one rope of the best algorithm."""
    plan = result.plan
    if plan.metric != "accuracy" or plan.evaluate_on != "common" or not result.labels:
        return ""
    first = result.ranked[0]
    counts = [run.measured.confusion for run in result.runs[first]]
    if any(count is None or not count.sum() for count in counts):
        return ""
    share = float(np.mean([c.sum(axis=1).max() / c.sum() for c in counts if c is not None]))
    if share < float(np.mean(result.scores()[first])) - plan.rope:
        return ""
    within = result.scoring().difference(plan.rope)
    return (
        f"Always predicting the most frequent class gives {share:.1%}: within {within} of the best. "
        "Accuracy says little here; use --metric balanced_accuracy or auc."
    )


def notes(result: Comparison) -> list[str]:
    """Return the notes of the plan and of the runs: once where all runs have a note, else by algorithm."""
    plan = result.plan
    lines = list(plan.notes)
    if plan.score == "best":
        lines.append(f"scores are the best round of each run ({OPTIMISTIC})")
    if plan.score == "validated":
        lines.append(f"scores are the validated round of each run ({VALIDATED}: {result.validation_share:.0%})")
    if result.dropped_splits:
        lines.append(f"{result.dropped_splits} splits are left out: {plan.metric} is undefined on their labels")
    kinds: dict[str, dict[str, tuple[int, str]]] = {}  # note without its numbers -> label -> how often, the first
    for label, runs in result.runs.items():
        for note in (note for run in runs for note in dict.fromkeys(run.notes)):
            counts = kinds.setdefault(re.sub(r"\d+", "#", note), {})
            count, first = counts.get(label, (0, note))
            counts[label] = (count + 1, first)
    for counts in kinds.values():
        firsts = {first for _, first in counts.values()}
        if len(firsts) == 1 and len(counts) == len(result.runs):
            lines.append(firsts.pop())
            continue
        for label, (count, first) in counts.items():
            lines.append(f"{label}: {first} (in {count} of {len(result.runs[label])} runs)")
    return lines
