"""Every registered component keeps its contract; `fedarena check` runs the same functions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import fedarena as fa
from fedarena.config.errors import ContractBroken
from fedarena.config.registry import components
from fedarena.experiments import component_checks


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(components("algorithm")))
def test_algorithms(name: str) -> None:
    assert len(list(component_checks.check_algorithm(name))) >= 3


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(components("model")))
def test_models(name: str) -> None:
    assert len(list(component_checks.check_model(name))) == 4


@pytest.mark.parametrize("name", ["digits", "breast_cancer"])
def test_data_sets(name: str) -> None:
    assert len(list(component_checks.check_dataset(name))) == 3


@pytest.mark.slow
def test_an_algorithm_with_hidden_state_is_caught() -> None:
    """State outside the values it is given: other bits in other processes, and after a resume."""
    hidden = []

    class Hidden(fa.FedAvg):
        def server(self, state: Any, mean: Any, cohort: Any) -> Any:
            hidden.append(1)
            return fa.Model(state.w - mean.delta / len(hidden))

    fa.register("algorithm", "hidden")(Hidden)
    with pytest.raises(ContractBroken, match="other bits"):
        list(component_checks.check_algorithm("hidden"))


@pytest.mark.slow
def test_an_algorithm_that_moves_without_answers_is_caught() -> None:
    class Restless(fa.FedAvg):
        def round(self, state: Any, ask: Any) -> Any:
            mean = ask(self.broadcast(state))
            return fa.Model(state.w + np.float32(0.1)) if mean is None else self.server(state, mean, ask.cohort)

    fa.register("algorithm", "restless")(Restless)
    with pytest.raises(ContractBroken, match="without answers"):
        list(component_checks.check_algorithm("restless"))
