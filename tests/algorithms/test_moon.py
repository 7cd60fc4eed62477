"""MOON: exact statements (docs/reference/algorithms.md#moon); that mu = 0 is FedAvg is in test_limits.py."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from tests.algorithms.test_ditto import BLOBS
from tests.algorithms.test_fedavg import small_net
from tests.support.federations import blobs
from tests.support.trainings import same_bits, trained
from torch import nn

from fedarena.algorithms import MOON
from fedarena.config.errors import BadValue
from fedarena.config.experiment import Experiment
from fedarena.engine.own_loss import Batch
from fedarena.engine.setup import open_context
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


@pytest.mark.slow
def test_a_loop_in_torch_gives_the_same(tmp_path: Path) -> None:
    """Full batches: w_t is near, the client's own last w_k is far, and the server takes the mean by rows."""
    mu, temperature, lr, epochs = 2.0, 0.3, 0.1, 3
    settings: dict[str, Any] = {
        "model": lambda: smooth().float(), "clients": 3, "partition": {"name": "label_dirichlet", "beta": 0.5},
        "dtype": "float64", "rounds": 3, "local": {"lr": lr, "epochs": epochs, "batch": float("inf")},
    }  # fmt: skip
    context = open_context(Experiment.make(blobs(), **settings))
    end = trained(blobs(), MOON(mu=mu, temperature=temperature), tmp_path, **settings)
    w = torch.from_numpy(context.initial.copy())
    last: list[torch.Tensor | None] = [None] * 3
    for _ in range(3):
        ends, rows = [], []
        for k, indices in enumerate(context.partition.clients):
            x, y = torch.from_numpy(context.data.x[indices]).double(), torch.from_numpy(context.data.y[indices])
            module, near, far = smooth(), smooth(), smooth()
            nn.utils.vector_to_parameters(w.clone(), near.parameters())
            nn.utils.vector_to_parameters(w.clone(), module.parameters())
            for _ in range(epochs):
                loss = nn.functional.cross_entropy(module(x), y)
                if (own := last[k]) is not None:
                    nn.utils.vector_to_parameters(own.clone(), far.parameters())
                    z, z_near, z_far = module[:-1](x), near[:-1](x).detach(), far[:-1](x).detach()
                    a = torch.exp(torch.cosine_similarity(z, z_near) / temperature)
                    b = torch.exp(torch.cosine_similarity(z, z_far) / temperature)
                    loss = loss - mu * torch.log(a / (a + b)).mean()
                gradients = torch.autograd.grad(loss, list(module.parameters()))
                with torch.no_grad():
                    for parameter, gradient in zip(module.parameters(), gradients, strict=True):
                        parameter -= lr * gradient
            last[k] = nn.utils.parameters_to_vector(module.parameters()).detach()
            ends.append(last[k])
            rows.append(len(indices))
        w = sum(n / sum(rows) * own for n, own in zip(rows, ends, strict=True))  # type: ignore[assignment, misc]
    np.testing.assert_allclose(end.state.w, w.numpy(), rtol=0, atol=1e-10)


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
