"""Participation, dropouts, failures, budgets, stopping, buffers."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.algorithms.test_fedavg import on_blobs, small_net, weights
from tests.support.federations import blobs
from torch import nn

import fedarena as fa
from fedarena.algorithms.base import Reply, Step
from fedarena.algorithms.tree_algorithm import TreeAlgorithm
from fedarena.config.errors import ClientFailed, ResumeMismatch
from fedarena.config.experiment import Experiment
from fedarena.config.registry import components
from fedarena.engine.stopping import participants
from fedarena.engine.tasks import in_order
from fedarena.statistics.fairness import fairness, weighted_accuracy


class Recorder(fa.FedAvg):
    """FedAvg that can misbehave."""

    log: list[tuple[int, int]]
    bad: tuple[int, ...] = ()

    def client(self, got: Any, kept: Any, work: Any) -> Reply:
        type(self).log.append((work.round, work.client))
        reply = super().client(got, kept, work)
        if work.client in type(self).bad:
            return Reply(Step(reply.send.delta * np.nan), weight=work.rows)
        return reply


def recorder(*bad: int) -> tuple[Recorder, list[tuple[int, int]]]:
    log: list[tuple[int, int]] = []
    return type("Recording", (Recorder,), {"log": log, "bad": bad})(), log


def test_share_is_floored_in_decimal_not_in_binary() -> None:
    """floor(0.57 * 100) is 56 in binary floats; the epsilon makes it 57 (docs/reference/algorithms.md#symbols)."""
    exp = Experiment.make("digits", share=0.57)
    assert participants(exp, 100) == 57
    assert participants(exp, 1) == 1
    assert participants(Experiment.make("digits", per_round=7), 100) == 7


def test_selection_is_without_replacement_and_the_same_for_all_algorithms() -> None:
    a, log = recorder()
    on_blobs(a, clients=10, share=0.4, rounds=6)
    by_round = [{k for t, k in log if t == r} for r in range(6)]
    assert all(len(s) == 4 for s in by_round)
    assert len({frozenset(s) for s in by_round}) > 1
    b, other = recorder()
    on_blobs(b, clients=10, share=0.4, rounds=6, local={"lr": 0.01, "epochs": 1})
    assert other == log


def test_clients_without_rows_do_not_count() -> None:
    x, y = blobs(60)
    from fedarena.data.dataset import Partition

    class OneEmpty:
        def split(self, data: Any, clients: int, rng: Any) -> Partition:
            rows = np.arange(data.n_train)
            return Partition([rows[:20], rows[:0], rows[20:]], data.test_rows)

    a, log = recorder()
    run = fa.run((x, y), model=small_net, partition=OneEmpty(), clients=3, share=1.0, rounds=2, algorithm=a,
                 out=False, runtime="serial")  # fmt: skip
    assert {k for _, k in log} == {0, 2}
    assert run.records[-1].selected == 2


def test_dropouts_never_answer_and_are_counted() -> None:
    run = on_blobs(clients=20, dropouts=0.3, rounds=10)
    dropped = sum(r.dropped for r in run.records)
    assert 30 < dropped < 90  # 200 coins of 0.3: 60 +- 4.6 sigma
    assert run.records[-1].uploads == 200 - dropped
    model = 4 * sum(v.numel() for v in run.state.values())
    assert run.records[-1].bytes_down == 200 * model  # they received the model and did not answer


def test_a_round_without_answers_changes_nothing_but_counts() -> None:
    run = on_blobs(dropouts=1 - 1e-12, rounds=3)
    assert [r.answered for r in run.records] == [0, 0, 0]
    assert run.records[-1].uploads == 0
    assert run.weights_sha256 == on_blobs(dropouts=1 - 1e-12, rounds=1).weights_sha256


def test_a_non_finite_update_is_left_out_and_the_rest_renormalised() -> None:
    bad, _ = recorder(1)
    run = on_blobs(bad, rounds=1)
    assert run.records[0].dropped == 1
    assert run.records[0].uploads == 4  # it did arrive
    assert np.isfinite(weights(run)).all()
    assert run.notes == ("1 updates were not finite and left out, the first: client 1 in round 1",)
    good, _ = recorder()
    assert run.weights_sha256 != on_blobs(good, rounds=1).weights_sha256


def test_on_nan_raise_and_keep() -> None:
    bad, _ = recorder(1)
    with pytest.raises(ClientFailed, match="client 1 in round 1 sent a non-finite update"):
        on_blobs(bad, on_nan="raise")
    assert np.isnan(weights(on_blobs(bad, rounds=1, on_nan="keep"))).all()


def test_a_failing_client_stops_the_run_with_its_name_unless_dropouts_are_allowed() -> None:
    class Failing(fa.FedAvg):
        def client(self, got: Any, kept: Any, work: Any) -> Reply:
            if work.client == 2 and work.round == 1:
                raise RuntimeError("the battery is empty")
            return super().client(got, kept, work)

    with pytest.raises(ClientFailed, match="client 2 in round 2 failed: RuntimeError: the battery is empty"):
        on_blobs(Failing())
    run = on_blobs(Failing(), on_error="drop")
    assert [r.dropped for r in run.records] == [0, 1, 0]


def test_an_upload_budget_ends_the_run() -> None:
    run = on_blobs(clients=10, share=0.5, rounds=None, uploads=23)
    assert [r.uploads for r in run.records] == [5, 10, 15, 20]
    assert on_blobs("centralized", clients=10, share=0.5, rounds=None, uploads=23).final.round == 5


def test_results_beyond_the_budget_do_not_count() -> None:
    """10 clients, 3 a round, 25 uploads: FSVRG sends 20 in a round, SCAFFOLD 6, FedAvg 3; none may go on to 26."""
    ends = {name: on_blobs(name, clients=10, share=0.3, rounds=None, uploads=25).final.uploads for name in
            ("fsvrg", "scaffold", "fedavg", "coop")}  # fmt: skip
    assert ends == {"fsvrg": 20, "scaffold": 24, "fedavg": 24, "coop": 24}


def test_a_budget_below_one_round_gives_one_round() -> None:
    assert on_blobs(clients=10, rounds=None, uploads=3).final.uploads == 10


def test_troubles_are_counted_across_a_resume(tmp_path: Path) -> None:
    """What a user should know at the end does not depend on whether the run was stopped in between."""
    settings = {"clients": 4, "local": {"lr": 1e30}, "model": small_net, "partition": "iid", "runtime": "serial"}
    whole = fa.run(blobs(), rounds=4, out=False, **settings)
    fa.run(blobs(), rounds=4, out=tmp_path / "r", on_round=lambda r: r.round == 2, **settings)
    resumed = fa.run(blobs(), rounds=4, resume=tmp_path / "r", **settings)
    assert resumed.notes == whole.notes
    assert any("16 updates were not finite" in note for note in whole.notes)


def test_a_run_of_an_older_version_resumes(tmp_path: Path) -> None:
    """A setting that it does not know, for there was none, has the value it has where nothing is said; no other."""
    settings: dict[str, Any] = {"clients": 4, "model": small_net, "partition": "iid", "runtime": "serial", "rounds": 4}
    fa.run(blobs(), out=tmp_path / "r", on_round=lambda r: r.round == 2, **settings)
    file = tmp_path / "r" / "experiment.toml"
    assert "decay_form" in file.read_text()
    newer = ("decay_form", "sha256")  # the key, and the hash of the file, which older versions did not write either
    lines = file.read_text().splitlines(keepends=True)
    file.write_text("".join(line for line in lines if not any(word in line for word in newer)))
    with pytest.raises(ResumeMismatch, match="decay_form is inverse, not geometric"):
        fa.run(blobs(), resume=tmp_path / "r", **settings, local={"decay_form": "geometric"})
    resumed = fa.run(blobs(), resume=tmp_path / "r", **settings)
    assert np.array_equal(weights(resumed), weights(fa.run(blobs(), out=False, **settings)))


def test_evaluation_every_k_rounds_and_at_the_end() -> None:
    run = on_blobs(rounds=7, evaluate={"every": 3})
    assert [r.round for r in run.evaluations] == [3, 6, 7]
    assert [r.round for r in run.records] == list(range(1, 8))


def test_stop_at_target() -> None:
    run = on_blobs(rounds=50, evaluate={"target": 0.7, "stop_at_target": True})
    assert run.final.accuracy >= 0.7
    assert all(r.accuracy < 0.7 for r in run.records[:-1])
    longer = on_blobs(rounds=50, evaluate={"target": 0.7, "stop_at_target": True, "after_target": 3})
    assert longer.final.round == run.final.round + 3


def test_on_round_may_stop() -> None:
    run = on_blobs(rounds=50, evaluate={"every": 10}, on_round=lambda r: r.round == 4)
    assert run.final.round == 4
    assert run.final.accuracy is not None


@pytest.mark.slow
@given(st.permutations(list(range(12))))
def test_results_come_in_order(order: list[int]) -> None:
    assert list(in_order((i, -i) for i in order)) == [-i for i in range(12)]


# Buffers of BatchNorm (docs/reference/algorithms.md#batchnorm-statistics)


def images(rows: int = 60) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    return rng.random((rows, 1, 8, 8)).astype(np.float32) * 3 + 5, rng.integers(0, 3, rows)


def with_batchnorm(policy: str, **settings: Any) -> fa.Run:
    net = lambda: nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 3))
    defaults = {"clients": 3, "partition": "iid", "rounds": 2, "local": {"lr": 0.01, "batch": 10}}
    return fa.run(images(), model=net, bn_buffers=policy, out=False, runtime="serial", **{**defaults, **settings})


