"""Differential privacy of single records: what training does, what it costs, what is refused and what is called nothing."""

from __future__ import annotations

import math
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.algorithms.test_fedavg import on_blobs, weights
from tests.support.federations import blobs

import fedarena as fa
from fedarena.algorithms.base import Anchor
from fedarena.config.errors import BadValue
from fedarena.config.experiment import Experiment
from fedarena.config.registry import components
from fedarena.engine.client import ClientState, ClientWork
from fedarena.engine.record import TIMES
from fedarena.engine.setup import open_context
from fedarena.models.private_task import PrivateTask
from fedarena.privacy.accountant import promise, record_epsilon, usual_record_delta

dp = pytest.importorskip("dp_accounting")

LOCAL = {"lr": 0.1, "epochs": 2, "batch": 8}
PRIVATE = {**LOCAL, "privacy": {"clip": 0.5, "noise": 1.1}}
OFF = {"clip": math.inf, "noise": 0.0}


def private_blobs(algorithm: Any = "fedavg", **settings: Any) -> fa.Run:
    return on_blobs(algorithm, **{"local": PRIVATE, **settings})


def accountant_epsilon(q: float, noise: float, steps: int, delta: float) -> float:
    """Return what dp-accounting computes for so many steps, each composed by itself."""
    accountant = dp.rdp.RdpAccountant(neighboring_relation=dp.NeighboringRelation.REPLACE_SPECIAL)
    accountant.compose(dp.PoissonSampledDpEvent(q, dp.GaussianDpEvent(noise)), steps)
    return float(accountant.get_epsilon(delta))


# Training


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["fedavg", "scaffold", {"name": "fedprox", "mu": 0.5}, "feddyn"])
def test_without_clip_and_noise_a_full_batch_is_plain_sgd(algorithm: Any) -> None:
    """q = 1: every sample is in every batch, and corrections, weight decay and momentum are those of plain training."""
    local = {**LOCAL, "epochs": 3, "batch": math.inf, "momentum": 0.5, "weight_decay": 0.01}
    plain = on_blobs(algorithm, local=local, dtype="float64")
    private = on_blobs(algorithm, local={**local, "privacy": OFF}, dtype="float64")
    assert np.allclose(weights(private), weights(plain), rtol=1e-10, atol=1e-12)
    assert private.record_epsilon is None
    assert "nothing bounds what the model reveals about a record" in private.notes[-1]


