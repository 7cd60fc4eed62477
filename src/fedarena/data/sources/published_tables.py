"""Published tables, most with natural clients: census, bank, houses and patients; three are part of scikit-learn."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from fedarena.config.registry import register
from fedarena.data import published_files
from fedarena.data.dataset import Dataset, Rows, strata_of
from fedarena.data.scikit_learn_files import BREAST_CANCER_CLASSES, BREAST_CANCER_COLUMNS, read_breast_cancer
from fedarena.data.sources.class_codes import split_rows
from fedarena.data.sources.standardised_once import FittedOn, features
from fedarena.data.split_encoding import encode_first
from fedarena.data.table_columns import Categories, Column
from fedarena.data.table_decoders import REGIONS
from fedarena.data.table_encoding import EncodingSettings, RawTable
from fedarena.statistics.metric_registry import TaskName

Columns = dict[str, Column]
LOCAL = {"lr": 0.05, "epochs": 1, "batch": 32}
NATURAL: dict[str, Any] = {
    "model": "logreg", "share": 1.0, "rounds": 20, "partition": {"name": "natural"}, "local": LOCAL,
}  # fmt: skip
POOLED: dict[str, Any] = {
    "model": "logreg", "clients": 5, "share": 1.0, "rounds": 20, "partition": {"name": "iid"}, "local": LOCAL,
}  # fmt: skip


def columns_of(arrays: Mapping[str, NDArray[Any]], leave_out: tuple[str, ...] = ()) -> Columns:
    """Return the columns as numbers or, of a column of codes, as categories."""
    columns: Columns = {}
    for name, values, is_codes in zip(arrays["feature_names"], arrays["X"].T, arrays["categorical"], strict=True):
        if name not in leave_out:
            levels = tuple(map(str, arrays[f"levels_{name}"])) if is_codes else ()
            columns[str(name)] = Categories(values.astype(np.int64), levels) if is_codes else values.astype(np.float64)
    return columns


def owners_by(arrays: Mapping[str, NDArray[Any]], column: str) -> tuple[Rows, tuple[str, ...]]:
    """Return the client of each row by a column of codes, and the names of the clients."""
    at = arrays["feature_names"].tolist().index(column)
    return arrays["X"][:, at].astype(np.int64), tuple(map(str, arrays[f"levels_{column}"]))


def assemble(
    name: str,
    columns: Columns,
    y: NDArray[Any],
    classes: int,
    *,
    parts: tuple[Rows, Rows] | None = None,
    task: TaskName = "classification",
    owner: tuple[Rows, tuple[str, ...]] | None = None,
    class_names: tuple[str, ...] = (),
    standardise: bool = True,
    fitted_on: FittedOn = "split",
) -> Dataset:
    """Return a data set with its training rows first; missing values become the mean of the training rows.

    Without `parts`, four fifths of each client are for training, or of each class or fifth of the labels.
    """
    if parts is None:
        parts = split_rows(strata_of(task, y), None if owner is None else owner[0], 0.2, seed=0)
    train, test = parts
    order = np.concatenate([train, test])
    owners, names = (None, ()) if owner is None else (owner[0][order], owner[1])
    columns = {n: one if isinstance(one, Categories) else one.astype(np.float64) for n, one in columns.items()}
    settings = EncodingSettings("mean", standardise, task=task, label=("label",), classes=class_names)
    data = Dataset(
        name, np.empty((len(order), 0), np.float32), y[order], len(train), classes,
        owner=owners, owner_names=names, class_names=class_names, task=task, table=RawTable(columns, settings)[order],
    )  # fmt: skip
    if fitted_on == "file":
        numbers = {name: one for name, one in columns.items() if not isinstance(one, Categories)}
        return replace(data, x=features(numbers, train, test, missing="mean"), table=None)
    return encode_first(data)


@register("dataset", "breast_cancer", paper="Street, Wolberg and Mangasarian 1993")
@dataclass(frozen=True)
class BreastCancer:
    """569 tumours, 30 features, benign or malignant; part of scikit-learn: nothing to download."""

    fitted_on: FittedOn = "split"

    defaults: ClassVar[dict[str, Any]] = {
        "model": "logreg",
        "clients": 10,
        "share": 1.0,
        "rounds": 20,
        "partition": {"name": "label_dirichlet", "beta": 0.5, "min_size": 5},
        "local": {"lr": 0.1, "epochs": 1, "batch": 16},
        "evaluate": {"every": 1, "target": 0.95},
    }

    def load(self, seed: int) -> Dataset:
        """Return four fifths for training and one fifth for testing, the same for every seed."""
        x, y = read_breast_cancer()
        columns = dict(zip(BREAST_CANCER_COLUMNS, x.T, strict=True))
        classes = BREAST_CANCER_CLASSES
        return assemble("breast_cancer", columns, y, 2, class_names=classes, fitted_on=self.fitted_on)


@register("dataset", "heart_disease", paper="Detrano et al. 1989; four hospitals as in FLamby, arXiv:2210.04620")
@dataclass(frozen=True)
class HeartDisease:
    """920 patients of four hospitals, 13 features, heart disease or not; every hospital is a client."""

    fitted_on: FittedOn = "split"

    defaults: ClassVar[dict[str, Any]] = {
        "model": "logreg",
        "share": 1.0,
        "rounds": 30,
        "partition": {"name": "natural"},
        "local": {"lr": 0.05, "epochs": 1, "batch": 16},
        "evaluate": {"every": 1, "target": 0.8},
    }

    def load(self, seed: int) -> Dataset:
        """Return four fifths of each hospital for training; missing values become the mean of the training rows."""
        arrays = published_files.load_published("heart_disease")
        columns = dict(zip(map(str, arrays["feature_names"]), arrays["X"].T, strict=True))
        return assemble(
            "heart_disease",
            columns,
            arrays["y"].astype(np.int64),
            2,
            owner=(arrays["site"].astype(np.int64), published_files.HEART_SITES),
            class_names=("healthy", "disease"),
            fitted_on=self.fitted_on,
        )


@register("dataset", "wine", paper="Aeberhard and Forina 1991")
@dataclass(frozen=True)
class Wine:
    """178 wines of three cultivars, 13 measurements; part of scikit-learn: nothing to download."""

    defaults: ClassVar[dict[str, Any]] = POOLED

    def load(self, seed: int) -> Dataset:
        """Return four fifths for training and one fifth for testing, the same for every seed."""
        from sklearn.datasets import load_wine

        bunch = load_wine()
        columns, y = dict(zip(bunch.feature_names, bunch.data.T, strict=True)), bunch.target.astype(np.int64)
        return assemble("wine", columns, y, 3, class_names=tuple(map(str, bunch.target_names)))


@register("dataset", "diabetes", paper="Efron et al. 2004")
@dataclass(frozen=True)
class Diabetes:
    """442 patients, ten measurements, how far diabetes has progressed after a year: a regression; part of scikit-learn."""

    defaults: ClassVar[dict[str, Any]] = POOLED

    def load(self, seed: int) -> Dataset:
        """Return four fifths for training and one fifth for testing, the same for every seed."""
        from sklearn.datasets import load_diabetes

        bunch = load_diabetes(scaled=False)
        columns, y = dict(zip(bunch.feature_names, bunch.data.T, strict=True)), bunch.target.astype(np.float32)
        return assemble("diabetes", columns, y, 1, task="regression")


@register("dataset", "adult", paper="Kohavi 1996")
@dataclass(frozen=True)
class Adult:
    """30,162 adults of the census of 1994, 14 columns, income above 50,000 dollars or not; a client an occupation.

    `client = "education"` makes every level of education a client. The column of the clients is no feature.
    """

    client: Literal["occupation", "education"] = "occupation"

    defaults: ClassVar[dict[str, Any]] = NATURAL

    def load(self, seed: int) -> Dataset:
        """Return four fifths of each client for training."""
        arrays = published_files.load_published("adult")
        y, owner = arrays["y"].astype(np.int64), owners_by(arrays, self.client)
        aside = ("education", "education_num") if self.client == "education" else (self.client,)
        return assemble("adult", columns_of(arrays, aside), y, 2, owner=owner, class_names=("<=50K", ">50K"))


@register("dataset", "bank", paper="Moro, Cortez and Rita 2014")
@dataclass(frozen=True)
class Bank:
    """45,211 calls of a bank, 16 columns, deposit or not (11.7 %); a client a job.

    `client = "month"` makes every month a client. The column of the clients is no feature, and `duration`, which is known
    only after a call, is one only if it is asked for.
    """

    client: Literal["job", "month"] = "job"
    duration: bool = False

    defaults: ClassVar[dict[str, Any]] = NATURAL

    def load(self, seed: int) -> Dataset:
        """Return four fifths of each client for training."""
        arrays = published_files.load_published("bank")
        y, owner = arrays["y"].astype(np.int64), owners_by(arrays, self.client)
        aside = (self.client,) if self.duration else (self.client, "duration")
        return assemble("bank", columns_of(arrays, aside), y, 2, owner=owner, class_names=("no", "yes"))


@register("dataset", "california_housing", paper="Pace and Barry 1997")
@dataclass(frozen=True)
class CaliforniaHousing:
    """20,640 districts of the census of 1990, nine columns, the median value of houses: a regression.

    A client is a distance to the ocean or, with `client = "grid"`, a square of two degrees of longitude and latitude.
    Values are in units of 100,000 dollars. Missing numbers of bedrooms become the mean of the training rows.
    """

    client: Literal["ocean_proximity", "grid"] = "ocean_proximity"

    defaults: ClassVar[dict[str, Any]] = NATURAL

    def load(self, seed: int) -> Dataset:
        """Return four fifths of each client for training."""
        arrays = published_files.load_published("california_housing")
        y = (arrays["y"] / np.float32(1e5)).astype(np.float32)
        owner = self._squares(arrays) if self.client == "grid" else owners_by(arrays, "ocean_proximity")
        columns = columns_of(arrays, () if self.client == "grid" else ("ocean_proximity",))
        return assemble("california_housing", columns, y, 1, task="regression", owner=owner)

    def _squares(self, arrays: Mapping[str, NDArray[Any]]) -> tuple[Rows, tuple[str, ...]]:
        """Return the square of each district, named by its south-western corner."""
        corners, codes = np.unique(np.floor(arrays["X"][:, :2] / 2).astype(int) * 2, axis=0, return_inverse=True)
        names = tuple(f"{-west}W {south}N" for west, south in corners.tolist())
        return codes.reshape(-1).astype(np.int64), names


@register("dataset", "tcga_brca", paper="TCGA; six regions as in FLamby, arXiv:2210.04620")
@dataclass(frozen=True)
class TcgaBrca:
    """1,088 breast cancer patients, 39 clinical features, time until death or the last visit: survival; a client a region.

    Training and test rows are those of FLamby, which does not standardise the features (`standardise = false`). `region`
    trains on the rows of one region alone, and tests on those of all.
    """

    standardise: bool = True
    region: Literal["Northeast", "South", "West", "Midwest", "Europe", "Canada"] | None = None

    defaults: ClassVar[dict[str, Any]] = NATURAL

    def load(self, seed: int) -> Dataset:
        """Return the published division; labels are the time in days and whether the event was observed."""
        arrays = published_files.load_published("tcga_brca")
        names = arrays["site_names"].tolist()
        number = np.array([REGIONS.index(name) if name in REGIONS else -1 for name in names], np.int64)
        owner, is_test = number[arrays["site"]], arrays["test"]
        is_train = ~is_test if self.region is None else ~is_test & (owner == REGIONS.index(self.region))
        columns = {str(name): column for name, column in zip(arrays["feature_names"], arrays["X"].T, strict=True)}
        y = np.stack([arrays["time"], arrays["event"]], axis=1).astype(np.float32)
        return assemble(
            "tcga_brca", columns, y, 1, parts=(np.flatnonzero(is_train), np.flatnonzero(is_test)),
            task="survival", owner=(owner, REGIONS), standardise=self.standardise,
        )  # fmt: skip
