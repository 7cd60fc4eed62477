"""The contract of an attack: a frozen dataclass that changes what attackers train on, what they send, or both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from annotated_types import Ge, Lt
from numpy.typing import NDArray

from fedarena.config.errors import BadValue, check_known, quoted
from fedarena.config.settings_tables import both_given
from fedarena.data.dataset import Dataset

Updates = NDArray[np.float64]  # one row per client: Delta = old minus new, all its vectors one after the other
USUAL_SHARE = 0.2


@dataclass(frozen=True)
class SeenUpdates:
    """What attackers see of one exchange before they send."""

    own: Updates  # of the attackers, as they would send them without an attack
    known: Updates  # of the attackers alone, or of all clients: `knows`
    clients: int  # n, all that answer

    @property
    def attackers(self) -> int:
        """Return m, the number of attackers that answer."""
        return len(self.own)

    def each(self, update: Updates) -> Updates:
        """Return the same update for every attacker."""
        return np.tile(update, (self.attackers, 1))


@dataclass(frozen=True)
class Attack:
    """The contract. A subclass overrides `samples`, `updates` or both; nothing is stored on `self`."""

    share: Annotated[float, Ge(0), Lt(1)] | None = None  # of the clients; none: 0.2, unless `clients` are given
    clients: tuple[int | str, ...] | None = None  # by number or name, in place of `share`
    knows: Literal["own", "all"] = "own"  # the updates that attackers see before they send

    needs_classes: ClassVar[bool] = False  # it changes classes, and is for classification alone

    def __post_init__(self) -> None:
        if self.share is not None and self.clients is not None:
            raise both_given("attack.share", "attack.clients")

    @property
    def changes_updates(self) -> bool:
        """Return whether attackers send something else than what they trained."""
        return type(self).updates is not Attack.updates

    def check(self, data: Dataset) -> None:
        """Raise an error with a remedy if the attack cannot be made on these data, before anything starts."""

    def samples(
        self, x: NDArray[Any], y: NDArray[Any], data: Dataset, rng: np.random.Generator
    ) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return the training samples and labels of one attacker in place of its own."""
        return x, y

    def updates(self, seen: SeenUpdates, rng: np.random.Generator) -> Updates:
        """Return what the attackers send in one exchange, one row each."""
        return seen.own

    def attackers(self, population: Sequence[int], names: Sequence[str], rng: np.random.Generator) -> tuple[int, ...]:
        """Return the attackers among the clients with samples; those of a smaller share are among those of a larger one."""
        if self.clients is None:
            share = USUAL_SHARE if self.share is None else self.share
            count = int(share * len(population) + 1e-9)
            if share and not count:
                raise BadValue(
                    f"attack.share = {share:g} of {len(population)} clients is no client",
                    remedy=f"give at least {1 / len(population):.3g}, or 0 for no attack",
                    where="attack.share",
                )
            return tuple(sorted(int(k) for k in rng.permutation(population)[:count]))
        found = {self._number(one, names) for one in self.clients} & set(population)
        if len(found) == len(population):
            raise BadValue("all clients attack", remedy="leave an honest one", where="attack.clients")
        return tuple(sorted(found))

    @staticmethod
    def _number(client: int | str, names: Sequence[str]) -> int:
        known = ", ".join(names[:10]) + (", ..." if len(names) > 10 else "")
        what = f"there is no client '{quoted(client)}' to attack"
        check_known(str(client), names, what, f"the clients are: {known}", "attack.clients")
        return list(names).index(str(client))