def test_server_and_local_buffers_stay_as_they_began() -> None:
    for policy in ("server", "local"):
        state = with_batchnorm(policy).state
        assert state["1.running_mean"].tolist() == [0.0] * 4
        assert state["1.running_var"].tolist() == [1.0] * 4


def test_local_buffers_are_judged_as_each_client_has_them() -> None:
    """The common weights with each client's own statistics: the mean over clients, weighted by rows."""
    run = with_batchnorm("local")
    server = with_batchnorm("server")
    assert run.weights_sha256 == server.weights_sha256
    assert run.final.loss != server.final.loss


def test_averaged_buffers_are_the_mean_by_rows_and_counters_the_largest() -> None:
    """lr ~ 0: every client sees the same convolution; after one batch running = 0.9 * initial + 0.1 * batch."""
    run = with_batchnorm("average", rounds=1, local={"lr": 1e-30, "batch": math.inf})
    context = __import__("fedarena.engine.setup", fromlist=["x"]).open_context(run.experiment)
    conv, n = context.task.module[0], context.owners.sizes
    means = [
        conv(context.training_rows(r, None, None)[0]).mean((0, 2, 3)).detach().numpy() for r in context.owners.clients
    ]
    expected = 0.1 * (n[:, None] * np.array(means)).sum(0) / n.sum()
    np.testing.assert_allclose(run.state["1.running_mean"], expected, rtol=1e-5)
    assert run.state["1.num_batches_tracked"] == 1


