"""Layers of a client's own in a federation: they never leave the client, and the result is that of a simulation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.support.federation_clients import Federation

import fedarena as fa
from fedarena.engine.checkpoint import CheckpointStore
from fedarena.models.pytree import leaves


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["ditto", "apfl", "pfedme"])
def test_own_models_beside_a_shared_one_never_leave_a_client(algorithm: str, tmp_path: Path) -> None:
    """Over ten rounds, in each of which the own model and the shared one are evaluated."""
    federation = Federation(tmp_path)
    experiment = federation.experiment(algorithm=algorithm, model="mlp_2nn", rounds=10)
    serial = fa.run(experiment, out=tmp_path / "serial", runtime="serial")
    federation.start()
    run = federation.serve(experiment)
    assert [r.accuracy for r in run.records] == [r.accuracy for r in serial.records]
    sent = b"".join(content for _, content in federation.link.up)
    for client in range(len(federation.rows)):
        state = CheckpointStore.read_client_state(tmp_path / "serial" / "checkpoint", experiment.algorithm.made, client)
        assert state is not None
        own = [leaf for leaf in leaves(state.kept) if isinstance(leaf, np.ndarray)]
        assert own
        for model in own:
            for piece in np.array_split(model, 50):
                assert not piece[:4].any() or piece[:4].tobytes() not in sent


SELECTED = [
    {"algorithm": "fedper", "model": "mlp_2nn", "select": {"name": "power_of_choice", "d": 4}, "share": 0.5},
    {"algorithm": "fedrep", "model": "mlp_2nn", "select": {"name": "oort", "epsilon": 0.5}, "share": 0.5},
    {"algorithm": {"name": "fedavg", "with": ["fedbn"]}, "model": "normed", "select": {"name": "power_of_choice", "d": 4},
     "share": 0.5},
    {"algorithm": "ditto", "select": "oort", "share": 0.5},
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("settings", SELECTED, ids=["fedper", "fedrep", "fedbn", "ditto"])
def test_clients_are_selected_by_the_loss_of_their_own_models(settings: dict[str, Any], tmp_path: Path) -> None:
    """They report it to the server as in a simulation, and the own part stays with them."""
    federated, serial = Federation(tmp_path).both(**settings)
    for name in ("selected", "answered", "bytes_up", "bytes_down"):
        assert [getattr(r, name) for r in federated.records] == [getattr(r, name) for r in serial.records]
    np.testing.assert_array_equal(federated.client_accuracy, serial.client_accuracy)


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["fedper", "fedrep"])
def test_own_layers_never_leave_a_client(algorithm: str, tmp_path: Path) -> None:
    federation = Federation(tmp_path)
    experiment = federation.experiment(algorithm=algorithm, model="mlp_2nn", rounds=2)
    serial = fa.run(experiment, out=tmp_path / "serial", runtime="serial")
    federation.start()
    run = federation.serve(experiment)
    assert fa.verify(tmp_path / "run").same
    np.testing.assert_array_equal(run.client_accuracy, serial.client_accuracy)
    body = [name for name in serial.state if not name.startswith(list(serial.state)[-1].rpartition(".")[0])]
    for name in body:
        np.testing.assert_array_equal(run.state[name], serial.state[name])
    sent = b"".join(content for _, content in federation.link.up)
    for client, name in enumerate(federation.rows):
        context = serial.context(client)
        assert context.parts is not None
        own = context.parts.own(context.task.vector())
        assert own[:4].tobytes() not in sent
        path = federation.clients[name]._joined.model.path  # type: ignore[union-attr]
        for key, value in fa.load(path).state.items():  # the final model at the client has its own part
            np.testing.assert_array_equal(value, context.task.state()[key])
        assert fa.verify(path).same
