"""Tables from files: what they become, and what is said when they do not fit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest

from fedarena.config.errors import BadValue, DataBroken, DataMissing, UnknownName
from fedarena.config.registry import find
from fedarena.data.sources.table_files import Csv, Parquet

N = 50
RNG = np.random.default_rng(0)
COLUMNS: dict[str, Any] = {
    "site": ["north" if i < 20 else "south" for i in range(N)],
    "age": np.arange(N),
    "weight": RNG.normal(70, 9, N),
    "smokes": np.arange(N) % 2 == 0,
    "ill": ["yes" if i % 3 == 0 else "no" for i in range(N)],
}


def csv(folder: Path, name: str = "t.csv", **changed: Any) -> str:
    pyarrow.csv.write_csv(pa.table({**COLUMNS, **changed}), folder / name)
    return str(folder / name)


def gap(value: Any, at: int, otherwise: Any = 1.0) -> list[Any]:
    return [value if i == at else otherwise for i in range(N)]


def test_a_table_becomes_standardised_rows_with_owners(tmp_path: Path) -> None:
    data = Csv(csv(tmp_path), label="ill", client="site").load(0)
    assert (data.name, data.x.shape, data.x.dtype, data.n_train) == ("t", (N, 3), np.float32, 40)
    assert data.class_names == ("no", "yes")
    assert data.owner_names == ("north", "south")
    assert data.owner is not None
    assert np.bincount(data.owner[data.n_train :]).tolist() == [4, 6]
    train = data.x[: data.n_train]
    assert np.allclose(train.mean(axis=0), 0, atol=1e-6)
    assert np.allclose(train.std(axis=0), 1, atol=1e-6)


def test_csv_and_parquet_give_the_same_data(tmp_path: Path) -> None:
    pyarrow.parquet.write_table(pa.table(COLUMNS), tmp_path / "t.parquet")
    one = Csv(csv(tmp_path), "ill", "site").load(0)
    other = Parquet(str(tmp_path / "t.parquet"), "ill", "site").load(0)
    assert one.fingerprint() == other.fingerprint()


def test_columns_of_other_arrow_types_are_read(tmp_path: Path) -> None:
    table = pa.table(
        {
            "y": pa.array(COLUMNS["ill"]).dictionary_encode(),
            "d": pa.array(range(N)).cast(pa.decimal128(21, 2)),
            "b": pa.array(COLUMNS["smokes"]),
            "client": pa.array(np.arange(N) % 2, pa.int8()),
        }
    )
    pyarrow.parquet.write_table(table, tmp_path / "t.parquet")
    data = Parquet(str(tmp_path / "t.parquet"), "y", "client", standardise=False).load(0)
    assert sorted(data.x[:, 0]) == list(range(N))
    assert set(data.x[:, 1]) == {0, 1}
    assert (data.class_names, data.owner_names) == (("no", "yes"), ("0", "1"))


def test_labels_may_be_truth_values_or_whole_numbers(tmp_path: Path) -> None:
    path = csv(tmp_path, age=np.arange(N) % 5 + 3)
    assert Csv(path, "smokes", drop=("ill", "site")).load(0).class_names == ("False", "True")
    assert Csv(path, "age", drop=("ill", "site")).load(0).class_names == ("3", "4", "5", "6", "7")


def test_the_split_depends_on_its_own_seed_only(tmp_path: Path) -> None:
    path = csv(tmp_path)
    base = Csv(path, "ill", "site").load(0).fingerprint()
    assert base == Csv(path, "ill", "site").load(5).fingerprint()
    assert base != Csv(path, "ill", "site", split_seed=1).load(0).fingerprint()


def test_a_second_file_is_the_test_set(tmp_path: Path) -> None:
    test = csv(tmp_path, "test.csv", ill=["perhaps"] * N)
    data = Csv(csv(tmp_path), "ill", "site", test_path=test).load(0)
    assert (data.n_train, len(data.test_rows)) == (N, N)
    assert data.class_names == ("no", "perhaps", "yes")
    assert set(data.y[N:]) == {1}
    assert np.array_equal(data.x[:N], data.x[N:])  # standardised by the same training rows


def test_gaps_are_filled_with_the_mean_of_the_training_rows(tmp_path: Path) -> None:
    weight = [None if i in (3, 11) else float(i) for i in range(N)]
    path = csv(tmp_path, weight=weight)
    data = Csv(path, "ill", "site", missing="mean", standardise=False).load(0)
    column = data.x[:, 1]
    filled = column % 1 != 0
    assert filled.sum() == 2
    assert column[filled] == pytest.approx(column[: data.n_train][~filled[: data.n_train]].mean())


def test_words_become_zeros_and_ones_on_request(tmp_path: Path) -> None:
    colours = [("red", "green", "blue")[i % 3] for i in range(N)]
    data = Csv(csv(tmp_path, weight=colours), "ill", "site", one_hot=True, standardise=False).load(0)
    assert data.x.shape == (N, 5)
    assert (data.x[:, 1:4].sum(axis=1) == 1).all()


@pytest.mark.slow
def test_whole_numbers_that_turn_into_fractions_late_are_read(tmp_path: Path) -> None:
    lines = ["a,y"] + [f"{i},{i % 2}" for i in range(200_000)] + ["0.5,1"]
    (tmp_path / "t.csv").write_text("\n".join(lines))
    assert len(Csv(str(tmp_path / "t.csv"), "y").load(0).x) == 200_001


def test_another_separator_is_read(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("a;y\n" + "".join(f"{i};{i % 2}\n" for i in range(20)))
    assert Csv(str(tmp_path / "t.csv"), "y", separator=";").load(0).shape == (1,)


@pytest.mark.parametrize(
    ("settings", "changed", "kind", "what", "remedy"),
    [  # row 7 is the seventh below the header
        ({"label": "il"}, {}, UnknownName, "no column 'il'", "did you mean 'ill'"),
        ({"client": "sitte"}, {}, UnknownName, "no column 'sitte'", "did you mean 'site'"),
        ({"drop": ["zip"]}, {}, UnknownName, "no column 'zip'", "it has: site"),
        ({"client": None, "one_hot": False}, {}, BadValue, "column 'site' is not numeric: it holds 'north'", "--drop"),
        ({}, {"age": [str(i) + "a" for i in range(N)]}, BadValue, "column 'age' is not numeric", "drop"),
        ({}, {"age": [str(i) + "a" for i in range(N)]}, BadValue, "50 different texts", "--categorical age"),
        ({"missing": "error"}, {"weight": gap(None, 6)}, BadValue, "'weight' is empty in row 7", "mean"),
        ({}, {"weight": gap(np.inf, 6)}, BadValue, "'weight' is infinite in row 7", ""),
        ({"missing": "mean"}, {"weight": [None] * N}, BadValue, "'weight' has no value", "drop"),
        ({}, {"ill": gap("", 4, "a")}, BadValue, "column 'ill' is empty in row 5", "fill"),
        ({}, {"site": gap(None, 4)}, BadValue, "column 'site' is empty in row 5", "fill"),
        ({}, {"ill": ["no"] * N}, BadValue, "one class", "two classes"),
        (
            {"label": "weight", "drop": ["ill"], "task": "classification"},
            {},
            BadValue,
            "'weight' holds fractions",
            "--task regression",
        ),
        ({"drop": ["age", "weight", "smokes"]}, {}, BadValue, "no feature column", "drop fewer"),
        ({"test": 0.001}, {}, BadValue, "no row to test on", "raise test"),
    ],
)
def test_a_table_that_does_not_fit_says_where(
    tmp_path: Path, settings: dict[str, Any], changed: dict[str, Any], kind: type[Exception], what: str, remedy: str
) -> None:
    settings = {"path": csv(tmp_path, **changed), "label": "ill", "client": "site", **settings}
    settings["drop"] = tuple(settings.get("drop", ()))
    with pytest.raises(kind, match=what) as error:
        Csv(**settings).load(0)
    assert remedy in str(error.value)


def test_a_label_with_too_many_values_is_no_class(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("a,y\n" + "".join(f"{i},{i}\n" for i in range(1200)))
    with pytest.raises(BadValue, match=r"1200 distinct values.*quantity"):
        Csv(str(tmp_path / "t.csv"), "y", task="classification").load(0)


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (b"", "Empty CSV"),
        (b"a,y\n", "no rows"),
        (b"a,y\n1\n", "Expected 2 columns"),
        (b"a,a,y\n1,2,3\n", "two columns 'a'"),
    ],
)
def test_a_damaged_file_is_broken_and_named(tmp_path: Path, content: bytes, what: str) -> None:
    (tmp_path / "t.csv").write_bytes(content)
    with pytest.raises(DataBroken, match=what) as error:
        Csv(str(tmp_path / "t.csv"), "y").load(0)
    assert "t.csv" in str(error.value)


def test_a_file_that_is_no_parquet_is_broken(tmp_path: Path) -> None:
    (tmp_path / "t.parquet").write_bytes(b"a,y\n1,2\n")
    with pytest.raises(DataBroken, match=r"t\.parquet"):
        Parquet(str(tmp_path / "t.parquet"), "y").load(0)


def test_a_file_that_is_not_there_is_missing(tmp_path: Path) -> None:
    with pytest.raises(DataMissing, match=r"no\.csv"):
        Csv(str(tmp_path / "no.csv"), "y").load(0)


def test_a_test_file_needs_the_same_columns_and_types(tmp_path: Path) -> None:
    path = csv(tmp_path)
    pyarrow.csv.write_csv(pa.table(COLUMNS).drop(["age"]), tmp_path / "less.csv")
    with pytest.raises(UnknownName, match=r"less\.csv has no column 'age'"):
        Csv(path, "ill", "site", test_path=str(tmp_path / "less.csv")).load(0)
    dropped = Csv(path, "ill", "site", drop=("age",), test_path=str(tmp_path / "less.csv")).load(0)
    assert dropped.shape == (2,)
    other = csv(tmp_path, "words.csv", age=["old"] * N)
    with pytest.raises(BadValue, match=r"'age' holds texts in .*words\.csv and numbers in .*t\.csv"):
        Csv(path, "ill", "site", test_path=other).load(0)


def test_settings_are_checked_before_the_file_is_read() -> None:
    entry = find("dataset", "csv")
    with pytest.raises(BadValue, match="path"):
        entry.build({"label": "y"})
    with pytest.raises(BadValue, match="test"):
        entry.build({"path": "t.csv", "label": "y", "test": 1.5})
    assert entry.build({"path": "t.csv", "label": "y", "drop": ["a"]}).drop == ("a",)


def test_who_owns_rows_decides_the_partition(tmp_path: Path) -> None:
    assert Csv("t.csv", "y", "site").defaults["partition"] == {"name": "natural"}
    assert Csv("t.csv", "y").defaults["clients"] == 10
