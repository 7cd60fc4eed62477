"""Published tables: counts as published, natural clients, training levels and statistics only."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fedarena.config.errors import BadValue, DataMissing
from fedarena.config.experiment import Experiment
from fedarena.data import published_files
from fedarena.data.dataset import Dataset, Partition
from fedarena.data.download import SAME_FILES, download_dataset
from fedarena.data.table_decoders import REGIONS
from fedarena.engine.setup import open_context


def loaded(name: str, **settings: Any) -> tuple[Dataset, Partition]:
    """Load and partition a data set by its defaults; skip where its file is absent."""
    exp = Experiment.make({"data": {"name": name, **settings}})
    try:
        data = exp.data.made.load(0)
    except DataMissing:
        pytest.skip(f"the files of {name} are not on this machine")
    return data, exp.partition.made.split(data, exp.clients or 0, np.random.default_rng(0))


def arrays_of(name: str) -> published_files.Arrays:
    try:
        return published_files.load_published(name)
    except DataMissing:
        pytest.skip(f"the files of {name} are not on this machine")


SETS = {  # rows, task, outputs, natural clients
    "wine": ({}, 178, "classification", 3, 0),
    "diabetes": ({}, 442, "regression", 1, 0),
    "adult": ({}, 30_162, "classification", 2, 14),
    "adult by education": ({"client": "education"}, 30_162, "classification", 2, 16),
    "bank": ({}, 45_211, "classification", 2, 12),
    "bank by month": ({"client": "month"}, 45_211, "classification", 2, 12),
    "california_housing": ({}, 20_640, "regression", 1, 5),
    "california_housing by grid": ({"client": "grid"}, 20_640, "regression", 1, 17),
    "tcga_brca": ({}, 1_088, "survival", 1, 6),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SETS)
def test_sets_have_the_published_counts(name: str) -> None:
    settings, rows, task, outputs, clients = SETS[name]
    data, partition = loaded(name.partition(" ")[0], **settings)
    assert (len(data.x), data.task, data.classes, len(data.owner_names)) == (rows, task, outputs, clients)
    assert data.x.dtype == np.float32
    assert np.isfinite(data.x).all()
    assert len(partition.clients) == (clients or 5)
    assert sum(map(len, partition.clients)) == data.n_train
    if clients:
        assert sum(map(len, partition.client_tests)) == rows - data.n_train
    numeric = [one.name for one in data.encoding.columns if one.kind == "numeric"]
    levels = [k for k, name in enumerate(data.encoding.column_names) if name not in numeric]
    assert set(np.unique(data.x[:, levels])) <= {0.0, 1.0}
    standardised = np.delete(data.x[: data.n_train], levels, axis=1)
    assert np.abs(standardised.mean(axis=0)).max() < 1e-3
    assert set(np.round(standardised.std(axis=0), 3)) <= {0.0, 1.0}  # a column that is constant in training stays 0


@pytest.mark.slow
def test_income_and_deposits_are_as_common_as_published() -> None:
    """24.89 % above 50,000 dollars, 11.70 % deposits; the mean value of a house is 206,855.8 dollars."""
    assert loaded("adult")[0].y.mean() == pytest.approx(0.2489, abs=5e-5)
    assert loaded("bank")[0].y.mean() == pytest.approx(0.1170, abs=5e-5)
    assert loaded("california_housing")[0].y.astype(np.float64).mean() * 1e5 == pytest.approx(206_855.8, abs=0.1)


@pytest.mark.slow
def test_duration_is_a_feature_only_if_it_is_asked_for() -> None:
    assert loaded("bank", duration=True)[0].x.shape[1] == loaded("bank")[0].x.shape[1] + 1


def test_regions_have_the_published_division() -> None:
    """Train and test sizes per region, as FLamby prints them; 13.9 % of the events were observed."""
    data, partition = loaded("tcga_brca")
    assert data.owner_names == REGIONS
    assert [len(rows) for rows in partition.clients] == [248, 156, 164, 129, 129, 40]
    assert [len(rows) for rows in partition.client_tests] == [63, 40, 42, 33, 33, 11]
    assert data.y[:, 1].mean() == pytest.approx(0.139, abs=5e-4)
    assert data.y[:, 0].max() > 8000  # days
    south, partition = loaded("tcga_brca", region="South")
    assert (south.n_train, len(partition.test), [len(rows) for rows in partition.clients]) == (156, 222, [156])
    raw, _ = loaded("tcga_brca", standardise=False)
    assert raw.x[:, 0].max() == 90.0  # years


def as_words(arrays: published_files.Arrays) -> list[list[str]]:
    """Write the rows of a table as its published file has them."""
    columns = []
    for name, values, is_codes in zip(arrays["feature_names"], arrays["X"].T, arrays["categorical"], strict=True):
        if is_codes:
            columns.append([str(word) for word in arrays[f"levels_{name}"][values.astype(int)]])
        else:
            columns.append(["" if np.isnan(v) else str(v) for v in values.tolist()])
    return [list(row) for row in zip(*columns, strict=True)]


@pytest.mark.slow
@pytest.mark.parametrize("separator", [",", ";"])
def test_bank_is_decoded_from_both_published_forms(separator: str) -> None:
    arrays = arrays_of("bank")
    words = {"Y": "yes", "N": "no"} if separator == ";" else {}
    lines = [separator.join([*map(str, arrays["feature_names"]), "y"])]
    for row, y in zip(as_words(arrays), arrays["y"], strict=True):
        lines.append(separator.join(words.get(word, word) for word in [*row, "NY"[y]]))
    text = "\n".join(lines)
    published_files.verify("bank", published_files.decode_bank({"bank-full.csv": text.encode()}))


@pytest.mark.slow
def test_adult_is_decoded_without_rows_with_unknown_values() -> None:
    arrays = arrays_of("adult")
    rows = [[*row, [" <=50K", ">50K."][y]] for row, y in zip(as_words(arrays), arrays["y"], strict=True)]
    rows.insert(7, ["39", "?", *rows[0][2:]])
    text = "\n".join(", ".join(row) for row in [[*map(str, arrays["feature_names"]), "income"], *rows, []])
    published_files.verify("adult", published_files.decode_adult({"adult.data": text.encode()}))


@pytest.mark.slow
def test_housing_is_decoded_with_its_missing_values() -> None:
    arrays = arrays_of("california_housing")
    names = arrays["feature_names"].tolist()
    lines = [",".join([*names[:8], "median_house_value", names[8]])]
    lines += [",".join([*row[:8], str(y), row[8]]) for row, y in zip(as_words(arrays), arrays["y"], strict=True)]
    found = published_files.decode_housing({"housing.csv": "\n".join(lines).encode()})
    assert np.isnan(found["X"]).sum() == 207
    published_files.verify("california_housing", found)


def test_regions_are_decoded_with_patients_outside_the_division_left_out() -> None:
    arrays = arrays_of("tcga_brca")
    site = [REGIONS.index(arrays["site_names"][k]) for k in arrays["site"]]
    part = ["test" if is_test else "train" for is_test in arrays["test"]]
    numbers = [[str(v) for v in row] for row in arrays["X"].tolist()]
    ends = zip(numbers, arrays["event"].tolist(), arrays["time"].tolist(), strict=True)
    rows = [[f"p{i}", *row, str(float(e)), str(t)] for i, (row, e, t) in enumerate(ends)]
    header = ["pid", *(f'"{name}"' for name in arrays["feature_names"]), "E", "T"]
    table = "\n".join(",".join(row) for row in [header, *rows[:5], ["unknown", *rows[5][1:]], *rows[5:]])
    split = "\n".join(
        ["pid,fold,fold2", *(f"p{i},{p},{p}_{k}" for i, (p, k) in enumerate(zip(part, site, strict=True)))]
    )
    found = published_files.decode_tcga_brca({"brca.csv": table.encode(), "train_test_split.csv": split.encode()})
    published_files.verify("tcga_brca", found)
    assert found["feature_names"].tolist() == arrays["feature_names"].tolist()


# Fed-Heart-Disease


def test_hospitals_have_the_published_division() -> None:
    """FLamby: 199/104, 172/89, 30/16 and 85/45 patients; the common test rows are all 254 of them."""
    data, partition = loaded("fed_heart_disease")
    assert data.x.shape[1] == 13
    assert [len(rows) for rows in partition.clients] == [199, 172, 30, 85]
    assert [len(rows) for rows in partition.client_tests] == [104, 89, 16, 45]
    assert len(partition.test) == data.n_test == 254
    assert partition.unused == 0
    assert not np.isin(np.concatenate(partition.client_tests), partition.test).any()


def test_test_rows_have_two_views_of_the_same_patients() -> None:
    """Own rows are standardised by the hospital's training rows, common rows by all: the same after undoing both."""
    data, partition = loaded("fed_heart_disease")
    pooled, _ = loaded("fed_heart_disease", normalise="pooled")
    x, pooled_x, n = data.x.astype(np.float64), pooled.x.astype(np.float64), data.n_train
    common, own = np.arange(n, n + 254), np.arange(n + 254, len(x))
    assert (data.y[common] == data.y[own]).all()
    assert (pooled_x[n:] == x[n:]).all()
    assert np.abs(pooled_x[:n].mean(axis=0)).max() < 1e-6
    for hospital, rows in enumerate(partition.clients):
        assert np.abs(x[rows].mean(axis=0)).max() < 1e-5
        varies = x[rows].std(axis=0) > 0
        both = np.flatnonzero(data.owner[own] == hospital)
        for j in np.flatnonzero(varies):  # one affine map takes one view to the other
            a, b = np.polyfit(x[rows, j], pooled_x[rows, j], 1)
            assert a * x[own[both], j] + b == pytest.approx(pooled_x[common[both], j], abs=1e-4)


def test_two_views_cannot_be_divided_again() -> None:
    loaded("fed_heart_disease")
    with pytest.raises(BadValue, match="cannot be divided again"):
        open_context(Experiment.make("fed_heart_disease", fold_seed=1))


def test_its_files_are_those_of_heart_disease() -> None:
    loaded("fed_heart_disease")
    assert SAME_FILES["fed_heart_disease"] == "heart_disease"
    for folder in published_files.data_folders():
        if (folder / "heart_disease_4sites.npz").exists():
            assert download_dataset("fed_heart_disease", folder=folder).name == "heart_disease_4sites.npz"
            break