@pytest.mark.parametrize("bad", [(0,), (1,), (2,), (0, 1, 2)])
def test_statistics_of_a_client_that_is_left_out_do_not_count(bad: tuple[int, ...]) -> None:
    """A client that sends NaN counts nowhere, wherever it stands among the others, and the run goes on."""
    algorithm, _ = recorder(*bad)
    run = with_batchnorm("average", algorithm=algorithm)
    assert [record.non_finite for record in run.records] == [len(bad)] * 2
    assert run.state["1.num_batches_tracked"] == (0 if len(bad) == 3 else 4)  # two batches of ten rows, two rounds
    assert np.isfinite(run.state["1.running_mean"].numpy()).all()


def test_recomputed_buffers_are_the_statistics_of_the_new_model() -> None:
    """A cumulative mean over the client's batches, without the initial 0 and 1 in it."""
    run = with_batchnorm("recompute", rounds=1, local={"lr": 1e-30, "batch": math.inf})
    averaged = with_batchnorm("average", rounds=1, local={"lr": 1e-30, "batch": math.inf})
    np.testing.assert_allclose(run.state["1.running_mean"], averaged.state["1.running_mean"] / 0.1, rtol=1e-4)


def test_buffers_count_as_bytes_only_when_they_travel() -> None:
    sent, kept = with_batchnorm("average").records[-1], with_batchnorm("local").records[-1]
    travelling = 8 * 4 + 8  # four means and four variances in float32, and one counter
    assert sent.bytes_up - kept.bytes_up == 2 * 3 * travelling  # rounds, clients
    assert sent.bytes_down - kept.bytes_down == 2 * 3 * travelling


