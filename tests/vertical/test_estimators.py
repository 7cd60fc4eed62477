"""SecureBoost as scikit-learn knows estimators."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer, load_diabetes, load_wine
from sklearn.model_selection import cross_val_score
from sklearn.utils.estimator_checks import parametrize_with_checks

from fedarena.config.errors import BadValue
from fedarena.vertical.estimators import SecureBoostClassifier, SecureBoostRegressor
from fedarena.vertical.simulation import SimulatedModel

X, Y = load_breast_cancer(return_X_y=True)
PARTIES = ["guest", "bank", "shop"] * 10


def expected(estimator: Any) -> dict[str, str]:
    why = "a host bins its columns without knowing the weights, which are the guest's"
    two_classes = isinstance(estimator, SecureBoostClassifier)
    return {"check_sample_weight_equivalence_on_dense_data": why} if two_classes else {}


@pytest.mark.slow
@parametrize_with_checks(
    [SecureBoostClassifier(trees=3, depth=3, cipher="none"), SecureBoostRegressor(trees=2, depth=3, cipher="none")],
    expected_failed_checks=expected,
)
def test_scikit_learns_own_checks(estimator: Any, check: Any) -> None:
    check(estimator)


@pytest.mark.slow
def test_parties_by_column_or_by_table() -> None:
    by_column = SecureBoostClassifier(trees=3, cipher="none").fit(X, Y, parties=PARTIES)
    tables = [X[:, i::3] for i in range(3)]
    by_table = SecureBoostClassifier(trees=3, cipher="none").fit(tables, Y)
    assert by_column.guest_.hosts == ("bank", "shop")
    assert by_column.guest_.trees == by_table.guest_.trees
    assert np.array_equal(by_column.predict_proba(X), by_table.predict_proba(tables))
    assert by_column.feature_importances_.sum() == pytest.approx(1)
    assert np.array_equal(by_column.feature_importances_.reshape(-1, 3).T.ravel(), by_table.feature_importances_)
    with pytest.raises(ValueError, match="use one of the two"):
        SecureBoostClassifier(cipher="none").fit(tables, Y, parties=PARTIES)
    with pytest.raises(ValueError, match="2 parties for 30 columns"):
        SecureBoostClassifier(cipher="none").fit(X, Y, parties=["guest", "bank"])


@pytest.mark.slow
def test_columns_of_a_data_frame_keep_their_names() -> None:
    frame = load_breast_cancer(as_frame=True).data
    model = SecureBoostClassifier(trees=2, cipher="none").fit(frame, Y, parties=PARTIES)
    own = {row["column"] for row in model.guest_.importance() if row["owner"] == "guest"}
    assert own
    assert own <= set(frame.columns[::3])
    assert model.hosts_[0].columns == tuple(frame.columns[1::3])
    assert np.array_equal(
        model.predict_proba(frame),
        SecureBoostClassifier(trees=2, cipher="none").fit(X, Y, parties=PARTIES).predict_proba(X),
    )


@pytest.mark.slow
def test_labels_of_any_kind() -> None:
    words = np.where(Y == 1, "benign", "malignant")
    model = SecureBoostClassifier(trees=3, cipher="none").fit(X, words)
    assert model.classes_.tolist() == ["benign", "malignant"]
    assert np.mean(model.predict(X) == words) > 0.97
    x, y = load_wine(return_X_y=True)
    three = SecureBoostClassifier(trees=3, cipher="none").fit(x, y + 5)
    assert three.predict_proba(x).shape == (len(y), 3)
    assert three.score(x, y + 5) > 0.97


@pytest.mark.slow
def test_cross_validation_and_clone() -> None:
    model = SecureBoostClassifier(trees=5, depth=3, parties=PARTIES, cipher="none")
    assert clone(model).get_params() == model.get_params()
    assert cross_val_score(model, X, Y, cv=3, scoring="roc_auc").min() > 0.97


@pytest.mark.slow
def test_regression() -> None:
    x, y = load_diabetes(return_X_y=True)
    model = SecureBoostRegressor(trees=20, depth=3, cipher="none").fit(x[:300], y[:300])
    assert model.score(x[300:], y[300:]) > 0.3


@pytest.mark.slow
def test_rows_held_out_stop_the_training_early(tmp_path: Path) -> None:
    valid = np.arange(len(Y)) % 3 == 0
    model = SecureBoostClassifier(trees=60, early_stopping_rounds=3, lr=0.8, cipher="none")
    model.fit(X, Y, valid=valid, folder=tmp_path)
    assert model.guest_.best_round is not None
    assert len(model.guest_.trees) == model.guest_.best_round + 3 < 60
    again = SimulatedModel.load(tmp_path).predict_margins([X[:, :15], X[:, 15:]])
    assert np.array_equal(again[:, 0], model.decision_function(X))


def test_a_party_whose_name_is_a_path_writes_nowhere(tmp_path: Path) -> None:
    model = SecureBoostClassifier(trees=1, cipher="none", parties=["guest", "../out"] * 15)
    with pytest.raises(BadValue, match="cannot be a party's name"):
        model.fit(X, Y, folder=tmp_path / "in")
    assert not list(tmp_path.iterdir())
    model.fit(X, Y)


@pytest.mark.slow
def test_encrypted_by_default() -> None:
    small = SecureBoostClassifier(trees=1, depth=2, bins=4)
    plain = clone(small).set_params(cipher="none")
    assert small.cipher == "paillier"
    assert small.fit(X[:60, :6], Y[:60]).guest_.trees == plain.fit(X[:60, :6], Y[:60]).guest_.trees
