"""Published and measured numbers of a recipe, by measure and cell, and the selections that checks and figures use."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

import numpy as np

from fedarena.common.grouping import group_by_key

Cell = tuple[str, ...]  # one choice of each axis
Scores = Mapping[Cell, Sequence[float]]  # one number per split


def label(cell: Cell) -> str:
    """Return the name of a cell, as recipes write it."""
    return " ".join(cell)


@dataclass(frozen=True)
class ScoreSheet:
    """The published and measured numbers of a recipe, by measure and cell."""

    scores: Mapping[str, Scores]
    published: Mapping[str, Mapping[Cell, Any]] = field(default_factory=dict)
    axes: Mapping[str, Sequence[str]] = field(default_factory=dict)
    rho: float = 0.0  # correlation of the splits: the share of test samples in a fold
    limits: Mapping[str, Scores] = field(default_factory=dict)  # rounds or steps that each split ran for its target


def selected_scores(
    sheet: ScoreSheet, how: Mapping[str, Any], tables: Mapping[str, Scores] | None = None
) -> dict[Cell, list[float]]:
    """Return the scores (or those of another table) of the cells that match, averaged over the axes of `mean_over`."""
    patterns = how.get("cells", "*")
    patterns = [patterns] if isinstance(patterns, str) else patterns
    scores = (sheet.scores if tables is None else tables).get(how["measure"], {})
    fitting = {c: list(s) for c, s in scores.items() if any(fnmatchcase(label(c), p) for p in patterns)}
    averaged = {choice for axis in how.get("mean_over", ()) for choice in sheet.axes[axis]}
    groups = group_by_key((tuple(c for c in cell if c not in averaged), values) for cell, values in fitting.items())
    return {cell: np.mean(each, axis=0).tolist() for cell, each in groups.items() if len({*map(len, each)}) == 1}


def along(scores: Scores, choices: Sequence[str], least: int = 2) -> Iterator[tuple[Cell, dict[str, Sequence[float]]]]:
    """Yield groups of cells that differ only in these choices: their common choices, and their scores by choice."""
    groups: dict[Cell, dict[str, Sequence[float]]] = {}
    for choice in choices:
        for cell, values in scores.items():
            if choice in cell:
                place = cell.index(choice)
                groups.setdefault((*cell[:place], "", *cell[place + 1 :]), {})[choice] = values
    for common, each in groups.items():
        if len(each) >= least:
            yield tuple(filter(None, common)), each


def together(sheet: ScoreSheet, how: Mapping[str, Any]) -> Iterator[tuple[Cell, dict[str, Sequence[float]]]]:
    """Yield the scores along the axis of a check or, where it names none, of all its cells."""
    scores = selected_scores(sheet, how)
    if "axis" in how:
        yield from along(scores, sheet.axes[how["axis"]])
    elif len(scores) > 1:
        yield (), {label(cell): values for cell, values in scores.items()}


def split_by_split(each: Mapping[str, Sequence[float]]) -> list[dict[str, float]]:
    """Return the scores split by split; only their means where the numbers of splits differ."""
    if len({*map(len, each.values())}) > 1:
        return [means_of(each)]
    return [dict(zip(each, values, strict=True)) for values in zip(*each.values(), strict=True)]


def means_of(each: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """Return the mean of each over its splits."""
    return {name: float(np.mean(values)) for name, values in each.items()}


def format_number(value: Any) -> str:
    """Return a number as it is printed: whole numbers in full, accuracies with four digits, others rounded to four."""
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