@pytest.mark.slow
def test_a_single_row_with_batchnorm_over_single_values_is_skipped_and_said() -> None:
    from fedarena.data.dataset import Partition

    class OneRow:
        def split(self, data: Any, clients: int, rng: Any) -> Partition:
            rows = np.arange(data.n_train)
            return Partition([rows[:1], rows[1:]], data.test_rows)

    def net(size: int) -> Any:
        layers = nn.Conv2d(1, 4, size), nn.BatchNorm2d(4), nn.Flatten(), nn.LazyLinear(3)
        return lambda: nn.Sequential(*layers[:3], nn.Linear(4 * (9 - size) ** 2, 3))

    settings = {"partition": OneRow(), "clients": 2, "rounds": 1, "out": False, "runtime": "serial"}
    for fast in (True, False):
        flat = fa.run(images(), model=net(8), fast=fast, **settings)
        assert flat.records[0].answered == 1
        assert any("client 0 cannot take part" in note for note in flat.notes)
        wide = fa.run(images(), model=net(3), fast=fast, **settings)
        assert wide.records[0].answered == 2


# Fairness (docs/reference/metrics.md#fairness)


def test_weighted_accuracy_leaves_out_clients_without_test_rows() -> None:
    own = np.array([0.5, np.nan, 1.0])
    assert weighted_accuracy(own, np.array([10, 1000, 30])) == pytest.approx((10 * 0.5 + 30) / 40)
    assert weighted_accuracy(np.array([np.nan]), np.array([3])) is None


def test_fairness_by_hand() -> None:
    f = fairness(np.array([0.2, 0.4, 0.6, 0.8]))
    assert f["mean"] == pytest.approx(0.5)
    assert f["variance_pp2"] == pytest.approx(500.0)  # (30^2 + 10^2 + 10^2 + 30^2) / 4
    assert f["std"] == pytest.approx(math.sqrt(0.05))
    assert (f["min"], f["worst_tenth"], f["best_tenth"]) == (0.2, 0.2, 0.8)
    assert f["gini"] == pytest.approx(0.25)  # sum |a_i - a_j| / (2 n^2 mean) = 4.0 / (2 * 16 * 0.5)
    assert f["coefficient_of_variation"] == pytest.approx(math.sqrt(0.05) / 0.5)
    shares = np.array([0.1, 0.2, 0.3, 0.4])
    assert f["entropy"] == pytest.approx(-(shares * np.log(shares)).sum())


def test_accuracy_of_every_client_is_its_share_of_right_test_rows() -> None:
    run = on_blobs(clients=3)
    context = __import__("fedarena.engine.setup", fromlist=["x"]).open_context(run.experiment)
    context.task.module.load_state_dict(run.state)
    for k, rows in enumerate(context.owners.client_tests):
        assert run.client_accuracy[k] == pytest.approx(context.evaluate(rows).right.mean())
    assert run.final.accuracy == pytest.approx(context.evaluate(context.owners.test).right.mean())


EVERY = [
    name
    for name, entry in sorted(components("algorithm").items())
    if entry.make.__module__.startswith("fedarena.") and not issubclass(entry.make, TreeAlgorithm)  # trees stay finite
]
EVERY.remove("fsvrg")  # its rate is h / n_k, and the largest h does not diverge here


@pytest.mark.parametrize("algorithm", EVERY)
def test_a_model_that_diverged_is_named_in_the_notes_of_every_algorithm(algorithm: str) -> None:
    """At a rate of 1e38 no update is finite: left out, the model never changes; kept, its loss is not finite."""
    model = "mlp_2nn" if algorithm in ("moon", "fedproto") else "logreg"  # they compare representations
    table: dict[str, Any] = {"data": "digits", "clients": 3, "rounds": 2, "model": model, "algorithm": algorithm}
    allowed = {"feddyn": {"alpha": 1e-39}, "fedprox": {"mu": 0.0}, "fedasync": {"rho": 0.0}}  # lr x mu must be below 2
    allowed |= {"ditto": {"lam": 0.0}, "pfedme": {"lam": 1e-39}}
    far = {"fedpage": {"server_lr": 1e38}}
    table["algorithm"] = {"name": algorithm, **allowed.get(algorithm, {}), **far.get(algorithm, {})}
    settings = {"local": {"lr": 1e38, "epochs": 3}, "out": False, "runtime": "serial"}
    kept = fa.run(table, on_nan="keep", **settings)
    assert kept.diverged
    assert any("diverged" in note for note in kept.notes)
    dropped = fa.run(table, on_nan="drop", **settings)
    never = any("the server's model never changed: no usable answer came" in note for note in dropped.notes)
    answered = any(record.answered for record in dropped.records)
    assert never == (dropped.experiment.algorithm.made.communicates and not answered)
    assert dropped.diverged == any("diverged" in note for note in dropped.notes)
