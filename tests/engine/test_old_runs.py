"""Runs that an earlier version of fedarena stopped after round 2 of 4 resume and end with the weights recorded then.

The folders in tests/old_runs hold one run of each algorithm with a state, written before the classes of stored
states were renamed (models/stored_names.py). Only the ten biases of a linear model are trained, to keep the files small.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open

import fedarena as fa
from fedarena.algorithms.fedavgm import MomentumState
from fedarena.config import registry
from fedarena.engine.checkpoint import stored_types
from fedarena.models.stored_names import RENAMED_CLASSES, find_class
from fedarena.results.run_folder import versions

OLD_RUNS = Path(__file__).parents[1] / "old_runs"
EXPECTED = json.loads((OLD_RUNS / "expected.json").read_text())


def copy_of(name: str, folder: Path) -> Path:
    """Copy an old run folder, together with the partition that all of them share."""
    copy = Path(shutil.copytree(OLD_RUNS / name, folder / name))
    shutil.copy(OLD_RUNS / "partition.npz", copy)
    return copy


def stored_text(folder: Path) -> str:
    """Return the metadata of all files of a checkpoint, which name the classes of the stored states."""
    texts = []
    for path in sorted((folder / "checkpoint").rglob("*.safetensors")):
        with safe_open(path, framework="np") as file:
            texts.append(file.metadata()["tree"])
    return "\n".join(texts)


@pytest.mark.slow
@pytest.mark.parametrize("name", EXPECTED)
def test_old_run_resumes_and_ends_with_the_recorded_weights(name: str, tmp_path: Path) -> None:
    folder = copy_of(name, tmp_path)
    made_by = json.loads((folder / "versions.json").read_text())
    resumed = fa.run(resume=folder, runtime="serial")
    expected = EXPECTED[name]
    assert len(resumed.records) == 4
    np.testing.assert_allclose(resumed.state["1.bias"], expected["bias"], rtol=1e-4, atol=1e-6)
    here, verdict = versions(), fa.verify(folder, runtime="serial")
    np.testing.assert_allclose(verdict.again.state["1.bias"], expected["bias"], rtol=1e-4, atol=1e-6)
    if all(here[key] == made_by[key] for key in ("torch", "numpy", "processor", "kernels")):  # on which bits depend
        assert resumed.weights_sha256 == expected["weights_sha256"]
        assert verdict.same  # elsewhere the first two rounds, recorded on another processor, differ by rounding
    assert fa.run(resume=folder, runtime="serial", rounds=5).records[-1].round == 5


NEW = (  # that no earlier version had
    "afl", "apfl", "centered_clip", "ditto", "fedproto", "ifca", "pfedme", "histboost", "centralized_trees", "local_trees",
)  # fmt: skip


def test_every_algorithm_with_a_state_has_an_old_run() -> None:
    """Algorithms whose server state is more than the weights, or whose clients keep something."""
    w = np.zeros(3, np.float32)
    resumed = {fa.Experiment.make(OLD_RUNS / name / "experiment.toml").algorithm.name for name in EXPECTED}
    for name, entry in registry.components("algorithm").items():
        if entry.is_companion or not entry.make.__module__.startswith("fedarena.") or name in NEW:
            continue
        algorithm = entry.build({"b_l": 1, "b_u": 2} if name == "coop" else {})
        if type(algorithm.init(w)) is not fa.Model or algorithm.remember(w) is not None:
            assert name in resumed, name


def test_stored_states_are_read_by_old_names_and_written_by_new_ones(tmp_path: Path) -> None:
    folder = copy_of("scaffold", tmp_path)
    assert '"type": "Controlled"' in stored_text(folder)
    fa.run(resume=folder, runtime="serial", rounds=5)
    assert '"type": "ScaffoldState"' in stored_text(folder).splitlines()[-1]


def test_every_renamed_class_is_found_for_some_algorithm_and_has_one_old_name() -> None:
    entries = [e for e in registry.components("algorithm").values() if e.make.__module__.startswith("fedarena.")]
    visible = {name for entry in entries for name in stored_types(entry.build({}))}
    assert set(RENAMED_CLASSES.values()) <= visible
    assert not set(RENAMED_CLASSES) & visible
    assert len(set(RENAMED_CLASSES.values())) == len(RENAMED_CLASSES)


def test_a_class_of_todays_algorithm_comes_before_a_renamed_one() -> None:
    class Moving:
        """A state of the user's own algorithm, which has the name that the state of FedAvgM had."""

    known = {"Moving": Moving, "MomentumState": MomentumState}
    assert find_class("Moving", known) is Moving
    assert find_class("Moving", {"MomentumState": MomentumState}) is MomentumState
    assert find_class("Moved", known) is None
