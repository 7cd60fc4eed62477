"""Layers of a client's own in a federation: they never leave the client, and the result is that of a simulation."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.support.federation_clients import Federation

import fedarena as fa


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["fedper", "fedrep"])
def test_own_layers_never_leave_a_client(algorithm: str, tmp_path: Path) -> None:
    federation = Federation(tmp_path)
    experiment = federation.experiment(algorithm=algorithm, model="mlp_2nn", rounds=2)
    serial = fa.run(experiment, out=tmp_path / "serial", runtime="serial")
    federation.start()
    run = federation.serve(experiment)
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
