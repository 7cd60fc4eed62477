"""Tables whose columns belong to parties: one file for a simulation, or a party's own file."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedarena.config.errors import BadValue, DataMissing, UnknownName, suggest
from fedarena.data import published_files

if TYPE_CHECKING:
    import pyarrow as pa

Numbered = Callable[[NDArray[Any]], tuple[NDArray[np.float64], tuple[str, ...]]]  # labels, and names of classes
GUEST = "guest"
MOST_CLASSES = 20
EMBEDDED = "breast_cancer"
NAMED = ("give_me_some_credit", "default_credit", "kdd04_bio", "higgs_11k")  # with a party for each column


@dataclass(frozen=True)
class PartyTable:
    """Columns of numbers (NaN where a value is missing), and what is known of rows and owners."""

    name: str
    x: NDArray[np.float64]
    names: tuple[str, ...]
    y: NDArray[np.float64] | None = None  # classes are numbered
    class_names: tuple[str, ...] = ()  # empty where the label is a quantity
    ids: tuple[str, ...] | None = None
    parties: tuple[str, ...] = ()  # owner of each column, where the table says so

    def __len__(self) -> int:
        return len(self.x)

    @property
    def objective(self) -> str:
        """What fits the labels: two classes, more, or a quantity."""
        return {0: "squared_error", 2: "logistic"}.get(len(self.class_names), "softmax")

    def rows(self, rows: NDArray[np.int64]) -> PartyTable:
        """These rows, in this order."""
        y = None if self.y is None else self.y[rows]
        ids = None if self.ids is None else tuple(self.ids[i] for i in rows)
        return dataclasses.replace(self, x=self.x[rows], y=y, ids=ids)


def load_table(
    source: str,
    *,
    label: str | None = None,
    ids: str | None = None,
    drop: Sequence[str] = (),
    quantity: bool = False,
    classes: Sequence[str] = (),
    only: Sequence[str] | None = None,
) -> PartyTable:
    """A table by the name of a data set or by its file: .csv, .parquet, or .npz with X, y, feature_names and party.

    `quantity` says that the label is a number to be predicted as such, not a class; `classes` are those of a training,
    `only` its columns: others of the file are not read.
    """
    numbered = partial(_labels, quantity=quantity, classes=tuple(classes))
    if source == EMBEDDED:
        return _breast_cancer()
    if source in NAMED:
        return _arrays(source, _find(source), ids, numbered)
    path = Path(source)
    if path.suffix not in (".csv", ".parquet", ".npz"):
        known = (EMBEDDED, *NAMED)
        raise UnknownName(
            f"no table is called '{source}'",
            remedy=suggest(source, known, f"name a .csv, .parquet or .npz file, or one of {', '.join(known)}"),
        )
    if path.suffix == ".npz":
        if not path.is_file():
            raise DataMissing(f"there is no file {path}", remedy="check the path")
        return _arrays(path.stem, path, ids, numbered)
    return _file(path, label, ids, numbered, drop, only)


def load_ids(source: str, ids: str) -> PartyTable:
    """The ids of a table, and nothing else of it."""
    if not source.endswith((".csv", ".parquet")):
        return load_table(source, ids=ids)
    table = _checked(Path(source), ids, {"--id": [ids]})
    return PartyTable(Path(source).stem, np.zeros((len(table), 0)), (), ids=_ids(table, ids))


def split_columns(table: PartyTable, columns: Sequence[str] = (), hosts: int | None = None) -> dict[str, list[int]]:
    """The columns of each party, guest first: as asked, as the table says, or in equal runs to guest and hosts.

    `columns` are texts like `bank=income,debt`; a star stands for all columns that nobody else has.
    """
    from fedarena.transport.certificates import check_name

    if columns:
        return _asked(table, columns)
    if not table.parties:
        runs = np.array_split(np.arange(len(table.names)), (hosts or 1) + 1)
        return {party: run.tolist() for party, run in zip(_names(hosts or 1), runs, strict=True) if _some(run)}
    found: dict[str, list[int]] = {GUEST: []}
    for i, party in enumerate(table.parties):
        found.setdefault(check_name(party), []).append(i)
    if hosts is None:
        return found
    theirs = [i for party, own in found.items() if party != GUEST for i in own]
    runs = np.array_split(np.array(theirs), hosts)
    return {
        GUEST: found[GUEST],
        **{party: run.tolist() for party, run in zip(_names(hosts)[1:], runs, strict=True) if _some(run)},
    }


def _names(hosts: int) -> list[str]:
    return [GUEST, *(["host"] if hosts == 1 else [f"host-{i + 1}" for i in range(hosts)])]


def _some(run: NDArray[Any]) -> bool:
    if not len(run):
        raise BadValue("there are more parties than columns", remedy="ask for fewer hosts", where="--hosts")
    return True


def _asked(table: PartyTable, columns: Sequence[str]) -> dict[str, list[int]]:
    from fedarena.transport.certificates import check_name

    owner: dict[str, str] = {}
    rest = ""
    parties = []
    for text in columns:
        party, sign, listed = text.partition("=")
        if not sign or party in parties:
            raise BadValue(f"'{text}' does not say whose columns", remedy="write e.g. --columns bank=income,debt")
        parties.append(check_name(party))
        for name in listed.split(","):
            if name == "*" and not rest:
                rest = party
            elif name in owner:
                raise BadValue(f"column '{name}' is given to two parties", remedy="name it once", where="--columns")
            elif name not in table.names:
                told = f"{table.name} has: {', '.join(table.names[:20])}"
                raise UnknownName(
                    f"{table.name} has no column '{name}'", remedy=suggest(name, table.names, told), where="--columns"
                )
            else:
                owner[name] = party
    if GUEST not in parties or len(parties) < 2:
        raise BadValue("a guest and at least one host are needed", remedy="e.g. --columns guest=age --columns bank='*'")
    free = [name for name in table.names if name not in owner]
    if free and not rest:
        raise BadValue(
            f"nobody has column '{free[0]}'",
            remedy=f"give it to a party, or drop it: --drop {free[0]}",
            where="--columns",
        )
    owner |= dict.fromkeys(free, rest)
    parties.sort(key=lambda party: party != GUEST)
    return {party: [i for i, name in enumerate(table.names) if owner[name] == party] for party in parties}


def _breast_cancer() -> PartyTable:
    from sklearn.datasets import load_breast_cancer

    bunch = load_breast_cancer()
    names, classes = tuple(map(str, bunch.feature_names)), tuple(map(str, bunch.target_names))
    owners = tuple(GUEST if name.startswith("mean") else "host" for name in names)
    return PartyTable(
        EMBEDDED, bunch.data.astype(np.float64), names, bunch.target.astype(np.float64), classes, parties=owners
    )


def _find(name: str) -> Path:
    for folder in published_files.data_folders():
        if (folder / f"{name}.npz").is_file():
            return folder / f"{name}.npz"
    raise DataMissing(
        f"'{name}' is not on this machine",
        remedy=f"point FEDARENA_DATA at a folder with {name}.npz (arrays X, y, feature_names and party)",
        where=f"looked in {', '.join(map(str, published_files.data_folders()))}",
    )


def _arrays(name: str, path: Path, ids: str | None, numbered: Numbered) -> PartyTable:
    with published_files.reading(
        path, remedy="it needs arrays X [rows, columns] and feature_names; y and party may be there"
    ):
        found: Mapping[str, NDArray[Any]] = published_files.read_npz(path)
        x = found["X"].astype(np.float64)
        names = tuple(map(str, found["feature_names"]))
        parties = tuple(map(str, found.get("party", ())))
        if x.ndim != 2 or x.shape[1] != len(names) or len(parties) not in (0, len(names)):
            raise ValueError("X, feature_names and party do not fit together")
        if ids is not None and (ids not in found or found[ids].shape != (len(x),)):
            raise ValueError(f"it has no ids called '{ids}'")
        y, classes = numbered(found["y"]) if "y" in found else (None, ())
    return PartyTable(name, x, names, y, classes, None if ids is None else tuple(map(str, found[ids])), parties)


def _file(
    path: Path,
    label: str | None,
    ids: str | None,
    numbered: Numbered,
    drop: Sequence[str],
    only: Sequence[str] | None,
) -> PartyTable:
    aside = {label, ids, *drop} if only is None else set()
    table = _checked(path, ids, {"--label": [label], "--id": [ids], "--drop": drop if only is None else ()})
    names = tuple(name for name in table.column_names if name not in aside and (only is None or name in only))
    if not names and only is None:
        raise BadValue(f"{path} has no column of features", remedy="drop fewer columns", where="--drop")
    x = np.stack([_numbers(table, name) for name in names], axis=1) if names else np.zeros((len(table), 0))
    y, classes = numbered(_complete(table, label)) if label else (None, ())
    return PartyTable(path.stem, x, names, y, classes, _ids(table, ids) if ids else None)


def _checked(path: Path, ids: str | None, named: Mapping[str, Sequence[str | None]]) -> pa.Table:
    """The table in a file, with rows and with the columns that options name."""
    if not path.is_file():
        raise DataMissing(f"there is no file {path}", remedy="check the path")
    with published_files.reading(path, remedy="check that it is a table with a header and rows"):
        table = _arrow(path, ids)
        twice = [name for name, times in Counter(table.column_names).items() if times > 1]
        if not len(table) or twice:
            raise ValueError(f"it has two columns '{twice[0]}'" if twice else "it has no rows")
    for option, names in named.items():
        for missing in (name for name in names if name is not None and name not in table.column_names):
            told = f"it has: {', '.join(table.column_names[:20])}"
            raise UnknownName(
                f"{path} has no column '{missing}'", remedy=suggest(missing, table.column_names, told), where=option
            )
    return table


def _arrow(path: Path, ids: str | None) -> pa.Table:
    if path.suffix == ".parquet":
        from pyarrow import parquet

        return parquet.read_table(path)
    import pyarrow as pa
    from pyarrow import csv

    whole = min(path.stat().st_size + 1, 2**30)  # types are inferred from the first block: let it be all
    as_written = csv.ConvertOptions(column_types={ids: pa.string()} if ids else None)  # 007 is not 7
    return csv.read_csv(path, csv.ReadOptions(block_size=whole), convert_options=as_written)


def _numbers(table: pa.Table, name: str) -> NDArray[np.float64]:
    import pyarrow as pa

    kind = table.schema.field(name).type
    known = (pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal, pa.types.is_boolean, pa.types.is_null)
    if not any(is_kind(kind) for is_kind in known):
        raise BadValue(
            f"column '{name}' is not numeric", remedy=f"encode it as numbers, or leave it out: --drop {name}"
        )
    values: NDArray[np.float64] = table[name].cast(pa.float64(), safe=False).to_numpy()
    return values


def _complete(table: pa.Table, name: str) -> NDArray[Any]:
    import pyarrow.compute as pc

    at = pc.index(pc.is_null(table[name], nan_is_null=True), True).as_py()
    if at >= 0:
        raise BadValue(f"the label '{name}' is empty in row {at + 1}", remedy="fill it, or delete that row")
    values: NDArray[Any] = table[name].to_numpy()
    return values


def _labels(
    values: NDArray[Any], quantity: bool, classes: tuple[str, ...]
) -> tuple[NDArray[np.float64], tuple[str, ...]]:
    """Classes by number, or a quantity as it is."""
    if quantity:
        y = _quantity(values)
        if not np.isfinite(y).all():
            raise BadValue("a label is not a finite number", remedy="correct it, or delete that row", where="--label")
        return y, ()
    kinds, codes = np.unique(values, return_inverse=True)
    if classes:
        strange = [str(kind) for kind in kinds if str(kind) not in classes]
        if strange:
            raise BadValue(
                f"the label '{strange[0]}' is not one of the training's: {', '.join(classes)}",
                remedy="write labels as in the training, or leave out --label",
                where="--label",
            )
        return np.array([classes.index(str(kind)) for kind in kinds], dtype=np.float64)[codes], classes
    if len(kinds) < 2:
        raise BadValue("all rows have the same label", remedy="train on rows of at least two classes", where="--label")
    if len(kinds) > MOST_CLASSES:
        raise BadValue(
            f"the label has {len(kinds)} distinct values",
            remedy="for a quantity say --objective squared_error",
            where="--label",
        )
    return codes.astype(np.float64), tuple(map(str, kinds))


def _quantity(values: NDArray[Any]) -> NDArray[np.float64]:
    """Labels as numbers."""
    try:
        return values.astype(np.float64)
    except (TypeError, ValueError) as error:
        raise BadValue(
            f"a label is not a number: {error}",
            remedy="for classes say --objective logistic or softmax, or name another column",
            where="--label",
        ) from None


def _ids(table: pa.Table, name: str) -> tuple[str, ...]:
    """As text; a number is written without a point."""
    import pyarrow as pa

    kind = table.schema.field(name).type
    if not any(fits(kind) for fits in (pa.types.is_integer, pa.types.is_string, pa.types.is_large_string)):
        raise BadValue(f"ids in column '{name}' are neither whole numbers nor text", remedy="store them as text")
    return tuple("" if value is None else str(value) for value in table[name].to_pylist())
