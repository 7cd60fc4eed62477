"""SecureBoost with scikit-learn's conventions, all parties in one process.

>>> from sklearn.datasets import load_breast_cancer
>>> X, y = load_breast_cancer(return_X_y=True)
>>> model = SecureBoostClassifier(trees=2, cipher="none").fit(X, y, parties=["guest"] * 10 + ["host"] * 20)
>>> round(model.score(X, y), 2)
0.98
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import _check_sample_weight, check_array, check_is_fitted, check_X_y, validate_data

from fedarena.vertical.guest import Cipher
from fedarena.vertical.model import GuestModel, HostModel, join_models
from fedarena.vertical.prediction import predictions
from fedarena.vertical.settings import Algorithm, BoostSettings, Exponents, TreeMode
from fedarena.vertical.simulation import SimulatedModel, simulate

Array = NDArray[Any]
Parties = Sequence[str] | None
FINITE: dict[str, Any] = {"dtype": np.float64, "ensure_all_finite": "allow-nan"}


class _SecureBoost(BaseEstimator):  # type: ignore[misc]
    """The parts that the classifier and the regressor share. The constructor only stores its arguments; `fit` checks them."""

    parties: Parties
    cipher: Cipher
    _numeric_labels = False

    def __init__(
        self,
        *,
        algorithm: Algorithm = "secureboost_plus",
        trees: int = 25,
        depth: int = 5,
        bins: int = 32,
        lr: float = 0.3,
        lambda_: float = 1.0,
        gamma: float = 0.0,
        min_child_weight: float = 1.0,
        min_leaf_rows: int = 1,
        min_bin_count: int = 1,
        key_bits: int = 2048,
        allow_1024: bool = False,
        exponents: Exponents = "full",
        precision: int | None = None,
        packing: bool | None = None,
        subtraction: bool | None = None,
        compression: bool | None = None,
        sparse: bool | None = None,
        goss: bool = False,
        goss_top: float = 0.2,
        goss_rest: float = 0.1,
        tree_mode: TreeMode = "normal",
        trees_per_party: int = 1,
        host_depth: int = 2,
        multi_output: bool = False,
        first_tree_guest_only: bool = False,
        early_stopping_rounds: int | None = None,
        seed: int = 0,
        parties: Parties = None,
        cipher: Cipher = "paillier",
    ) -> None:
        given = locals()
        for name in type(self)._get_param_names():
            setattr(self, name, given[name])

    def _fit_labels(self, labels: Array) -> tuple[Array, BoostSettings]:
        """Return the labels as training targets, and the settings with their objective."""
        raise NotImplementedError

    def _settings(self, **more: Any) -> BoostSettings:
        given = {n: v for n, v in self.get_params(deep=False).items() if n not in ("parties", "cipher")}
        return BoostSettings(**given, **more)

    def fit(
        self,
        X: Any,
        y: Any,
        *,
        parties: Parties = None,
        sample_weight: Array | None = None,
        valid: Array | None = None,
        folder: Path | str | None = None,
    ) -> Self:
        """Train; rows marked in `valid` are held out for early stopping."""
        tables, labels = self._checked(X, y, parties, y_numeric=self._numeric_labels)
        targets, settings = self._fit_labels(labels)
        training = None if valid is None else ~np.asarray(valid, bool)
        weights = None
        if sample_weight is not None:
            weights = _check_sample_weight(sample_weight, tables[0], dtype=np.float64)
        hosts = list(dict.fromkeys(p for p in self.parties_ if p != "guest"))
        column_names = getattr(self, "feature_names_in_", None)
        self.model_: SimulatedModel = simulate(
            tables,
            targets,
            settings,
            names=None if column_names is None else [list(column_names[own]) for own in self._owned],
            hosts=hosts or None,
            weights=weights,
            training=training,
            folder=folder,
            cipher=self.cipher,
        )
        return self

    def _checked(self, X: Any, y: Any, parties: Parties, **more: Any) -> tuple[list[Array], Array]:
        """Return one table per party, the guest's first, and the labels, after the checks of scikit-learn."""
        named = parties if parties is not None else self.parties
        if _is_table_list(X):
            if named is not None:
                raise ValueError("parties is given together with one table for each party: use one of the two")
            self.parties_: list[str] = []
            checked = [check_X_y(part, y, **FINITE, **more) for part in X]
            widths = np.array([t.shape[1] for t, _ in checked])
            self.n_features_in_ = int(widths.sum())
            self._owned = np.split(np.arange(self.n_features_in_), np.cumsum(widths)[:-1])
            return [table for table, _ in checked], checked[0][1]
        table, labels = validate_data(self, X, y, **FINITE, **more)
        self.parties_ = _owners(table.shape[1], named)
        owner = np.array(self.parties_)
        self._owned = [np.flatnonzero(owner == name) for name in dict.fromkeys(["guest", *self.parties_])]
        return [table[:, own] for own in self._owned], labels

    def _margins(self, X: Any) -> Array:
        check_is_fitted(self)
        if not self.parties_:
            if not _is_table_list(X) or len(X) != len(self._owned):
                raise ValueError(f"pass {len(self._owned)} tables, one for each party, as in fit")
            return self.model_.predict_margins([check_array(part, **FINITE) for part in X])
        table = validate_data(self, X, reset=False, **FINITE)
        return self.model_.predict_margins([table[:, own] for own in self._owned])

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "model_")

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True  # a missing value has a bin of its own
        return tags

    @property
    def guest_(self) -> GuestModel:
        """The guest's part of the model."""
        return self.model_.guest

    @property
    def hosts_(self) -> tuple[HostModel, ...]:
        """The hosts' parts of the model."""
        return self.model_.hosts

    @property
    def feature_importances_(self) -> Array:
        """The share of the gain of each column passed to `fit`; only a simulation knows the columns of hosts."""
        check_is_fitted(self)
        gain = np.zeros(self.n_features_in_)
        for tree, splits in zip(self.guest_.used_trees, join_models(self.guest_, self.hosts_), strict=False):
            for node, known in zip(tree.nodes, splits, strict=True):
                if known is not None:
                    gain[self._owned[known[0]][known[1].column]] += node.gain
        return gain / gain.sum() if gain.any() else gain


