"""What is lost is the tree under way: guest or host broken off anywhere, the final model is the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.vertical.tables_of import breast_cancer, wine

from fedarena.errors import CannotWrite, PartyLost, ResumeMismatch
from fedarena.vertical.channel import LocalChannel
from fedarena.vertical.frames import Fields, Kind
from fedarena.vertical.guest import Guest
from fedarena.vertical.host import Host, HostPolicy
from fedarena.vertical.settings import BoostSettings
from fedarena.vertical.simulation import Simulated, simulate

TABLES, Y = breast_cancer(hosts=2)
SETTINGS = BoostSettings(trees=4, depth=3)


def train(folder: Path, settings: BoostSettings = SETTINGS, y: Any = Y, **more: Any) -> Simulated:
    return simulate(TABLES, y, settings, folder=folder, cipher="none", **more)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Simulated:
    return train(tmp_path_factory.mktemp("whole"))


class Interrupted(Exception):
    """Stands for Ctrl-C."""


@pytest.mark.parametrize("after", [1, 3, 4])
def test_a_guest_broken_off_and_resumed_ends_with_the_same_model(after: int, whole: Simulated, tmp_path: Path) -> None:
    def stop(record: Any) -> None:
        if record.tree == after:
            raise Interrupted

    with pytest.raises(Interrupted):
        train(tmp_path, on_tree=stop)
    again = train(tmp_path, resume=True)
    assert again.guest.trees == whole.guest.trees
    assert again.guest == Simulated.load(tmp_path).guest
    assert [h.records for h in again.hosts] == [h.records for h in whole.hosts]
    assert np.array_equal(again.margins, whole.margins)


def test_classes_of_a_round_go_on_from_its_start(tmp_path: Path) -> None:
    """Broken off between the trees of two classes: both were to see the margins at the start of the round."""
    tables, y = wine()
    settings = BoostSettings(trees=2, objective="softmax", classes=3)
    whole = simulate(tables, y, settings, cipher="none")

    def stop(record: Any) -> None:
        if record.tree == 5:
            raise Interrupted

    with pytest.raises(Interrupted):
        simulate(tables, y, settings, folder=tmp_path, cipher="none", on_tree=stop)
    again = simulate(tables, y, settings, folder=tmp_path, cipher="none", resume=True)
    assert again.guest.trees == whole.guest.trees


class Fragile(LocalChannel):
    """A line to a host process that dies at one question and comes back from its folder at the next greeting."""

    def __init__(self, folder: Path, die: tuple[Kind, int]) -> None:
        self.folder, self.die = folder, die
        super().__init__(self.fresh(), "host")

    def fresh(self) -> Host:
        return Host(np.hstack(TABLES[1:]), folder=self.folder, policy=HostPolicy(plain=True))

    def ask(self, kind: Kind, fields: Fields | None = None, *, tree: int = 0, level: int = 0) -> dict[str, Any]:
        if (kind, tree) == self.die:
            self.die = (Kind.ERROR, -1)
            self.session = LocalChannel(self.fresh()).session  # all that was in memory is gone
            raise PartyLost("host 'host' is gone", remedy="start it again")
        return super().ask(kind, fields, tree=tree, level=level)


@pytest.mark.parametrize("tree", [0, 2])
@pytest.mark.parametrize("kind", [Kind.TREE_START, Kind.ROWS, Kind.LEVEL, Kind.SPLIT, Kind.TREE_END])
def test_a_host_lost_in_mid_tree_costs_that_tree_alone(kind: Kind, tree: int, tmp_path: Path) -> None:
    calm = Fragile(tmp_path / "calm", (Kind.ERROR, -1))
    expected = Guest(TABLES[0], Y, [calm], SETTINGS, cipher="none").train()
    fragile = Fragile(tmp_path / "fragile", (kind, tree))
    seen: list[int] = []
    guest = Guest(TABLES[0], Y, [fragile], SETTINGS, cipher="none", on_tree=lambda r: seen.append(r.tree))
    assert guest.train() == expected
    assert seen == [1, 2, 3, 4]
    assert fragile.die == (Kind.ERROR, -1)


def test_a_host_that_is_one_tree_ahead_forgets_it(whole: Simulated, tmp_path: Path) -> None:
    """The host has written tree 2, the guest was killed before it did."""

    class Ahead(Guest):
        def _commit(self, model: Any) -> None:
            if len(model.trees) == 2:
                raise Interrupted
            super()._commit(model)

    hosts = [
        Host(t, name=n, folder=tmp_path / n, policy=HostPolicy(plain=True))
        for t, n in zip(TABLES[1:], ("host1", "host2"), strict=True)
    ]
    channels = [LocalChannel(h, h.model.name) for h in hosts]
    with pytest.raises(Interrupted):
        Ahead(TABLES[0], Y, channels, SETTINGS, folder=tmp_path / "guest", cipher="none").train()
    assert [len(h.model.trees) for h in hosts] == [2, 2]
    again = train(tmp_path, resume=True)
    assert again.guest.trees == whole.guest.trees
    assert [h.trees for h in again.hosts] == [h.trees for h in whole.hosts]


def test_a_folder_of_another_training_is_not_resumed(tmp_path: Path) -> None:
    train(tmp_path)
    with pytest.raises(CannotWrite, match="holds a model already"):
        train(tmp_path)
    with pytest.raises(ResumeMismatch, match="other settings"):
        train(tmp_path, BoostSettings(trees=5, depth=3), resume=True)
    with pytest.raises(ResumeMismatch, match="other rows, labels or weights"):
        train(tmp_path, y=1 - Y, resume=True)


def test_a_host_without_its_folder_cannot_go_on(tmp_path: Path) -> None:
    def stop(record: Any) -> None:
        raise Interrupted

    with pytest.raises(Interrupted):
        train(tmp_path, on_tree=stop)
    (tmp_path / "host2" / "model.json").unlink()
    with pytest.raises(ResumeMismatch, match="host 'host2': this host has finished 0 trees, the guest 1"):
        train(tmp_path, resume=True)
