"""Made-up problems are exactly what the theorems that use them ask for."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import fedarena as fa
from fedarena.data.sources.images import Digits
from fedarena.data.sources.synthetic import LeastSquaresData
from fedarena.models.zoo.convex import least_squares, piecewise_quadratic


def test_noise_is_orthogonal_and_test_rows_have_none() -> None:
    data = LeastSquaresData(clients=3, rows=50, features=4, noise=2.0).load(0)
    train, test = data.x[: data.n_train].astype(float), data.x[data.n_train :].astype(float)
    noise = train[:, -1] - train[:, :-1].sum(axis=1)  # what is true has weight 1 on every feature
    assert np.abs(train[:, :-1].T @ noise).max() < 1e-3
    assert 1.7 < noise.std() < 2.1
    assert np.allclose(test[:, -1], test[:, :-1].sum(axis=1), atol=1e-5)
    best, *_ = np.linalg.lstsq(train[:, :-1], train[:, -1])
    assert np.allclose(best, 1, atol=1e-5)  # so the optimum of the noisy rows is that of the test rows


def test_clients_are_the_same_unless_they_shall_not_be() -> None:
    same = LeastSquaresData(clients=4, rows=10).load(0)
    parts = [same.x[: same.n_train][same.owner[: same.n_train] == k] for k in range(4)]
    assert all(np.array_equal(part, parts[0]) for part in parts)
    unlike = LeastSquaresData(clients=4, rows=200, unlike=2.0, sizes="unequal", noise=0.0).load(0)
    owner = unlike.owner[: unlike.n_train]
    assert np.bincount(owner).tolist() == [200, 400, 600, 800]
    for k in range(4):
        own = unlike.x[: unlike.n_train][owner == k].astype(float)
        truth, *_ = np.linalg.lstsq(own[:, :-1], own[:, -1])
        assert np.linalg.norm(truth - 1) == pytest.approx(2.0, abs=1e-4)


def test_without_features_rows_are_noise_of_mean_zero() -> None:
    data = LeastSquaresData(features=0, rows=101, noise=3.0).load(0)
    train = data.x[: data.n_train]
    assert train.shape[1] == 1
    assert abs(train.mean()) < 1e-6
    assert not data.x[data.n_train :].any()


def test_losses_and_gradients_by_hand() -> None:
    rows, none = torch.tensor([[1.0, 2.0, 3.0], [0.0, 1.0, -1.0]]), torch.zeros(2, dtype=torch.int64)
    model = least_squares((3,), 1)
    loss = model.loss(rows, none)  # at w = 0: (9 + 1) / 2 / 2
    loss.backward()
    assert loss.item() == 2.5
    assert model.w.grad.tolist() == [-1.5, -2.5]  # mean of -y x
    bent = piecewise_quadratic((1,), 1, mu=2.0, high=3.0, bent=4.0)
    assert bent.loss(torch.tensor([[7.0]]), none).item() == 4.5  # (2 + 3 + 4) / 2, and z w_3 = 0
    bent.w.data = torch.tensor([1.0, 1.0, 2.0])
    assert bent.loss(torch.tensor([[0.0]]), none).item() == 4.0  # bent/2 (1 + 1)
    bent.w.data = torch.ones(3)
    assert bent.loss(torch.tensor([[0.0]]), none).item() == 0.0


def test_one_full_step_per_round_is_gradient_descent() -> None:
    """Minibatch SGD of K-TH: identical clients, all rows in one batch, so the mean step is that of one client."""
    settings = {"data": {"name": "least_squares", "clients": 3, "rows": 30, "noise": 0.0}, "dtype": "float64"}
    run = fa.run(settings, rounds=4, local={"lr": 0.5, "batch": "inf"}, out=False, runtime="serial")
    x = LeastSquaresData(clients=1, rows=30, noise=0.0).load(0).x[:30].astype(float)
    w = np.zeros(10)
    for _ in range(4):
        w -= 0.5 * x[:, :-1].T @ (x[:, :-1] @ w - x[:, -1]) / 30
    assert run.final.loss == pytest.approx(0.5 * np.mean((x[:, :-1] @ w - x[:, -1]) ** 2), rel=1e-6)


@pytest.mark.parametrize(("like", "shape"), [("digits", (1, 8, 8)), ("mnist", (1, 28, 28)), ("cifar10", (3, 32, 32))])
def test_digits_take_other_shapes(like: str, shape: tuple[int, ...]) -> None:
    plain, large = Digits().load(0), Digits(like).load(0)  # type: ignore[arg-type]
    assert large.shape == shape
    assert np.array_equal(plain.y, large.y)
    times = shape[1] // 8
    border = (shape[1] - 8 * times) // 2
    inside = slice(border, border + 8 * times, times)
    assert np.array_equal(large.x[:, -1, inside, inside], plain.x[:, 0])
    assert np.isclose(large.x.sum(), plain.x.sum() * times**2 * shape[0], rtol=1e-4)
