"""Lossless: the parties' trees are XGBoost's on the pooled bins: every split, every margin, the score to its last digit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st
from tests.support.vertical_tables import Array, breast_cancer, dealt, diabetes, wine, with_gaps

from fedarena.config.errors import BadValue, MissingDependency
from fedarena.vertical.party_tables import load_table, split_columns
from fedarena.vertical.pooled_check import PooledCheck, check_pooled
from fedarena.vertical.settings import BoostSettings
from fedarena.vertical.simulation import simulate

pytest.importorskip("xgboost")


def check(tables: list[Array], y: Array, settings: BoostSettings, **more: Any) -> PooledCheck:
    cipher = more.pop("cipher", "none")
    model = simulate(tables, y, settings, cipher=cipher, **more)
    found = check_pooled(model, tables, y, **more)
    assert found.splits > 5 * settings.trees
    assert found.splits_equal
    assert found.margin_difference <= 1e-6
    assert f"{found.value:.5f}" == f"{found.pooled:.5f}"
    return found


@pytest.mark.slow
@pytest.mark.parametrize("gaps", [False, True], ids=["complete", "with gaps"])
@pytest.mark.parametrize("hosts", [1, 2, 3])
def test_two_classes(hosts: int, gaps: bool) -> None:
    tables, y = breast_cancer(hosts)
    check([with_gaps(t, seed=i) if gaps else t for i, t in enumerate(tables)], y, BoostSettings(trees=3))


@pytest.mark.slow
@pytest.mark.parametrize("gaps", [False, True], ids=["complete", "with gaps"])
@pytest.mark.parametrize("hosts", [1, 3])
def test_several_classes(hosts: int, gaps: bool) -> None:
    tables, y = wine(hosts)
    settings = BoostSettings(trees=3, objective="softmax", classes=3)
    check([with_gaps(t, seed=i) if gaps else t for i, t in enumerate(tables)], y, settings)


@pytest.mark.slow
@pytest.mark.parametrize("hosts", [1, 2])
def test_one_tree_for_all_classes(hosts: int) -> None:
    tables, y = wine(hosts)
    settings = BoostSettings(trees=4, objective="softmax", classes=3, multi_output=True, min_child_weight=0)
    check([with_gaps(t, seed=i) for i, t in enumerate(tables)], y, settings)


@pytest.mark.slow
@pytest.mark.parametrize("gaps", [False, True], ids=["complete", "with gaps"])
@pytest.mark.parametrize("hosts", [1, 3])
def test_regression(hosts: int, gaps: bool) -> None:
    tables, y = diabetes(hosts)
    settings = BoostSettings(trees=3, objective="squared_error")
    check([with_gaps(t, seed=i) if gaps else t for i, t in enumerate(tables)], y, settings)


@pytest.mark.slow
def test_with_weights_and_rows_held_out() -> None:
    tables, y = breast_cancer()
    rng = np.random.default_rng(1)
    check(tables, y, BoostSettings(trees=6), weights=rng.random(len(y)) * 3, training=rng.random(len(y)) < 0.8)


@pytest.mark.slow
@pytest.mark.parametrize(
    "values",
    [{"gamma": 2.0}, {"lambda_": 0.0}, {"min_child_weight": 0.0}, {"lr": 1.0, "depth": 3}, {"bins": 200}, {"depth": 8}],
    ids=str,
)
def test_with_other_settings(values: dict[str, Any]) -> None:
    tables, y = breast_cancer()
    check([with_gaps(t) for t in tables], y, BoostSettings(trees=2, **values))


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["secureboost", "secureboost_plus"])
def test_with_real_encryption(algorithm: Any) -> None:
    """SecureBoost, with a ciphertext for every sum, on a part of the table; SecureBoost+ on all of it."""
    tables, y = breast_cancer()
    plus = algorithm == "secureboost_plus"
    rows, columns = (slice(None), slice(None)) if plus else (slice(0, 200), slice(0, 4))
    tables, y = [with_gaps(t[rows, columns]) for t in tables], y[rows]
    settings = BoostSettings(trees=1, depth=3, bins=32 if plus else 8, algorithm=algorithm, min_child_weight=0.1)
    found = check_pooled(simulate(tables, y, settings), tables, y)
    assert found.splits >= 5
    assert found.splits_equal
    assert found.margin_difference <= 1e-6


@pytest.mark.slow
@examples(max_examples=12)
@given(st.integers(0, 2**32), st.sampled_from(["logistic", "softmax", "squared_error"]))
def test_random_tables(seed: int, objective: Any) -> None:
    """Few rows, rounded values, columns that repeat at another party: ties wherever they can be."""
    rng = np.random.default_rng(seed)
    rows, columns = int(rng.integers(20, 200)), int(rng.integers(2, 7))
    x = np.round(rng.normal(size=(rows, columns)), int(rng.integers(0, 3)))
    x[:, -1] = x[:, 0]
    z = x @ rng.normal(size=columns) + rng.normal(size=rows)
    y = z if objective == "squared_error" else np.argsort(np.argsort(z)) * (3 if objective == "softmax" else 2) // rows
    tables = dealt(with_gaps(x, float(rng.choice([0.0, 0.3])), seed), hosts=min(columns - 1, int(rng.integers(1, 4))))
    model = simulate(
        tables,
        y,
        BoostSettings(
            trees=2,
            depth=int(rng.integers(1, 6)),
            bins=int(rng.choice([2, 8, 32])),
            lambda_=float(rng.choice([0, 0.1, 1, 5])),
            min_child_weight=float(rng.choice([0, 1])),
            objective=objective,
            classes=3,
        ),
        weights=(weights := rng.random(rows) + 0.1 if rng.random() < 0.5 else None),
        cipher="none",
    )
    found = check_pooled(model, tables, y, weights=weights)
    assert found.splits_equal
    assert found.margin_difference <= 1e-6


@pytest.mark.slow
def test_a_guest_without_columns() -> None:
    tables, y = breast_cancer(hosts=2)
    check([tables[0][:, :0], *tables[1:]], y, BoostSettings(trees=4))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("hosts", "algorithm"),
    [(1, "secureboost"), (1, "secureboost_plus"), (2, "secureboost_plus"), (3, "secureboost_plus")],
)
@pytest.mark.parametrize("name", ["default_credit", "give_me_some_credit", "kdd04_bio", "higgs_11k"])
def test_public_tables(name: str, hosts: int, algorithm: Any) -> None:
    """Where the tables are, all their rows; a plain cipher, because the trees are the question here.

    give_me_some_credit has gaps, the others get some where there are two hosts. kdd04_bio is whole with one host, and
    its first 40,000 rows with more, and with plain SecureBoost.
    """
    try:
        table = load_table(name)
    except MissingDependency:
        pytest.skip(f"{name} is not on this machine")
    assert table.y is not None
    whole = name != "kdd04_bio" or (hosts, algorithm) == (1, "secureboost_plus")
    rows = slice(None) if whole else slice(0, 40_000)
    tables = [table.x[rows, own] for own in split_columns(table, hosts=hosts).values()]
    assert len(tables) == hosts + 1
    if hosts == 2 and name != "give_me_some_credit":
        tables = [with_gaps(part, seed=i) for i, part in enumerate(tables)]
    check(tables, table.y[rows], BoostSettings(trees=1, algorithm=algorithm))


@pytest.mark.parametrize(
    "values",
    [{"goss": True}, {"tree_mode": "mix"}, {"first_tree_guest_only": True}, {"min_leaf_rows": 5}],
    ids=str,
)
def test_what_is_not_lossless_is_not_compared(values: dict[str, Any]) -> None:
    tables, y = breast_cancer()
    settings = BoostSettings(trees=1, depth=2, **{"tree_mode": "normal", **values})
    model = simulate(tables, y, settings, cipher="none")
    with pytest.raises(BadValue, match="cannot be compared"):
        check_pooled(model, tables, y)
