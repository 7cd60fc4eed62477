"""treebag, treecyclic and the tree forms of centralized and local: with one client all of them are pooled boosting."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import fedarena as fa
from fedarena.config.errors import BadValue
from fedarena.trees.forest import WEIGHT, Forest

QUIET: dict[str, Any] = {"out": False, "runtime": "serial"}


def forest(name: str, clients: int, trees: int = 3, **more: Any) -> Forest:
    algorithm = {"name": name, "trees": trees, "depth": 3, "learning_rate": 0.3, **more}
    return Forest.of(
        fa.run("wine", algorithm=algorithm, clients=clients, partition="iid", **QUIET).state["forest"].numpy()
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", ["treebag", "treecyclic", "centralized_trees"])
def test_one_client_is_pooled_boosting(name: str) -> None:
    assert np.array_equal(forest(name, 1).vector, forest("histboost", 1).vector)


@pytest.mark.slow
def test_a_client_alone_is_pooled_boosting() -> None:
    settings: dict[str, Any] = {"clients": 1, "partition": "iid", **QUIET}
    alone, pooled = (
        fa.run("wine", algorithm={"name": name, "trees": 3}, **settings) for name in ("local_trees", "histboost")
    )
    assert [r.loss for r in alone.records] == [r.loss for r in pooled.records]
    assert alone.final.bytes_up == 0


@pytest.mark.slow
def test_treebag_takes_the_trees_of_all_clients() -> None:
    bag = forest("treebag", 4, trees=2)
    assert len(bag.trees) == 2 * 4 * 3  # rounds, clients, classes
    whole = forest("treebag", 4, trees=1, scaled=False)
    assert np.array_equal(bag.trees[:12, :, WEIGHT], whole.trees[:, :, WEIGHT] / np.float32(4))


@pytest.mark.slow
def test_treecyclic_passes_through_the_clients_in_turn() -> None:
    """The tree of a client is that of the client alone where it is the first; the next one continues from it."""
    run = fa.run("wine", algorithm={"name": "treecyclic", "trees": 2}, clients=4, partition="iid", **QUIET)
    assert [record.uploads for record in run.records] == [4, 8]
    cyclic, bag = forest("treecyclic", 4, trees=1), forest("treebag", 4, trees=1, scaled=False)
    assert len(cyclic.trees) == len(bag.trees) == 4 * 3
    assert np.array_equal(cyclic.trees[:3], bag.trees[:3])
    assert not np.array_equal(cyclic.trees[3:6], bag.trees[3:6])


def test_single_trees_are_not_hidden_by_masks() -> None:
    with pytest.raises(BadValue, match="must see each update by itself"):
        fa.run("wine", algorithm="treebag", uplink={"secure": True}, **QUIET)