def _is_table_list(X: Any) -> bool:
    """Return whether X is a list with one table for each party."""
    return isinstance(X, (list, tuple)) and len(X) > 0 and np.ndim(X[0]) == 2


def _owners(columns: int, parties: Parties) -> list[str]:
    """Return the party of each column; by default the first half of the columns is the guest's."""
    if parties is None:
        half = -(-columns // 2)
        return ["guest"] * half + ["host"] * (columns - half)
    if len(parties) != columns:
        raise ValueError(f"{len(parties)} parties for {columns} columns: name the party of each column")
    return [str(p) for p in parties]


class SecureBoostClassifier(ClassifierMixin, _SecureBoost):  # type: ignore[misc]
    """Gradient boosting over columns of several parties; labels may be of any kind.

    `X` is one table with the party of each column in `parties` ("guest" has the labels; without it the first half of the
    columns is the guest's, the rest the host's), or a list of tables, the guest's first.

    >>> import fedarena as fa
    >>> from sklearn.datasets import load_breast_cancer
    >>> X, y = load_breast_cancer(return_X_y=True)
    >>> model = fa.SecureBoostClassifier(trees=2, depth=3).fit(X, y)
    >>> model.score(X, y) > 0.9
    True
    """

    def _fit_labels(self, labels: Array) -> tuple[Array, BoostSettings]:
        check_classification_targets(labels)
        self.classes_, codes = np.unique(labels, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError("all rows are of one class: a single class cannot be learned")
        several = len(self.classes_) > 2
        settings = self._settings(objective="softmax" if several else "logistic", classes=len(self.classes_))
        return codes, settings

    def predict_proba(self, X: Any) -> Array:
        """Return the probabilities of all classes, [rows, classes]."""
        margins = self._margins(X)
        return predictions(self.guest_, margins)

    def decision_function(self, X: Any) -> Array:
        """Return the margins: [rows], or [rows, classes] for more than two classes."""
        margins = self._margins(X)
        return margins[:, 0] if margins.shape[1] == 1 else margins

    def predict(self, X: Any) -> Array:
        """Return the most likely class of each row."""
        margins = self._margins(X)
        best = (margins[:, 0] > 0).astype(int) if margins.shape[1] == 1 else margins.argmax(axis=1)
        found: Array = self.classes_[best]
        return found


class SecureBoostRegressor(RegressorMixin, _SecureBoost):  # type: ignore[misc]
    """Gradient boosting with squared error; see `SecureBoostClassifier` for `X` and `parties`.

    >>> import fedarena as fa
    >>> from sklearn.datasets import load_diabetes
    >>> X, y = load_diabetes(return_X_y=True)
    >>> fa.SecureBoostRegressor(trees=3, depth=3).fit(X, y).score(X, y) > 0.2
    True
    """

    _numeric_labels = True

    def _fit_labels(self, labels: Array) -> tuple[Array, BoostSettings]:
        return labels, self._settings(objective="squared_error")

    def predict(self, X: Any) -> Array:
        """Return the expected value of each row."""
        return self._margins(X)[:, 0]
