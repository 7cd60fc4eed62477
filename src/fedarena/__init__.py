"""fedarena compares federated-learning algorithms on data like yours.

>>> import fedarena as fa
>>> run = fa.run("digits", rounds=3, out=False)
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedarena.algorithms import (
        COOP,
        FSVRG,
        AdaptiveFedProx,
        Algorithm,
        Asynchronous,
        Centralized,
        Cohort,
        CoLearning,
        Cyclic,
        FedAdagrad,
        FedAdam,
        FedAsync,
        FedAvg,
        FedAvgM,
        FedBuff,
        FedDyn,
        FedFA,
        FedIR,
        FedNova,
        FedPAGE,
        FedProx,
        FedSGD,
        FedVC,
        FedYogi,
        Krum,
        LoAdaBoost,
        LocalOnly,
        Median,
        Model,
        Outcome,
        Pull,
        Reply,
        Scaffold,
        Step,
        TrimmedMean,
        Work,
    )
    from fedarena.api import (
        FineTuned,
        Found,
        Verdict,
        compare,
        finetune,
        load,
        predict,
        report,
        reproduce,
        rounds,
        run,
        search,
        verify,
    )
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
    "COOP",
    "FSVRG",
    "AdaptiveFedProx",
    "Algorithm",
    "Asynchronous",
    "Centralized",
    "CoLearning",
    "Cohort",
    "Comparison",
    "Cyclic",
    "Dataset",
    "Evaluate",
    "Experiment",
    "FedAdagrad",
    "FedAdam",
    "FedAsync",
    "FedAvg",
    "FedAvgM",
    "FedBuff",
    "FedDyn",
    "FedFA",
    "FedIR",
    "FedNova",
    "FedPAGE",
    "FedProx",
    "FedSGD",
    "FedVC",
    "FedYogi",
    "FedarenaError",
    "FineTuned",
    "Found",
    "Krum",
    "LoAdaBoost",
    "Local",
    "LocalOnly",
    "Median",
    "Model",
    "Outcome",
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
    "TrimmedMean",
    "Verdict",
    "Work",
    "arrays",
    "compare",
    "csv",
    "draw_curves",
    "finetune",
    "lines",
    "load",
    "metric",
    "parquet",
    "predict",
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
    "AdaptiveFedProx": "algorithms",
    "Algorithm": "algorithms",
    "Asynchronous": "algorithms",
    "COOP": "algorithms",
    "Centralized": "algorithms",
    "CoLearning": "algorithms",
    "Cohort": "algorithms",
    "Comparison": "results.comparison",
    "Cyclic": "algorithms",
    "Dataset": "data.dataset",
    "Evaluate": "config.settings_tables",
    "Experiment": "config.experiment",
    "FSVRG": "algorithms",
    "FedAdagrad": "algorithms",
    "FedAdam": "algorithms",
    "FedAsync": "algorithms",
    "FedAvg": "algorithms",
    "FedAvgM": "algorithms",
    "FedBuff": "algorithms",
    "FedDyn": "algorithms",
    "FedFA": "algorithms",
    "FedIR": "algorithms",
    "FedNova": "algorithms",
    "FedPAGE": "algorithms",
    "FedProx": "algorithms",
    "FedSGD": "algorithms",
    "FedVC": "algorithms",
    "FedYogi": "algorithms",
    "FedarenaError": "config.errors",
    "FineTuned": "api",
    "Found": "api",
    "Krum": "algorithms",
    "LoAdaBoost": "algorithms",
    "Local": "config.settings_tables",
    "LocalOnly": "algorithms",
    "Median": "algorithms",
    "Model": "algorithms",
    "Outcome": "algorithms",
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
    "TrimmedMean": "algorithms",
    "Verdict": "api",
    "Work": "algorithms",
    "arrays": "data.sources",
    "compare": "api",
    "finetune": "api",
    "csv": "data.sources",
    "draw_curves": "results.run_plots",
    "lines": "data.sources",
    "load": "api",
    "predict": "api",
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
