"""Each switch: the lossless ones change the cost and not the trees, the others do what they say."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from tests.support.vertical_tables import breast_cancer, wine, with_gaps

from fedarena.config.errors import BadValue
from fedarena.vertical.guest import sample_goss
from fedarena.vertical.model import GUEST
from fedarena.vertical.pooled_check import check_pooled
from fedarena.vertical.settings import BoostSettings
from fedarena.vertical.simulation import SimulatedModel, simulate

TABLES, Y = breast_cancer(hosts=2)
TABLES = [with_gaps(t, seed=i) for i, t in enumerate(TABLES)]


def trained(**values: Any) -> SimulatedModel:
    return simulate(TABLES, Y, BoostSettings(**{"trees": 3, "depth": 4, **values}), cipher="none")


def traffic(model: SimulatedModel) -> tuple[int, int]:
    return sum(h["bytes_up"] for h in model.guest.history), sum(h["bytes_down"] for h in model.guest.history)


PLUS = trained()


@pytest.mark.slow
@pytest.mark.parametrize(
    "values",
    [
        {"algorithm": "secureboost"},
        {"packing": False},
        {"subtraction": False},
        {"compression": False},
        {"sparse": False},
        {"packing": False, "subtraction": False, "compression": False, "sparse": False},
    ],
    ids=str,
)
def test_shortcuts_do_not_change_the_trees(values: dict[str, Any]) -> None:
    other = trained(**values)
    assert other.guest.trees == PLUS.guest.trees
    assert [h.records for h in other.hosts] == [h.records for h in PLUS.hosts]
    assert np.array_equal(other.margins, PLUS.margins)


@pytest.mark.slow
def test_packing_halves_what_goes_up() -> None:
    assert traffic(trained(packing=False))[0] > 1.9 * traffic(PLUS)[0]


@pytest.mark.slow
def test_subtraction_and_compression_shorten_the_replies() -> None:
    down = traffic(PLUS)[1]
    assert traffic(trained(subtraction=False))[1] > 1.4 * down
    assert traffic(trained(compression=False))[1] > 5 * down


@pytest.mark.slow
def test_goss_grows_trees_from_fewer_rows() -> None:
    model = trained(goss=True)
    roots = [tree.nodes[0].rows for tree in model.guest.trees]
    assert roots == [int(0.2 * len(Y)) + int(0.1 * len(Y))] * 3
    assert model.guest.history[-1]["value"] > 0.97
    assert trained(goss=True).guest == model.guest
    assert trained(goss=True, seed=1).guest.trees != model.guest.trees


def test_goss_keeps_the_largest_and_the_sum() -> None:
    size = np.arange(1000.0)
    settings = BoostSettings(goss=True)
    rows, factor = sample_goss(settings, size, tree=0)
    assert set(range(800, 1000)) <= set(rows.tolist())
    assert len(rows) == 300
    assert np.unique(factor[rows < 800]).tolist() == [8.0]  # (1 - 0.2) / 0.1
    totals = [float((size[k] * f).sum()) for k, f in (sample_goss(settings, size, t) for t in range(200))]
    assert np.mean(totals) == pytest.approx(size.sum(), rel=0.01)


def owners_of(model: SimulatedModel) -> list[Counter[int]]:
    return [Counter(n.owner for n in tree.nodes if n.owner >= 0) for tree in model.guest.trees]


@pytest.mark.slow
def test_mix_trees_have_one_owner_each_in_turn() -> None:
    model = trained(tree_mode="mix", trees=6)
    assert [list(c) for c in owners_of(model)] == [[0], [1], [2], [0], [1], [2]]
    up = [h["bytes_up"] for h in model.guest.history]
    assert up[0] < up[1] / 10  # the guest's own trees need no ciphertext
    in_pairs = trained(tree_mode="mix", trees=6, trees_per_party=2)
    assert [list(c) for c in owners_of(in_pairs)] == [[0], [0], [1], [1], [2], [2]]


def test_layered_trees_have_hosts_above_and_the_guest_below() -> None:
    model = trained(tree_mode="layered", host_depth=2)
    for tree in model.guest.trees:
        level = {0: 0}
        for i, node in enumerate(tree.nodes):
            if node.owner >= 0:
                level[node.left] = level[node.right] = level[i] + 1
                assert (node.owner == GUEST) == (level[i] >= 2)
    assert any(n.owner == GUEST for t in model.guest.trees for n in t.nodes)


def test_the_first_tree_can_be_the_guests_alone() -> None:
    model = trained(first_tree_guest_only=True)
    assert list(owners_of(model)[0]) == [GUEST]
    assert len(owners_of(model)[1]) > 1


@pytest.mark.slow
def test_multi_output_is_one_tree_for_all_classes() -> None:
    tables, y = wine()
    settings = BoostSettings(trees=3, objective="softmax", classes=3, multi_output=True)
    model = simulate(tables, y, settings, cipher="none")
    assert len(model.guest.trees) == 3
    assert all(len(n.weights) == 3 for t in model.guest.trees for n in t.nodes if n.owner < 0)
    apart = simulate(tables, y, BoostSettings(trees=3, objective="softmax", classes=3), cipher="none")
    assert len(apart.guest.trees) == 9
    assert traffic(model)[0] < 0.5 * traffic(apart)[0]
    unpacked = BoostSettings(trees=3, objective="softmax", classes=3, multi_output=True, packing=False)
    assert simulate(tables, y, unpacked, cipher="none").guest.trees == model.guest.trees


def test_no_leaf_has_fewer_rows_than_asked() -> None:
    model = trained(min_leaf_rows=40)
    assert min(n.rows for t in model.guest.trees for n in t.nodes) >= 40
    assert min(n.rows for t in PLUS.guest.trees for n in t.nodes) < 40


def test_rare_gaps_stay_with_the_last_bin_and_the_trees_are_still_xgboosts() -> None:
    pytest.importorskip("xgboost")
    shares = (0.02, 0.02, 0.2)
    tables = [with_gaps(t, share) for t, share in zip(breast_cancer(hosts=2)[0], shares, strict=True)]
    settings = BoostSettings(trees=3, depth=4, min_bin_count=20)
    training = np.arange(len(Y)) % 5 > 0
    model = simulate(tables, Y, settings, training=training, cipher="none")
    sides = [s.missing_left for h in model.hosts for s in h.records]
    assert any(sides), "gaps that are not rare are tried on both sides"
    rare = [np.isnan(tables[1][training, s.column]).sum() < 20 for s in model.hosts[0].records]
    assert any(rare)
    check = check_pooled(model, tables, Y, training=training)
    assert (check.equal, check.margin_difference) == (check.splits, 0.0)


@pytest.mark.slow
def test_gamma_is_what_a_split_must_bring() -> None:
    gains = [n.gain for t in PLUS.guest.trees for n in t.nodes if n.owner >= 0]
    assert min(gains) < 2
    model = trained(gamma=2.0)
    assert all(n.gain >= 0 for t in model.guest.trees for n in t.nodes if n.owner >= 0)
    assert len(model.guest.trees[0].nodes) < len(PLUS.guest.trees[0].nodes)


@pytest.mark.slow
def test_early_stopping_keeps_the_best_round() -> None:
    rng = np.random.default_rng(0)
    y = np.where(rng.random(len(Y)) < 0.3, 1 - Y, Y)  # noisy labels: more trees get worse
    training = rng.random(len(Y)) < 0.5
    settings = BoostSettings(trees=40, early_stopping_rounds=3, lr=0.5)
    model = simulate(TABLES, y, settings, training=training, cipher="none")
    losses = [h["loss"] for h in model.guest.history]
    best = model.guest.best_round
    assert best == 1 + int(np.argmin(losses))
    assert len(losses) == best + 3 < 40
    assert len(model.guest.used_trees) == best


def test_early_stopping_needs_rows_to_watch() -> None:
    with pytest.raises(BadValue, match="no validation rows"):
        trained(early_stopping_rounds=2)


@pytest.mark.slow
def test_importance_names_own_columns_and_numbers_foreign_ones() -> None:
    names = [[f"c{i}" for i in range(t.shape[1])] for t in TABLES]
    model = simulate(TABLES, Y, BoostSettings(trees=3), names=names, cipher="none")
    rows = model.guest.importance()
    assert {r["owner"] for r in rows} == {"guest", "host1", "host2"}
    assert all(isinstance(r["column"], str) == (r["owner"] == "guest") for r in rows)
    for i, host in enumerate(("host1", "host2")):
        numbers = sorted(r["column"] for r in rows if r["owner"] == host)
        assert numbers == list(range(len({s.column for s in model.hosts[i].records})))  # in order of first use
    total = sum(n.gain for t in model.guest.trees for n in t.nodes)
    assert sum(r["gain"] for r in rows) == pytest.approx(total)
    assert [r["gain"] for r in rows] == sorted((r["gain"] for r in rows), reverse=True)
