"""What happens to a batch of raw rows on its way into a model.

Rows are kept as published, images as bytes, and prepared a batch at a time. Random crops and flips come from
a given generator, so the same stream shows a client the same pictures.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedarena.data.dataset import Preparation

PixelStats = tuple[tuple[float, ...], tuple[float, ...]]  # means and deviations of the channels

CROP = 24  # side of McMahan's CIFAR images
PAD = 4  # NIID-Bench's border


def training_batch(
    x: Tensor, how: Preparation, stats: PixelStats | None, rng: np.random.Generator, dtype: torch.dtype
) -> Tensor:
    """The rows as a model sees them in training: scaled, and randomly changed where the preparation says so."""
    if how == "mcmahan":
        n, _, height, width = x.shape
        top, left = rng.integers(0, height - CROP + 1, n), rng.integers(0, width - CROP + 1, n)
        return whiten(jitter(scale(window(x, top, left, CROP, rng.random(n) < 0.5), dtype), rng))
    if how == "niid":
        n, _, height, width = x.shape
        top, left = rng.integers(-PAD, PAD + 1, n), rng.integers(-PAD, PAD + 1, n)
        return scale(window(x, top, left, height, rng.random(n) < 0.5), dtype)
    return test_batch(x, how, stats, dtype)


def test_batch(x: Tensor, how: Preparation, stats: PixelStats | None, dtype: torch.dtype) -> Tensor:
    """The rows as a model sees them in evaluation; nothing is random."""
    if how == "none":
        return x.to(dtype) if x.is_floating_point() else x  # texts stay whole numbers
    if how == "mcmahan":
        top, left = ((side - CROP) // 2 for side in x.shape[2:])
        return whiten(scale(x[:, :, top : top + CROP, left : left + CROP], dtype))
    if how == "standardise":
        if stats is None:
            raise ValueError("'standardise' needs the means and deviations of the channels")
        mean, deviation = (torch.tensor(s, dtype=dtype, device=x.device).view(-1, 1, 1) for s in stats)
        return scale(x, dtype).sub_(mean).div_(deviation)
    return scale(x, dtype)


def scale(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Bytes to [0, 1]."""
    return x.to(dtype, copy=True).div_(255)


def window(x: Tensor, top: NDArray[np.int64], left: NDArray[np.int64], side: int, flip: NDArray[np.bool_]) -> Tensor:
    """A square of each image, mirrored where `flip` says so; beyond the border the image is reflected."""
    rows = _reflected(torch.from_numpy(top), side, x.shape[2])
    columns = _reflected(torch.from_numpy(left), side, x.shape[3])
    columns = torch.where(torch.from_numpy(flip)[:, None], columns.flip(1), columns)
    n, channels = (torch.arange(k, device=x.device) for k in x.shape[:2])
    rows, columns = rows.to(x.device), columns.to(x.device)
    return x[n[:, None, None, None], channels[:, None, None], rows[:, None, :, None], columns[:, None, None, :]]


def _reflected(first: Tensor, side: int, length: int) -> Tensor:
    """Positions first, first + 1, ... with -1 read as 1 and `length` as `length - 2`."""
    at = (first[:, None] + torch.arange(side)).abs()
    return (length - 1) - (length - 1 - at).abs()


def jitter(x: Tensor, rng: np.random.Generator) -> Tensor:
    """Brightness up or down by at most 63 of 255, then contrast times 0.2 to 1.8 about each channel's mean."""
    brightness, contrast = (
        torch.from_numpy(draw).to(x).view(-1, 1, 1, 1)
        for draw in (rng.uniform(-63 / 255, 63 / 255, len(x)), rng.uniform(0.2, 1.8, len(x)))
    )
    x = x + brightness
    mean = x.mean(dim=(2, 3), keepdim=True)
    return (x - mean) * contrast + mean


def whiten(x: Tensor) -> Tensor:
    """Each image to mean 0 and deviation 1 (a deviation counts as at least 1 / sqrt(numbers in it), of 255)."""
    mean = x.mean(dim=(1, 2, 3), keepdim=True)
    deviation = x.std(dim=(1, 2, 3), keepdim=True, correction=0)
    return (x - mean) / deviation.clamp(min=1 / 255 / x[0].numel() ** 0.5)
