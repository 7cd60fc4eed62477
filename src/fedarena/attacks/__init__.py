"""Attacks on a simulated federation: one paper, one file. Importing this package registers every attack by name.

The contract is in `base`. The engine decides which clients attack, changes their samples and replaces what they send.
"""

from fedarena.attacks.alie import ALittleIsEnough
from fedarena.attacks.backdoor import Backdoor
from fedarena.attacks.base import Attack, SeenUpdates
from fedarena.attacks.gaussian import Gaussian
from fedarena.attacks.ipm import InnerProductManipulation
from fedarena.attacks.label_flip import LabelFlip
from fedarena.attacks.min_max import MinMax, MinSum
from fedarena.attacks.same_value import SameValue
from fedarena.attacks.sign_flip import SignFlip

__all__ = [
    "ALittleIsEnough",
    "Attack",
    "Backdoor",
    "Gaussian",
    "InnerProductManipulation",
    "LabelFlip",
    "MinMax",
    "MinSum",
    "SameValue",
    "SeenUpdates",
    "SignFlip",
]
