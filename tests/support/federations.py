"""Small federations with known answers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from fedarena.data.dataset import Dataset


@dataclass(frozen=True, eq=False)
class Given:
    """A data set made by a test."""

    data: Dataset

    def load(self, seed: int) -> Dataset:
        return self.data


class Quadratic(nn.Module):
    """Row i has the loss 1/2 sum_j h_ij (w_j - a_ij)^2; its gradient is h (w - a), its optimum is known."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(size))

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        a, h = x.chunk(2, dim=1)
        return 0.5 * (h * (self.w - a) ** 2).sum(dim=1).mean()


def quadratics(centres: np.ndarray, curvatures: np.ndarray, rows: list[int]) -> Given:
    """Client k has rows[k] equal rows with centre a_k and curvature h_k; the last two rows are for testing."""
    per_client = [np.tile(np.concatenate([a, h]), (n, 1)) for a, h, n in zip(centres, curvatures, rows, strict=True)]
    test = np.zeros((2, 2 * centres.shape[1]))
    owner = np.concatenate([np.repeat(np.arange(len(rows)), rows), [-1, -1]])
    x = np.concatenate([*per_client, test])
    y = np.concatenate([np.zeros(sum(rows), np.int64), [0, 1]])
    return Given(
        Dataset("quadratics", x, y, sum(rows), 2, owner=owner, owner_names=tuple(str(k) for k in range(len(rows))))
    )


def optimum(centres: np.ndarray, curvatures: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """argmin of sum_k p_k F_k, in closed form."""
    p = weights[:, None] / weights.sum()
    return (p * curvatures * centres).sum(axis=0) / (p * curvatures).sum(axis=0)


def blobs(rows: int = 240, features: int = 6, classes: int = 3, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Gaussian clouds, one a class: easy to learn, quick to train on."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, classes, rows)
    centres = 2.0 * rng.standard_normal((classes, features))
    return (centres[y] + rng.standard_normal((rows, features))).astype(np.float32), y
