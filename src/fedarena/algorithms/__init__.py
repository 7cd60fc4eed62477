"""One paper, one file: both halves of it. Importing this package makes every algorithm known by name."""

from fedarena.algorithms.base import Algorithm, Cohort, Model, Outcome, Pull, Reply, Step, Work
from fedarena.algorithms.baselines import Centralized, LocalOnly
from fedarena.algorithms.fedavg import FedAvg
from fedarena.algorithms.fedavgm import FedAvgM
from fedarena.algorithms.fednova import FedNova
from fedarena.algorithms.fedprox import FedProx
from fedarena.algorithms.fedsgd import FedSGD
from fedarena.algorithms.scaffold import Scaffold

__all__ = [
    "Algorithm",
    "Centralized",
    "Cohort",
    "FedAvg",
    "FedAvgM",
    "FedNova",
    "FedProx",
    "FedSGD",
    "LocalOnly",
    "Model",
    "Outcome",
    "Pull",
    "Reply",
    "Scaffold",
    "Step",
    "Work",
]
