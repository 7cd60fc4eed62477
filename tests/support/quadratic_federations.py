"""Federations of unlike quadratics, whose optimum is known, for the tests of several algorithms."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

import fedarena as fa
from tests.algorithms.test_fedavg import CENTRES, CURVATURES
from tests.support.federations import Quadratic, optimum, quadratics

FULL = {"lr": 0.1, "epochs": 5, "batch": math.inf}
ROWS = [10, 30, 60]


def federation(count: int, seed: int = 0) -> tuple[Any, np.ndarray, np.ndarray]:
    """Return many unlike quadratics of four rows each, with their centres and curvatures."""
    rng = np.random.default_rng(seed)
    centres, curvatures = 3 * rng.standard_normal((count, 3)), rng.uniform(0.5, 2.0, (count, 3))
    return quadratics(centres, curvatures, [4] * count), centres, curvatures


def solve(data: Any, algorithm: Any, rounds: int, **settings: Any) -> np.ndarray:
    """Run an algorithm on such quadratics and return the weights at the end."""
    defaults = {"partition": "natural", "dtype": "float64", "local": FULL, "out": False, "runtime": "serial"}
    every = {"every": rounds}
    run = fa.run(data, model=lambda: Quadratic(3), algorithm=algorithm, rounds=rounds, evaluate=every,
                 **{**defaults, **settings})  # fmt: skip
    return run.state["w"].numpy()


def at_optimum(algorithm: Any, rounds: int = 3, **settings: Any) -> tuple[np.ndarray, np.ndarray]:
    """Start at the optimum of the mean by rows; return the weights at the end, and the optimum."""
    target = optimum(CENTRES, CURVATURES, np.array(ROWS))
    module = Quadratic(2)
    module.w.data = module.w.data.double() + torch.tensor(target)
    run = fa.run(quadratics(CENTRES, CURVATURES, ROWS), model=module, algorithm=algorithm, partition="natural",
                 dtype="float64", rounds=rounds, out=False, runtime="serial", **settings)  # fmt: skip
    return run.state["w"].numpy(), target
