"""Read the table of a user from one or several files, whose columns are matched by name, in any order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedarena.config.errors import BadValue, UnknownName, located_at, quoted, quoted_list
from fedarena.data.dataset import Rows
from fedarena.data.sources.class_codes import numbered
from fedarena.data.table_columns import Categories, Column, Kind, read_feature, rows_missing, too_many_levels
from fedarena.data.table_encoding import no_value
from fedarena.data.table_reader import read_column

if TYPE_CHECKING:
    import pyarrow as pa

    from fedarena.data.sources.table_files import TableFile

MANY = 5  # file names that a message lists
KIND_WORDS = {"f": "numbers", "i": "numbers", "u": "numbers", "b": "true and false"}


@dataclass(frozen=True)
class JoinedTable:
    """The rows of all files, one file after the other, those of a test file last."""

    title: str  # of the files, for messages
    name: str
    features: dict[str, Column]
    others: dict[str, NDArray[Any]]  # labels, and the columns with client, group, time and weight
    files: tuple[tuple[str, int], ...]  # the client that a file is, and its number of rows; empty for one file
    train_rows: int  # before the rows of a test file
    notes: tuple[str, ...] = ()

    def owners(self, client: str | None) -> tuple[Rows | None, tuple[str, ...]]:
        """Return the client of every row, by its column or by its file, and the names of the clients."""
        if client:
            return numbered(self.others[client], f"column '{quoted(client)}'", first_row=1)
        if not self.files:
            return None, ()
        sizes = [size for _, size in self.files]
        owner = np.repeat(np.arange(len(sizes)), sizes)
        rest = len(next(iter(self.others.values()))) - len(owner)  # of a test file, which is no client
        return np.concatenate([owner, np.full(rest, -1)]), tuple(name for name, _ in self.files)


def read_files(source: TableFile, *, of_all_clients: bool = True) -> JoinedTable:
    """Read and check all files of a table; the files of clients are read in the order of their names.

    A table that is not that of all clients may have columns without a value, or with one level.
    """
    paths = _by_client(source.paths)
    tables = [(title_of_path(path), _read(source, path)) for path in paths.values()]
    features = _feature_names(source, tables)
    parts = [_Part(title, table, source, features) for title, table in tables]
    sizes = [len(table) for _, table in tables]
    if source.test_path is not None:
        test = _read(source, source.test_path, is_test=True)
        _check_columns(source.test_path, test.column_names, features, tables[0][0], "data.test_path")
        parts.append(_Part(source.test_path, test, source, features))
    title = (
        quoted_list((PurePath(part.title).name for part in parts[:MANY]), MANY) if len(parts) > 1 else parts[0].title
    )
    more = len(parts) - MANY
    title += f" and {more} more file{'s' * (more > 1)}" if more > 0 else ""
    with located_at(title):
        joined = {name: _joined_feature(name, parts, source.kinds.get(name), of_all_clients) for name in features}
    return JoinedTable(
        title,
        PurePath(parts[0].title).stem if len(paths) == 1 else f"{len(paths)} files",
        joined,
        {name: _joined_values(name, parts) for name in parts[0].others},
        tuple(zip(paths, sizes, strict=True)) if len(paths) > 1 else (),
        sum(sizes),
        tuple(dict.fromkeys(note for part in parts for note in part.notes)),
    )


class _Part:
    """The columns of one file, each checked by itself, so that messages name the file and the row."""

    def __init__(self, title: str, table: pa.Table, source: TableFile, features: Sequence[str]) -> None:
        self.title = title
        self.notes: list[str] = []
        self.features: dict[str, Column] = {}
        self.empty = {name for name in features if str(table.schema.field(name).type) == "null"}
        named = (source.client, source.group, source.time, source.weight)
        with located_at(title):
            self.others = {
                name: _values(table, name) for name in (*source.label_names, *(name for name in named if name))
            }
            kinds = source.kinds
            for name in features:
                column, notes = read_feature(table, name, kinds.get(name), allow_texts=source.one_hot)
                missing = rows_missing(column)
                if source.missing == "error" and missing.any():
                    raise no_value(name, int(missing.argmax()))
                self.features[name] = column
                self.notes += notes


def _values(table: pa.Table, name: str) -> NDArray[Any]:
    """Return a column that is no feature; decimals are numbers, and bytes are refused."""
    import pyarrow as pa

    kind = table.schema.field(name).type
    if pa.types.is_decimal(kind):
        return read_column(pa.table({name: table[name].cast(pa.float64())}), name)
    if pa.types.is_binary(kind):
        raise BadValue(f"column '{quoted(name)}' is not text in UTF-8", remedy="save the file in the encoding UTF-8")
    if pa.types.is_nested(kind):
        raise BadValue(
            f"column '{quoted(name)}' holds {quoted(str(kind))}, which is neither a number nor text",
            remedy="choose another column",
        )
    return read_column(table, name)


def title_of_path(path: Any) -> str:
    """Return how messages call a file, or a table that is given in Python."""
    return str(path) if isinstance(path, str | PurePath) else "the DataFrame"


def _read(source: TableFile, path: Any, *, is_test: bool = False) -> pa.Table:
    try:
        return source.checked(path, is_test=is_test)
    except ValueError as error:  # a DataFrame without rows, or with a column twice
        raise BadValue(
            f"the DataFrame cannot be used: {error}", remedy="give rows, and one column of each name"
        ) from None


def _by_client(paths: Sequence[Any]) -> dict[str, Any]:
    """Return the files by the names of their clients, which are sorted as those of a real federation.

    A client is called as its file, without folder and ending where that is clear.
    """
    if len(paths) == 1:
        return {"": paths[0]}
    if len({*paths}) < len(paths):
        twice = Counter(paths).most_common(1)[0][0]
        raise BadValue(f"{twice} is given twice", remedy="give every file once", where="data.path")
    stems = [PurePath(path).stem for path in paths]
    names = stems if len({*stems}) == len(stems) else [str(PurePath(path).with_suffix("")) for path in paths]
    names = names if len({*names}) == len(names) else [str(path) for path in paths]
    numbers = all(name.isascii() and name.isdigit() for name in names)
    order = sorted(zip(names, paths, strict=True), key=lambda pair: (int(pair[0]) if numbers else 0, pair[0]))
    return dict(order)


def _feature_names(source: TableFile, tables: Sequence[tuple[str, pa.Table]]) -> list[str]:
    """Return the features in the order of the first client's file; raise if the files have different columns."""
    first, names = tables[0][0], tables[0][1].column_names
    for name in source.drop:
        if not any(name in table.column_names for _, table in tables):
            raise UnknownName(
                f"no file has a column '{quoted(name)}'", remedy=f"they have: {quoted_list(names)}", where="data.drop"
            )
    features = source.feature_names(names)
    for title, table in tables:
        _check_columns(title, table.column_names, features, first, "data.path")
        more = [name for name in source.feature_names(table.column_names) if name not in features]
        if more:
            raise UnknownName(
                f"{first} has no column '{quoted(more[0])}', which {title} has",
                remedy=f"drop it (--drop {quoted(more[0])}), or add it to the other files",
                where="data.path",
            )
    return features


