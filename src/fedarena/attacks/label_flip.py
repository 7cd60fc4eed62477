"""Label flipping: attackers train on wrong labels. All classes: Fang, Cao, Jia, Gong, "Local Model Poisoning Attacks to
Byzantine-Robust Federated Learning", 2020, arXiv:1911.11815; one class: Tolpegin et al. 2020, arXiv:2007.08432."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
from annotated_types import Ge
from numpy.typing import NDArray

from fedarena.attacks.base import Attack
from fedarena.config.errors import BadValue
from fedarena.config.registry import register
from fedarena.data.dataset import Dataset


@register("attack", "label_flip", paper="Fang et al. 2020, arXiv:1911.11815; Tolpegin et al. 2020, arXiv:2007.08432")
@dataclass(frozen=True)
class LabelFlip(Attack):
    """Attackers train with class C - 1 - y in place of y, or with class `target` in place of `source` alone."""

    source: Annotated[int, Ge(0)] | None = None
    target: Annotated[int, Ge(0)] | None = None

    needs_classes = True

    def check(self, data: Dataset) -> None:
        """Refuse one class without the other, and classes that do not exist."""
        if (self.source is None) != (self.target is None):
            raise BadValue(
                "label_flip has a source or a target alone", remedy="give both, or none", where="attack.source"
            )
        check_class(self.source, data, "attack.source")
        check_class(self.target, data, "attack.target")

    def samples(
        self, x: NDArray[Any], y: NDArray[Any], data: Dataset, rng: np.random.Generator
    ) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return the samples with other labels."""
        if self.source is None or self.target is None:
            return x, data.classes - 1 - y
        return x, np.where(y == self.source, self.target, y)


def check_class(number: int | None, data: Dataset, where: str) -> None:
    """Refuse the number of a class that the data do not have."""
    if number is not None and number >= data.classes:
        raise BadValue(
            f"there is no class {number}: '{data.name}' has {data.classes} classes",
            remedy=f"give 0 to {data.classes - 1}",
            where=where,
        )
