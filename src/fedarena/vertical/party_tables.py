"""Load tables whose columns belong to parties: one file for a simulation, or a party's own file."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedarena.config.errors import BadValue, DataMissing, check_known
from fedarena.data import published_files
from fedarena.data.scikit_learn_files import BREAST_CANCER_CLASSES, BREAST_CANCER_COLUMNS, read_breast_cancer
from fedarena.data.table_reader import holds_numbers, read_column, read_numbers, read_table, require_columns
from fedarena.transport.certificates import check_name

if TYPE_CHECKING:
    import pyarrow as pa

GUEST = "guest"
MOST_CLASSES = 20
EMBEDDED = "breast_cancer"
NAMED = ("give_me_some_credit", "default_credit", "kdd04_bio", "higgs_11k")  # with a party for each column


@dataclass(frozen=True)
class PartyTable:
    """Numeric columns (NaN for a missing value), and labels, row ids and column owners where they are known."""

    name: str
    x: NDArray[np.float64]
    names: tuple[str, ...]
    y: NDArray[np.float64] | None = None  # classes are numbered
    class_names: tuple[str, ...] = ()  # empty for regression
    ids: tuple[str, ...] | None = None
    parties: tuple[str, ...] = ()  # owner of each column, where the table names them

    def __len__(self) -> int:
        return len(self.x)

    @property
    def objective(self) -> str:
        """The objective that fits the labels: two classes, more classes, or regression."""
        return {0: "squared_error", 2: "logistic"}.get(len(self.class_names), "softmax")

    def require_labels(self) -> NDArray[np.float64]:
        """Return the labels, and refuse a table without them."""
        if self.y is None:
            raise BadValue("the guest's table has no label", remedy="name its column: --label", where="--label")
        return self.y

    def take(self, rows: NDArray[np.int64]) -> PartyTable:
        """Return these rows, in this order."""
        y = None if self.y is None else self.y[rows]
        ids = None if self.ids is None else tuple(self.ids[i] for i in rows)
        return dataclasses.replace(self, x=self.x[rows], y=y, ids=ids)


@dataclass(frozen=True)
class TableSource:
    """The source of the rows of one party, or of all parties of a simulation.

    `table` is the name of a data set or a file: .csv, .parquet, or .npz with X, y, feature_names and party. With
    `quantity` the label is a number to be predicted, not a class.
    """

    table: str
    label: str | None = None
    ids: str | None = None
    drop: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    hosts: int | None = None
    quantity: bool = False
    classes: tuple[str, ...] = ()  # of the training, for a prediction

    @property
    def name(self) -> str:
        """The name of the data set, without folders."""
        return Path(self.table).stem

    def load(self, only: Sequence[str] | None = None) -> PartyTable:
        """Load the table, or only these columns of it with label and ids."""
        if self.table == EMBEDDED:
            return _load_breast_cancer()
        if self.table in NAMED:
            return self._load_arrays(_find_named(self.table))
        path = Path(self.table)
        if path.suffix not in (".csv", ".parquet", ".npz"):
            known = (EMBEDDED, *NAMED)
            more = f"name a .csv, .parquet or .npz file, or one of {', '.join(known)}"
            check_known(self.table, known, f"there is no table '{self.table}'", more)
        if path.suffix != ".npz":
            return self._load_file(path, only)
        if not path.is_file():
            raise DataMissing(f"there is no file {path}", remedy="check the path")
        return self._load_arrays(path)

    def load_ids(self) -> PartyTable:
        """Load the ids of the table without its columns."""
        if not self.table.endswith((".csv", ".parquet")):
            return self.load()
        return dataclasses.replace(self, label=None)._load_file(Path(self.table), only=())

    def _load_arrays(self, path: Path) -> PartyTable:
        ids = self.ids
        with published_files.reading(
            path, remedy="it needs arrays X [rows, columns] and feature_names; y and party are optional"
        ):
            found: Mapping[str, NDArray[Any]] = published_files.read_npz(path)
            x = found["X"].astype(np.float64)
            names = tuple(map(str, found["feature_names"]))
            parties = tuple(map(str, found.get("party", ())))
            if x.ndim != 2 or x.shape[1] != len(names) or len(parties) not in (0, len(names)):
                raise ValueError("the shapes of X, feature_names and party do not match")
            if ids is not None and (ids not in found or found[ids].shape != (len(x),)):
                raise ValueError(f"it has no ids called '{ids}'")
            y, classes = self._encode_labels(found["y"]) if "y" in found else (None, ())
        return PartyTable(
            path.stem, x, names, y, classes, None if ids is None else tuple(map(str, found[ids])), parties
        )

    def _load_file(self, path: Path, only: Sequence[str] | None) -> PartyTable:
        label, ids, drop = self.label, self.ids, self.drop if only is None else ()
        table = read_table(path, text_columns=[ids] if ids else ())  # as text: 007 is not 7
        require_columns(path, table, {"--label": [label], "--id": [ids], "--drop": drop})
        wanted = set(table.column_names) - {label, ids, *drop} if only is None else set(only)
        names = tuple(name for name in table.column_names if name in wanted)
        if not names and only is None:
            raise BadValue(f"{path} has no feature column", remedy="drop fewer columns", where="--drop")
        for name in names:
            if not holds_numbers(table, name):
                raise BadValue(f"column '{name}' is not numeric", remedy=f"encode it as numbers, or use --drop {name}")
        x = np.stack([read_numbers(table, name) for name in names], axis=1) if names else np.zeros((len(table), 0))
        y, classes = self._encode_labels(read_column(table, label, allow_empty_text=True)) if label else (None, ())
        return PartyTable(path.stem, x, names, y, classes, _read_ids(table, ids) if ids else None)

    def _encode_labels(self, values: NDArray[Any]) -> tuple[NDArray[np.float64], tuple[str, ...]]:
        """Return class numbers and class names, or the numbers of a regression target."""
        if self.quantity:
            y = _to_numbers(values)
            if not np.isfinite(y).all():
                raise BadValue(
                    "a label is not a finite number", remedy="correct it, or delete that row", where="--label"
                )
            return y, ()
        found, codes = np.unique(values, return_inverse=True)
        if self.classes:
            unknown = [str(name) for name in found if str(name) not in self.classes]
            if unknown:
                raise BadValue(
                    f"the label '{unknown[0]}' is not a class of the training: {', '.join(self.classes)}",
                    remedy="write labels as in the training, or leave out --label",
                    where="--label",
                )
            return np.array([self.classes.index(str(name)) for name in found], np.float64)[codes], self.classes
        if len(found) < 2:
            what, remedy = "all rows have the same label", "train on rows of at least two classes"
            raise BadValue(what, remedy=remedy, where="--label")
        if len(found) > MOST_CLASSES:
            raise BadValue(
                f"the label has {len(found)} distinct values",
                remedy="for regression use --objective squared_error",
                where="--label",
            )
        return codes.astype(np.float64), tuple(map(str, found))


def load_table(source: str, **options: Any) -> PartyTable:
    """Load a data set by name, or a file; the options are those of `TableSource`."""
    return TableSource(source, **options).load()


def split_columns(table: PartyTable, columns: Sequence[str] = (), hosts: int | None = None) -> dict[str, list[int]]:
    """Assign the columns to parties, guest first: as given, as the table names them, or in equal consecutive blocks.

    `columns` are texts such as `bank=income,debt`; a star stands for all columns that no other party has.
    """
    if columns:
        return _parse_owners(table, columns)
    if not table.parties:
        return _equal_blocks([GUEST, *_host_names(hosts or 1)], list(range(len(table.names))))
    owned: dict[str, list[int]] = {GUEST: []}
    for i, party in enumerate(table.parties):
        owned.setdefault(check_name(party), []).append(i)
    if hosts is None:
        return owned
    host_columns = [i for party, own in owned.items() if party != GUEST for i in own]
    return {GUEST: owned[GUEST], **_equal_blocks(_host_names(hosts), host_columns)}


def _host_names(hosts: int) -> list[str]:
    return ["host"] if hosts == 1 else [f"host-{i + 1}" for i in range(hosts)]


def _equal_blocks(parties: Sequence[str], columns: Sequence[int]) -> dict[str, list[int]]:
    if len(columns) < len(parties):
        raise BadValue("there are more parties than columns", remedy="use fewer hosts", where="--hosts")
    blocks = np.array_split(np.array(columns), len(parties))
    return {party: block.tolist() for party, block in zip(parties, blocks, strict=True)}


def _parse_owners(table: PartyTable, columns: Sequence[str]) -> dict[str, list[int]]:
    """Read texts such as `bank=income,debt` and check that every column has exactly one owner."""
    owner: dict[str, str] = {}
    rest = ""
    parties = []
    for text in columns:
        party, sign, listed = text.partition("=")
        if not sign or party in parties:
            raise BadValue(f"'{text}' does not assign columns to a party", remedy="e.g. --columns bank=income,debt")
        parties.append(check_name(party))
        for name in listed.split(","):
            if name == "*" and not rest:
                rest = party
            elif name in owner:
                raise BadValue(f"column '{name}' is assigned to two parties", remedy="list it once", where="--columns")
            else:
                known = f"{table.name} has: {', '.join(table.names[:20])}"
                check_known(name, table.names, f"{table.name} has no column '{name}'", known, "--columns")
                owner[name] = party
    if GUEST not in parties or len(parties) < 2:
        raise BadValue("a guest and at least one host are needed", remedy="e.g. --columns guest=age --columns bank='*'")
    free = [name for name in table.names if name not in owner]
    if free and not rest:
        raise BadValue(
            f"no party has column '{free[0]}'",
            remedy=f"assign it to a party, or drop it: --drop {free[0]}",
            where="--columns",
        )
    owner |= dict.fromkeys(free, rest)
    parties.sort(key=lambda party: party != GUEST)
    return {party: [i for i, name in enumerate(table.names) if owner[name] == party] for party in parties}


def _load_breast_cancer() -> PartyTable:
    x, y = read_breast_cancer()
    owners = tuple(GUEST if name.startswith("mean") else "host" for name in BREAST_CANCER_COLUMNS)
    labels = y.astype(np.float64)
    return PartyTable(EMBEDDED, x, BREAST_CANCER_COLUMNS, labels, BREAST_CANCER_CLASSES, parties=owners)


def _find_named(name: str) -> Path:
    for folder in published_files.data_folders():
        if (folder / f"{name}.npz").is_file():
            return folder / f"{name}.npz"
    raise DataMissing(
        f"'{name}' is not on this machine",
        remedy=f"set FEDARENA_DATA to a folder with {name}.npz (arrays X, y, feature_names and party)",
        where=f"looked in {', '.join(map(str, published_files.data_folders()))}",
    )


def _to_numbers(values: NDArray[Any]) -> NDArray[np.float64]:
    try:
        return values.astype(np.float64)
    except (TypeError, ValueError) as error:
        raise BadValue(
            f"a label is not a number: {error}",
            remedy="for classes use --objective logistic or softmax, or name another column",
            where="--label",
        ) from None


def _read_ids(table: pa.Table, name: str) -> tuple[str, ...]:
    """Return ids as text; an integer is written without a decimal point."""
    import pyarrow as pa

    kind = table.schema.field(name).type
    if not any(fits(kind) for fits in (pa.types.is_integer, pa.types.is_string, pa.types.is_large_string)):
        raise BadValue(f"the ids in column '{name}' are not integers or text", remedy="store them as text")
    return tuple("" if value is None else str(value) for value in table[name].to_pylist())
