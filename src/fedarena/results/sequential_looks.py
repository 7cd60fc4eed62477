"""The looks at a comparison that adds repeats until it is decided: when they are made, what they found, why it stopped."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from fedarena.statistics.repeats import LEAST_REPEATS
from fedarena.statistics.sequential import FIRST_LOOK

STEP = 5  # splits between two looks, at least: the rule is made for looks that are not more frequent
LEAST_FOLD_REPEATS = 2  # before the first look: one repeat does not show what its folds have in common


@dataclass(frozen=True)
class LookRecord:
    """One look: how many splits it saw, what it asked for, and what it found."""

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


def first_look(folds: int | None, has_repeat_effect: bool) -> int:
    """Return the number of repeats before the first look: at least 10 splits, 2 repeats, and 5 with an effect per repeat.

    >>> first_look(5, False), first_look(10, False), first_look(5, True), first_look(None, False)
    (2, 2, 5, 10)
    """
    if folds is None:
        return FIRST_LOOK
    least = LEAST_REPEATS if has_repeat_effect else LEAST_FOLD_REPEATS
    return max(math.ceil(FIRST_LOOK / folds), least)


def next_look(repeats: int, folds: int | None, at_most: int) -> int | None:
    """Return the number of repeats at the look after this one: 5 further splits or more; None at the limit.

    >>> next_look(2, folds=5, at_most=50), next_look(10, folds=None, at_most=12), next_look(10, folds=5, at_most=50)
    (3, 12, None)
    """
    size = folds or 1
    most = at_most // size
    return min(repeats + math.ceil(STEP / size), most) if repeats < most else None


def last_look(looks: Sequence[LookRecord], repeats: int, folds: int | None, at_most: int | None) -> LookRecord | None:
    """Return the look that ended a comparison of so many repeats, or None if it goes on or adds none."""
    if at_most is None or not looks or looks[-1].splits != repeats * (folds or 1):
        return None
    last = looks[-1]
    is_over = last.decided or not last.is_comparable or next_look(repeats, folds, at_most) is None
    return last if is_over else None


def stopping_sentence(last: LookRecord) -> str:
    """Return why no further repeats were added, in one sentence.

    >>> stopping_sentence(LookRecord(50, 50, 2, 0.975, ("fedavg", "fedprox"), 0.4, False, "undecided"))
    'Not decided after 50 splits, the limit.'
    """
    if last.decided or not last.is_comparable:
        return f"Stopped after {last.splits} splits: {last.reason}."
    return f"Not decided after {last.splits} splits, the limit."
