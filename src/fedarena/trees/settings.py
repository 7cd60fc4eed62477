"""The settings that growing a tree needs; `vertical.settings.BoostSettings` and `trees.boosting.Boosting` have them."""

from __future__ import annotations

from typing import Literal, Protocol

ObjectiveName = Literal["logistic", "softmax", "squared_error"]


class ObjectiveSettings(Protocol):
    """The settings that choose a loss."""

    @property
    def objective(self) -> ObjectiveName:
        """Return the name of the loss."""
        ...

    @property
    def classes(self) -> int:
        """Return the number of classes, where there are any."""
        ...


class GainSettings(Protocol):
    """The settings that decide which split is the best, and what a leaf weighs."""

    @property
    def lambda_(self) -> float:
        """Return the penalty of squared leaf weights."""
        ...

    @property
    def gamma(self) -> float:
        """Return the least gain of a split, with the factor 1/2 of the paper: half of XGBoost's gamma."""
        ...

    @property
    def min_child_weight(self) -> float:
        """Return the least sum of h in a child."""
        ...

    @property
    def min_leaf_rows(self) -> int:
        """Return the least number of rows in a child."""
        ...

    @property
    def lr(self) -> float:
        """Return the learning rate, by which leaf weights are multiplied."""
        ...
