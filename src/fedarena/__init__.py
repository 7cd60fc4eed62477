"""fedarena: which federated-learning algorithm suits your federation?

>>> import fedarena as fa
>>> run = fa.run("digits", rounds=3, out=False)
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedarena.algorithms import (
        Algorithm,
        Centralized,
        FedAvg,
        FedAvgM,
        FedNova,
        FedProx,
        FedSGD,
        LocalOnly,
        Model,
        Pull,
        Reply,
        Scaffold,
        Step,
    )
    from fedarena.api import Found, Verdict, compare, load, report, reproduce, rounds, run, search, verify
    from fedarena.config.errors import FedarenaError
    from fedarena.config.experiment import Evaluate, Experiment, Local
    from fedarena.config.registry import register
    from fedarena.data.dataset import Dataset, Partition
    from fedarena.data.sources import arrays, csv, lines, parquet
    from fedarena.integrations.mlflow import track
    from fedarena.reports.run_plots import draw_curves
    from fedarena.reproduction.result import Reproduction
    from fedarena.results.comparison import Comparison
    from fedarena.results.run import Run
    from fedarena.results.suite import SuiteComparison
    from fedarena.statistics.metric_registry import metric
    from fedarena.vertical.estimators import SecureBoostClassifier, SecureBoostRegressor

__version__ = "0.3.0"

__all__ = [
    "Algorithm",
    "Centralized",
    "Comparison",
    "Dataset",
    "Evaluate",
    "Experiment",
    "FedAvg",
    "FedAvgM",
    "FedNova",
    "FedProx",
    "FedSGD",
    "FedarenaError",
    "Found",
    "Local",
    "LocalOnly",
    "Model",
    "Partition",
    "Pull",
    "Reply",
    "Reproduction",
    "Run",
    "Scaffold",
    "SecureBoostClassifier",
    "SecureBoostRegressor",
    "Step",
    "SuiteComparison",
    "Verdict",
    "arrays",
    "compare",
    "csv",
    "draw_curves",
    "lines",
    "load",
    "metric",
    "parquet",
    "register",
    "report",
    "reproduce",
    "rounds",
    "run",
    "search",
    "track",
    "verify",
]

# Where each name lives: nothing heavy is imported before it is used, so that `import fedarena` takes no time.
_HOMES = (
    "fedarena.config.errors",
    "fedarena.config.registry",
    "fedarena.statistics.metric_registry",
    "fedarena.config.experiment",
    "fedarena.data.dataset",
    "fedarena.data.sources",
    "fedarena.algorithms",
    "fedarena.results.loading",
    "fedarena.results.run",
    "fedarena.results.comparison",
    "fedarena.results.suite",
    "fedarena.reproduction.result",
    "fedarena.reports.run_plots",
    "fedarena.integrations.mlflow",
    "fedarena.api",
    "fedarena.vertical.estimators",
)


def __getattr__(name: str) -> Any:
    if name in __all__:
        for home in _HOMES:
            module = importlib.import_module(home)
            if hasattr(module, name):
                return getattr(module, name)
    raise AttributeError(f"module 'fedarena' has no attribute '{name}'")


def __dir__() -> list[str]:
    return __all__
