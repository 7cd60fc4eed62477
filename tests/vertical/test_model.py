"""Stored models: each party stores its own part, parts load again, and damaged or foreign files are refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.support.vertical_tables import breast_cancer, wine, with_gaps

from fedarena.config.errors import BadValue, DataBroken, DataMissing, UnknownName
from fedarena.vertical.model import GuestModel, HostModel
from fedarena.vertical.settings import BoostSettings
from fedarena.vertical.simulation import SimulatedModel, simulate

TABLES, Y = breast_cancer(hosts=2)
TABLES = [with_gaps(t, seed=i) for i, t in enumerate(TABLES)]
NAMES = [[f"{party}-{i}" for i in range(t.shape[1])] for party, t in zip("abc", TABLES, strict=True)]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, SimulatedModel]:
    folder = tmp_path_factory.mktemp("model")
    return folder, simulate(TABLES, Y, BoostSettings(trees=3), names=NAMES, folder=folder, cipher="none")


@pytest.mark.slow
def test_models_load_again_and_predict_the_same(trained: tuple[Path, SimulatedModel]) -> None:
    folder, model = trained
    again = SimulatedModel.load(folder)
    assert again.guest == model.guest
    assert again.hosts == model.hosts
    assert np.array_equal(again.predict_margins(TABLES), model.margins)


@pytest.mark.slow
def test_several_classes_load_again(tmp_path: Path) -> None:
    tables, y = wine()
    for i, multi in enumerate((False, True)):
        settings = BoostSettings(trees=2, objective="softmax", classes=3, multi_output=multi)
        model = simulate(tables, y, settings, folder=tmp_path / str(i), cipher="none")
        assert np.array_equal(SimulatedModel.load(tmp_path / str(i)).predict_margins(tables), model.margins)


def test_each_model_holds_only_its_own_splits(trained: tuple[Path, SimulatedModel]) -> None:
    """The guest has no threshold and no name of a host's column; a host has no weight, gain or label."""
    folder, model = trained
    guest = (folder / "guest" / "model.json").read_text()
    assert "a-0" in guest
    assert "b-" not in guest
    assert "c-" not in guest
    for name, host in zip(("host1", "host2"), model.hosts, strict=True):
        assert host.records
        assert not any(repr(s.threshold) in guest for s in host.records if np.isfinite(s.threshold))
        content = json.loads((folder / name / "model.json").read_text())
        assert set(content) == {
            *("format", "party", "name", "columns", "records", "trees", "settings", "table"),
            *("training_id", "begun", "finished"),
        }
        assert content["training_id"] == model.guest.training_id != ""
        assert (content["begun"], content["finished"]) == (3, True)
        assert {k for r in content["records"] for k in r} == {"column", "bin", "threshold", "missing_left"}


def edited(folder: Path, party: str, tmp_path: Path, change: Any) -> Path:
    content = json.loads((folder / party / "model.json").read_text())
    change(content)
    (tmp_path / "model.json").write_text(json.dumps(content))
    return tmp_path


@pytest.mark.parametrize(
    "change",
    [
        lambda c: c.pop("trees"),
        lambda c: c.update(format=2),
        lambda c: c["trees"][0]["nodes"][0].update(left=0),  # a circle
        lambda c: c["trees"][0]["nodes"][0].update(right=10_000),
        lambda c: c["trees"][0]["nodes"][0].update(owner=7),
        lambda c: c["trees"][0]["nodes"][-1].update(weights=[]),
        lambda c: c["trees"][0]["nodes"][0].update(gain="much"),
        lambda c: c["splits"].clear(),
        lambda c: c["settings"].update(depth=0),
        lambda c: c.update(trees=3),
    ],
)
def test_a_damaged_guest_is_refused(trained: tuple[Path, SimulatedModel], tmp_path: Path, change: Any) -> None:
    with pytest.raises(DataBroken):
        GuestModel.load(edited(trained[0], "guest", tmp_path, change))


@pytest.mark.parametrize(
    "change",
    [
        lambda c: c["records"][0].update(column=99),
        lambda c: c["records"][0].update(threshold="nan"),
        lambda c: c["records"][0].pop("bin"),
        lambda c: c.update(records=None),
    ],
)
def test_a_damaged_host_is_refused(trained: tuple[Path, SimulatedModel], tmp_path: Path, change: Any) -> None:
    with pytest.raises(DataBroken):
        HostModel.load(edited(trained[0], "host1", tmp_path, change))


def test_the_model_of_a_host_is_not_that_of_a_guest(trained: tuple[Path, SimulatedModel], tmp_path: Path) -> None:
    with pytest.raises(BadValue, match="the model of a host, not of a guest"):
        GuestModel.load(trained[0] / "host1")
    with pytest.raises(DataMissing):
        HostModel.load(tmp_path)
    (tmp_path / "model.json").write_text("{")
    with pytest.raises(DataBroken):
        HostModel.load(tmp_path)


def test_an_unknown_setting_in_a_file_is_named(trained: tuple[Path, SimulatedModel], tmp_path: Path) -> None:
    with pytest.raises((UnknownName, DataBroken), match="tree_count"):
        GuestModel.load(edited(trained[0], "guest", tmp_path, lambda c: c["settings"].update(tree_count=1)))
