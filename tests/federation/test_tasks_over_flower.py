"""Several labels and survival between processes over TLS: the bits of a simulation, and predictions at every client."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from tests.federation.test_final_model import Party
from tests.federation.test_several_labels import Wards
from tests.federation.test_survival import Trial

import fedarena as fa
from fedarena.transport.certificates import make_federation_keys

pytest.importorskip("flwr")


@pytest.fixture
def started() -> Iterator[list[Party]]:
    """The processes of the test, which are killed if it fails."""
    every: list[Party] = []
    yield every
    for party in every:
        party.process.kill()


@pytest.mark.slow
@pytest.mark.parametrize(("federation", "columns"), [(Wards, {"infection", "p_fall"}), (Trial, {"risk"})])
def test_processes_have_the_bits_of_a_simulation(
    federation: type[Wards | Trial], columns: set[str], tmp_path: Path, started: list[Party]
) -> None:
    parts = federation(tmp_path)
    experiment = parts.experiment(algorithm="scaffold", data={"standardise": True})
    (tmp_path / "exp.toml").write_text(experiment.to_toml().replace(str(parts.pooled), "/participants"))
    make_federation_keys(tmp_path / "keys", list(parts.rows))

    def begin(*words: str) -> Party:
        started.append(Party(tmp_path, *words, "--json"))
        return started[-1]

    server = begin("serve", "exp.toml", "--address", "127.0.0.1:0", "--out", "run")
    address = server.until("listening on ").split("listening on ")[1].split()[0]
    for name in parts.rows:
        begin("join", "--data", f"{name}.csv", "--server", address, "--name", name, "--yes", "--out", f"{name}-model")
    assert all(party.result() for party in started)

    serial = fa.run(experiment, out=False, runtime="serial")
    run = fa.load(tmp_path / "run")
    assert run.weights_sha256 == serial.weights_sha256
    table = {name: np.array([float(r[i]) for r in parts.rows["bravo"]]) for i, name in enumerate("abcd", start=1)}
    expected = run.predict(table)
    assert columns <= {*expected}
    for name in parts.rows:
        for column, values in fa.load(tmp_path / f"{name}-model").predict(table).items():
            np.testing.assert_array_equal(values, expected[column])
