"""A folder of images of a user: a folder per class, or a CSV file with the label of each image."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from annotated_types import Ge
from numpy.typing import NDArray

from fedarena.common.optional_imports import import_optional
from fedarena.config.errors import BadValue, DataMissing, located_at, quoted
from fedarena.config.registry import register
from fedarena.data.dataset import Dataset
from fedarena.data.published_files import reading
from fedarena.data.sources.class_codes import SplitSeed, TestShare
from fedarena.data.sources.in_memory import Arrays
from fedarena.data.sources.label_columns import LabelTask
from fedarena.data.table_reader import read_column, read_table, require_columns

ENDINGS = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".pgm", ".ppm")


@register("dataset", "image_folder")
@dataclass(frozen=True)
class ImageFolder:
    """A folder of images: a folder per class, or `labels`, a CSV file with the columns `file` and `label`.

    `client` is a column of that file with the client of each image. Images of different sizes need `size`, the pixels of a
    side to which all are resized.
    """

    path: str
    labels: str | None = None
    file: str = "file"
    label: str = "label"
    client: str | None = None
    size: Annotated[int, Ge(1)] | None = None
    grey: bool = False
    test: TestShare = 0.2
    split_seed: SplitSeed = 0
    task: LabelTask | None = None

    @property
    def defaults(self) -> dict[str, Any]:
        """Return the defaults of an experiment: the clients of the label file, or ten equal ones."""
        owned = {"partition": {"name": "natural"}} if self.client else {"partition": {"name": "iid"}, "clients": 10}
        return {**owned, "model": "mlp_2nn", "rounds": 20, "local": {"lr": 0.05, "epochs": 1, "batch": 16}}

    def load(self, seed: int) -> Dataset:
        """Read all images, and split them into training and test samples."""
        with located_at(self.path):
            files, y, client = self._listed()
            x = self._images(files)
            return Arrays(x, y, client, test=self.test, split_seed=self.split_seed, task=self.task).load(seed)

    def _listed(self) -> tuple[list[Path], NDArray[Any], NDArray[Any] | None]:
        """Return the files in a fixed order, with label and client of each."""
        root = Path(self.path)
        if not root.is_dir():
            raise DataMissing(f"there is no folder {root}", remedy="check the path", where="data.path")
        if self.labels is not None:
            table = read_table(root / self.labels, where="data.labels")
            columns: dict[str, list[str | None]] = {
                "data.file": [self.file],
                "data.label": [self.label],
                "data.client": [self.client],
            }
            require_columns(self.labels, table, columns)
            client = None if self.client is None else read_column(table, self.client)
            return [root / str(name) for name in read_column(table, self.file)], read_column(table, self.label), client
        if self.client is not None:
            raise BadValue(
                "clients of images are named in a file of labels", remedy="set data.labels", where="data.client"
            )
        found = sorted(file for file in root.glob("*/*") if file.suffix.lower() in ENDINGS)
        if not found:
            raise BadValue(
                "there is no folder with images in it",
                remedy="make a folder for each class, or give data.labels, a CSV file with the columns file and label",
                where="data.path",
            )
        return found, np.array([file.parent.name for file in found]), None

    def _images(self, files: Sequence[Path]) -> NDArray[np.uint8]:
        """Return the images as bytes N x C x H x W."""
        image = import_optional(
            "PIL.Image", needed_by="a folder of images", install="'fedarena[images]'", where="data.path"
        )
        pixels = []
        for file in files:
            if not file.is_file():
                raise DataMissing(f"there is no image {file}", remedy="check the column of files", where="data.labels")
            with reading(file, remedy="check that it is an image, or remove it"), image.open(file) as picture:
                one = picture.convert("L" if self.grey else "RGB")
                one = one if self.size is None else one.resize((self.size, self.size))
                pixels.append(np.asarray(one, np.uint8))
            if pixels[-1].shape != pixels[0].shape:
                raise BadValue(
                    f"{quoted(files[0].name)} has {pixels[0].shape[1]} x {pixels[0].shape[0]} pixels, "
                    f"{quoted(file.name)} {pixels[-1].shape[1]} x {pixels[-1].shape[0]}",
                    remedy="set data.size, the pixels of a side: --set data.size=32",
                    where="data.size",
                )
        stack = np.stack(pixels)
        return stack[:, None] if self.grey else np.ascontiguousarray(stack.transpose(0, 3, 1, 2))
