"""Centralized training and local training only (docs/reference/algorithms.md#centralized-training)."""

import numpy as np
import pytest
from tests.algorithms.test_fedavg import on_blobs, on_quadratics, weights

import fedarena as fa


def test_local_with_one_client_is_fedavg() -> None:
    alone = on_blobs("local", clients=1, dtype="float64")
    together = on_blobs("fedavg", clients=1, dtype="float64")
    assert alone.final.accuracy == together.final.accuracy
    assert alone.final.loss == pytest.approx(together.final.loss, abs=1e-10)


@pytest.mark.slow
def test_local_clients_reach_their_own_optima() -> None:
    """Each client's own model goes to its own centre; the server's model never moves."""
    from fedarena.algorithms import LocalOnly

    last = {}

    class Spy(LocalOnly):
        def client(self, got, kept, work):  # type: ignore[no-untyped-def]
            reply = super().client(got, kept, work)
            last[work.client] = reply.keep
            return reply

    server = on_quadratics([5, 5, 5], algorithm=Spy(), rounds=200, local={"lr": 0.3, "batch": float("inf")})
    assert np.array_equal(server, np.zeros(2))
    from tests.algorithms.test_fedavg import CENTRES

    for k in range(3):
        np.testing.assert_allclose(last[k], CENTRES[k], atol=1e-10)


def test_local_accuracy_is_the_mean_weighted_by_rows() -> None:
    """Recomputed from the clients' own models by hand."""
    from fedarena.algorithms import LocalOnly
    from fedarena.engine.setup import open_context

    models = {}

    class Spy(LocalOnly):
        def client(self, got, kept, work):  # type: ignore[no-untyped-def]
            reply = super().client(got, kept, work)
            models[work.client] = reply.keep
            return reply

    run = on_blobs(Spy(), partition={"name": "quantity_dirichlet", "beta": 0.5}, rounds=2)
    context = open_context(run.experiment)
    n = context.owners.sizes
    on_test, on_own = [], []
    for k, w in sorted(models.items()):
        context.task.load(w)
        right = context.evaluate(context.owners.test).right
        on_test.append(right.mean())
        own = np.searchsorted(context.owners.test, context.owners.client_tests[k])
        on_own.append(right[own].mean() if len(own) else np.nan)
    assert run.final.accuracy == pytest.approx((n * on_test).sum() / n.sum())
    tested = ~np.isnan(on_own)
    expected = (n * np.nan_to_num(on_own))[tested].sum() / n[tested].sum()
    assert run.final.weighted_accuracy == pytest.approx(expected)


def test_baselines_send_nothing() -> None:
    for name in ("centralized", "local"):
        last = on_blobs(name).records[-1]
        assert (last.uploads, last.bytes_up, last.bytes_down) == (0, 0, 0)


def test_centralized_keeps_its_momentum_between_rounds() -> None:
    """Three rounds of one epoch are one round of three epochs, momentum and decay included (shuffles off)."""
    local = {"lr": 0.1, "batch": 8, "momentum": 0.9, "decay": 0.01, "shuffle": False}
    three = on_blobs("centralized", rounds=3, local={**local, "epochs": 1}, dtype="float64")
    one = on_blobs("centralized", rounds=1, local={**local, "epochs": 3}, dtype="float64")
    assert np.array_equal(weights(three), weights(one))


def test_patience_ends_a_run_that_no_longer_improves() -> None:
    run = on_blobs("centralized", rounds=200, evaluate={"patience": 5})
    assert run.final.round < 200
    assert run.final.round == run.best.round + 5


def test_federated_bytes_are_a_model_each_way() -> None:
    """Algorithms 0.7: one model down and one up a participant and round, and eight bytes for n_k."""
    run = on_blobs("fedavg", rounds=3)
    model = 4 * sum(v.numel() for v in run.state.values())
    assert run.records[-1].bytes_down == 3 * 4 * model
    assert run.records[-1].bytes_up == 3 * 4 * (model + 8)
    assert run.records[-1].uploads == 12
    assert isinstance(run, fa.Run)
