"""Uniform selection: the usual rule, by name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fedarena.config.registry import register
from fedarena.selection_rules.base import Clients, SelectionRound, SelectionRule


@register("selection", "uniform")
@dataclass(frozen=True)
class Uniform(SelectionRule):
    """All available clients are equally likely: an experiment without `select` does the same, to the bit."""

    def select(self, state: Any, round: SelectionRound) -> Clients:
        """Draw the clients without replacement."""
        return round.clients[round.rng.choice(len(round.clients), size=round.count, replace=False)]
