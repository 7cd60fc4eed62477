"""A federation gives the bits of a simulation on the table of all rows: weights, and every record but for the loss's last
digits, whatever the algorithm, the model's buffers and the way up."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.support.federation_clients import Federation, differences

import fedarena as fa
from fedarena.engine.checkpoint import CheckpointStore
from fedarena.engine.client import ClientState
from fedarena.engine.setup import open_context
from fedarena.engine.tasks import client_batch_size
from fedarena.federation.client import FederationClient
from fedarena.federation.client_states import ClientStateStore
from fedarena.federation.consent import check_experiment
from fedarena.models.pytree import leaves

ALGORITHMS: dict[str, Any] = {
    **{name: name for name in ("fedavg", "fedsgd", "fedprox", "fednova", "scaffold", "feddyn", "loadaboost", "fedfa")},
    **{name: name for name in ("colearning", "fedpage", "fedadam", "fedyogi", "fedadagrad", "median")},
    "fedavgm": {"name": "fedavgm", "beta": 0.9},
    "scaffold i": {"name": "scaffold", "option": "i"},
    "fsvrg": {"name": "fsvrg", "h": 0.5},
    "fsvrg scaled": {"name": "fsvrg", "h": 0.5, "scaling": "diagonal"},
    "cyclic": "cyclic",
    "qfedavg": "qfedavg",
    "afl": "afl",
    "fedir": {"name": "fedavg", "with": ["fedir"]},
    "fedir uniform": {"name": "fedavg", "with": [{"name": "fedir", "target": "uniform"}]},
    "fedvc and fedir": {"name": "fedavgm", "with": ["fedir", {"name": "fedvc", "n_vc": 16}]},
}


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ALGORITHMS.values(), ids=ALGORITHMS.keys())
def test_every_synchronous_algorithm(algorithm: Any, tmp_path: Path) -> None:
    federated, serial = Federation(tmp_path).both(algorithm=algorithm, share=0.75, dropouts=0.2)
    assert differences(federated, serial) == []


DEVICES = {"speeds": "uniform", "spread": 4.0, "bandwidth": 1e5}
SETTINGS: dict[str, dict[str, Any]] = {
    "momentum that is kept": {"local": {"lr": 0.05, "batch": 8, "momentum": 0.9, "reset_momentum": False}},
    "rates that decay by client": {"local": {"lr": 0.1, "batch": 8, "decay": 0.1, "decay_counter": "per_client"}},
    "steps that continue over rounds": {"local": {"lr": 0.1, "batch": 8, "steps": 5}, "share": 0.5},
    "double precision, autograd": {"dtype": "float64", "fast": False},
    "evaluated on training rows": {"evaluate": {"on": "train", "every": 2}},
    "rows held out": {"validate_share": 0.3},
    "clipped": {"uplink": {"clip": 0.05}},
    "clipped and noised": {"uplink": {"clip": 0.05, "noise": 0.5}},
    "private steps": {"local": {"lr": 0.1, "batch": 8, "privacy": {"clip": 0.5, "noise": 1.0}}, "algorithm": "scaffold"},
    "drawn by coins": {"uplink": {"clip": 0.05, "noise": 0.5, "sampling": "poisson"}, "share": 0.5},
    "rounded to eight bits": {"uplink": {"quantise": 8}},
    "the largest tenth": {"uplink": {"top_k": 0.1}},
    "the largest tenth in four bits": {"uplink": {"top_k": 0.1, "quantise": 4}, "algorithm": "scaffold"},
    "the largest losses": {"select": {"name": "power_of_choice", "d": 4}, "share": 0.5, "dropouts": 0.2},
    "selected by oort": {"select": {"name": "oort", "window": 1}, "share": 0.5, "devices": DEVICES},
    "a budget of uploads": {"uploads": 7, "share": 0.5},
    "devices on the virtual clock": {"devices": DEVICES},
}


@pytest.mark.slow
@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS.keys())
def test_settings_of_training_and_of_the_way_up(settings: dict[str, Any], tmp_path: Path) -> None:
    federated, serial = Federation(tmp_path).both(**settings)
    assert differences(federated, serial) == []


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["average", "server", "recompute"])
def test_buffers_by_every_policy(policy: str, tmp_path: Path) -> None:
    local = {"lr": 0.05, "batch": 8, "momentum": 0.9, "reset_momentum": False}
    federated, serial = Federation(tmp_path).both(model="normed", bn_buffers=policy, local=local, share=0.75)
    assert differences(federated, serial) == []


@pytest.mark.slow
def test_losses_are_measured_with_the_buffers_of_clients(tmp_path: Path) -> None:
    select = {"name": "power_of_choice", "d": 4}
    federated, serial = Federation(tmp_path).both(model="normed", bn_buffers="local", select=select, share=0.5)
    tested_elsewhere = ["accuracy", "loss", "best_accuracy"]  # each client tests its own model
    assert differences(federated, serial, but=tested_elsewhere) == []


OWN = [{"model": "normed", "bn_buffers": "local"}, {"algorithm": "local"}, {"algorithm": "local", "model": "normed"}]


@pytest.mark.slow
@pytest.mark.parametrize("settings", OWN, ids=["buffers", "weights", "both"])
def test_personal_models_are_tested_by_their_clients_or_with_consent_by_all(
    settings: dict[str, Any], tmp_path: Path
) -> None:
    """Shown to the others, an own model has the accuracy of a simulation; else that on the rows of its client."""
    federation = Federation(tmp_path)
    experiment = federation.experiment(**settings)
    serial = fa.run(experiment, out=tmp_path / "serial", runtime="serial")
    federation.start()
    # A simulation hashes the models of all clients, which are not in one place here.
    but = ["weights"] if "algorithm" in settings else []
    shown = federation.serve(experiment, "shown", terms={"shares_models": True})
    assert differences(shown, serial) == but
    federation.start()
    kept = federation.serve(experiment, "kept")
    assert differences(kept, serial, but=["accuracy", "loss", "best_accuracy"]) == but
    assert kept.final.accuracy == pytest.approx(serial.final.weighted_accuracy, rel=1e-12)
    for k, name in enumerate(federation.rows):
        memory = CheckpointStore.read_client_state(tmp_path / "serial" / "checkpoint", experiment.algorithm.made, k)
        own = newest_memory(tmp_path / "clients" / name, experiment.algorithm.made)
        assert all(np.array_equal(a, b) for a, b in zip(leaves(own), leaves(memory), strict=True))


@pytest.mark.slow
@pytest.mark.parametrize(
    "algorithm", ["ditto", "apfl", "pfedme", "perfedavg", "moon", {"name": "scaffold", "with": ["finetune"]}], ids=str
)
def test_own_models_beside_a_shared_one(algorithm: Any, tmp_path: Path) -> None:
    """Scores on common and on own samples are those of a simulation, also with BatchNorm statistics of one's own."""
    federated, serial = Federation(tmp_path).both(algorithm=algorithm, model="normed", share=0.75, dropouts=0.2)
    without_state = ["weights"] if algorithm in ("ditto", "apfl", "pfedme") else []  # models of clients are hashed too
    assert differences(federated, serial) == without_state
    for name in serial.state:
        np.testing.assert_array_equal(federated.state[name], serial.state[name])
    np.testing.assert_array_equal(federated.client_accuracy, serial.client_accuracy)


