"""The labels of samples and the task that follows from them: classes, numbers, several labels, or times of events."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedarena.config.errors import BadValue, quoted
from fedarena.data.sources.class_codes import WHOLE, labels

LabelTask = Literal["classification", "regression", "multilabel", "survival"]
MOST_WHOLE = 20  # distinct whole values of a label that are classes without asking
ASK = "say which: --task classification or --task regression (data.task in a file, task= in Python)"


@dataclass(frozen=True)
class Labels:
    """Labels in the form of `Dataset`: `classes` is the number of outputs of a model, with their names if they have any."""

    task: LabelTask
    y: NDArray[Any]
    classes: int
    names: tuple[str, ...] = ()


def read_labels(columns: Mapping[str, NDArray[Any]], task: LabelTask | None = None, first_row: int = 1) -> Labels:
    """Return the labels of one or several columns; the task is inferred where none is given.

    Keys are what a message calls the column, and `first_row` is the number of the first row there. One column of texts,
    booleans or at most 20 distinct whole numbers is a classification, one with fractions a regression; more whole numbers
    are ambiguous. Several columns of 0 and 1 are a multilabel task. A survival task has a time and an event column, and
    must be given.
    """
    if task is None:
        task = "multilabel" if len(columns) > 1 else _inferred(*columns.items())
    if task == "survival":
        y = time_and_event(columns, first_row)
        if not y[:, 1].any():
            raise BadValue(
                f"{[*columns][1]} is 0 in all rows: no event was observed",
                remedy="check the column",
                where="data.label",
            )
        return Labels(task, y, 1)
    if task == "multilabel":
        return Labels(task, zeros_and_ones(columns, first_row), len(columns), tuple(columns))
    if len(columns) > 1:
        raise BadValue(
            f"a {task} has one label column, and {len(columns)} are given",
            remedy="give one column, or leave out task for several labels of 0 and 1",
            where="data.label",
        )
    ((name, values),) = columns.items()
    if task == "regression":
        numbers = label_numbers(name, values, first_row).astype(np.float32)
        if not np.ptp(numbers):
            raise BadValue(f"{name} holds one value only", remedy="choose a label that differs between rows")
        return Labels(task, numbers, 1)
    codes, names = labels(values, name, first_row)
    return Labels("classification", codes, len(names), names)


def _inferred(column: tuple[str, NDArray[Any]]) -> LabelTask:
    """Return the task of one column; raise `BadValue` where it may be a classification or a regression."""
    name, values = column
    if values.dtype.kind not in "iuf":
        return "classification"
    if not np.isfinite(values).all():
        return "classification"  # whose reader reports the row
    if values.dtype.kind == "f" and not ((values == np.trunc(values)) & (np.abs(values) < WHOLE)).all():
        return "regression"
    if (count := len(np.unique(values))) > MOST_WHOLE:
        raise BadValue(
            f"{name} holds {count} distinct whole numbers, which may be classes or a quantity",
            remedy=ASK,
            where="data.task",
        )
    return "classification"


def time_and_event(columns: Mapping[str, NDArray[Any]], first_row: int = 1) -> NDArray[np.float32]:
    """Return the time and the event of each sample in two columns; an event of 0 was not observed."""
    if len(columns) != 2:
        raise BadValue(
            f"a survival task has two label columns, and {len(columns)} is given",
            remedy='give the time and the event column: label = ["time", "event"]',
            where="data.label",
        )
    (when, times), (what, events) = columns.items()
    time = label_numbers(when, times, first_row)
    if (time < 0).any():
        raise BadValue(
            f"{when} is negative in row {(time < 0).argmax() + first_row}",
            remedy="give the time column first and the event column second",
            where="data.label",
        )
    return np.column_stack([time, _zeros_and_ones(what, events, first_row)]).astype(np.float32)


def zeros_and_ones(columns: Mapping[str, NDArray[Any]], first_row: int = 1) -> NDArray[np.float32]:
    """Return several labels of 0 and 1 with a column each."""
    found = [_zeros_and_ones(name, values, first_row) for name, values in columns.items()]
    return np.column_stack(found).astype(np.float32)


def label_numbers(name: str, values: NDArray[Any], first_row: int) -> NDArray[np.float64]:
    """Return a column as numbers; raise `BadValue` with the row of a value that is none, or too large."""
    if values.dtype.kind not in "biuf":
        raise BadValue(
            f"{name} holds '{quoted(str(values[0]))}' in row {first_row}, which is not a number",
            remedy="choose a column of numbers, or --task classification",
            where="data.label",
        )
    numbers = values.astype(np.float64)
    sound = np.abs(numbers) < np.finfo(np.float32).max
    if not sound.all():
        row = int(np.argmin(sound))
        raise BadValue(
            f"{name} is {numbers[row]:g} in row {row + first_row}", remedy="correct that value, or remove that row"
        )
    return numbers


def _zeros_and_ones(name: str, values: NDArray[Any], first_row: int) -> NDArray[np.float64]:
    fits = np.isin(values, (0, 1)) if values.dtype.kind in "biuf" else np.zeros(len(values), bool)
    if not fits.all():
        row = int(np.argmin(fits))
        raise BadValue(
            f"{name} is '{quoted(str(values[row]))}' in row {row + first_row}, and this label is 0 or 1",
            remedy="write 0 and 1, or true and false",
            where="data.label",
        )
    return values.astype(np.float64)
