"""Data sets of images, stored as bytes N x C x H x W and scaled when a batch is prepared."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from annotated_types import Ge
from numpy.typing import NDArray

from fedarena.config.registry import register
from fedarena.data import published_files
from fedarena.data.dataset import Dataset, Preparation
from fedarena.data.scikit_learn_files import read_digits
from fedarena.data.sources.class_codes import split_rows

CLOTHES = ("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot")
PixelStats = tuple[tuple[float, ...], tuple[float, ...]]  # means and standard deviations of the channels
SHAPES = {"digits": (1, 8), "mnist": (1, 28), "cifar10": (3, 32)}  # channels, and pixels on a side
THINGS = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


@register("dataset", "digits", paper="Alpaydin and Kaynak 1998, UCI optical recognition of handwritten digits")
@dataclass(frozen=True)
class Digits:
    """1,797 handwritten digits of 8 x 8 pixels, part of scikit-learn: nothing to download.

    `like` gives them the shape of another data set, enlarged on a black background, for models made for that shape.
    """

    like: Literal["digits", "mnist", "cifar10"] = "digits"

    defaults: ClassVar[dict[str, Any]] = {
        "model": "mlp_2nn",
        "clients": 10,
        "share": 1.0,
        "rounds": 30,
        "partition": {"name": "label_dirichlet", "beta": 0.3, "min_size": 5},
        "local": {"lr": 0.1, "epochs": 1, "batch": 16},
        "evaluate": {"every": 1, "target": 0.9},
    }

    def load(self, seed: int) -> Dataset:
        """Return four fifths for training and one fifth for testing, the same for every seed."""
        x, y, n_train = _digits()
        return Dataset(
            "digits", _enlarged(x, *SHAPES[self.like]), y.copy(), n_train, 10, class_names=tuple("0123456789")
        )


@register("dataset", "mnist", paper="LeCun et al. 1998")
@dataclass(frozen=True)
class Mnist:
    """70,000 handwritten digits of 28 x 28 pixels. `one_in = 4` keeps every fourth of the training and test images."""

    prepare: Literal["scale", "standardise"] = "scale"
    one_in: Annotated[int, Ge(1)] = 1

    defaults: ClassVar[dict[str, Any]] = {
        "model": "mlp_2nn",
        "clients": 100,
        "share": 0.1,
        "rounds": 100,
        "partition": {"name": "shards"},
        "local": {"lr": 0.05, "epochs": 1, "batch": 10},
        "evaluate": {"every": 1, "target": 0.85},
    }

    def load(self, seed: int) -> Dataset:
        """Return the published 60,000 training and 10,000 test images, or one in `one_in` of them."""
        return _published("mnist", self.prepare, self.one_in, ((0.1307,), (0.3081,)), tuple("0123456789"))


@register("dataset", "fashion_mnist", paper="Xiao et al. 2017, arXiv:1708.07747")
@dataclass(frozen=True)
class FashionMnist:
    """70,000 images of clothes of 28 x 28 pixels. `one_in = 4` keeps every fourth of the training and test images."""

    prepare: Literal["scale", "standardise"] = "scale"
    one_in: Annotated[int, Ge(1)] = 1

    defaults: ClassVar[dict[str, Any]] = {
        **Mnist.defaults,
        "local": {"lr": 0.05, "epochs": 1, "batch": 10},
        "evaluate": {"every": 1, "target": 0.7},
    }

    def load(self, seed: int) -> Dataset:
        """Return the published 60,000 training and 10,000 test images, or one in `one_in` of them."""
        return _published("fashion_mnist", self.prepare, self.one_in, ((0.2860,), (0.3530,)), CLOTHES)


@register("dataset", "cifar10", paper="Krizhevsky 2009, technical report")
@dataclass(frozen=True)
class Cifar10:
    """60,000 colour images of animals and vehicles of 32 x 32 pixels.

    `prepare = "mcmahan"` trains on random 24 x 24 crops, mirrored, jittered and whitened (arXiv:1602.05629), "niid"
    on random crops of the reflected image, mirrored (arXiv:2102.02079). `one_in = 4` keeps every fourth of the
    training and test images.
    """

    prepare: Literal["scale", "standardise", "mcmahan", "niid"] = "scale"
    one_in: Annotated[int, Ge(1)] = 1

    defaults: ClassVar[dict[str, Any]] = {
        "model": "simple_cnn",
        "clients": 10,
        "share": 1.0,
        "rounds": 20,
        "partition": {"name": "label_dirichlet", "beta": 0.5, "min_size": 10},
        "local": {"lr": 0.01, "epochs": 2, "batch": 64, "momentum": 0.9},
        "evaluate": {"every": 1, "target": 0.6},
    }

    def load(self, seed: int) -> Dataset:
        """Return the published 50,000 training and 10,000 test images, or one in `one_in` of them."""
        stats = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)
        return _published("cifar10", self.prepare, self.one_in, stats, THINGS)


@functools.cache
def _digits() -> tuple[NDArray[np.float32], NDArray[np.int64], int]:
    """Return the images, their labels and the number of training images; the text file is parsed once per process."""
    pixels, y = read_digits()
    train, test = split_rows(y, None, 0.2, seed=0)
    order = np.concatenate([train, test])
    x = (pixels[order] / 16).astype(np.float32).reshape(-1, 1, 8, 8)  # published as counts 0..16
    return x, y[order], len(train)


def _enlarged(x: NDArray[np.float32], channels: int, side: int) -> NDArray[np.float32]:
    """Enlarge grey images by the largest whole factor that fits, centred on black."""
    times = side // x.shape[-1]
    border = (side - times * x.shape[-1]) // 2
    large = x.repeat(times, axis=2).repeat(times, axis=3)
    return np.pad(large, ((0, 0), (0, 0), (border, border), (border, border))).repeat(channels, axis=1)


def _published(
    name: str, prepare: Preparation, one_in: int, stats: PixelStats, class_names: tuple[str, ...]
) -> Dataset:
    arrays = {part: rows[::one_in] for part, rows in published_files.load_published(name).items()}
    x = np.concatenate([arrays["x_train"], arrays["x_test"]])
    x = x[:, None] if x.ndim == 3 else np.ascontiguousarray(x.transpose(0, 3, 1, 2))
    y = np.concatenate([arrays["y_train"], arrays["y_test"]]).astype(np.int64)
    return Dataset(name, x, y, len(arrays["x_train"]), len(class_names), prepare, stats, class_names=class_names)