@pytest.mark.parametrize("algorithm", ["ifca", "fedproto"])
def test_own_models_that_follow_from_more_than_a_model_are_refused(algorithm: str, tmp_path: Path) -> None:
    with pytest.raises(fa.FedarenaError, match=f"more than the server's model in {algorithm}"):
        check_experiment(Federation(tmp_path).experiment(algorithm=algorithm, model="mlp_2nn"))


def newest_memory(folder: Path, algorithm: Any) -> ClientState:
    """Return the newest client state of the last run."""
    run = max((path for path in folder.iterdir() if path.is_dir()), key=lambda path: path.stat().st_mtime)
    files = sorted(run.glob("memory-*"), key=lambda path: int(path.name.split("-")[1].split(".")[0]))
    return ClientStateStore(run, algorithm).load(files[-1].name.removeprefix("memory-").removesuffix(".safetensors"))


@pytest.mark.slow
def test_many_small_clients_are_added_up_in_bundles(tmp_path: Path) -> None:
    """As many as make a simulation put several clients into one job: sums are nested in the same way here."""
    federation = Federation(tmp_path, {str(k): 3 + k % 5 for k in range(1, 67)})
    experiment = federation.experiment(rounds=2)
    serial = fa.run(experiment, out=False, runtime="serial")
    assert client_batch_size(open_context(experiment), 66) == 2
    federation.start()
    assert differences(federation.serve(experiment), serial) == []


@pytest.mark.slow
def test_noise_is_drawn_from_a_secret_and_not_from_the_seed_that_all_clients_know(tmp_path: Path) -> None:
    """The same epsilon as in a simulation, other noise; and no trace of the secret once the run is over."""
    federation = Federation(tmp_path)
    experiment = federation.experiment(uplink={"clip": 0.05, "noise": 0.5})
    federation.start(kind=FederationClient)
    seen = []
    run = federation.serve(
        experiment, terms={"secret": None}, on_round=lambda record: seen.append((tmp_path / "run" / "secret").exists())
    )
    serial = fa.run(experiment, out=False, runtime="serial")
    assert run.weights_sha256 != serial.weights_sha256
    assert run.epsilon == serial.epsilon
    assert seen == [True] * 3
    assert not (tmp_path / "run" / "secret").exists()
