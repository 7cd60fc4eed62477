"""The verdict of a suite in sentences, and its notes."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from fedarena.common.grouping import group_by_key
from fedarena.config.errors import join_words
from fedarena.results.comparison_verdict import NOTHING_TO_COMPARE, SIGNS
from fedarena.results.notebook import format_chance
from fedarena.results.suite_pairs import PairEstimate, SuitePair
from fedarena.statistics.trend import Trend

if TYPE_CHECKING:
    from fedarena.results.suite import SuiteComparison

MOST_SENTENCES = 5  # algorithms beside the first that get a sentence each; more are grouped by verdict
ANSWER_WORDS = {"left": "worse", "rope": "practically equal", "right": "better"}


def sentences(result: SuiteComparison) -> list[str]:
    """Return the verdict: the next federation, the average, where the answer changes, and what failed."""
    if len(result.labels) < 2:
        return [NOTHING_TO_COMPARE, *_failures(result)]
    return [
        *_next_sentences(result),
        *_average_sentences(result),
        *_contradictions(result),
        *_flips(result),
        *filter(None, [result.undecidable]),
        *_diverged(result),
        *_failures(result),
    ]


def _against_first(result: SuiteComparison) -> list[SuitePair]:
    """Return the pairs of the algorithm with the best mean rank and every other one that competes."""
    first, *others = [label for label in result.ranked if not result.is_reference(label)] or result.ranked
    return [result.pair(first, other) for other in others or result.ranked[1:]]


def _next_sentences(result: SuiteComparison) -> list[str]:
    pairs = _against_first(result)
    start = f"On the next federation like these {len(result.judged)}, "
    if len(pairs) <= MOST_SENTENCES:
        return [start + describe(result, pair, pair.next) for pair in pairs]
    groups = group_by_key((pair.next.verdict, pair.column) for pair in pairs)
    sure = f"with over {result.threshold:.0%} probability"
    texts = {
        "+": f"is better by more than {result.margin}, {sure}, than",
        "=": f"is practically equal (within {result.margin}) to",
        "-": f"is worse by more than {result.margin}, {sure}, than",
        "?": "is not surely better or worse than",
    }
    return [f"{start}{pairs[0].row} {texts[sign]} {join_words(names)}." for sign, names in groups.items()]


def describe(result: SuiteComparison, pair: SuitePair, found: PairEstimate) -> str:
    """Return an estimate as the end of a sentence that begins with where it holds."""
    if not found.is_known:
        why = pair.why_not.removeprefix("No pair is decided: ").rstrip(".")
        return f"nothing can be said about {pair.row} and {pair.column}: {why}."
    p = {"+": found.p_better, "=": found.p_equal, "-": found.p_worse}
    sign = max(p, key=lambda s: p[s])
    chance = format_chance(p[sign])
    open_ = ": undecided" if found.verdict == "?" else ""
    if sign == "=":
        return f"{pair.row} and {pair.column} are within {result.margin} with probability {chance}{open_}."
    by = f" by more than {result.margin}" if result.rope else ""
    return f"{pair.row} is {SIGNS[sign]} than {pair.column}{by} with probability {chance}{open_}."


def _average_sentences(result: SuiteComparison) -> list[str]:
    lines = []
    for pair in _against_first(result)[:MOST_SENTENCES]:
        if pair.average.is_known:
            low, high = (result.difference(end) for end in pair.average.interval)
            mean = result.difference(pair.average.mean)
            lines.append(
                f"On average over such federations {pair.row} minus {pair.column} is {mean} (90% between {low} "
                f"and {high}): {SIGNS[pair.average.verdict]}{_counts(pair)}."
            )
    return lines


def _counts(pair: SuitePair) -> str:
    """Return on how many of the federations themselves each verdict holds."""
    signs = [estimate.shrunk.verdict for estimate in pair.by_federation]
    counted = [f"{SIGNS[sign]} on {signs.count(sign)}" for sign in SIGNS if sign in signs]
    return f"; on these {len(signs)} themselves: {join_words(counted)}"


def _contradictions(result: SuiteComparison) -> list[str]:
    where = {"next": "for the next federation", "average": "on average"}
    return [
        f"The signed-rank test contradicts: by it {pair.row} is {SIGNS[pair.signed_rank.verdict]} against {pair.column}, "
        f"by the hierarchical model {SIGNS[getattr(pair, name).verdict]} {where[name]}. The answer depends on the model: "
        "treat it as open."
        for pair in result.pairs
        for name in pair.signed_rank.contradicts
    ]


def _flips(result: SuiteComparison) -> list[str]:
    """Return at which values of a setting the most probable answer changes, for pairs with the leader."""
    return [
        f"Along {setting.key}, {pair.row} against {pair.column} is most probably {_segments(found)}; "
        f"{_decided(result, found)}."
        for pair in _against_first(result)[:MOST_SENTENCES]
        for setting in result.varying
        if (found := result.trend(pair, setting)) is not None and found.changes
    ]


def _decided(result: SuiteComparison, found: Trend) -> str:
    """Return over which range of a setting an answer along the fitted line is decided."""
    sure = f"with over {result.threshold:.0%} probability"
    ranges = []
    for name, word in ANSWER_WORDS.items():
        chances = [getattr(regions, name) for regions in found.regions]
        at = [x for x, chance in zip(found.x, chances, strict=True) if chance > result.threshold]
        if at:
            ranges.append(f"{word} from {min(at):.3g} to {max(at):.3g}")
    return f"{sure}, {join_words(ranges)}" if ranges else f"nowhere {sure}"


def _diverged(result: SuiteComparison) -> list[str]:
    found = {
        label: [name for name, one in result.federations.items() if label in one.runs and one.diverged(label)]
        for label in result.labels
    }
    return [f"{label} diverged on {join_words(where)}; no score was dropped." for label, where in found.items() if where]


def _failures(result: SuiteComparison) -> list[str]:
    return [
        f"{label} has no result on {name}: {why}"
        for name, one in result.federations.items()
        for label, why in one.failures.items()
    ]


def _segments(found: Trend) -> str:
    """Return the most probable answers along a setting: better below about 0.3, practically equal above."""
    parts = [f"{ANSWER_WORDS[found.changes[0].before]} below about {found.changes[0].at:.3g}"]
    for change, after in pairwise(found.changes):
        parts.append(f"{ANSWER_WORDS[change.after]} up to about {after.at:.3g}")
    return join_words([*parts, f"{ANSWER_WORDS[found.changes[-1].after]} above"])


def notes(result: SuiteComparison) -> list[str]:
    """Return the notes of the suite and of its federations, each once, with the federations it concerns if not all."""
    lines = list(result.own_notes)
    lines += [
        f"{name} is left out: {result.scoring.metric} is undefined on the labels of its splits"
        for name in result.dropped
    ]
    noted = group_by_key(
        (note, name)
        for name, one in result.federations.items()
        for note in filter(None, [*one.notes, one.majority_warning])
    )
    everywhere = len(result.federations)
    return lines + [n if len(names) == everywhere else f"{join_words(names)}: {n}" for n, names in noted.items()]
