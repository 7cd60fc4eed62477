"""The columns of a table as numbers with missing values or as categories, with the kind of each inferred or set."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedarena.config.errors import BadValue, quoted
from fedarena.data.table_reader import holds_numbers
from fedarena.statistics.exact_sums import LARGEST_POWER

if TYPE_CHECKING:
    import pyarrow as pa

Kind = Literal["numeric", "categorical"]
MOST_LEVELS = 20  # of a column of texts that is categorical without being named in `categorical`
MOST_NAMED_LEVELS = 1000  # of a column that is named in `categorical`
# Texts that count as missing values, as the reader of CSV files has them for numbers.
MISSING_TEXTS = frozenset(
    "|#N/A|#N/A N/A|#NA|-1.#IND|-1.#QNAN|-NaN|-nan|1.#IND|1.#QNAN|N/A|NA|NULL|NaN|n/a|nan|null".split("|")
)
DATE = re.compile(r"\d{1,4}[-/.]\d{1,2}[-/.]\d{1,4}([ T]\d{1,2}:\d{2}.*)?")


@dataclass(frozen=True, eq=False)
class Categories:
    """A column of categories: the code of every row, -1 where it is missing, and the name of each code."""

    codes: NDArray[np.int64]
    levels: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.codes)

    def __getitem__(self, rows: Any) -> Categories:
        return Categories(self.codes[rows], self.levels)

    @cached_property
    def missing(self) -> NDArray[np.bool_]:
        """Return which rows have no category."""
        return self.codes < 0

    def recoded(self, levels: Sequence[str]) -> NDArray[np.int64]:
        """Return the code of every row among other levels: -1 where it is missing, -2 where it is none of them."""
        at = {level: code for code, level in enumerate(levels)}
        table = np.array([*(at.get(level, -2) for level in self.levels), -1], np.int64)  # the last one is for code -1
        codes: NDArray[np.int64] = table[self.codes]
        return codes

    @classmethod
    def of(cls, texts: Iterable[str | None]) -> Categories:
        """Return a column of texts, of which None and those of `MISSING_TEXTS` are missing.

        >>> column = Categories.of(["b", "a", None, " ", "b"])
        >>> column.levels, column.codes
        (('a', 'b'), array([ 1,  0, -1, -1,  1]))
        """
        found = [None if text is None or text.strip() in MISSING_TEXTS else text for text in texts]
        levels = tuple(sorted({text for text in found if text is not None}))
        at: dict[str | None, int] = {level: code for code, level in enumerate(levels)}
        return cls(np.array([at.get(text, -1) for text in found], np.int64), levels)


Column = NDArray[np.float64] | Categories
Columns = Mapping[str, Column]


def rows_missing(column: Column) -> NDArray[np.bool_]:
    """Return which rows of a column have no value."""
    return column.missing if isinstance(column, Categories) else np.isnan(column)


def as_arrow(table: Any) -> pa.Table:
    """Return an Arrow table of a mapping of columns or of a DataFrame of pandas or polars."""
    import pyarrow as pa

    try:
        if isinstance(table, pa.Table):
            return table
        if isinstance(table, Mapping):
            return pa.table({str(name): _plain_list(column) for name, column in table.items()})
        if hasattr(table, "to_arrow"):  # polars
            return table.to_arrow()
        names = [str(name) for name in table.columns]
        if len({*names}) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise BadValue(f"the table has two columns '{quoted(twice)}'", remedy="rename one of them")
        return pa.Table.from_pandas(table.set_axis(names, axis=1), preserve_index=False)
    except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
        raise BadValue(
            f"the table cannot be read: {quoted(str(error))}",
            remedy="give columns of one length, each with numbers only or with texts only",
        ) from None


def _plain_list(column: Any) -> Any:
    return column if isinstance(column, np.ndarray) else list(column)


def read_feature(
    table: pa.Table, name: str, kind: Kind | None = None, *, allow_texts: bool = True
) -> tuple[Column, tuple[str, ...]]:
    """Return a feature column and notes about it; its kind is inferred where none is given.

    Numbers and booleans are numeric. Texts of at most 20 levels are categorical. Dates, many levels, and texts among
    numbers are refused, with the ways to use such a column. As `numeric`, a text that is no number is a missing value.
    """
    import pyarrow as pa

    field, types, where = table.schema.field(name).type, pa.types, "data.drop"
    values = types.is_dictionary(field) and field.value_type
    if kind is None and (types.is_temporal(field) or types.is_temporal(values or pa.null())):
        raise _dates(name)
    numeric = holds_numbers(table, name)
    if kind == "categorical" or not (numeric or kind == "numeric"):
        if types.is_binary(field):
            raise BadValue(
                f"column '{quoted(name)}' is not text in UTF-8", remedy="save the file in the encoding UTF-8"
            )
        if types.is_nested(field):
            raise BadValue(
                f"column '{quoted(name)}' holds {quoted(str(field))}, which is neither a number nor text",
                remedy=f"drop it (--drop {quoted(name)}), or make columns of its parts",
                where=where,
            )
        categories = Categories.of(_texts(table[name]))
        if kind is None:
            _check_categories(name, categories, allow_texts)
        else:
            too_many_levels(name, categories, MOST_NAMED_LEVELS)
        return categories, ()
    if numeric:
        column: NDArray[np.float64] = table[name].cast(pa.float64(), safe=False).to_numpy().astype(np.float64)
        return _checked(name, column), ()
    numbers = np.array([_number(text) for text in _texts(table[name])])
    lost = int(np.isnan(numbers).sum()) - sum(map(_is_missing, _texts(table[name])))
    notes = (f"column '{quoted(name)}': {lost} values are not numbers and count as missing",) if lost else ()
    return _checked(name, numbers), notes


def _texts(column: pa.ChunkedArray) -> list[str | None]:
    values = column.to_pylist()
    return [_text(value) for value in values]


def _text(value: Any) -> str | None:
    if value is None or (isinstance(value, float) and value != value):
        return None
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, float) and value.is_integer():  # integers that missing values turned into 1.0, 2.0
        return str(int(value))
    return str(value)


def _is_missing(text: str | None) -> bool:
    return text is None or text.strip() in MISSING_TEXTS


def _number(text: str | None) -> float:
    try:
        return np.nan if text is None else float(text)
    except ValueError:
        return np.nan


def _checked(name: str, values: NDArray[np.float64]) -> NDArray[np.float64]:
    infinite = np.isinf(values)
    if infinite.any():
        raise BadValue(
            f"column '{quoted(name)}' is infinite in row {infinite.argmax() + 1}",
            remedy="correct that value, or leave it empty",
        )
    large = np.abs(values) > 2.0**LARGEST_POWER
    if large.any():
        raise BadValue(
            f"column '{quoted(name)}' holds {values[large][0]:g} in row {large.argmax() + 1}, which is too large",
            remedy="rescale the column, correct that value, or leave it empty",
        )
    return values


def _check_categories(name: str, categories: Categories, allow_texts: bool) -> None:
    """Refuse a column of texts that are dates, numbers with errors among them, or too many to be categories."""
    levels = categories.levels
    numbers = [level for level in levels if not np.isnan(_number(level))]
    if not allow_texts or (len(numbers) < len(levels) and 2 * len(numbers) >= len(levels)):
        words = {level for level in levels if level not in numbers} or {*levels}
        row = next(i for i, code in enumerate(categories.codes) if code >= 0 and levels[code] in words)
        word = quoted(levels[categories.codes[row]])
        raise BadValue(
            f"column '{quoted(name)}' is not numeric: it holds '{word}' in row {row + 1}",
            remedy=f"correct it, or name the column in data.drop (--drop), data.categorical (--categorical; it has "
            f"{len(levels)} levels) or data.numeric (--numeric: texts count as missing values)",
            where="data.drop",
        )
    if levels and all(DATE.fullmatch(level.strip()) for level in levels):
        raise _dates(name)
    too_many_levels(name, categories)


def too_many_levels(name: str, categories: Categories, most: int = MOST_LEVELS) -> None:
    """Refuse a column of texts with more levels than a categorical column has."""
    if len(categories.levels) <= most:
        return
    named = f"name it in data.categorical (--categorical {quoted(name)}), " if most < MOST_NAMED_LEVELS else ""
    raise BadValue(
        f"column '{quoted(name)}' is not numeric: it holds {len(categories.levels)} different texts, such as "
        f"'{quoted(categories.levels[0])}', and a categorical column has at most {most}",
        remedy=f"drop it (--drop {quoted(name)}), {named}or group its values",
        where="data.drop",
    )


def _dates(name: str) -> BadValue:
    return BadValue(
        f"column '{quoted(name)}' holds dates or times",
        remedy=f"drop it (--drop {quoted(name)}), replace it with a number such as days since a first day, or, to test on "
        f"the latest rows, set data.time",
        where="data.drop",
    )
