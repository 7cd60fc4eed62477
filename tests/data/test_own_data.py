"""Data as users have them: several files, DataFrames, torch data sets, folders of images, and the task of their labels."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet
import pytest
import torch
from PIL import Image
from torch.utils.data import Dataset as TorchData
from torch.utils.data import TensorDataset

import fedarena as fa
from fedarena.config.errors import BadValue, DataBroken
from fedarena.config.experiment import Experiment
from fedarena.data.dataset import Dataset
from fedarena.data.sources.table_files import Csv
from fedarena.engine.setup import partition_data

RNG = np.random.default_rng(7)


def table(rows: int = 30, **columns: Any) -> pd.DataFrame:
    x = RNG.normal(size=rows)
    usual = {"age": np.round(50 + 10 * x, 1), "ward": [*"ABC"] * (rows // 3), "ill": np.where(x > 0, "yes", "no")}
    return pd.DataFrame({**usual, **columns})


def load(source: Any, **settings: Any) -> Dataset:
    data: Dataset = Experiment.make(source, **settings).data.made.load(0)
    return data


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    """Return three files of one federation: CSV and Parquet, with columns in any order."""
    table().to_csv(tmp_path / "south.csv", index=False)
    table()[["ill", "ward", "age"]].to_csv(tmp_path / "north.csv", index=False)
    pa.parquet.write_table(pa.Table.from_pandas(table()), tmp_path / "east.parquet")
    return [str(tmp_path / name) for name in ("south.csv", "north.csv", "east.parquet")]


def test_every_file_is_a_client(files: list[str]) -> None:
    data, partition = partition_data(Experiment.make(files, label="ill"))
    assert partition.names == ("east", "north", "south")
    assert partition.sizes.tolist() == [24, 24, 24]
    assert data.encoding is not None
    assert data.encoding.column_names == ("age", "ward = A", "ward = B", "ward = C")


def test_the_order_of_files_changes_no_bit(files: list[str]) -> None:
    one, other = (partition_data(Experiment.make(given, label="ill")) for given in (files, files[::-1]))
    assert one[0].x.tobytes() == other[0].x.tobytes()
    assert one[1].fingerprint() == other[1].fingerprint()


def test_files_are_the_clients_of_a_joined_table(files: list[str], tmp_path: Path) -> None:
    frames = {Path(path).stem: pd.read_parquet(path) if "parquet" in path else pd.read_csv(path) for path in files}
    whole = pd.concat([frames[name].assign(who=name) for name in sorted(frames)])
    one, other = load(files, label="ill"), load(whole, label="ill", client="who")
    assert one.x.tobytes() == other.x.tobytes()
    assert np.array_equal(one.y, other.y)
    assert (one.owner_names, one.class_names) == (other.owner_names, other.class_names)


def test_an_experiment_with_several_files_reads_back(files: list[str]) -> None:
    experiment = Experiment.make(files, label="ill")
    file = Path(files[0]).parent / "exp.toml"
    file.write_text(experiment.to_toml())
    assert Experiment.make(file) == experiment
    assert experiment.data.title == "south.csv and 2 more files"


def test_paths_of_an_experiment_file_start_at_its_folder(files: list[str]) -> None:
    folder = Path(files[0]).parent
    (folder / "exp.toml").write_text('data = { name = "csv", path = ["south.csv", "north.csv"], label = "ill" }\n')
    assert Experiment.make(folder / "exp.toml").data.made.load(0).owner_names == ("north", "south")


def test_a_test_file_belongs_to_no_client(files: list[str]) -> None:
    data, partition = partition_data(Experiment.make(files[:2], label="ill", data={"test_path": files[2]}))
    assert partition.sizes.tolist() == [30, 30]
    assert data.owner is not None
    assert (data.owner[60:] == -1).all()


@pytest.mark.slow
def test_files_run_and_compare(files: list[str]) -> None:
    run = fa.run(files, label="ill", rounds=2, out=False, runtime="serial")
    assert [*run.clients["name"]] == ["east", "north", "south"]
    result = fa.compare(
        files, ["fedavg", "local"], label="ill", rounds=1, folds=2, out=False, workers=1, baseline=False
    )
    assert [*result.labels] == ["fedavg", "local"]


# DataFrames


def test_a_frame_is_its_file(tmp_path: Path) -> None:
    frame = table(site=["x", "y", "z"] * 10)
    frame.to_csv(tmp_path / "t.csv", index=False)
    one, other = load(frame, label="ill", client="site"), Csv(str(tmp_path / "t.csv"), "ill", "site").load(0)
    assert one.fingerprint() == other.fingerprint()
    assert load(pa.Table.from_pandas(frame), label="ill", client="site").fingerprint() == one.fingerprint()


def test_polars_gives_its_table_as_arrow() -> None:
    frame = table()

    class DataFrame:
        """A DataFrame as polars has it."""

        def to_arrow(self) -> pa.Table:
            return pa.Table.from_pandas(frame)

    DataFrame.__module__ = "polars.dataframe.frame"
    assert load(DataFrame(), label="ill").fingerprint() == load(frame, label="ill").fingerprint()


@pytest.mark.slow
def test_a_run_on_a_frame_is_verified_with_it(tmp_path: Path) -> None:
    frame = table(site=["x", "y", "z"] * 10)
    run = fa.run(frame, label="ill", client="site", rounds=2, out=tmp_path / "r", runtime="serial")
    assert (tmp_path / "r" / "preprocessing.json").exists()
    assert fa.verify(run.dir, data=run.experiment.data).same
    assert fa.run(frame, label="ill", client="site", rounds=3, resume=tmp_path / "r", runtime="serial").final.round == 3


@pytest.mark.parametrize(
    ("frame", "what"),
    [
        (table().assign(dose=[1, "x"] * 15), "cannot be read.*dose|'dose' is not numeric"),
        (table()[:0], "it has no rows"),
        (table().set_axis(["age", "age", "ill"], axis=1), "two columns 'age'"),
        (table(day=pd.date_range("2020-01-01", periods=30)), "'day' holds dates"),
    ],
)
def test_a_frame_that_does_not_fit_names_the_column(frame: pd.DataFrame, what: str) -> None:
    with pytest.raises((BadValue, DataBroken), match=what):
        load(frame, label="ill")


# Labels


@pytest.mark.parametrize(
    ("values", "settings", "task", "shape", "classes"),
    [
        (["a", "b", "c"] * 10, {}, "classification", (30,), 3),
        ([True, False] * 15, {}, "classification", (30,), 2),
        (np.arange(30) % 20, {}, "classification", (30,), 20),
        (np.arange(30) % 20 * 1.0, {}, "classification", (30,), 20),
        (np.arange(30) / 2, {}, "regression", (30,), 1),
        (np.arange(30), {"task": "regression"}, "regression", (30,), 1),
        (np.arange(30) % 25, {"task": "classification"}, "classification", (30,), 25),
    ],
)
def test_the_task_follows_from_the_label(
    values: Any, settings: dict[str, Any], task: str, shape: tuple[int, ...], classes: int
) -> None:
    arrays = (np.stack([RNG.normal(size=30)] * 2, 1), np.array(values))
    for data in (load(table(y=values), label="y", drop="ill", **settings), load(arrays, **settings)):
        assert (data.task, data.y.shape, data.classes) == (task, shape, classes)
        assert data.y.dtype == (np.int64 if task == "classification" else np.float32)


def test_more_than_20_whole_numbers_are_ambiguous_but_for_images() -> None:
    for source, settings in ((table(y=np.arange(30)), {"label": "y"}), ((RNG.normal(size=(30, 2)), np.arange(30)), {})):
        with pytest.raises(BadValue, match=r"30 distinct whole numbers.*\n.*--task"):
            load(source, **settings)
    assert load((RNG.normal(size=(60, 4, 4)), np.arange(60) // 2)).classes == 30


def test_several_labels_and_times_of_events() -> None:
    frame = table(a=[0, 1] * 15, b=[True, False, False] * 10, days=np.arange(30) + 0.5)
    labels = load(frame, label=["a", "b"], drop="days")
    assert (labels.task, labels.classes, labels.class_names, labels.y.shape) == ("multilabel", 2, ("a", "b"), (30, 2))
    events = load(frame, label=["days", "a"], task="survival")
    assert (events.task, events.classes, events.y.dtype) == ("survival", 1, np.float32)
    assert sorted(events.y[:, 0]) == [i + 0.5 for i in range(30)]
    assert load((RNG.normal(size=(30, 2)), np.eye(3)[np.arange(30) % 3])).task == "multilabel"


def test_weights_are_a_column() -> None:
    data = load(table(w=np.arange(30)), label="ill", weight="w")
    assert data.weight is not None
    assert sorted(data.weight) == [*range(30)]
    assert data.encoding is not None
    assert "w" not in data.encoding.column_names
    assert data.fingerprint() != load(table(), label="ill").fingerprint()


# torch data sets and images


class Pairs(TorchData[Any]):
    """A map-style data set as users write it."""

    def __init__(self, x: Any, y: Any) -> None:
        self.x, self.y = x, y

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, i: int) -> tuple[Any, Any]:
        return self.x[i], self.y[i]


def test_a_torch_data_set_is_its_arrays() -> None:
    x, y = RNG.normal(size=(40, 3)).astype(np.float32), np.arange(40) % 4
    expected = load((x, y)).fingerprint()
    assert load(Pairs(torch.from_numpy(x), y.tolist())).fingerprint() == expected
    assert load(TensorDataset(torch.from_numpy(x), torch.from_numpy(y))).fingerprint() == expected
    assert load(Pairs(x, y), client=y).owner_names == ("0", "1", "2", "3")
    with pytest.raises(BadValue, match="sample 1"):
        load(Pairs([np.zeros(3), np.zeros(2)], [0, 1]))


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """Return a folder of images, of which those of a class are darker."""
    lines = ["file,label,site"]
    for i in range(20):
        name = f"{'dark' if i % 2 else 'light'}/{i}.png"
        (tmp_path / "images" / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (6, 4), (200 - 100 * (i % 2), i, 0)).save(tmp_path / "images" / name)
        lines.append(f"{name},{'d' if i % 2 else 'l'},{'north' if i < 8 else 'south'}")
    (tmp_path / "images" / "labels.csv").write_text("\n".join(lines))
    return tmp_path / "images"


def test_a_folder_a_class(images: Path) -> None:
    data = load(images)
    assert (data.class_names, data.shape, data.x.dtype, data.prepare) == (
        ("dark", "light"),
        (3, 4, 6),
        np.uint8,
        "scale",
    )
    assert (data.x[:, 0, 0, 0] == np.where(data.y == 0, 100, 200)).all()
    small = load({"data": {"name": "image_folder", "path": str(images), "size": 5, "grey": True}})
    assert small.shape == (1, 5, 5)


def test_labels_of_images_in_a_file(images: Path) -> None:
    settings = {"name": "image_folder", "path": str(images), "labels": "labels.csv", "client": "site"}
    data = load({"data": settings})
    assert (data.class_names, data.owner_names) == (("d", "l"), ("north", "south"))


def test_images_of_different_sizes_name_two_files(images: Path) -> None:
    Image.new("RGB", (9, 9)).save(images / "dark" / "odd.png")
    with pytest.raises(BadValue, match=r"1\.png has 6 x 4 pixels, odd\.png 9 x 9"):
        load(images)
    (images / "dark" / "odd.png").write_bytes(b"no image")
    with pytest.raises(DataBroken, match=r"odd\.png"):
        load(images)
