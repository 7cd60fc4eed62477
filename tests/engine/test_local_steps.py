"""`local.steps`: a number of optimizer steps a round, with batches that continue over rounds
(docs/reference/algorithms.md#local-training)."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.algorithms.test_fedavg import on_blobs, small_net
from tests.engine.test_solver import outcomes, watched
from tests.support.federations import blobs

import fedarena as fa
from fedarena.config.errors import BadValue
from fedarena.config.experiment import Experiment
from fedarena.engine.batch_plan import continued_passes
from fedarena.engine.client import ClientState, ClientWork
from fedarena.engine.setup import open_context
from fedarena.engine.solver import batch_sizes
from fedarena.engine.tasks import client_batch_size

# 240 samples of blobs: 48 for testing, 48 for each of four clients; batches of 8 make 6 steps an epoch.
EPOCH = 6


@pytest.fixture(params=["kernels", "generic"])
def path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Run a test on both fast paths."""
    if request.param == "generic":
        monkeypatch.setenv("FEDARENA_KERNELS", "off")
    return str(request.param)


def steps(count: int, **local: object) -> dict[str, object]:
    return {"lr": 0.1, "batch": 8, "steps": count, **local}


@given(
    st.integers(1, 60), st.integers(1, 20), st.sampled_from(["keep", "drop", "merge_one"]),
    st.lists(st.integers(1, 30), min_size=1, max_size=6),
)  # fmt: skip
def test_rounds_continue_where_the_last_one_ended(rows: int, batch: int, rule: str, rounds: list[int]) -> None:
    """All rounds together have the batches of complete passes one after the other, each place of a pass once."""
    sizes, made, found = batch_sizes(rows, batch, rule), 0, []
    for count in rounds:
        for part in continued_passes(sizes, made, count):
            starts = part.skipped + np.cumsum([0, *part.sizes[:-1]])
            found += [(part.number, int(start), size) for start, size in zip(starts, part.sizes, strict=True)]
        made += count
    starts = [0, *np.cumsum(sizes[:-1]).tolist()]
    every = [(number, start, size) for number in range(made) for start, size in zip(starts, sizes, strict=True)]
    assert found == every[:made]


def test_a_client_without_rows_has_no_passes() -> None:
    assert continued_passes([], 0, 5) == []


def test_steps_of_one_epoch_are_one_epoch(path: str) -> None:
    """Pass p of a client that is always selected has the order of round p."""
    by_epochs = on_blobs(local={"lr": 0.1, "epochs": 1, "batch": 8})
    by_steps = on_blobs(local=steps(EPOCH))
    assert by_steps.weights_sha256 == by_epochs.weights_sha256
    assert by_steps.records[-1].steps == by_epochs.records[-1].steps == 3 * 4 * EPOCH


@pytest.mark.parametrize("count", [4, EPOCH, 7])
def test_two_rounds_are_one_of_twice_the_steps(path: str, count: int) -> None:
    """With one client and plain SGD; the model of `centralized` is not rounded between rounds."""
    settings = {"algorithm": "centralized", "clients": 1}
    two, one = (
        on_blobs(rounds=2, local=steps(count), **settings),
        on_blobs(rounds=1, local=steps(2 * count), **settings),
    )
    assert two.weights_sha256 == one.weights_sha256
    assert two.records[-1].samples == one.records[-1].samples


def test_fedavg_of_one_client_is_centralized() -> None:
    """To rounding: FedAvg sends a difference."""
    one = {"clients": 1, "dtype": "float64", "local": steps(7)}
    ours, pooled = on_blobs(**one), on_blobs(algorithm="centralized", **one)
    for name, w in ours.state.items():
        assert w.numpy() == pytest.approx(pooled.state[name].numpy(), abs=1e-12)


def test_every_sample_is_used_before_one_is_used_again() -> None:
    """Ten rounds of 4 steps: in every window of a pass, each sample occurs once."""
    context = open_context(Experiment.make(blobs(), clients=4, model=small_net, local=steps(4)))
    seen, made = [], 0
    for round in range(10):
        work = ClientWork(context, 2, round, ClientState(steps=made))
        for part in work._plan(work.sizes, None, None)[0]:
            seen += work._order(part)[: sum(part.sizes)].tolist()
        made += 4
    assert len(seen) == 40 * 8
    whole = np.array(seen[: 6 * 48]).reshape(6, 48)
    assert (np.sort(whole) == np.arange(48)).all()
    assert len({tuple(order) for order in whole.tolist()}) == 6  # a new order for every pass


def test_a_client_continues_after_rounds_without_it() -> None:
    """A client that was not selected finds its place: over all its rounds it has made whole passes."""
    run = fa.run(blobs(), model=small_net, clients=4, per_round=1, rounds=12, local=steps(4), out=False)
    assert run.records[-1].steps == 12 * 4
    assert run.records[-1].samples == 12 * 4 * 8  # 48 samples are 6 batches of 8


@pytest.mark.parametrize(
    ("counter", "expected"),
    [("global", range(8)), ("per_client", range(8)), ("round", [0, 0, 0, 0, 1, 1, 1, 1]), ("reset", [0, 1, 2, 3] * 2)],
)
def test_decay_counts_steps(counter: str, expected: list[int]) -> None:
    """25 samples in batches of 10 are three steps a pass; a round has four."""
    sums = [out.lr_sum for out in outcomes(rounds=2, steps=4, decay=0.5, decay_counter=counter)]
    rates = [0.1 / (1 + 0.5 * i) for i in expected]
    assert sums == pytest.approx([sum(rates[:4]), sum(rates[4:])])


