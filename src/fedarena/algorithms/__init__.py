"""One paper, one file: both halves of it. Importing this package makes every algorithm known by name."""

from fedarena.algorithms.base import Algorithm, Asynchronous, Cohort, Model, Outcome, Pull, Reply, Step, Work
from fedarena.algorithms.baselines import Centralized, LocalOnly
from fedarena.algorithms.colearning import CoLearning
from fedarena.algorithms.companions import FedIR, FedVC
from fedarena.algorithms.coop import COOP
from fedarena.algorithms.fedasync import FedAsync
from fedarena.algorithms.fedavg import FedAvg
from fedarena.algorithms.fedavgm import FedAvgM
from fedarena.algorithms.fedbuff import FedBuff
from fedarena.algorithms.feddyn import FedDyn
from fedarena.algorithms.fedfa import FedFA
from fedarena.algorithms.fednova import FedNova
from fedarena.algorithms.fedopt import FedAdagrad, FedAdam, FedYogi
from fedarena.algorithms.fedpage import FedPAGE
from fedarena.algorithms.fedprox import FedProx
from fedarena.algorithms.fedsgd import FedSGD
from fedarena.algorithms.fsvrg import FSVRG
from fedarena.algorithms.loadaboost import LoAdaBoost
from fedarena.algorithms.robust import Krum, Median, TrimmedMean
from fedarena.algorithms.scaffold import Scaffold

__all__ = [
    "COOP",
    "FSVRG",
    "Algorithm",
    "Asynchronous",
    "Centralized",
    "CoLearning",
    "Cohort",
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
    "Krum",
    "LoAdaBoost",
    "LocalOnly",
    "Median",
    "Model",
    "Outcome",
    "Pull",
    "Reply",
    "Scaffold",
    "Step",
    "TrimmedMean",
    "Work",
]
