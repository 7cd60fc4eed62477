"""The model of the app, and the rows of each hospital."""

from __future__ import annotations

import torch
from sklearn.datasets import load_breast_cancer
from sklearn.preprocessing import StandardScaler
from torch import Tensor, nn


def net() -> nn.Module:
    """Return the model: any torch module works."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(30, 16), nn.ReLU(), nn.Linear(16, 2))


def rows(hospital: int, hospitals: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return rows and labels of a hospital, for training and testing; a real one would read its own files here."""
    x, y = load_breast_cancer(return_X_y=True)
    x = torch.tensor(StandardScaler().fit_transform(x), dtype=torch.float32)[hospital::hospitals]
    labels = torch.tensor(y)[hospital::hospitals]
    held = len(x) // 5
    return x[held:], labels[held:], x[:held], labels[:held]
