"""MOON: exact statements (docs/reference/algorithms.md#moon); that mu = 0 is FedAvg is in test_limits.py."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tests.algorithms.test_ditto import BLOBS
from tests.algorithms.test_fedavg import small_net
from tests.support.federations import blobs
from tests.support.trainings import same_bits, trained
from torch import nn

from fedarena.algorithms import MOON
from fedarena.config.errors import BadValue
from fedarena.engine.own_loss import Batch
from fedarena.models.representation import represent


def smooth() -> nn.Sequential:
    return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3)).double()


@pytest.mark.slow
def test_the_loss_is_that_of_the_paper_and_its_gradient_that_of_differences() -> None:
    torch.manual_seed(0)
    module, start, last = smooth(), smooth(), smooth()
    batch = Batch(torch.randn(7, 6, dtype=torch.float64), torch.randint(0, 3, (7,)))
    context: Any = SimpleNamespace(start=start, represent=represent, loss=nn.functional.cross_entropy)
    moon = MOON(mu=2.0, temperature=0.3)

    def value() -> torch.Tensor:
        return moon.loss(last, module, batch, context)

    z, near, far = (represent(m, batch.x)[0] for m in (module, start, last))
    similar = lambda other: torch.exp(torch.cosine_similarity(z, other) / 0.3)
    contrast = -torch.log(similar(near) / (similar(near) + similar(far))).mean()
    torch.testing.assert_close(value(), nn.functional.cross_entropy(module(batch.x), batch.y) + 2.0 * contrast)

    gradients = torch.autograd.grad(value(), list(module.parameters()), materialize_grads=True)
    for parameter, gradient in zip(module.parameters(), gradients, strict=True):
        flat = parameter.data.view(-1)
        for i in range(0, len(flat), 3):
            here, values = float(flat[i]), []
            for step in (1e-6, -1e-6):
                flat[i] = here + step
                values.append(float(value().detach()))
            flat[i] = here
            assert float(gradient.view(-1)[i]) == pytest.approx((values[0] - values[1]) / 2e-6, abs=1e-8)


@pytest.mark.slow
def test_a_clients_first_round_is_that_of_fedavg(tmp_path: Path) -> None:
    """It has no last model to keep away from; in its second round it has."""
    for rounds, same in ((1, True), (2, False)):
        settings = {**BLOBS, "rounds": rounds, "fast": False}
        moon, average = (trained(blobs(), a, tmp_path, **settings) for a in ("moon", "fedavg"))
        assert same_bits(moon.state.w, average.state.w) is same


class WithFeatures(nn.Module):
    """The same network as `small_net`, not as a sequence."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(6, 8), nn.Linear(8, 3)

    def features(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.relu(self.body(x))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.features(x))


@pytest.mark.slow
def test_a_module_with_features_and_a_head_is_a_sequence_of_both(tmp_path: Path) -> None:
    settings = {**BLOBS, "fast": False}
    a, b = (trained(blobs(), "moon", tmp_path, **{**settings, "model": m}) for m in (small_net, WithFeatures))
    assert same_bits(a.state.w, b.state.w)


@pytest.mark.parametrize("algorithm", ["moon", "fedproto"])
@pytest.mark.parametrize(
    "settings",
    [{"model": "logreg"}, {"model": lambda: nn.Sequential(nn.Linear(6, 3), nn.ReLU())}, {"freeze": ["0.*"]}],
)
def test_a_model_without_a_representation_is_refused(algorithm: str, settings: Any, tmp_path: Path) -> None:
    with pytest.raises(BadValue, match=f"{algorithm} compares representations"):
        trained(blobs(), algorithm, tmp_path, **{**BLOBS, **settings})
