"""Time a tree of `histboost` against XGBoost on the pooled rows: both on one core, in CPU time, in one run.

`python benchmarks/trees.py` prints milliseconds a tree on adult and bank with four clients. Rounds are those of the engine
with all their exchanges, in one process and without evaluations. Both grow the same trees, in the same bins.
"""

from __future__ import annotations

import os

os.environ["OMP_NUM_THREADS"] = "1"

import tempfile
import time
from pathlib import Path

import numpy as np
import xgboost

from fedarena.config.experiment import Experiment
from fedarena.data.raw_columns import raw_columns
from fedarena.engine.checkpoint import CheckpointStore
from fedarena.engine.context import ExperimentContext
from fedarena.engine.loop import TrainingLoop
from fedarena.engine.setup import open_context
from fedarena.runtimes.serial import SerialRuntime
from fedarena.trees.cut_table import CutPoints

TREES, WARM_UP, REPEATS = 40, 3, 3


def federated(context: ExperimentContext) -> float:
    """Return the CPU seconds of a tree, without cut points and the first trees."""
    with tempfile.TemporaryDirectory() as folder:
        store = CheckpointStore(Path(folder) / "checkpoint", context.algorithm, resumable=False)
        loop = TrainingLoop(context, SerialRuntime(context), store)
        state = context.algorithm.init(context.initial)
        for number in range(WARM_UP):
            state, _ = loop.advance(state, number)
        began = time.process_time()
        for number in range(WARM_UP, WARM_UP + TREES):
            state, _ = loop.advance(state, number)
        seconds = (time.process_time() - began) / TREES
        store.close()
    return seconds


def pooled(context: ExperimentContext) -> float:
    """Return the CPU seconds of a tree of XGBoost on all rows in one place, in the same bins."""
    rows = np.sort(context.owners.train_rows)
    x, y = raw_columns(context.data)[rows], context.data.y[rows]
    table = CutPoints.of_rows(x, 64).table
    codes = table.codes(x).astype(np.float32)
    codes[codes >= table.bins.counts] = np.nan
    matrix = xgboost.DMatrix(codes, y, nthread=1)
    settings = {
        "objective": "binary:logistic", "tree_method": "hist", "max_depth": 6, "eta": 0.3, "base_score": 0.5, "nthread": 1,
    }  # fmt: skip
    booster = xgboost.train(settings, matrix, WARM_UP)
    began = time.process_time()
    xgboost.train(settings, matrix, TREES, xgb_model=booster)
    return (time.process_time() - began) / TREES


def main() -> None:
    """Print the times and their ratio."""
    for name in ("adult", "bank"):
        context = open_context(Experiment.make(name, algorithm="histboost", clients=4, partition="iid", rounds=1))
        times = [(federated(context), pooled(context)) for _ in range(REPEATS)]  # in turn: the machine may slow down
        ours, theirs = map(min, zip(*times, strict=True))
        print(f"{name}: histboost {1e3 * ours:.1f} ms a tree, XGBoost {1e3 * theirs:.1f} ms, ratio {ours / theirs:.1f}")


if __name__ == "__main__":
    main()
