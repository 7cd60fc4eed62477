"""Data sets from arrays in memory."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedarena.config.errors import BadValue, quoted
from fedarena.config.registry import register
from fedarena.data.dataset import PADDING, Dataset, Rows, strata_of
from fedarena.data.sources.class_codes import SplitSeed, TestShare, names_alike, numbered, split_rows
from fedarena.data.sources.label_columns import Labels, LabelTask, read_labels
from fedarena.statistics.metric_registry import TaskName


@register("dataset", "arrays")
@dataclass(frozen=True, eq=False)  # == of arrays is not a single value
class Arrays:
    """Numpy arrays or torch tensors: rows `x`, labels `y`, and optionally the `client` of each row.

    x is a table (N x features), grey images (N x H x W) or images (N x C x H x W); bytes are scaled to [0, 1],
    other numbers do not change. Integers N x length with y of the same shape are texts. Labels with fractions are a
    regression, N x labels of 0 and 1 are several labels; `task` sets what is not inferred.

    >>> import numpy as np
    >>> import fedarena as fa
    >>> x, y = np.random.default_rng(0).random((60, 4), dtype=np.float32), np.arange(60) % 2
    >>> run = fa.run(fa.arrays(x, y, client=np.arange(60) % 3), rounds=2, out=False)
    >>> len(run.client_sizes)
    3
    """

    x: Any = field(repr=False)
    y: Any = field(repr=False)
    client: Any = field(default=None, repr=False)
    x_test: Any = field(default=None, repr=False)
    y_test: Any = field(default=None, repr=False)
    client_test: Any = field(default=None, repr=False)
    test: TestShare = 0.2
    split_seed: SplitSeed = 0
    task: LabelTask | None = None

    @property
    def defaults(self) -> dict[str, Any]:
        """Return the defaults of an experiment: the given clients or ten equal ones, and a model that fits the rows."""
        iid = {"partition": {"name": "iid"}, "clients": 10}
        owned = iid if self.client is None else {"partition": {"name": "natural"}}
        model = "char_lstm" if _is_text(_numpy("x", self.x), _numpy("y", self.y), self.task) else "mlp_2nn"
        return {**owned, "model": model, "rounds": 20, "local": {"lr": 0.05, "epochs": 1, "batch": 16}}

    def load(self, seed: int) -> Dataset:
        """Check the arrays and, unless test rows are given, split them into training and test rows."""
        x, y = _joined("x", self.x, self.x_test), _complete("y", _joined("y", self.y, self.y_test))
        _same_length("y", y, x)
        rows = _rows(x, _is_text(x, y, self.task))
        found = None if _is_text(x, y, self.task) else _labels(rows, y, self.task)
        codes, classes = _symbols(rows, y) if found is None else (found.y, found.classes)
        task: TaskName = "next_symbol" if found is None else found.task
        class_names = () if found is None else found.names
        owner, owner_names = self._owners(x)
        n_train: int = len(self.x)
        order: Rows | slice = slice(None)  # already in order, so large arrays are not copied
        if self.x_test is None:
            train, test = split_rows(strata_of(task, codes), owner, self.test, self.split_seed)
            n_train, order = len(train), np.concatenate([train, test])
        return Dataset(
            "arrays",
            rows[order],
            codes[order],
            n_train,
            classes,
            prepare="scale" if rows.dtype == np.uint8 else "none",
            owner=None if owner is None else owner[order],
            owner_names=owner_names,
            class_names=class_names,
            notes=(*names_alike(class_names, "y"), *names_alike(owner_names, "client")),
            task=task,
        )

    def _owners(self, x: NDArray[Any]) -> tuple[Rows | None, tuple[str, ...]]:
        if self.client is None:
            return None, ()
        if self.x_test is None or self.client_test is not None:
            owner, names = numbered(_one_each("client", _joined("client", self.client, self.client_test)))
        else:  # test rows that belong to no client
            owner, names = numbered(_one_each("client", _numpy("client", self.client)))
            owner = np.concatenate([owner, np.full(len(self.x_test), -1)])
        _same_length("client", owner, x)
        return owner, names


def _numpy(name: str, value: Any) -> NDArray[Any]:
    """Return the values as an array; raise `BadValue` for masked values, which would be used silently."""
    if _has_masked(value):
        raise BadValue(
            f"{name} has masked values", remedy="fill them, or remove these rows: x[~mask]", where=f"data.{name}"
        )
    try:
        if hasattr(value, "detach"):  # a torch tensor, tested without importing torch
            value = value.detach().cpu().numpy()
        return np.asarray(value)
    except (ValueError, TypeError, RuntimeError, OverflowError) as error:
        raise BadValue(
            f"{name} cannot be converted to an array: {quoted(str(error))}",
            remedy="give rows of one length, of numbers or of names",
            where=f"data.{name}",
        ) from None


def _has_masked(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return any(_has_masked(row) for row in value if isinstance(row, np.ma.MaskedArray | list | tuple))
    return isinstance(value, np.ma.MaskedArray) and bool(np.ma.getmaskarray(value).any())


def _joined(name: str, train: Any, test: Any) -> NDArray[Any]:
    """Return the training values, followed by the test values if there are any."""
    first = _numpy(name, train)
    if test is None:
        return first
    second = _numpy(f"{name}_test", test)
    if not first.ndim or not second.ndim or first.shape[1:] != second.shape[1:]:
        raise BadValue(
            f"{name} has shape {first.shape}, {name}_test {second.shape}",
            remedy="give rows of one shape in both",
            where=f"data.{name}_test",
        )
    return np.concatenate([first, second])


def _one_each(name: str, values: NDArray[Any]) -> NDArray[Any]:
    """Return one name or number per row; raise `BadValue` if any is missing."""
    if values.ndim != 1:
        raise BadValue(
            f"{name} has shape {values.shape}", remedy=f"give one {name} for each row of x", where=f"data.{name}"
        )
    return _complete(name, values)


def _complete(name: str, values: NDArray[Any]) -> NDArray[Any]:
    """Return labels or clients; raise `BadValue` if any is missing."""
    if values.dtype.kind in "mM":
        missing = np.flatnonzero(np.isnat(values)).tolist() if values.ndim == 1 else []
    else:
        missing = [i for i, v in enumerate(values.tolist()) if _is_missing(v)] if values.ndim == 1 else []
    if missing:
        raise BadValue(
            f"{name} is missing in row {missing[0]}", remedy="fill it, or remove that row", where=f"data.{name}"
        )
    return values


def _is_missing(value: Any) -> bool:
    try:
        return value is None or bool(value != value)
    except (TypeError, ValueError):  # pandas' NA, whose comparisons have no truth value
        return True


def _same_length(name: str, values: NDArray[Any], x: NDArray[Any]) -> None:
    if values.ndim == 0 or x.ndim == 0 or len(values) != len(x):
        counts = [len(array) if array.ndim else 0 for array in (x, values)]
        raise BadValue(
            f"x has {counts[0]} rows and {name} has {counts[1]}, with those for testing",
            remedy=f"give one {name} for each row of x and, with x_test, {name}_test",
            where=f"data.{name}",
        )


def _rows(x: NDArray[Any], is_text: bool) -> NDArray[Any]:
    """Return x in the shape and type of a `Dataset`."""
    problem, remedy = "", ""
    if x.ndim not in (2, 3, 4) or not x.size:
        problem, remedy = f"shape {x.shape}", "give N x features, N x H x W or N x C x H x W"
    elif x.ndim == 4 and x.shape[3] in (1, 3) and x.shape[1] not in (1, 3):
        problem, remedy = f"shape {x.shape}, with the channels last", "give x.transpose(0, 3, 1, 2)"
    elif x.dtype.kind not in "biuf":
        problem, remedy = f"type {x.dtype}", "encode it as numbers"
    elif x.dtype.kind == "f" and not (sound := np.abs(x) < np.finfo(np.float32).max).all():
        at = tuple(np.argwhere(~sound)[0].tolist())
        problem, remedy = f"the value {x[at]} at {at}", "fill, rescale or remove such values"
    if problem:
        raise BadValue(f"x has {problem}", remedy=remedy, where="data.x")
    if is_text:
        return x.astype(np.int64)
    x = x[:, None] if x.ndim == 3 else x
    return x if x.dtype in (np.uint8, np.float32, np.float64) else x.astype(np.float32)


def _is_text(x: NDArray[Any], y: NDArray[Any], task: LabelTask | None) -> bool:
    """Return whether samples are texts, which have a label at every position."""
    return task is None and x.shape == y.shape and y.ndim == 2 and y.dtype.kind in "iu" and x.dtype.kind in "iu"


def _labels(x: NDArray[Any], y: NDArray[Any], task: LabelTask | None) -> Labels:
    """Return the labels of samples that are no texts; whole numbers of images are classes, however many they are."""
    if y.ndim == 2 and y.shape[1] == 1:
        y = y[:, 0]
    if y.ndim == 1:
        whole = y.dtype.kind in "iu" or (y.dtype.kind == "f" and bool((y == np.trunc(y)).all()))
        return read_labels({"y": y}, "classification" if task is None and whole and x.ndim > 2 else task, first_row=0)
    fits = y.ndim == 2 and y.dtype.kind in "biuf"
    if not fits or (task is None and not np.isin(y, (0, 1)).all()):
        raise BadValue(
            f"y has shape {y.shape} and type {y.dtype}",
            remedy="give one label per row, N x labels of 0 and 1, or for texts integers x and y of the same shape",
            where="data.y",
        )
    labels = read_labels({f"column {i} of y": column for i, column in enumerate(y.T)}, task, first_row=0)
    return replace(labels, names=())


def _symbols(x: NDArray[Any], y: NDArray[Any]) -> tuple[NDArray[np.int64], int]:
    """Return the labels of texts, whose symbols keep their numbers, and the number of symbols."""
    if x.min() < 0 or y[y != PADDING].min(initial=0) < 0:
        raise BadValue("a symbol is negative", remedy=f"count symbols from 0; y may hold {PADDING} for no label")
    return y.astype(np.int64), int(max(x.max(), y.max())) + 1
