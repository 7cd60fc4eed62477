"""An interruption of guest or host loses the current tree only, and the final model is the same."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.support.vertical_tables import breast_cancer, wine

from fedarena.config.errors import CannotWrite, PartyLost, ResumeMismatch
from fedarena.transport.channel import LocalChannel
from fedarena.transport.frames import Fields, FrameKind
from fedarena.vertical import checkpoint
from fedarena.vertical.guest import END_PATIENCE, MOST_LOSSES, Guest, end_training
from fedarena.vertical.host import Host, HostPolicy
from fedarena.vertical.model import GuestModel, HostModel
from fedarena.vertical.settings import BoostSettings
from fedarena.vertical.simulation import SimulatedModel, simulate

TABLES, Y = breast_cancer(hosts=2)
SETTINGS = BoostSettings(trees=4, depth=3)


def train(folder: Path, settings: BoostSettings = SETTINGS, y: Any = Y, **more: Any) -> SimulatedModel:
    return simulate(TABLES, y, settings, folder=folder, cipher="none", **more)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> SimulatedModel:
    return train(tmp_path_factory.mktemp("whole"))


class Interrupted(Exception):
    """Raised in place of Ctrl-C."""


@pytest.mark.slow
@pytest.mark.parametrize("after", [1, 3, 4])
def test_an_interrupted_guest_resumes_and_ends_with_the_same_model(
    after: int, whole: SimulatedModel, tmp_path: Path
) -> None:
    def stop(record: Any) -> None:
        if record.tree == after:
            raise Interrupted

    with pytest.raises(Interrupted):
        train(tmp_path, on_tree=stop)
    again = train(tmp_path, resume=True)
    assert again.guest.trees == whole.guest.trees
    assert again.guest == SimulatedModel.load(tmp_path).guest
    assert [h.records for h in again.hosts] == [h.records for h in whole.hosts]
    assert np.array_equal(again.margins, whole.margins)


@pytest.mark.slow
def test_classes_of_a_round_go_on_from_its_start(tmp_path: Path) -> None:
    """Interrupted between the trees of two classes: both use the margins at the start of the round."""
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
    """A channel to a host process that dies at one request and restarts from its folder at the next HELLO."""

    def __init__(self, folder: Path, die: tuple[FrameKind, int], times: int = 1, most_trees: int = 10_000) -> None:
        self.folder, self.die, self.times = folder, die, times
        self.policy = HostPolicy(plain=True, most_trees=most_trees)
        self.asked: list[FrameKind] = []
        super().__init__(self.fresh(), "host")

    def fresh(self) -> Host:
        return Host(np.hstack(TABLES[1:]), folder=self.folder, policy=self.policy)

    def ask(self, kind: FrameKind, fields: Fields | None = None, *, tree: int = 0, level: int = 0) -> dict[str, Any]:
        self.asked.append(kind)
        if (kind, tree) == self.die:
            self.times -= 1
            self.die = self.die if self.times else (FrameKind.ERROR, -1)
            self.session = LocalChannel(self.fresh()).session  # all that was in memory is gone
            raise PartyLost("host 'host' is gone", remedy="start it again")
        return super().ask(kind, fields, tree=tree, level=level)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [FrameKind.HELLO, FrameKind.SETUP, FrameKind.PUBLIC_KEY])
def test_a_host_lost_before_the_first_tree_is_greeted_again(kind: FrameKind, tmp_path: Path) -> None:
    fragile = Fragile(tmp_path, (kind, 0), times=3)
    model = Guest(TABLES[0], Y, [fragile], SETTINGS, cipher="none").train()
    assert len(model.trees) == 4
    assert fragile.asked.count(kind) == 4
    hopeless = Fragile(tmp_path / "hopeless", (kind, 0), times=1000)
    with pytest.raises(PartyLost):
        Guest(TABLES[0], Y, [hopeless], SETTINGS, cipher="none").train()
    assert hopeless.asked.count(kind) == MOST_LOSSES + 1


@pytest.mark.slow
def test_trees_that_a_loss_cost_do_not_use_up_those_allowed(tmp_path: Path) -> None:
    fragile = Fragile(tmp_path, (FrameKind.LEVEL, 3), times=5, most_trees=4)
    assert len(Guest(TABLES[0], Y, [fragile], SETTINGS, cipher="none").train().trees) == 4
    assert HostModel.load(tmp_path).begun == 4 + 5


@pytest.mark.slow
@pytest.mark.parametrize("tree", [0, 2])
@pytest.mark.parametrize(
    "kind", [FrameKind.TREE_START, FrameKind.ROWS, FrameKind.LEVEL, FrameKind.SPLIT, FrameKind.TREE_END]
)
def test_a_host_lost_in_mid_tree_costs_that_tree_alone(kind: FrameKind, tree: int, tmp_path: Path) -> None:
    calm = Fragile(tmp_path / "calm", (FrameKind.ERROR, -1))
    expected = Guest(TABLES[0], Y, [calm], SETTINGS, cipher="none").train()
    fragile = Fragile(tmp_path / "fragile", (kind, tree))
    seen: list[int] = []
    guest = Guest(TABLES[0], Y, [fragile], SETTINGS, cipher="none", on_tree=lambda r: seen.append(r.tree))
    assert guest.train() == expected
    assert seen == [1, 2, 3, 4]
    assert fragile.die == (FrameKind.ERROR, -1)


@pytest.mark.slow
def test_a_host_that_is_one_tree_ahead_discards_it(whole: SimulatedModel, tmp_path: Path) -> None:
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


@pytest.mark.slow
def test_a_folder_of_another_training_is_not_resumed(tmp_path: Path) -> None:
    train(tmp_path)
    with pytest.raises(CannotWrite, match="already holds a model"):
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


def broken_off(folder: Path, before_commit: int) -> None:
    """A guest that is killed when its hosts have written a tree and it has not."""

    class Killed(Guest):
        def _commit(self, model: Any) -> None:
            if len(model.trees) == before_commit:
                raise Interrupted
            super()._commit(model)

    with pytest.raises(Interrupted):
        Killed(TABLES[0], Y, lines(folder), SETTINGS, folder=folder / "guest", cipher="none").train()


def lines(folder: Path) -> list[LocalChannel]:
    names = ("host1", "host2")
    policy = HostPolicy(plain=True)
    hosts = [Host(t, name=n, folder=folder / n, policy=policy) for t, n in zip(TABLES[1:], names, strict=True)]
    return [LocalChannel(h, n) for h, n in zip(hosts, names, strict=True)]


@pytest.mark.slow
def test_a_guest_killed_before_it_wrote_its_first_tree_is_known_again(whole: SimulatedModel, tmp_path: Path) -> None:
    broken_off(tmp_path, before_commit=1)
    assert [len(HostModel.load(tmp_path / n).trees) for n in ("host1", "host2")] == [1, 1]
    again = train(tmp_path, resume=True)
    assert again.guest.trees == whole.guest.trees
    assert {h.training_id for h in again.hosts} == {again.guest.training_id}


def test_another_training_does_not_touch_a_hosts_trees(tmp_path: Path) -> None:
    """A new one is refused, and one resumed from a copy; of its own training a host discards one tree at most."""
    broken_off(tmp_path, before_commit=3)
    held = (tmp_path / "host1" / "model.json").read_text()

    def refused(guest: Guest, says: str) -> None:
        with pytest.raises(ResumeMismatch, match=says):
            guest.train()
        assert (tmp_path / "host1" / "model.json").read_text() == held

    other = Guest(TABLES[0], 1 - Y, lines(tmp_path), SETTINGS, cipher="none")
    refused(other, "host 'host1': this host's folder holds 3 trees of another training")
    far_behind = Guest(TABLES[0], Y, lines(tmp_path), SETTINGS, cipher="none")
    far_behind.model = replace(far_behind.model, training_id=GuestModel.load(tmp_path / "guest").training_id)
    refused(far_behind, "host 'host1': the guest has 0 trees, this host 3: an interruption loses at most one")


@pytest.mark.slow
def test_a_host_discards_no_tree_of_a_finished_training(tmp_path: Path) -> None:
    made = train(tmp_path)
    assert HostModel.load(tmp_path / "host1").finished
    behind = Guest(TABLES[0], Y, lines(tmp_path), SETTINGS, cipher="none")
    behind.model = replace(made.guest, trees=made.guest.trees[:3])
    with pytest.raises(ResumeMismatch, match="the guest has 3 trees, this host 4"):
        behind.train()


# The end


class Gone(LocalChannel):
    """A channel to a host that stopped as soon as it received DONE."""

    def carry(self, raw: bytes, kind: FrameKind) -> bytes:
        """Raise PartyLost: the host has stopped."""
        raise PartyLost("host is gone", remedy="none")


@pytest.mark.slow
def test_a_guest_killed_after_done_can_finish(whole: SimulatedModel, tmp_path: Path) -> None:
    train(tmp_path)
    found = GuestModel.load(tmp_path / "guest")
    assert found.finished
    gone = [Gone(Host(t), n) for t, n in zip(TABLES[1:], ("host1", "host2"), strict=True)]
    again = Guest(TABLES[0], Y, gone, SETTINGS, folder=tmp_path / "guest", resume=True, cipher="none").train()
    assert again.trees == whole.guest.trees


def test_a_host_that_missed_the_goodbye_hears_it_when_it_is_back(tmp_path: Path) -> None:
    fragile = Fragile(tmp_path, (FrameKind.DONE, 0))
    fragile.patience = 1000.0
    Guest(TABLES[0], Y, [fragile], SETTINGS, cipher="none").train()
    assert fragile.asked[-3:] == [FrameKind.DONE, FrameKind.HELLO, FrameKind.DONE]
    assert fragile.patience == END_PATIENCE, "it may have received DONE and stopped"
    assert HostModel.load(tmp_path).finished
    fresh = Fragile(tmp_path, (FrameKind.ERROR, -1))
    end_training([fresh])
    assert fresh.asked == [FrameKind.HELLO, FrameKind.DONE], "by a guest that was started again"


def test_margins_are_on_the_disk_before_the_model_that_names_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    fsync, move = os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda file: (done.append("synced"), fsync(file)))
    monkeypatch.setattr(os, "replace", lambda a, b: (done.append("in place"), move(a, b)))
    checkpoint.save(tmp_path, 1, "table", np.zeros((3, 1), np.float32), np.zeros((3, 1), np.float32))
    assert done == ["synced", "in place"]
