"""fedarena compares federated-learning algorithms on data like yours.

>>> import fedarena as fa
>>> run = fa.run("digits", rounds=3, out=False)
"""

# ruff: noqa: I001 - one import statement for each module, where ruff would write one for each name
from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedarena.algorithms import (
        NormBound as NormBound,
        GeometricMedian as GeometricMedian,
        CenteredClip as CenteredClip,
        Bulyan as Bulyan,
        MultiKrum as MultiKrum,
        AFL as AFL,
        PerFedAvg as PerFedAvg,
        PFedMe as PFedMe,
        MOON as MOON,
        IFCA as IFCA,
        FedProto as FedProto,
        Ditto as Ditto,
        APFL as APFL,
        COOP as COOP,
        FSVRG as FSVRG,
        AdaptiveFedProx as AdaptiveFedProx,
        Algorithm as Algorithm,
        Asynchronous as Asynchronous,
        Centralized as Centralized,
        CentralizedTrees as CentralizedTrees,
        Cohort as Cohort,
        CoLearning as CoLearning,
        Cyclic as Cyclic,
        FedAdagrad as FedAdagrad,
        FedAdam as FedAdam,
        FedAsync as FedAsync,
        FedAvg as FedAvg,
        FedAvgM as FedAvgM,
        FedBN as FedBN,
        FedBuff as FedBuff,
        FedDyn as FedDyn,
        FedFA as FedFA,
        FedIR as FedIR,
        FedNova as FedNova,
        FedPAGE as FedPAGE,
        FedPer as FedPer,
        FedProx as FedProx,
        FedRep as FedRep,
        FedSGD as FedSGD,
        FedVC as FedVC,
        FedYogi as FedYogi,
        FineTune as FineTune,
        HistBoost as HistBoost,
        Krum as Krum,
        LoAdaBoost as LoAdaBoost,
        LocalOnly as LocalOnly,
        LocalTrees as LocalTrees,
        Median as Median,
        Model as Model,
        Outcome as Outcome,
        Pull as Pull,
        QFedAvg as QFedAvg,
        Reply as Reply,
        Scaffold as Scaffold,
        Step as Step,
        TreeBag as TreeBag,
        TreeCyclic as TreeCyclic,
        TrimmedMean as TrimmedMean,
        Work as Work,
    )
    from fedarena.config.errors import FedarenaError as FedarenaError
    from fedarena.config.experiment import Experiment as Experiment
    from fedarena.config.registry import register as register
    from fedarena.config.settings_tables import Evaluate as Evaluate, Local as Local
    from fedarena.data.dataset import Dataset as Dataset, Partition as Partition
    from fedarena.data.sources import arrays as arrays, csv as csv, lines as lines, parquet as parquet
    from fedarena.experiments.compare import compare as compare
    from fedarena.experiments.finetune import FineTuned as FineTuned, finetune as finetune
    from fedarena.experiments.loading import load as load
    from fedarena.experiments.predict import predict as predict
    from fedarena.experiments.run import (
        Verdict as Verdict,
        rounds as rounds,
        run as run,
        verify as verify,
    )
    from fedarena.experiments.search import Found as Found, search as search
    from fedarena.integrations.mlflow import track as track
    from fedarena.reports import report as report
    from fedarena.reproduction.reproduce import reproduce as reproduce
    from fedarena.reproduction.result import Reproduction as Reproduction
    from fedarena.results.comparison import Comparison as Comparison
    from fedarena.results.run import Run as Run
    from fedarena.results.run_plots import draw_curves as draw_curves
    from fedarena.results.suite import SuiteComparison as SuiteComparison
    from fedarena.statistics.metric_registry import metric as metric
    from fedarena.vertical.estimators import (
        SecureBoostClassifier as SecureBoostClassifier,
        SecureBoostRegressor as SecureBoostRegressor,
    )

__version__ = "0.3.0"

# The module of each public name. It is imported when the name is first used, so that `import fedarena` takes no time.
_MODULES = {
    "AFL": "algorithms",
    "APFL": "algorithms",
    "AdaptiveFedProx": "algorithms",
    "Algorithm": "algorithms",
    "Asynchronous": "algorithms",
    "Bulyan": "algorithms",
    "COOP": "algorithms",
    "CenteredClip": "algorithms",
    "Centralized": "algorithms",
    "CentralizedTrees": "algorithms",
    "CoLearning": "algorithms",
    "Cohort": "algorithms",
    "Comparison": "results.comparison",
    "Cyclic": "algorithms",
    "Dataset": "data.dataset",
    "Ditto": "algorithms",
    "Evaluate": "config.settings_tables",
    "Experiment": "config.experiment",
    "FSVRG": "algorithms",
    "FedAdagrad": "algorithms",
    "FedAdam": "algorithms",
    "FedAsync": "algorithms",
    "FedAvg": "algorithms",
    "FedAvgM": "algorithms",
    "FedBN": "algorithms",
    "FedBuff": "algorithms",
    "FedDyn": "algorithms",
    "FedFA": "algorithms",
    "FedIR": "algorithms",
    "FedNova": "algorithms",
    "FedPAGE": "algorithms",
    "FedPer": "algorithms",
    "FedProto": "algorithms",
    "FedProx": "algorithms",
    "FedRep": "algorithms",
    "FedSGD": "algorithms",
    "FedVC": "algorithms",
    "FedYogi": "algorithms",
    "FineTune": "algorithms",
    "HistBoost": "algorithms",
    "FedarenaError": "config.errors",
    "FineTuned": "experiments.finetune",
    "Found": "experiments.search",
    "GeometricMedian": "algorithms",
    "IFCA": "algorithms",
    "Krum": "algorithms",
    "LoAdaBoost": "algorithms",
    "Local": "config.settings_tables",
    "LocalOnly": "algorithms",
    "LocalTrees": "algorithms",
    "MOON": "algorithms",
    "Median": "algorithms",
    "Model": "algorithms",
    "MultiKrum": "algorithms",
    "NormBound": "algorithms",
    "Outcome": "algorithms",
    "PFedMe": "algorithms",
    "Partition": "data.dataset",
    "PerFedAvg": "algorithms",
    "Pull": "algorithms",
    "QFedAvg": "algorithms",
    "Reply": "algorithms",
    "Reproduction": "reproduction.result",
    "Run": "results.run",
    "Scaffold": "algorithms",
    "SecureBoostClassifier": "vertical.estimators",
    "SecureBoostRegressor": "vertical.estimators",
    "Step": "algorithms",
    "SuiteComparison": "results.suite",
    "TreeBag": "algorithms",
    "TreeCyclic": "algorithms",
    "TrimmedMean": "algorithms",
    "Verdict": "experiments.run",
    "Work": "algorithms",
    "arrays": "data.sources",
    "compare": "experiments.compare",
    "csv": "data.sources",
    "draw_curves": "results.run_plots",
    "finetune": "experiments.finetune",
    "lines": "data.sources",
    "load": "experiments.loading",
    "metric": "statistics.metric_registry",
    "parquet": "data.sources",
    "predict": "experiments.predict",
    "register": "config.registry",
    "report": "reports",
    "reproduce": "reproduction.reproduce",
    "rounds": "experiments.run",
    "run": "experiments.run",
    "search": "experiments.search",
    "track": "integrations.mlflow",
    "verify": "experiments.run",
}

__all__ = list(_MODULES)


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'fedarena' has no attribute '{name}'")
    return getattr(importlib.import_module(f"fedarena.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
