"""What clients remember: at hand while there is room, on disk where it must be."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import fedarena as fa
from fedarena.algorithms.scaffold import Scaffold
from fedarena.engine import keep
from fedarena.engine.keep import Keeper
from fedarena.engine.work import Memory

VECTOR = 1000  # bytes of a memory


def remembered(keeper: Keeper, client: int) -> float:
    memory = keeper.memory(client)
    assert memory is not None
    return float(memory.kept[0])


@pytest.mark.parametrize("resumable", [True, False])
def test_room_is_bounded_and_nothing_is_forgotten(
    resumable: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ten clients over three rounds, and room for four of them."""
    monkeypatch.setattr(keep, "NEAR", 4 * VECTOR + 100)
    keeper = Keeper(tmp_path, Scaffold(), resumable)
    for round in (1, 2, 3):
        for client in range(10):
            keeper.remember(client, round, Memory(np.full(VECTOR // 4, 10 * round + client, np.float32)))
            assert sum(size for _, size in keeper._near.values()) == keeper._near_bytes <= keep.NEAR
        assert [remembered(keeper, client) for client in range(10)] == [10 * round + client for client in range(10)]
    on_disk = {path.name.partition("-")[0] for path in (tmp_path / "clients").glob("*.safetensors")}
    assert len(on_disk) == 10
    assert keeper.memory(11) is None


def test_who_may_resume_writes_every_round(tmp_path: Path) -> None:
    keeper = Keeper(tmp_path, Scaffold())
    keeper.remember(3, 7, Memory(np.ones(4, np.float32)))
    keeper.close()
    assert Keeper.peek(tmp_path, Scaffold(), 3) is not None


def test_nothing_is_written_that_nobody_will_read(tmp_path: Path) -> None:
    keeper = Keeper(tmp_path, Scaffold(), resumable=False)
    keeper.remember(3, 7, Memory(np.ones(4, np.float32)))
    assert not list((tmp_path / "clients").iterdir())
    assert remembered(keeper, 3) == 1


def test_the_same_bits_however_much_room(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = {"algorithm": "scaffold", "clients": 6, "share": 0.5, "rounds": 6, "out": False, "runtime": "serial"}
    plenty = fa.run("digits", **settings).weights_sha256
    monkeypatch.setattr(keep, "NEAR", 0)
    assert fa.run("digits", **settings).weights_sha256 == plenty
