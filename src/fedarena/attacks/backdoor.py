"""A backdoor: Bagdasaryan, Veit, Hua, Estrin, Shmatikov, "How To Backdoor Federated Learning", 2020, arXiv:1807.00459;
the trigger is the patch of Gu, Dolan-Gavitt, Garg, "BadNets", 2017, arXiv:1708.06733."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
from annotated_types import Ge, Gt, Le
from numpy.typing import NDArray

from fedarena.attacks.base import Attack, SeenUpdates, Updates
from fedarena.attacks.label_flip import check_class
from fedarena.config.errors import BadValue
from fedarena.config.registry import register
from fedarena.data.dataset import Dataset


@register("attack", "backdoor", paper="Bagdasaryan et al. 2020, arXiv:1807.00459; Gu et al. 2017, arXiv:1708.06733")
@dataclass(frozen=True)
class Backdoor(Attack):
    """Attackers teach the model to answer class `target` to every sample with a trigger, and scale up their update.

    The trigger is a square of `size` pixels a side in the lower right corner of images, or the column `feature` of tables,
    set to `value`. A `poisoned` share of an attacker's samples has it. The update is multiplied by `scale`, by default by
    the clients over the attackers of the round, so that their mean replaces the model.
    """

    target: Annotated[int, Ge(0)] = 0
    size: Annotated[int, Ge(1)] = 3
    feature: Annotated[int, Ge(0)] = 0
    value: float | None = None  # none: the largest in the data
    poisoned: Annotated[float, Gt(0), Le(1)] = 0.5
    scale: Annotated[float, Gt(0)] | None = None  # none: clients / attackers

    needs_classes = True

    def check(self, data: Dataset) -> None:
        """Refuse a class, a patch or a column that the data do not have."""
        check_class(self.target, data, "attack.target")
        if data.x.ndim not in (2, 4):
            raise BadValue(
                f"a backdoor needs images or tables, and '{data.name}' has neither",
                remedy="choose another attack: `fedarena list attacks`",
                where="attack.name",
            )
        key, given, most = (
            ("feature", self.feature, data.x.shape[1] - 1)
            if data.x.ndim == 2
            else ("size", self.size, min(data.x.shape[2:]))
        )
        if given > most:
            raise BadValue(
                f"attack.{key} = {given} is outside of a sample", remedy=f"give at most {most}", where=f"attack.{key}"
            )

    def samples(
        self, x: NDArray[Any], y: NDArray[Any], data: Dataset, rng: np.random.Generator
    ) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return the samples of which some have the trigger and the target as label."""
        chosen = rng.permutation(len(x))[: round(self.poisoned * len(x))]
        x, y = x.copy(), y.copy()
        x[chosen], y[chosen] = self.triggered(x[chosen], data), self.target
        return x, y

    def updates(self, seen: SeenUpdates, rng: np.random.Generator) -> Updates:
        """Delta -> scale Delta."""
        return seen.own * (seen.clients / seen.attackers if self.scale is None else self.scale)

    def triggered(self, x: NDArray[Any], data: Dataset) -> NDArray[Any]:
        """Return a copy of samples with the trigger."""
        x = x.copy()
        if x.ndim == 2:
            x[:, self.feature] = data.x[:, self.feature].max() if self.value is None else self.value
        else:
            x[:, :, -self.size :, -self.size :] = data.x.max() if self.value is None else self.value
        return x