@pytest.mark.parametrize("rho", [0.0, 0.9])
def test_effective_steps_follow_the_steps(rho: float) -> None:
    """FedNova's ||a_k||_1 of tau = 4 steps: [tau - rho (1 - rho^tau) / (1 - rho)] / (1 - rho)."""
    for out in outcomes(rounds=2, steps=4, momentum=rho):
        assert out.steps == 4
        assert len(out.losses) == 1
        assert out.effective_steps == pytest.approx((4 - rho * (1 - rho**4) / (1 - rho)) / (1 - rho))


def test_fednova_with_equal_steps_is_fedavg() -> None:
    """Clients of any size make the same number of steps, so that nothing is left to normalise."""
    settings = {"partition": {"name": "quantity_dirichlet", "beta": 0.5}, "local": steps(5), "dtype": "float64"}
    nova, average = on_blobs("fednova", **settings), on_blobs(**settings)
    for name, w in nova.state.items():
        assert w.numpy() == pytest.approx(average.state[name].numpy(), abs=1e-12)


def test_stragglers_make_fewer_steps() -> None:
    """All clients are stragglers with 1 to 9 steps, and a straggler continues after the steps that it made."""
    run = on_blobs({"name": "fedprox", "mu": 0.1, "straggler_fraction": 1.0}, rounds=20, local=steps(9))
    assert 20 * 4 * 4 < run.records[-1].steps < 20 * 4 * 6  # 5 on average


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["fedavg", "scaffold", "fedasync"])
def test_same_bits_for_workers_and_after_resume(algorithm: str, tmp_path: Path) -> None:
    settings = {"data": "digits", "model": "logreg", "algorithm": algorithm, "clients": 5, "share": 0.6, "rounds": 4,
                "local": steps(7), "dropouts": 0.2}  # fmt: skip
    whole = fa.run(settings, out=False, runtime="serial")
    parallel = fa.run(settings, out=False, runtime="processes", workers=2)
    fa.run(settings, out=tmp_path / "run", runtime="serial", on_round=lambda record: record.round == 2)
    resumed = fa.run(settings, resume=tmp_path / "run", runtime="serial")
    assert whole.weights_sha256 == parallel.weights_sha256 == resumed.weights_sha256


def test_simulated_time_follows_the_samples() -> None:
    """An asynchronous client takes as long for 6 steps as for an epoch of 6 batches, before its training is computed."""
    settings = {"algorithm": "fedasync", "rounds": 3, "devices": {"speed": 10.0}}
    by_epochs = on_blobs(local={"lr": 0.1, "epochs": 1, "batch": 8}, **settings)
    assert on_blobs(local=steps(EPOCH), **settings).records[-1].clock == by_epochs.records[-1].clock
    assert on_blobs(local=steps(2 * EPOCH), **settings).records[-1].clock == pytest.approx(
        on_blobs(local={"lr": 0.1, "epochs": 2, "batch": 8}, **settings).records[-1].clock
    )


def test_work_of_a_client_is_estimated_from_steps() -> None:
    """Clients are grouped into one message by their work, which is the same for 6 steps and for an epoch of 6."""
    sizes = [
        client_batch_size(
            open_context(Experiment.make(blobs(4000), clients=400, model=small_net, local={"batch": 8, **amount})), 400
        )
        for amount in ({"epochs": 1}, {"steps": 1}, {"epochs": 100_000}, {"steps": 100_000})
    ]
    assert sizes == [400 // 32, 400 // 32, 1, 1]


def test_epochs_and_steps_exclude_each_other(tmp_path: Path) -> None:
    with pytest.raises(BadValue, match=r"both local\.epochs and local\.steps are given"):
        Experiment.make("digits", local={"epochs": 1, "steps": 5})
    with pytest.raises(BadValue, match=r"both local\.epochs and local\.steps are given"):
        Experiment.make("digits", ["local.epochs=1", "local.steps=5"])
    file = tmp_path / "both.toml"
    file.write_text('data = "digits"\nlocal = { epochs = 1, steps = 2 }\n')
    with pytest.raises(BadValue, match=r"give one of them: local\.epochs or local\.steps"):
        Experiment.make(file)


def test_the_later_of_epochs_and_steps_replaces_the_other() -> None:
    """Also where the earlier one is a default of the data set; the text reads back as the same experiment."""
    exp = Experiment.make("digits", local={"epochs": 3})
    by_steps = exp.with_(local={"steps": 5})
    assert (by_steps.local.steps, by_steps.local.epochs) == (5, 1)
    assert "epochs" not in by_steps.as_table()["local"]
    assert Experiment.make(by_steps.as_table()) == by_steps == Experiment.make("digits", ["local.steps=5"])
    again = by_steps.with_(**{"local.epochs": 2})
    assert (again.local.steps, again.local.epochs) == (None, 2)
    assert exp.with_(local={"steps": None}).local.epochs == 3


@pytest.mark.parametrize("name", ["colearning", "loadaboost", {"name": "fedavg", "with": "fedvc"}])
def test_algorithms_that_count_epochs_refuse_steps(name: object) -> None:
    with pytest.raises(BadValue, match=r"set local\.epochs in place of local\.steps"):
        on_blobs(name, local=steps(5))


def test_an_own_algorithm_that_reads_epochs_gets_a_message() -> None:
    algorithm, _ = watched()
    kind = type("Reads", (type(algorithm),), {"client": lambda self, got, kept, work: work.epochs})
    with pytest.raises(fa.FedarenaError, match=r"counts epochs, and the experiment sets local\.steps"):
        on_blobs(kind(), local=steps(5))
