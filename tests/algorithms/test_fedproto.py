"""FedProto: exact statements (docs/reference/algorithms.md#fedproto)."""

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
from tests.support.made_tasks import MadeTask
from tests.support.trainings import Training, same_bits, trained
from torch import nn

import fedarena as fa
from fedarena.algorithms import FedProto
from fedarena.algorithms.fedproto import FedProtoState, OwnPrototypes
from fedarena.config.errors import BadValue
from fedarena.config.experiment import Experiment
from fedarena.engine.own_loss import Batch
from fedarena.engine.setup import open_context
from fedarena.models.representation import represent

GENERIC: dict[str, Any] = {**BLOBS, "fast": False, "partition": {"name": "label_dirichlet", "beta": 0.3}}
WIDTH, CLASSES = 8, 3


def test_without_its_term_models_are_those_of_local_training(tmp_path: Path) -> None:
    ours, alone = (trained(blobs(), a, tmp_path, **GENERIC) for a in (FedProto(lam=0.0), "local"))
    assert same_bits(ours.kept, alone.kept)


def test_bytes_are_the_prototypes_of_held_classes_up_and_of_all_classes_down(tmp_path: Path) -> None:
    """Up: held classes x width, a count for each class, and n_k; down: all classes x width, none before the first answers."""
    end = trained(blobs(), "fedproto", tmp_path, **GENERIC)
    context = open_context(Experiment.make(blobs(), algorithm="fedproto", **GENERIC))
    held = [int((context.class_counts(rows) > 0).sum()) for rows in context.partition.clients if len(rows)]
    assert len(set(held)) > 1
    up = sum(4 * WIDTH * classes + 8 * CLASSES + 8 for classes in held)
    down = [0, *[4 * CLASSES * WIDTH * len(held)] * 2]
    assert [r.bytes_up for r in end.records] == [up, 2 * up, 3 * up]
    assert [r.bytes_down for r in end.records] == np.cumsum(down).tolist()


def test_the_server_averages_by_rows_of_a_class_and_keeps_what_nobody_sent() -> None:
    w = np.zeros(2, np.float32)
    state = FedProtoState(np.array([[1.0], [2.0], [np.nan]], np.float32), w)
    ones = [np.array([[4.0]], np.float32), np.array([[8.0]], np.float32)]
    counts = [np.array([1, 0, 0]), np.array([3, 0, 0])]
    after = FedProto().server(state, OwnPrototypes(ones, counts), None)  # type: ignore[arg-type]
    np.testing.assert_array_equal(after.rows, np.array([[7.0], [2.0], [np.nan]], np.float32))


def test_the_prediction_is_the_class_of_the_nearest_prototype(tmp_path: Path) -> None:
    end, found = _with_models(tmp_path)
    rng, module = np.random.default_rng(0), small_net()
    x = torch.from_numpy(rng.standard_normal((50, 6)).astype(np.float32))
    for own, kept in zip(found, end.kept, strict=True):
        _load(module, kept)
        z = represent(module, x)[0].detach().numpy()
        distances = np.square(z[:, None] - end.state.rows[None]).sum(axis=2)
        _load(module, own)
        outputs = module(x).detach().numpy()
        np.testing.assert_array_equal(outputs.argmax(axis=1), distances.argmin(axis=1))
        np.testing.assert_allclose(outputs, np.square(z).sum(axis=1)[:, None] - distances, atol=1e-3)


def _with_models(folder: Path) -> tuple[Training, list[np.ndarray]]:
    end = trained(blobs(), "fedproto", folder, **GENERIC)
    assert np.isfinite(end.state.rows).all()
    return end, end.own


def _load(module: nn.Module, w: np.ndarray) -> None:
    nn.utils.vector_to_parameters(torch.from_numpy(w.copy()), module.parameters())


def test_the_loss_pulls_towards_known_prototypes_only() -> None:
    torch.manual_seed(0)
    module, x = small_net(), torch.randn(5, 6)
    y = torch.tensor([0, 0, 2, 1, 2])
    prototypes = np.stack([np.ones(8), np.full(8, np.nan), np.zeros(8)]).astype(np.float32)
    context: Any = SimpleNamespace(represent=represent, loss=nn.functional.cross_entropy)
    loss = FedProto(lam=0.5).loss(prototypes, module, Batch(x, y), context)
    z, outputs = represent(module, x)
    known = [(z[i] - torch.from_numpy(prototypes[int(y[i])])).square().sum() for i in (0, 1, 2, 4)]
    torch.testing.assert_close(loss, nn.functional.cross_entropy(outputs, y) + 0.5 * torch.stack(known).sum() / 5)
    assert all(bool(g.isfinite().all()) for g in torch.autograd.grad(loss, list(module.parameters())))


def test_a_class_that_no_client_has_is_never_predicted(tmp_path: Path) -> None:
    x, y = blobs()
    data = fa.arrays(x[y != 2], y[y != 2], x_test=x, y_test=y)
    end = trained(data, "fedproto", tmp_path, **{**GENERIC, "partition": "iid"})
    assert np.isnan(end.state.rows[2]).all()
    module = small_net()
    _load(module, end.own[0])
    assert set(module(torch.from_numpy(x)).argmax(dim=1).tolist()) == {0, 1}


def test_without_any_answer_clients_predict_by_their_own_outputs() -> None:
    w, nothing = np.ones(3, np.float32), FedProto().init(np.zeros(3, np.float32))
    assert FedProto().personal_model(nothing, w, None) is w  # type: ignore[arg-type]


@pytest.mark.parametrize("task", ["regression", "multilabel", "survival"])
def test_tasks_without_classes_are_refused(task: str, tmp_path: Path) -> None:
    with pytest.raises(BadValue, match="fedproto has a prototype for each class"):
        trained(MadeTask(task), "fedproto", tmp_path, clients=4, partition="iid", model="mlp_2nn")