def _check_columns(title: str, names: Sequence[str], features: Sequence[str], first: str, where: str) -> None:
    for name in features:
        if name not in names:
            raise UnknownName(
                f"{title} has no column '{quoted(name)}', which {first} has",
                remedy=f"add it, or drop it everywhere (--drop {quoted(name)})",
                where=where,
            )


def _joined_feature(name: str, parts: Sequence[_Part], kind: Kind | None, of_all_clients: bool) -> Column:
    """Return a feature of all files; raise if it holds numbers in one file and texts in another."""
    filled = [part for part in parts if name not in part.empty]
    if of_all_clients and all(rows_missing(part.features[name]).all() for part in filled):
        raise BadValue(
            f"column '{quoted(name)}' has no value in any row",
            remedy=f"drop it (--drop {quoted(name)})",
            where="data.drop",
        )
    texts = [part for part in filled if isinstance(part.features[name], Categories)]
    if texts and len(texts) < len(filled):
        numbers = next(part for part in filled if part not in texts)
        raise BadValue(
            f"column '{quoted(name)}' holds texts in {texts[0].title} and numbers in {numbers.title}",
            remedy=f"correct one of them, or set its kind: --categorical {quoted(name)} or --numeric {quoted(name)}",
            where="data.categorical",
        )
    if not texts:
        return np.concatenate([np.asarray(part.features[name], np.float64) for part in parts])
    columns = [
        column if isinstance(column := part.features[name], Categories) else Categories(np.full(len(column), -1), ())
        for part in parts
    ]
    levels = tuple(sorted({level for column in columns for level in column.levels}))
    joined = Categories(np.concatenate([column.recoded(levels) for column in columns]), levels)
    if kind is None:
        too_many_levels(name, joined)
    if len(levels) == 1 and of_all_clients:
        raise BadValue(
            f"column '{quoted(name)}' holds '{quoted(levels[0])}' in all rows that have a value",
            remedy=f"drop it (--drop {quoted(name)})",
            where="data.drop",
        )
    return joined


def _joined_values(name: str, parts: Sequence[_Part]) -> NDArray[Any]:
    """Return labels, clients or times of all files; raise if they are numbers in one file and texts in another."""
    columns = [part.others[name] for part in parts]
    kinds = [KIND_WORDS.get(column.dtype.kind, "texts") for column in columns]
    for part, kind in zip(parts, kinds, strict=True):
        if kind != kinds[0]:
            raise BadValue(
                f"column '{quoted(name)}' holds {kind} in {part.title} and {kinds[0]} in {parts[0].title}",
                remedy="write the same values in all files",
                where="data.path",
            )
    return np.concatenate(columns)
