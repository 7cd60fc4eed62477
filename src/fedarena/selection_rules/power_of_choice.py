"""Power-of-choice: Cho, Wang, Joshi, "Client Selection in Federated Learning: Convergence Analysis and Power-of-Choice
Selection Strategies", 2020, arXiv:2010.01243, section 4."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
from annotated_types import Ge

from fedarena.config.errors import BadValue
from fedarena.config.registry import register
from fedarena.selection_rules.base import Clients, SelectionRound, SelectionRule


@register("selection", "power_of_choice", paper="Cho et al. 2020, arXiv:2010.01243")
@dataclass(frozen=True)
class PowerOfChoice(SelectionRule):
    """Of d candidates, drawn in proportion to their samples, those with the largest loss of the current model."""

    d: Annotated[int, Ge(1)] | None = None  # none: twice the clients of a round
    candidates: Literal["samples", "uniform"] = "samples"

    asks_losses = True

    def check(self, count: int) -> None:
        """Refuse fewer candidates than a round has clients."""
        if self.d is not None and self.d < count:
            raise BadValue(
                f"power_of_choice draws d = {self.d} candidates, and a round has {count} clients",
                remedy=f"set d to at least {count}, or leave it out: then it is {2 * count}",
                where="select.d",
            )

    def select(self, state: Any, round: SelectionRound) -> Clients:
        """Draw d candidates; ask them for their losses unless all are needed; return the m largest."""
        d = min(self.d or 2 * round.count, len(round.clients))
        chances = round.samples / round.samples.sum() if self.candidates == "samples" else None
        drawn = round.clients[round.rng.choice(len(round.clients), size=d, replace=False, p=chances)]
        if d == round.count:
            return drawn
        losses = np.nan_to_num(round.losses(drawn), nan=-np.inf)  # candidates without an answer come last
        return drawn[np.argsort(-losses, kind="stable")[: round.count]]  # of equal ones, those drawn first
