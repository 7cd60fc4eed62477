"""Preparation of a batch of raw samples for a model.

Samples are stored as published, images as bytes, and prepared batch by batch. Random crops and flips come from the given
generator, so that the same stream gives the same images.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedarena.data.dataset import Preparation

PixelStats = tuple[tuple[float, ...], tuple[float, ...]]  # means and standard deviations of the channels

CROP = 24  # side of McMahan's CIFAR images
PAD = 4  # border of NIID-Bench in pixels


def training_batch(
    x: Tensor, how: Preparation, stats: PixelStats | None, rng: np.random.Generator, dtype: torch.dtype
) -> Tensor:
    """Prepare samples for training: scale them, and augment them at random if the preparation does so."""
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
    """Prepare samples for evaluation, without randomness."""
    if how == "none":
        return x.to(dtype) if x.is_floating_point() else x  # texts stay integers
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
    """Scale bytes to values in [0, 1]."""
    return x.to(dtype, copy=True).div_(255)


def window(x: Tensor, top: NDArray[np.int64], left: NDArray[np.int64], side: int, flip: NDArray[np.bool_]) -> Tensor:
    """Cut a square out of each image, mirrored where `flip` is true; beyond its border the image is reflected."""
    rows = _reflected(torch.from_numpy(top), side, x.shape[2])
    columns = _reflected(torch.from_numpy(left), side, x.shape[3])
    columns = torch.where(torch.from_numpy(flip)[:, None], columns.flip(1), columns)
    n, channels = (torch.arange(k, device=x.device) for k in x.shape[:2])
    rows, columns = rows.to(x.device), columns.to(x.device)
    return x[n[:, None, None, None], channels[:, None, None], rows[:, None, :, None], columns[:, None, None, :]]


def _reflected(first: Tensor, side: int, length: int) -> Tensor:
    """Return positions first, first + 1, ..., reflected at the borders: -1 is 1 and `length` is `length - 2`."""
    at = (first[:, None] + torch.arange(side)).abs()
    return (length - 1) - (length - 1 - at).abs()


def jitter(x: Tensor, rng: np.random.Generator) -> Tensor:
    """Change the brightness by at most 63 / 255, then the contrast by a factor of 0.2 to 1.8 about each channel's mean."""
    brightness, contrast = (
        torch.from_numpy(draw).to(x).view(-1, 1, 1, 1)
        for draw in (rng.uniform(-63 / 255, 63 / 255, len(x)), rng.uniform(0.2, 1.8, len(x)))
    )
    x = x + brightness
    mean = x.mean(dim=(2, 3), keepdim=True)
    return (x - mean) * contrast + mean


def whiten(x: Tensor) -> Tensor:
    """Shift and scale each image to mean 0 and standard deviation 1, with a lower limit on the deviation used."""
    mean = x.mean(dim=(1, 2, 3), keepdim=True)
    deviation = x.std(dim=(1, 2, 3), keepdim=True, correction=0)
    return (x - mean) / deviation.clamp(min=1 / 255 / x[0].numel() ** 0.5)
