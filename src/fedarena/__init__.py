"""fedarena compares federated-learning algorithms on data like yours.

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
    from fedarena.config.experiment import Experiment
    from fedarena.config.registry import register
    from fedarena.config.settings_tables import Evaluate, Local
    from fedarena.data.dataset import Dataset, Partition
    from fedarena.data.sources import arrays, csv, lines, parquet
    from fedarena.integrations.mlflow import track
    from fedarena.reproduction.result import Reproduction
    from fedarena.results.comparison import Comparison
    from fedarena.results.run import Run
    from fedarena.results.run_plots import draw_curves
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

# The module of each public name. It is imported when the name is first used, so that `import fedarena` takes no time.
_MODULES = {
    "Algorithm": "algorithms",
    "Centralized": "algorithms",
    "Comparison": "results.comparison",
    "Dataset": "data.dataset",
    "Evaluate": "config.settings_tables",
    "Experiment": "config.experiment",
    "FedAvg": "algorithms",
    "FedAvgM": "algorithms",
    "FedNova": "algorithms",
    "FedProx": "algorithms",
    "FedSGD": "algorithms",
    "FedarenaError": "config.errors",
    "Found": "api",
    "Local": "config.settings_tables",
    "LocalOnly": "algorithms",
    "Model": "algorithms",
    "Partition": "data.dataset",
    "Pull": "algorithms",
    "Reply": "algorithms",
    "Reproduction": "reproduction.result",
    "Run": "results.run",
    "Scaffold": "algorithms",
    "SecureBoostClassifier": "vertical.estimators",
    "SecureBoostRegressor": "vertical.estimators",
    "Step": "algorithms",
    "SuiteComparison": "results.suite",
    "Verdict": "api",
    "arrays": "data.sources",
    "compare": "api",
    "csv": "data.sources",
    "draw_curves": "results.run_plots",
    "lines": "data.sources",
    "load": "api",
    "metric": "statistics.metric_registry",
    "parquet": "data.sources",
    "register": "config.registry",
    "report": "api",
    "reproduce": "api",
    "rounds": "api",
    "run": "api",
    "search": "api",
    "track": "integrations.mlflow",
    "verify": "api",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'fedarena' has no attribute '{name}'")
    return getattr(importlib.import_module(f"fedarena.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
