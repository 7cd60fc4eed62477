"""Every task trains: known optima, every algorithm, the same bits for any number of workers and after a resume."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tests.support.algorithm_models import smallest_model
from tests.support.made_tasks import TASKS, MadeTask

import fedarena as fa
from fedarena.config.errors import FedarenaError
from fedarena.config.registry import components
from fedarena.data.dataset import Dataset

ONE_CLIENT = {
    "clients": 1,
    "partition": "iid",
    "out": False,
    "runtime": "serial",
    "model": "logreg",
    "dtype": "float64",
}
FULL_BATCH = {"lr": 0.2, "epochs": 1, "batch": 1000}


def solution(task: str, rounds: int, lr: float, noise: float = 0.3) -> tuple[np.ndarray, np.ndarray, fa.Run]:
    """Return weights and bias of one client that trains with full batches, and the run."""
    settings = {**ONE_CLIENT, "rounds": rounds, "local": {**FULL_BATCH, "lr": lr}, "evaluate": {"every": rounds}}
    run = fa.run(MadeTask(task, noise), **settings)
    weight, bias = (run.state[name].numpy() for name in sorted(run.state, key=lambda name: "bias" in name))
    return weight, bias, run


@pytest.mark.slow
def test_a_linear_regression_is_that_of_scikit_learn():
    from sklearn.linear_model import LinearRegression

    weight, bias, run = solution("regression", 300, 0.1)
    data = MadeTask("regression").load(0)
    train = slice(0, data.n_train)
    labels = data.y[train].astype(np.float64)
    known = LinearRegression().fit(data.x[train].astype(np.float64), labels)
    assert weight[0] * labels.std() == pytest.approx(known.coef_, abs=1e-4)
    assert bias[0] * labels.std() + labels.mean() == pytest.approx(known.intercept_, abs=1e-4)
    predicted = known.predict(data.x[data.n_train :].astype(np.float64))
    assert run.metrics["rmse"] == pytest.approx(np.sqrt(np.mean((predicted - data.y[data.n_train :]) ** 2)), abs=1e-4)
    assert run.summary()["final_accuracy"] is None


@pytest.mark.slow
def test_several_labels_are_several_logistic_regressions():
    from sklearn.linear_model import LogisticRegression

    weight, bias, _ = solution("multilabel", 6000, 3.0, noise=2.0)
    data = MadeTask("multilabel", 2.0).load(0)
    x, y = data.x[: data.n_train].astype(np.float64), data.y[: data.n_train]
    for k in range(3):
        known = LogisticRegression(C=np.inf, tol=1e-10, max_iter=10_000).fit(x, y[:, k])
        assert weight[k] == pytest.approx(known.coef_[0], abs=1e-4)
        assert bias[k] == pytest.approx(known.intercept_[0], abs=1e-4)


@pytest.mark.slow
def test_proportional_hazards_are_those_of_statsmodels():
    phreg = pytest.importorskip("statsmodels.duration.hazard_regression", reason="statsmodels is not installed")
    weight, _, _ = solution("survival", 1500, 0.5)
    data = MadeTask("survival").load(0)
    time, event = data.y[: data.n_train].astype(np.float64).T
    known = phreg.PHReg(time, data.x[: data.n_train].astype(np.float64), status=event, ties="breslow").fit()
    assert weight[0] == pytest.approx(known.params, abs=1e-4)


# The score of a predictor that knows no features.
TRIVIAL = {
    "classification": ("auc", 0.5),
    "regression": ("r2", 0.0),
    "multilabel": ("auc", 0.5),
    "survival": ("c_index", 0.5),
}
REFUSED = {(algorithm, task) for algorithm in ("fedir", "fedfa") for task in ("regression", "survival")}
REFUSED |= {("fedir", "multilabel")}
TREES = ("histboost", "treebag", "treecyclic", "centralized_trees", "local_trees")
REFUSED |= {(algorithm, task) for algorithm in TREES for task in ("multilabel", "survival")}
REFUSED |= {("fedproto", task) for task in ("regression", "multilabel", "survival")}


@pytest.mark.slow
@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("algorithm", components("algorithm"))
def test_every_algorithm_beats_the_trivial_predictor_or_refuses_by_name(algorithm, task):
    model = smallest_model(algorithm)
    settings = {"clients": 4, "partition": "iid", "out": False, "runtime": "serial", "model": model}
    settings |= {"rounds": 12 if task == "survival" else 30, "local": {"lr": 0.1, "batch": 16}}
    if (algorithm, task) in REFUSED:
        with pytest.raises(FedarenaError, match=algorithm):
            fa.run(MadeTask(task), algorithm=algorithm, **settings)
        return
    run = fa.run(MadeTask(task), algorithm=algorithm, **settings)
    metric, trivial = TRIVIAL[task]
    measured = run.metrics or run.own_metrics  # without a complete common model
    assert measured[metric] > trivial + 0.05, measured


@pytest.mark.slow
@pytest.mark.parametrize("task", TASKS[1:])
def test_the_bits_do_not_depend_on_workers_or_a_resume(task, tmp_path):
    settings = {"clients": 4, "partition": "iid", "model": "mlp_2nn", "local": {"lr": 0.05, "batch": 16}}
    whole = fa.run(MadeTask(task), rounds=4, runtime="serial", out=tmp_path / "whole", **settings)
    two = fa.run(MadeTask(task), rounds=4, runtime="processes", workers=2, out=False, **settings)
    assert two.weights_sha256 == whole.weights_sha256
    fa.run(MadeTask(task), rounds=2, runtime="serial", out=tmp_path / "part", **settings)
    more = fa.run(MadeTask(task), rounds=4, runtime="serial", resume=tmp_path / "part", **settings)
    assert more.weights_sha256 == whole.weights_sha256
    assert more.metrics == whole.metrics


@pytest.mark.parametrize(
    ("task", "keys", "message"),
    [
        ("regression", {"evaluate": {"metric": "accuracy"}}, "'accuracy' does not exist for the task 'regression'"),
        ("survival", {"loss": "squared"}, "for the task 'regression', not for 'survival'"),
        ("regression", {"algorithm": "fedir"}, "class"),
        ("regression", {"evaluate": {"positive": "1"}}, "two classes"),
    ],
)
def test_what_a_task_cannot_do_is_refused_by_name(task, keys, message):
    with pytest.raises(FedarenaError, match=message):
        fa.run(MadeTask(task), rounds=1, out=False, runtime="serial", **keys)


def test_labels_are_compared_in_their_own_units():
    """The loss is that of standardised labels, the metrics are those of the labels."""
    run = fa.run(MadeTask("regression"), rounds=2, clients=2, model="logreg", out=False, runtime="serial")
    data = MadeTask("regression").load(0)
    deviation = data.y[: data.n_train].astype(np.float64).std()
    assert run.metrics["rmse"] == pytest.approx(deviation * np.sqrt(run.metrics["loss"]), rel=1e-6)


class Weighted(MadeTask):
    """The same samples, each with a weight of 0, 1 or 2."""

    def load(self, seed: int) -> Dataset:
        data = super().load(seed)
        return replace(data, weight=np.random.default_rng(3).integers(0, 3, len(data.x)).astype(np.float32))


@pytest.mark.slow
def test_weighted_samples_give_the_weighted_solution_of_scikit_learn():
    from sklearn.linear_model import LinearRegression

    settings = {**ONE_CLIENT, "rounds": 300, "local": {**FULL_BATCH, "lr": 0.1}, "evaluate": {"every": 300}}
    data = Weighted("regression").load(0)
    train = slice(0, data.n_train)
    labels = data.y[train].astype(np.float64)
    known = LinearRegression().fit(data.x[train].astype(np.float64), labels, data.weight[train])
    for dtype, tolerance in (("float64", 1e-4), ("float32", 2e-3)):  # autograd and the kernels
        run = fa.run(Weighted("regression"), **{**settings, "dtype": dtype})
        weight = next(run.state[name].numpy() for name in run.state if "weight" in name)
        assert weight[0] * labels.std() == pytest.approx(known.coef_, abs=tolerance), dtype


@pytest.mark.parametrize("algorithm", ["fedavg", "fsvrg", "fedsgd"])
def test_both_paths_weigh_samples_alike(algorithm):
    keys = {"rounds": 2, "clients": 2, "partition": "iid", "model": "logreg", "out": False, "runtime": "serial"}
    fast, plain = (
        fa.run(Weighted("classification"), algorithm=algorithm, fast=fast, local={"batch": 16, "lr": 0.1}, **keys)
        for fast in (True, False)
    )
    for name, value in fast.state.items():
        assert value.numpy() == pytest.approx(plain.state[name].numpy(), abs=1e-5)
    unweighted = fa.run(MadeTask("classification"), algorithm=algorithm, local={"batch": 16, "lr": 0.1}, **keys)
    assert fast.weights_sha256 != unweighted.weights_sha256