@pytest.mark.slow
def test_batches_are_poisson_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sizes are binomial: their mean over S steps deviates by sqrt(n q (1 - q) / S), their variance by about sqrt(2 / S)."""
    sizes: list[int] = []
    whole = PrivateTask.clipped_sum
    monkeypatch.setattr(PrivateTask, "clipped_sum", lambda self, x, y: (sizes.append(len(y)), whole(self, x, y))[1])
    run = private_blobs(clients=1, rounds=25, evaluate={"every": 25})
    n, (q, steps) = int(run.client_sizes[0]), (8 / run.client_sizes[0], len(sizes))
    assert steps == run.final.steps == 25 * 2 * math.ceil(n / 8)
    variance = n * q * (1 - q)
    assert abs(np.mean(sizes) - n * q) < 5 * math.sqrt(variance / steps)
    assert abs(np.var(sizes) / variance - 1) < 5 * math.sqrt(2 / steps + 1 / (variance * steps))


def test_the_noise_of_a_step_is_that_of_the_settings() -> None:
    """Beside noise of 10^6 clips a gradient does not count: one step is lr x noise x clip / batch times normal numbers."""
    local = {"lr": 0.5, "epochs": 1, "batch": math.inf, "privacy": {"clip": 0.1, "noise": 1e6}}
    settings = {"clients": 1, "partition": "iid", "model": "mlp_2nn", "local": local, "rounds": 1}
    context = open_context(Experiment.make(blobs(), **settings))
    work = ClientWork(context, 0, 0, ClientState())
    change = (work.train(context.initial).w - context.initial).astype(np.float64)
    sigma = 0.5 * 1e6 * 0.1 / work.rows
    assert abs(change.var() / sigma**2 - 1) < 5 * math.sqrt(2 / len(change))


@pytest.mark.slow
def test_every_training_has_batches_and_noise_of_its_own_and_a_secret_changes_them() -> None:
    context = open_context(Experiment.make(blobs(), clients=2, partition="iid", model="logreg", local=PRIVATE))

    def trained(client: int = 0, round: int = 0, exchange: int = 0) -> bytes:
        work = ClientWork(context, client, round, ClientState(), exchange=exchange)
        return bytes(work.train(context.initial).w.data)

    keys = [{}, {"client": 1}, {"round": 1}, {"exchange": 1}]
    assert len({trained(**key) for key in keys}) == len(keys)
    known = trained()
    assert trained() == known
    context.noise_seed = 2**70 + 1
    assert trained() != known


@pytest.mark.slow
def test_small_clients_have_empty_batches() -> None:
    """With one record and q = 1 / 1 all batches have it; with q = 1 / n many are empty, and training goes on."""
    run = private_blobs(local={**PRIVATE, "batch": 1}, clients=10)
    assert np.isfinite(weights(run)).all()


def facts(run: fa.Run) -> list[Any]:
    """Return everything that a run records except times."""
    records = [{k: v for k, v in vars(record).items() if k not in TIMES} for record in run.records]
    assert run.record_epsilons is not None
    return [run.weights_sha256, records, run.record_epsilons.tolist(), run.notes]


BITS = {"clients": 6, "rounds": 4, "share": 0.5, "dropouts": 0.2, "local": {**PRIVATE, "momentum": 0.9}, "seed": 3}


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["scaffold", "fedbuff"])
def test_bits_do_not_depend_on_workers_or_on_a_resume(algorithm: str, tmp_path: Path) -> None:
    settings = {**BITS, "model": "logreg", "algorithm": algorithm}
    serial = facts(fa.run("digits", **settings, out=False, runtime="serial"))
    assert facts(fa.run("digits", **settings, out=False, runtime="processes", workers=3)) == serial
    fa.run("digits", **{**settings, "rounds": 2}, out=tmp_path / "r", runtime="serial")
    resumed = fa.run("digits", **settings, resume=tmp_path / "r", runtime="serial")
    assert facts(resumed) == serial == facts(fa.load(tmp_path / "r"))
    assert fa.verify(tmp_path / "r", runtime="serial").same


@pytest.mark.slow
def test_models_that_are_mapped_over_samples_have_the_same_bits_in_all_workers() -> None:
    """The first training of a process tries to map the model; with dropout, that must leave no trace."""
    model = {"name": "cnnnet", "norm": "gn", "dropout": 0.25}
    settings = {"clients": 4, "rounds": 2, "model": model, "local": {**PRIVATE, "batch": 32, "epochs": 1}}
    serial = facts(fa.run("digits", **settings, out=False, runtime="serial"))
    assert facts(fa.run("digits", **settings, out=False, runtime="processes", workers=2)) == serial


# Epsilon


@pytest.mark.slow
@pytest.mark.parametrize(
    ("q", "noise", "steps", "delta"), [(0.01, 1.0, 1000, 1e-5), (0.3, 2.0, 40, 1e-3), (1.0, 5.0, 7, 1e-4)]
)
def test_epsilon_is_that_of_dp_accounting(q: float, noise: float, steps: int, delta: float) -> None:
    assert record_epsilon(q, noise, steps, delta) == pytest.approx(accountant_epsilon(q, noise, steps, delta), abs=1e-6)
    assert record_epsilon(q, noise, 0, delta) == 0


@pytest.mark.slow
def test_each_client_pays_for_its_own_steps_and_the_run_for_the_most() -> None:
    """Clients of 200, 60 and 6 records: q = batch / n_k, at most 1, and rounds x epochs x ceil(n_k / batch) steps."""
    rng = np.random.default_rng(0)
    sizes = [200, 60, 6]
    x, y = rng.standard_normal((266, 4)).astype(np.float32), rng.integers(0, 2, 266)
    owners = np.repeat(np.arange(3), sizes)
    local = {**PRIVATE, "privacy": {"clip": 1.0, "noise": 1.5, "delta": 1e-3}}
    run = fa.run(
        (x, y, owners), model="logreg", partition="natural", rounds=2, local=local, out=False, runtime="serial"
    )
    expected = [accountant_epsilon(min(8 / n, 1), 1.5, 2 * 2 * math.ceil(n / 8), 1e-3) for n in run.client_sizes]
    assert run.record_epsilons == pytest.approx(expected, abs=1e-6)
    assert run.record_epsilon == pytest.approx(max(expected), abs=1e-6)
    assert [record.record_epsilon for record in run.records] == sorted(record.record_epsilon for record in run.records)
    assert run.records[0].train_loss is None


@pytest.mark.slow
def test_only_rounds_with_an_answer_count(tmp_path: Path) -> None:
    run = private_blobs(clients=5, per_round=1, rounds=3)
    assert run.record_epsilons is not None
    assert np.count_nonzero(run.record_epsilons) <= 3
    assert run.record_epsilon == run.record_epsilons.max()
    everyone = private_blobs("centralized", clients=5, rounds=3)
    assert len({*everyone.record_epsilons.tolist()}) == 1  # one training on the records of all


def test_delta_is_below_one_over_the_number_of_records() -> None:
    assert usual_record_delta(100) == 1e-5
    assert usual_record_delta(10**6) == pytest.approx(10**-6.6)
    assert all(usual_record_delta(n) * n <= 1 for n in (1, 10, 10**5, 10**9))


@pytest.mark.slow
def test_it_is_in_every_result_beside_the_epsilon_of_clients(tmp_path: Path) -> None:
    uplink = {"clip": 1.0, "noise": 8.0, "delta": 0.05}
    settings = {"model": "logreg", "clients": 10, "rounds": 2, "local": PRIVATE, "uplink": uplink}
    run = fa.run("digits", **settings, out=tmp_path / "r", runtime="serial")
    summary = run.summary()
    assert (summary["record_epsilon"], summary["record_delta"]) == (run.record_epsilon, 1e-5)
    assert (summary["epsilon"], summary["delta"]) == (run.epsilon, 0.05)
    assert f"epsilon of a record {run.record_epsilon:.3g} at delta 1e-05" in str(run)
    loaded = fa.load(tmp_path / "r")
    assert loaded.summary()["record_epsilon"] == run.record_epsilon
    assert loaded.record_epsilons.tolist() == run.record_epsilons.tolist() == loaded.clients["record_epsilon"].tolist()
    page = fa.report(run).read_text()
    assert "epsilon of a record" in page
    assert "gradients of single samples clipped to 0.5, noise 1.1" in page


# A guarantee that promises nothing


def test_promises() -> None:
    assert promise(10.0, 1e-5, "record", 100_000) == ""
    assert promise(10.1, 1e-5, "record", 100).endswith("about a record: epsilon is above 10")
    assert promise(1.0, 0.3, "client", 4).endswith(": delta is above 0.01, delta is above 1 / 4, the number of clients")
    assert promise(1.0, 0.002, "client", 1000).endswith("about a client: delta is above 1 / 1000, the number of clients")
    assert promise(11.0, 0.3, "client", 4).count("is above ") == 3
    assert promise(3.3, 200**-1.1, "client", 200) == ""  # the default delta of 200 clients


def test_four_clients_are_called_nothing_after_one_round() -> None:
    """Epsilon stays below 10, but delta = 4^-1.1 = 0.218 is above 0.01: publishing everything with that chance obeys it."""
    run = on_blobs("fedavg", clients=4, rounds=1, uplink={"clip": 1.0, "noise": 1.0})
    assert run.epsilon is not None
    assert run.epsilon < 10
    assert run.notes[-1].endswith("promises nothing about a client: delta is above 0.01")
    assert "promises nothing" in str(run)


def test_a_sound_guarantee_is_not_called_nothing() -> None:
    run = on_blobs("fedavg", clients=4, rounds=1, uplink={"clip": 1.0, "noise": 3.0, "delta": 0.001})
    assert run.epsilon is not None
    assert run.epsilon < 2
    assert "promises nothing" not in str(run) + " ".join(run.notes)


def heart_disease(**settings: Any) -> fa.Run:
    try:
        return fa.run("heart_disease", **settings)
    except fa.DataMissing as error:
        pytest.skip(str(error))


@pytest.mark.slow
def test_four_hospitals_cannot_hide_one_of_them(tmp_path: Path) -> None:
    run = heart_disease(uplink={"clip": 1.0, "noise": 1.0}, out=tmp_path / "r", runtime="serial")
    assert "promises nothing about a client: epsilon is above 10" in run.notes[-1]
    assert "promises nothing" in str(run)
    page = fa.report(run, tmp_path / "page.html").read_text()
    assert "(promises nothing)" in page
    assert "promises nothing about a client: epsilon is above 10" in page


@pytest.mark.slow
def test_the_table_of_four_hospitals_calls_it_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    from fedarena.reports.terminal_tables import show_comparison

    settings = {"clients": 4, "rounds": 2, "model": "logreg", "seeds": 2, "out": False, "workers": 1, "baseline": False}
    found = fa.compare("digits", ["fedavg", "fedprox"], uplink={"clip": 1.0, "noise": 1.0}, **settings)
    show_comparison(found)
    assert "!: promises nothing, because epsilon is above 10, or delta above 0.01 or 1 / n" in capsys.readouterr().out
    assert all(row["empty_promises"] == ["epsilon"] and row["epsilon"] < 10 for row in found.rows())


@pytest.mark.slow
def test_a_comparison_calls_it_nothing_for_records_too(capsys: pytest.CaptureFixture[str]) -> None:
    from fedarena.reports.terminal_tables import show_comparison

    local = {**PRIVATE, "privacy": {"clip": 1.0, "noise": 0.3}}
    settings = {"clients": 4, "rounds": 2, "model": "logreg", "seeds": 2, "out": False, "workers": 1}
    found = fa.compare("digits", ["fedavg", "fedprox"], local=local, **settings)
    show_comparison(found)
    shown = capsys.readouterr().out
    assert "record eps" in shown
    assert " !" in shown
    assert "!: promises nothing, because epsilon is above 10" in shown
    assert all(row["empty_promises"] == ["record_epsilon"] for row in found.rows())


# What is refused

REFUSED = {
    "fedsgd": "the gradient over all samples",
    "fsvrg": "the gradient over all samples",
    "fedpage": "gradients outside of local SGD",
    **dict.fromkeys(("loadaboost", "qfedavg", "afl"), "the training loss of each client"),
    "fedfa": "the training accuracy of each client",
    "fedir": "the class counts of each client",
    "fedvc": "drawn before its training",
    "finetune": "a training at every evaluation",
    **dict.fromkeys(("histboost", "treebag", "treecyclic", "centralized_trees", "local_trees"), "sums of gradients"),
    "ditto": "a second training on the same samples",
    "apfl": "gradients at several models",
    "pfedme": "gradients at several models",
    "perfedavg": "gradients at several models",
    "moon": "a loss of its own",
    "fedproto": "the mean representation of the samples of each class",
    "ifca": "the training loss of each client",
}


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [n for n, e in components("algorithm").items() if e.make.__module__.startswith("fedarena")]
)
def test_every_algorithm_trains_or_is_refused_by_name(name: str) -> None:
    if name in REFUSED:
        with pytest.raises(BadValue, match=f"{name} uses .*{REFUSED[name]}.*local.privacy does not protect"):
            private_blobs(name)
        return
    run = private_blobs(name)
    assert np.isfinite(weights(run)).all()
    assert run.record_epsilon > 0
    assert all(record.train_loss is None for record in run.records)
    assert run.weights_sha256 != on_blobs(name).weights_sha256


@pytest.mark.parametrize(
    ("algorithm", "why"),
    [
        ({"name": "scaffold", "option": "i"}, "the gradient over all samples"),
        ({"name": "fedprox", "schedule": "adaptive"}, "the training loss"),
        ({"name": "fedavg", "with": ["fedir"]}, "the class counts"),
        ({"name": "fedavg", "with": [{"name": "fedvc", "n_vc": 8}]}, "drawn before its training"),
    ],
)
def test_settings_and_companions_are_refused_too(algorithm: Any, why: str) -> None:
    with pytest.raises(BadValue, match=why):
        private_blobs(algorithm)


@dataclass(frozen=True)
class Undeclared(fa.FedAvg):
    """An algorithm that says nothing of what else it uses."""

    what: str = "gradient"

    def client(self, message: Any, client_state: Any, work: Any) -> Any:
        uses = {
            "gradient": lambda: work.gradient(message.w),
            "evaluate": lambda: work.evaluate(message.w),
            "classes": lambda: work.class_counts,
            "features": lambda: work.feature_counts,
            "draw": lambda: work.draw(4),
            "batch": lambda: work.train(message.w, batch=1),
            "anchor": lambda: work.train(message.w, adjust=Anchor(message.w, message.w)),
        }
        uses[self.what]()
        return super().client(message, client_state, work)


@pytest.mark.parametrize("what", ["gradient", "evaluate", "classes", "features", "draw", "batch", "anchor"])
def test_an_algorithm_that_does_not_declare_it_is_stopped(what: str) -> None:
    with pytest.raises(BadValue, match=r"uses .* which local.privacy does not protect"):
        private_blobs(Undeclared(what=what), on_error="drop")


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"model": {"name": "cnnnet", "norm": "bn"}}, "BatchNorm mixes the samples of a batch"),
        ({"evaluate": {"on": "train"}}, "how well the model fits training samples"),
        ({"compile": True, "model": {"name": "cnnnet"}}, "torch.compile is for whole batches"),
    ],
)
def test_models_and_settings_that_would_reveal_more_are_refused(settings: dict[str, Any], why: str) -> None:
    with pytest.raises(BadValue, match=why):
        fa.run("digits", **{"model": "logreg", "local": PRIVATE, **settings}, out=False)


@pytest.mark.parametrize(
    ("override", "why"),
    [
        ("local.privacy=3", "a table with a clip and a noise"),
        ("local.privacy.clip=1", "a table with a clip and a noise"),
        ("local.privacy={clip=1,noise=1,nois=2}", "did you mean 'noise'"),
        ("local.privacy={clip=inf,noise=1}", "only if its gradient is bounded"),
        ("local.privacy={clip=1,noise=-1}", "greater than or equal to 0"),
    ],
)
def test_bad_settings_are_named(override: str, why: str) -> None:
    with pytest.raises(fa.FedarenaError, match=why) as caught:
        Experiment.make("digits", [override])
    assert caught.value.where.startswith("local.privacy")


def test_settings_are_written_and_read_back() -> None:
    made = Experiment.make("digits", ["local.privacy.clip=1", "local.privacy.noise=1.1"])
    assert (made.local.privacy.clip, made.local.privacy.noise) == (1.0, 1.1)
    assert Experiment.make(tomllib.loads(made.to_toml())) == made
    assert made.with_(**{"local.privacy": "none"}) == Experiment.make("digits")
    assert "privacy" not in Experiment.make("digits").to_toml()
