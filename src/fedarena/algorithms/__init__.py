"""Federated algorithms: one paper, one file, with both its client and its server.

Importing this package registers every algorithm by name. The contract is in `base`; code behind settings that only imitate
published code is in `variants`. Local training, devices and communication belong to the engine.
"""

from fedarena.algorithms.afl import AFL
from fedarena.algorithms.apfl import APFL
from fedarena.algorithms.base import Algorithm, Asynchronous, Cohort, Model, Outcome, Pull, Reply, Step, Work
from fedarena.algorithms.baselines import Centralized, LocalOnly
from fedarena.algorithms.bulyan import Bulyan
from fedarena.algorithms.centered_clip import CenteredClip
from fedarena.algorithms.colearning import CoLearning
from fedarena.algorithms.companions import FedIR, FedVC
from fedarena.algorithms.coop import COOP
from fedarena.algorithms.cyclic import Cyclic
from fedarena.algorithms.ditto import Ditto
from fedarena.algorithms.fedasync import FedAsync
from fedarena.algorithms.fedavg import FedAvg
from fedarena.algorithms.fedavgm import FedAvgM
from fedarena.algorithms.fedbn import FedBN
from fedarena.algorithms.fedbuff import FedBuff
from fedarena.algorithms.feddyn import FedDyn
from fedarena.algorithms.fedfa import FedFA
from fedarena.algorithms.fednova import FedNova
from fedarena.algorithms.fedopt import FedAdagrad, FedAdam, FedYogi
from fedarena.algorithms.fedpage import FedPAGE
from fedarena.algorithms.fedper import FedPer
from fedarena.algorithms.fedproto import FedProto
from fedarena.algorithms.fedprox import FedProx
from fedarena.algorithms.fedprox_adaptive import AdaptiveFedProx
from fedarena.algorithms.fedrep import FedRep
from fedarena.algorithms.fedsgd import FedSGD
from fedarena.algorithms.finetune import FineTune
from fedarena.algorithms.fsvrg import FSVRG
from fedarena.algorithms.geometric_median import GeometricMedian
from fedarena.algorithms.histboost import HistBoost
from fedarena.algorithms.ifca import IFCA
from fedarena.algorithms.krum import Krum, MultiKrum
from fedarena.algorithms.loadaboost import LoAdaBoost
from fedarena.algorithms.median import Median, TrimmedMean
from fedarena.algorithms.moon import MOON
from fedarena.algorithms.norm_bound import NormBound
from fedarena.algorithms.perfedavg import PerFedAvg
from fedarena.algorithms.pfedme import PFedMe
from fedarena.algorithms.qfedavg import QFedAvg
from fedarena.algorithms.scaffold import Scaffold
from fedarena.algorithms.tree_baselines import CentralizedTrees, LocalTrees
from fedarena.algorithms.treebag import TreeBag
from fedarena.algorithms.treecyclic import TreeCyclic
from fedarena.algorithms.variants import LiteralFedAvg, ScaffoldVariant, SeparateCyclic, StepCountFedNova

__all__ = [
    "AFL",
    "APFL",
    "COOP",
    "FSVRG",
    "IFCA",
    "MOON",
    "AdaptiveFedProx",
    "Algorithm",
    "Asynchronous",
    "Bulyan",
    "CenteredClip",
    "Centralized",
    "CentralizedTrees",
    "CoLearning",
    "Cohort",
    "Cyclic",
    "Ditto",
    "FedAdagrad",
    "FedAdam",
    "FedAsync",
    "FedAvg",
    "FedAvgM",
    "FedBN",
    "FedBuff",
    "FedDyn",
    "FedFA",
    "FedIR",
    "FedNova",
    "FedPAGE",
    "FedPer",
    "FedProto",
    "FedProx",
    "FedRep",
    "FedSGD",
    "FedVC",
    "FedYogi",
    "FineTune",
    "GeometricMedian",
    "HistBoost",
    "Krum",
    "LiteralFedAvg",
    "LoAdaBoost",
    "LocalOnly",
    "LocalTrees",
    "Median",
    "Model",
    "MultiKrum",
    "NormBound",
    "Outcome",
    "PFedMe",
    "PerFedAvg",
    "Pull",
    "QFedAvg",
    "Reply",
    "Scaffold",
    "ScaffoldVariant",
    "SeparateCyclic",
    "Step",
    "StepCountFedNova",
    "TreeBag",
    "TreeCyclic",
    "TrimmedMean",
    "Work",
]
