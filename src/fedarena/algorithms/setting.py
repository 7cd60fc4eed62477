"""The facts about an experiment that an algorithm may check before the start."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Setting:
    """The facts about an experiment that an algorithm may check before the start."""

    lr: float
    momentum: float
    reset_momentum: bool
    clients: int  # with rows
    participants: int  # selected each round
    has_batchnorm: bool
    has_dropout: bool
    has_classes: bool  # each row has one class: the task is classification
    has_accuracy: bool = True  # predictions are right or wrong
    features: int | None = None  # inputs of a model that is linear in them
    steps: int | None = None  # local.steps, where it replaces local.epochs
    optimizer: str = "sgd"  # local.optimizer
    grows_trees: bool = False  # clients have raw columns, and the model is a forest
    is_private: bool = False  # `local.privacy` protects the samples of clients
    representation: int | None = None  # width of the input of the model's last layer, where that layer is linear
