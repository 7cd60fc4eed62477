"""The encoding of a table: exact statistics of the training rows, no influence of other rows, the same bits from JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from fedarena.config.errors import BadValue, DataBroken
from fedarena.config.experiment import Experiment
from fedarena.data.table_columns import Categories
from fedarena.data.table_encoding import EncodingSettings, TableEncoding
from fedarena.engine.setup import partition_data

TRAIN = np.arange(6)
TABLE = {
    "age": [30.0, None, 50.0, 40.0, 60.0, 20.0, None],
    "ward": ["A", "B", None, "A", "A", "B", "C"],
}


@st.composite
def tables(draw: st.DrawFn) -> tuple[dict[str, Any], int]:
    """Draw a table with numbers and categories, some of them missing, and the number of its training rows."""
    n, train = draw(st.integers(6, 20)), draw(st.integers(3, 5))
    number = st.one_of(st.none(), st.floats(-1e6, 1e6).map(lambda value: round(value, 3)))
    columns: dict[str, Any] = {}
    for name in "ab":
        columns[name] = [draw(st.integers(-9, 9)) * 1.0, *draw(st.lists(number, min_size=n - 1, max_size=n - 1))]
    words = st.one_of(st.none(), st.sampled_from(["red", "green", "blue"]))
    columns["c"] = ["red", *draw(st.lists(words, min_size=n - 1, max_size=n - 1))]
    return columns, train


def encoded(columns: dict[str, Any], train: int, how: EncodingSettings) -> tuple[TableEncoding, NDArray[np.float32]]:
    table = {name: np.array(v, np.float64) if name != "c" else Categories.of(v) for name, v in columns.items()}
    encoding = TableEncoding.fit(table, np.arange(train), how)
    return encoding, encoding.encode(table)[0]


@pytest.mark.slow
@given(tables(), st.sampled_from(["median", "mean"]), st.booleans())
@settings(max_examples=80, deadline=None)
def test_training_rows_have_mean_0_and_deviation_1(drawn: tuple[dict[str, Any], int], missing: Any, mark: bool) -> None:
    columns, train = drawn
    encoding, x = encoded(columns, train, EncodingSettings(missing, missing_indicator=mark))
    assert x.dtype == np.float32
    for column in encoding.columns:
        own = x[:train, encoding.column_names.index(column.names[0])].astype(np.float64)
        if column.kind == "numeric":
            assert own.mean() == pytest.approx(0, abs=1e-5)
            assert own.std() == pytest.approx(1 if np.ptp(own) else 0, abs=1e-5)


@pytest.mark.slow
@given(tables(), st.sampled_from(["median", "mean"]), st.integers(0, 99))
@settings(max_examples=80, deadline=None)
def test_other_rows_change_no_bit_of_the_training_rows(
    drawn: tuple[dict[str, Any], int], missing: Any, seed: int
) -> None:
    columns, train = drawn
    rng = np.random.default_rng(seed)
    other = {
        name: [*values[:train], *rng.permutation(np.array(values[train:], object))] for name, values in columns.items()
    }
    other["a"][train:] = rng.normal(0, 1e9, len(other["a"]) - train)
    other["c"][train:] = ["violet"] * (len(other["c"]) - train)
    one, x = encoded(columns, train, EncodingSettings(missing))
    two, changed = encoded(other, train, EncodingSettings(missing))
    assert one == two
    assert x[:train].tobytes() == changed[:train].tobytes()


@pytest.mark.slow
@given(tables(), st.sampled_from(["median", "mean"]))
@settings(max_examples=80, deadline=None)
def test_json_gives_the_same_bits(drawn: tuple[dict[str, Any], int], missing: Any) -> None:
    columns, train = drawn
    encoding, x = encoded(
        columns, train, EncodingSettings(missing, task="classification", label=("y",), classes=("n", "y"))
    )
    again = TableEncoding.from_json(json.loads(json.dumps(encoding.to_json())))
    assert again == encoding
    table = pa.table({name: pa.array(values) for name, values in columns.items()})
    if all(table.schema.field(name).type != pa.null() for name in columns):
        assert again.encode(table)[0].tobytes() == x.tobytes()


def test_numbers_and_levels_are_those_of_the_training_rows() -> None:
    """Median of 20, 30, 40, 50, 60 is 40; filled, the six rows have mean 40 and variance (400 + 100 + 100 + 400) / 6."""
    encoding = TableEncoding.fit(TABLE, TRAIN, EncodingSettings(missing_indicator=True))
    age, ward = encoding.columns
    assert (age.fill, age.mean, age.deviation) == (40.0, 40.0, np.sqrt(1000 / 6))
    assert (ward.levels, ward.fill) == (("A", "B"), "A")
    assert encoding.column_names == ("age", "age is missing", "ward = A", "ward = B", "ward is missing")
    x, notes = encoding.encode(TABLE)
    assert x[2].tolist() == [np.float32(10 / np.sqrt(1000 / 6)), 0, 1, 0, 1]  # a missing ward is the most frequent one
    assert x[6].tolist() == [0, 1, 0, 0, 0]  # an unknown level is zero in all columns
    assert notes == ("column 'ward': 1 rows have levels that no training row has, and are zero in all its columns: C",)


def test_a_table_to_predict_may_have_more_and_fewer_columns() -> None:
    encoding = TableEncoding.fit(TABLE, TRAIN, EncodingSettings("mean", standardise=False, label=("ill",)))
    x, notes = encoding.encode({"zip": [1, 2], "age": [1, 2], "ill": ["no", "yes"]})
    assert x.tolist() == [[1, 1, 0], [2, 1, 0]]
    assert notes == (
        "columns that the model does not use: zip",
        "columns that are not there count as missing values: ward",
    )


@pytest.mark.parametrize(
    ("table", "what"),
    [
        ({"age": [1.0, np.inf], "ward": ["A", "A"]}, "'age' is infinite in row 2"),
        ({"age": [1.0, None], "ward": ["A", "A"]}, "'age' is empty in row 2"),
        ({"age": [1.0, 1e200], "ward": ["A", "A"]}, "'age' holds 1e\\+200 in row 2"),
    ],
)
def test_a_value_that_training_would_refuse_is_refused(table: dict[str, Any], what: str) -> None:
    whole = {"age": [1.0, 2.0], "ward": ["A", "B"]}
    encoding = TableEncoding.fit(whole, np.arange(2), EncodingSettings("error"))
    with pytest.raises(BadValue, match=what):
        encoding.encode(table)


def test_a_damaged_file_is_named() -> None:
    for table in ({"form": 1}, {"form": 2, "columns": [{"name": "a"}]}):
        with pytest.raises(DataBroken, match="preprocessing"):
            TableEncoding.from_json(table)


# The splits of an experiment


def table_of(folder: Path, rows: int = 60, shift: float = 0.0) -> Path:
    rng = np.random.default_rng(3)
    lines = ["site,age,ward,y"]
    for i in range(rows):
        age = "" if i % 7 == 3 else round(50 + 10 * rng.normal() + shift * (i % 2), 3)
        lines.append(f"{'north' if i % 2 else 'south'},{age},{'AB'[i % 3 % 2]},{i // 2 % 2}")
    (folder / "t.csv").write_text("\n".join(lines))
    return folder / "t.csv"


SPLITS: dict[str, dict[str, Any]] = {
    "its own": {},
    "a fold": {"folds": 3, "fold": 1},
    "a pooled fold": {"folds": 3, "fold": 1, "fold_seed": 5},
    "validation samples": {"evaluate": {"validation": 0.2}},
    "a share for tuning": {"validate_share": 0.25},
    "without a client": {"exclude": ["north"]},
    "iid": {"partition": "iid", "clients": 4},
}


@pytest.mark.parametrize("split", SPLITS)
def test_every_split_is_fitted_on_its_own_training_samples(split: str, tmp_path: Path) -> None:
    experiment = Experiment.make(table_of(tmp_path), label="y", client="site", **SPLITS[split])
    data, partition = partition_data(experiment)
    train = data.x[partition.train_rows].astype(np.float64)
    assert data.encoding is not None
    assert data.encoding.column_names == ("age", "ward = A", "ward = B")
    assert train[:, 0].mean() == pytest.approx(0, abs=1e-6)
    assert train[:, 0].std() == pytest.approx(1, abs=1e-6)


def test_splits_of_a_table_have_the_same_data(tmp_path: Path) -> None:
    experiment = Experiment.make(table_of(tmp_path), label="y", client="site")
    folds = [partition_data(experiment.with_(folds=3, fold=fold))[0] for fold in range(3)]
    assert len({data.fingerprint() for data in folds}) == 1
    assert len({data.x.tobytes() for data in folds}) == 3


def test_every_client_may_be_standardised_by_itself(tmp_path: Path) -> None:
    path = table_of(tmp_path, shift=100.0)
    experiment = Experiment.make(path, label="y", client="site", normalise="client")
    data, partition = partition_data(experiment)
    for rows in partition.clients:
        own = data.x[rows, 0].astype(np.float64)
        assert own.mean() == pytest.approx(0, abs=1e-6)
        assert own.std() == pytest.approx(1, abs=1e-6)
    assert data.encoding is not None
    assert TableEncoding.from_json(json.loads(json.dumps(data.encoding.to_json()))) == data.encoding
    at = partition.client_tests[1][:1]
    assert data.table is not None
    assert np.array_equal(data.encoding.encode(data.table[at], partition.names[1])[0], data.x[at])
    mixed, partition = partition_data(experiment.with_(partition="iid", clients=3))
    assert np.isfinite(mixed.x).all()
