"""One paper, one file: both halves of it. Importing this package makes every algorithm known by name."""

from fedarena.algorithms.base import Algorithm, Cohort, Model, Outcome, Pull, Reply, Step, Work
from fedarena.algorithms.baselines import Centralized, LocalOnly
from fedarena.algorithms.fedavg import FedAvg
from fedarena.algorithms.fedsgd import FedSGD

__all__ = [
    "Algorithm",
    "Centralized",
    "Cohort",
    "FedAvg",
    "FedSGD",
    "LocalOnly",
    "Model",
    "Outcome",
    "Pull",
    "Reply",
    "Step",
    "Work",
]
