"""The uplink steps: each has the stated effect, steps compose, and bits do not depend on the machine."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.algorithms.test_fedavg import on_blobs, small_net, weights
from tests.engine.test_client_batches import federation
from tests.runtimes.test_kill_each import at_the_end_of, everything, in_a_process_that_dies
from tests.support.federations import blobs

import fedarena as fa
from fedarena.algorithms.base import Reply, Step
from fedarena.algorithms.scaffold import ScaffoldUpdate
from fedarena.config.errors import BadValue, UnknownName
from fedarena.config.experiment import Experiment
from fedarena.config.settings_tables import Uplink
from fedarena.engine.client import Broadcast
from fedarena.engine.setup import open_context
from fedarena.engine.tasks import ClientAnswer, ClientTask, client_batch_size
from fedarena.models.pytree import WeightedMean, nbytes
from fedarena.privacy.secure_aggregation import MaskedExchange, mask_overhead_bytes, share_ring
from fedarena.privacy.uplink import FixedPointCode, MaskedVector, UplinkSteps, add_masked, largest, norm

MEAN_ONLY = [
    "fedavg",
    "fedavgm",
    "fedprox",
    "scaffold",
    "feddyn",
    "fedadam",
    "fedsgd",
    "fedpage",
    "colearning",
    "fsvrg",
]
TURN = MaskedExchange(0, 0, tuple(range(8)))
EVERY = {"clip": 0.5, "noise": 0.02}


def steps(heaviest: float = 1.0, participants: int = 8, **chosen: Any) -> UplinkSteps:
    return UplinkSteps(Uplink(**chosen), "fedavg", 0, heaviest, participants)


def vectors(count: int, size: int, scale: float = 0.1, seed: int = 1) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [(scale * rng.standard_normal(size)).astype(np.float32) for _ in range(count)]


def through(
    way: UplinkSteps, answers: list[np.ndarray], weight: Any = None, turn: MaskedExchange = TURN, kept: Any = None
) -> Any:
    """From clients' vectors to the server's mean."""
    mean, masked = WeightedMean(), None
    for client, answer in enumerate(answers):
        sent = way.send(Reply(Step(answer), weight=weight[client] if weight else 1.0), "client", turn, client, kept)
        if isinstance(sent.reply.send, MaskedVector):
            masked = add_masked(masked, sent.reply.send)
        else:
            mean.add(sent.reply.send, sent.reply.weight)
    return way.receive(mean, masked, turn, list(range(len(answers))))


# Nothing to do


@pytest.mark.parametrize("algorithm", MEAN_ONLY)
def test_a_clip_that_no_client_reaches_is_plain_to_the_bit(algorithm: str) -> None:
    plain, same = on_blobs(algorithm), on_blobs(algorithm, uplink={"clip": 1e9, "noise": 0.0, "top_k": 1.0})
    assert np.array_equal(weights(plain), weights(same))
    assert same.final.epsilon is None


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", MEAN_ONLY)
@pytest.mark.parametrize("chosen", [EVERY, {**EVERY, "secure": True}, {"quantise": 6, "top_k": 0.2}], ids=str)
def test_every_mean_only_algorithm_goes_through(algorithm: str, chosen: dict[str, Any]) -> None:
    run = on_blobs(algorithm, uplink=chosen, clients=5)
    assert np.isfinite(weights(run)).all()
    assert (run.final.epsilon is None) == ("noise" not in chosen)


@pytest.mark.slow
def test_baselines_send_nothing() -> None:
    for name in ("centralized", "local"):
        run = on_blobs(name, uplink=EVERY)
        assert run.weights_sha256 == on_blobs(name).weights_sha256
        assert run.final.epsilon is None


# Clip


@pytest.mark.slow
@given(st.lists(st.floats(-100, 100, width=32), min_size=1, max_size=30), st.floats(0.01, 10))
@settings(deadline=None)
def test_nothing_longer_than_the_clip_is_sent(numbers: list[float], clip: float) -> None:
    """For any step after it, in single precision: never longer, and as long as it may be."""
    answer = np.array(numbers, np.float32)
    for chosen in ({}, {"quantise": 3}, {"top_k": 0.5}, {"top_k": 0.5, "quantise": 2}):
        way = steps(clip=clip, **chosen)
        left = {"client": [np.full_like(answer, 50)]}
        sent = way.send(Reply(Step(answer)), "client", TURN, 0, left if "top_k" in chosen else None)
        assert norm([sent.reply.send.delta]) <= clip
    if norm([answer]) > clip:
        assert norm([steps(clip=clip).send(Reply(Step(answer)), "client", TURN, 0, None).reply.send.delta]) == (
            pytest.approx(clip, rel=1e-5)
        )


def test_all_that_is_sent_is_one_vector() -> None:
    """(3, 0) and (0, 4) are 5 long together; the direction stays."""
    sent = steps(clip=1.0).send(
        Reply(ScaffoldUpdate(np.array([3.0, 0.0]), np.array([0.0, 4.0]))), "client", TURN, 0, None
    )
    np.testing.assert_allclose(sent.reply.send.delta, [0.6, 0], rtol=2e-6)
    np.testing.assert_allclose(sent.reply.send.dc, [0, 0.8], rtol=2e-6)


# Noise


@pytest.mark.parametrize("secure", [False, True])
def test_noise_has_the_stated_deviation(secure: bool) -> None:
    """z C / m on the mean; of 40,000 numbers the deviation is known to 1 / sqrt(80,000) = 0.35 %, five times that is 2 %."""
    way = steps(clip=2.0, noise=1.5, secure=secure)
    noise = through(way, [np.zeros(40_000, np.float32)] * 8).delta
    assert noise.std() == pytest.approx(1.5 * 2.0 / 8, rel=0.02)
    assert abs(noise.mean()) < 5 * noise.std() / 200
    again = through(way, [np.zeros(40_000, np.float32)] * 8, turn=MaskedExchange(1, 0, TURN.asked)).delta
    assert abs(np.corrcoef(noise, again)[0, 1]) < 0.025


def test_noise_on_what_is_summed_is_that_of_a_sum() -> None:
    way, size = steps(clip=1.0, noise=1.0), 40_000
    mean = WeightedMean()
    for client in range(4):
        update = ScaffoldUpdate(np.zeros(size), np.zeros(size))
        mean.add(way.send(Reply(update), "client", TURN, client, None).reply.send, 1.0)
    got = way.receive(mean, None, TURN, [0, 1, 2, 3])
    assert got.delta.std() == pytest.approx(1 / 4, rel=0.02)
    assert got.dc.std() == pytest.approx(1.0, rel=0.02)


def test_with_noise_everyone_counts_the_same() -> None:
    answers = [np.full(3, 0.1), np.full(3, 0.3)]
    got = through(steps(clip=1.0, noise=1e-9), answers, weight=[1.0, 99.0])
    np.testing.assert_allclose(got.delta, 0.2, atol=1e-6)


def test_coins_divide_by_what_is_expected() -> None:
    """A round with 4 of 8 expected gives half the mean, and noise of 8."""
    way = steps(clip=10.0, noise=1e-9, sampling="poisson")
    np.testing.assert_allclose(through(way, [np.full(3, 1.0)] * 4).delta, 0.5, atol=1e-6)
    wide = steps(clip=1.0, noise=1.0, sampling="poisson")
    assert through(wide, [np.zeros(40_000)] * 4).delta.std() == pytest.approx(1 / 8, rel=0.02)


@pytest.mark.slow
def test_rounds_by_coins_differ_in_size() -> None:
    run = on_blobs(clients=40, share=0.5, rounds=20, uplink={**EVERY, "sampling": "poisson"}, evaluate={"every": 20})
    sizes = np.array([record.selected for record in run.records])
    assert sizes.std() > 0
    assert abs(sizes.mean() - 20) < 5 * math.sqrt(40 / 4 / 20)
    fixed = on_blobs(clients=40, share=0.5, rounds=20, uplink=EVERY, evaluate={"every": 20})
    assert run.final.epsilon < fixed.final.epsilon


@pytest.mark.slow
def test_epsilon_grows_and_is_in_every_result(tmp_path: Path) -> None:
    run = fa.run(
        "digits", clients=6, rounds=3, uplink={"clip": 1.0, "noise": 4.0}, out=tmp_path / "r", runtime="serial"
    )
    reported = [record.epsilon for record in run.records]
    assert reported == sorted(reported)
    assert reported[0] > 0
    assert run.summary()["epsilon"] == reported[-1]
    assert run.summary()["delta"] == pytest.approx(6**-1.1)
    assert f"epsilon {reported[-1]:.3g} at delta 0.139" in str(run)
    assert [r.epsilon for r in fa.load(tmp_path / "r").records] == reported
    assert "epsilon" in fa.report(run).read_text()
    assert fa.verify(tmp_path / "r", runtime="serial").same


def test_two_exchanges_a_round_are_two_releases() -> None:
    """FSVRG asks everyone twice: three rounds of it cost what six of FedAvg do."""
    chosen = {"clip": 0.5, "noise": 2.0, "delta": 0.01}
    twice, once = on_blobs("fsvrg", uplink=chosen), on_blobs("fedavg", rounds=6, uplink=chosen)
    assert twice.final.epsilon == pytest.approx(once.final.epsilon)


def test_shares_of_noise_that_left_are_missing() -> None:
    """Of 8 clients 6 answer: the noise is sqrt(6 / 8) of the setting, and the accountant knows."""
    way = steps(clip=1.0, noise=1.0, secure=True)
    assert way.released(TURN, 6, 8) == ("everyone", 8, math.sqrt(6 / 8))
    assert through(way, [np.zeros(40_000)] * 6).delta.std() == pytest.approx(math.sqrt(6 / 8) / 6, rel=0.02)


# Secure aggregation


@pytest.mark.slow
@given(st.integers(2, 8), st.floats(0.5, 20))
@settings(max_examples=20, deadline=None)
def test_error_of_fixed_point(count: int, largest_number: float) -> None:
    """Each number is off by less than a step: the mean of equal weights by less than a step, too."""
    way, turn = steps(secure=True, range=largest_number), MaskedExchange(0, 0, tuple(range(count)))
    answers = [
        a.astype(np.float64).clip(-largest_number, largest_number) for a in vectors(count, 200, largest_number / 3)
    ]
    fixed = FixedPointCode.of(largest_number, count, None)
    assert fixed.width == 32
    assert fixed.bits == 32 - (count - 1).bit_length()
    got = through(way, answers, turn=turn).delta
    assert np.abs(got - np.mean(answers, axis=0)).max() < 2 * largest_number / fixed.levels


@pytest.mark.parametrize("bits", [4, 8])
def test_clients_with_few_rows_still_count(bits: int) -> None:
    """A share of the weight that rounds to nothing would divide by nothing."""
    way = steps(heaviest=3000.0, secure=True, quantise=bits)
    mean = through(way, vectors(4, 6), weight=[5.0] * 4, turn=MaskedExchange(0, 0, (0, 1, 2, 3)))
    assert np.isfinite(mean.delta).all()


def test_an_empty_vector_has_no_largest() -> None:
    assert largest(np.empty(0, np.float32), 1).shape == (0,)


def test_weights_survive_masks() -> None:
    answers, rows = [a.astype(np.float64) for a in vectors(3, 100)], [10.0, 40.0, 7.0]
    got = through(steps(secure=True, heaviest=40.0), answers, weight=rows, turn=MaskedExchange(0, 0, (0, 1, 2))).delta
    step = 16 / FixedPointCode.of(8.0, 3, None).levels
    bound = 1.5 * step * 40 / np.mean(rows)  # a step of each number, half a step of each weight
    assert np.abs(got - np.average(answers, axis=0, weights=rows)).max() < bound


@pytest.mark.slow
@pytest.mark.parametrize("dropouts", [0.0, 0.3])
def test_secure_aggregation_is_plain_but_for_rounding(dropouts: float) -> None:
    """Also with clients that leave after the masks were agreed on."""
    common = {"clients": 10, "dropouts": dropouts, "rounds": 4}
    plain, masked = on_blobs(**common), on_blobs(uplink={"secure": True}, **common)
    assert [r.answered for r in plain.records] == [r.answered for r in masked.records]
    assert (sum(r.dropped for r in masked.records) > 0) == (dropouts > 0)
    np.testing.assert_allclose(weights(masked), weights(plain), rtol=0, atol=1e-6)


def test_too_few_to_open_the_sum_change_nothing() -> None:
    run = on_blobs(clients=4, dropouts=0.8, rounds=5, uplink={"secure": True}, seed=1)
    assert any("sums stay masked" in note for note in run.notes)


def test_bytes_of_masked_answers() -> None:
    """A word a number and one for the weight; 12 bits and 3 to carry with quantise = 12; keys and shares beside."""
    answer, beside = np.zeros(1000, np.float32), mask_overhead_bytes(share_ring(0, TURN))[0]
    assert beside == 16 + 2 * 16 * 6 + 16 * 7
    for chosen, size in (({}, 4 * 1001), ({"quantise": 12}, -(-1001 * 15 // 8))):
        assert steps(secure=True, **chosen).send(Reply(Step(answer)), "client", TURN, 0, None).size == size + beside


# Compression


@pytest.mark.slow
@given(st.integers(2, 8), st.integers(0, 99))
@settings(max_examples=20, deadline=None)
def test_quantisation_is_unbiased(bits: int, seed: int) -> None:
    """Rounding errors of 1,000 draws are bounded by a step s: their mean is within 5 s / (2 sqrt(1000)) of 0."""
    answer = vectors(1, 20, seed=seed)[0]
    way, total = steps(quantise=bits), np.zeros(20)
    for round in range(1000):
        total += way.send(Reply(Step(answer)), "client", MaskedExchange(round, 0, TURN.asked), 0, None).reply.send.delta
    step = float(np.abs(answer).max()) / (2 ** (bits - 1) - 1)
    assert np.abs(total / 1000 - answer).max() < 5 * step / 2 / math.sqrt(1000)


def test_quantised_numbers_have_so_many_values_and_bytes() -> None:
    answer = vectors(1, 5000)[0]
    sent = steps(quantise=4).send(Reply(Step(answer)), "client", TURN, 0, None)
    assert len(np.unique(sent.reply.send.delta)) == 15
    assert sent.size == 2500 + 4
    both = steps(quantise=4, top_k=0.01).send(Reply(Step(answer)), "client", TURN, 0, None)
    assert both.size == 50 * 4 + 25 + 4
    alone = steps(top_k=0.01).send(Reply(Step(answer)), "client", TURN, 0, None)
    assert alone.size == 50 * (4 + 4)
    assert np.count_nonzero(alone.reply.send.delta) == 50


def test_the_largest_by_size_the_first_of_equal_ones() -> None:
    assert largest(np.array([1.0, -3.0, 2.0, -2.0, 0.0]), 2).tolist() == [False, True, True, False, False]
    assert largest(np.zeros(3), 1).tolist() == [True, False, False]


@pytest.mark.slow
@given(st.lists(st.lists(st.integers(-1000, 1000), min_size=12, max_size=12), min_size=1, max_size=8))
@settings(deadline=None)
def test_error_feedback_loses_nothing(updates: list[list[int]]) -> None:
    """sum(sent) + residual = sum(updates), exactly: whole numbers are exact in single precision."""
    way, kept, sent = steps(top_k=0.25), None, np.zeros(12, np.float32)
    for round, update in enumerate(updates):
        out = way.send(
            Reply(Step(np.array(update, np.float32))), "client", MaskedExchange(round, 0, TURN.asked), 0, kept
        )
        kept, sent = out.residual, sent + out.reply.send.delta
        assert np.count_nonzero(out.reply.send.delta) <= 3
    assert kept is not None
    assert np.array_equal(sent + kept["client"][0], np.sum(updates, axis=0))


def test_two_kinds_of_exchange_have_a_residual_each(tmp_path: Path) -> None:
    context = open_context(
        Experiment.make(blobs(), model=small_net, clients=3, algorithm="fedpage", uplink={"top_k": 0.1})
    )
    common = Broadcast(fa.Model(context.initial), context.task.buffers())
    answer = ClientTask(0, 0, "slope", None, exchange=MaskedExchange(0, 0, (0, 1, 2))).run(context, common)
    assert isinstance(answer, ClientAnswer)
    assert answer.report.state is not None
    assert list(answer.report.state.residual or ()) == ["slope"]
    assert answer.report.sent == 8 * round(0.1 * context.initial.size) < nbytes(context.initial)


# The same bits


ALL = {
    "private": {"clip": 0.5, "noise": 0.1},
    "masked": {"clip": 0.5, "noise": 0.1, "secure": True, "sampling": "poisson"},
    "small": {"clip": 1.0, "top_k": 0.1, "quantise": 6},
}


@pytest.mark.slow
@pytest.mark.parametrize("chosen", ALL)
def test_the_same_bits_for_any_workers(chosen: str) -> None:
    """Eighty light clients, several in a bundle, trained ahead; serial or by two workers."""
    exp = federation(uplink=ALL[chosen], dropouts=0.1)
    assert client_batch_size(open_context(exp), 80) > 1
    runs = [fa.run(exp, out=False, **how) for how in ({"runtime": "serial"}, {"workers": 2})]
    assert len({run.weights_sha256 for run in runs}) == 1
    assert len({run.final.bytes_up for run in runs}) == 1
    assert runs[0].final.epsilon == runs[1].final.epsilon


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs processes that begin as copies of this one")
@pytest.mark.parametrize("chosen", ALL)
def test_killed_and_resumed(chosen: str, tmp_path: Path) -> None:
    """Residuals, and what was released, survive kill -9 between the clients' memories and the server's state."""
    exp = Experiment.make(blobs(), model=small_net, clients=6, share=0.5, rounds=5, dropouts=0.2, uplink=ALL[chosen])
    whole = fa.run(exp, out=tmp_path / "whole", runtime="serial")
    in_a_process_that_dies(lambda: at_the_end_of(3), source=exp, out=tmp_path / "killed")
    resumed = fa.run(exp, resume=tmp_path / "killed", workers=2)
    assert everything(resumed, tmp_path / "killed") == everything(whole, tmp_path / "whole")
    assert (whole.final.epsilon is not None) == (chosen != "small")


# What cannot be right


@pytest.mark.parametrize("name", ["median", "krum", "fedfa", "loadaboost", "fedasync"])
def test_algorithms_that_need_each_update_are_refused(name: str) -> None:
    with pytest.raises(BadValue, match=f"{name} must see each update"):
        on_blobs(name, uplink={"quantise": 8})


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"algorithm": "fedbuff", "uplink": {"clip": 1.0}}, "merges updates as they arrive"),
        ({"algorithm": "fednova", "uplink": {"clip": 1.0}}, "sends a number beside its vector"),
        ({"algorithm": {"name": "fedavg", "with": ["fedvc"]}, "uplink": EVERY}, "does not sample clients uniformly"),
        ({"uplink": {"secure": True}, "per_round": 1}, "at least two clients in a round"),
        ({"uplink": {"clip": 1.0}, "on_nan": "keep"}, "non-finite updates"),
        ({"uplink": {"secure": True, "range": 1e-6}}, "fixed point ends at 1e-06"),
    ],
    ids=str,
)
def test_refused_with_one_message(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(BadValue, match=message):
        on_blobs(**{"algorithm": "fedavg", **settings})


@pytest.mark.slow
def test_counts_are_neither_clipped_nor_rounded() -> None:
    """Counts that would need a clip or noise are refused; masks of 64 bits add them up without rounding."""
    counting = {"algorithm": {"name": "fsvrg", "scaling": "diagonal"}, "model": "logreg", "clients": 4, "rounds": 1}
    for chosen in ({"clip": 1.0}, {"clip": 1.0, "secure": True}, {"clip": 1.0, "noise": 1.0, "secure": True}):
        with pytest.raises(BadValue, match="fsvrg sends counts"):
            fa.run(blobs(), uplink=chosen, out=False, workers=2, **counting)
    fa.run(blobs(), uplink={"quantise": 8}, out=False, runtime="serial", **counting)
    plain, masked = (
        fa.run(blobs(), uplink=way, out=False, runtime="serial", **counting) for way in ("plain", {"secure": True})
    )
    for name, w in plain.state.items():
        assert np.allclose(masked.state[name], w, atol=1e-5)  # the vectors are rounded to a fixed point


def test_statistics_of_batchnorm_would_go_up_unprotected() -> None:
    settings = {"model": {"name": "cnnnet", "norm": "bn"}, "rounds": 1, "clients": 3, "out": False, "runtime": "serial"}
    with pytest.raises(BadValue, match="BatchNorm statistics are sent unprotected"):
        fa.run("digits", uplink={"secure": True}, **settings)


@pytest.mark.parametrize(
    ("chosen", "message"),
    [
        ({"noise": 1.0}, "without uplink.clip"),
        ({"secure": True, "top_k": 0.1}, "exclude each other"),
        ({"secure": True, "quantise": 8, "noise": 1.0, "clip": 1.0}, "round away"),
        ({"range": 2.0}, "is for uplink.secure"),
        ({"range": 2.0, "secure": True, "clip": 1.0}, "follows from uplink.clip"),
        ({"clip": 0}, "uplink.clip = 0"),
        ({"quantise": 1}, "uplink.quantise = 1"),
        ({"top_k": 2}, "uplink.top_k = 2"),
        ({"sampling": "all"}, "uplink.sampling = 'all'"),
        ("means", "uplink = 'means'"),
    ],
    ids=str,
)
def test_settings_that_make_no_sense(chosen: Any, message: str) -> None:
    with pytest.raises(BadValue, match=message):
        Experiment.make("digits", uplink=chosen)


def test_keys_are_known_by_name_and_from_the_command_line() -> None:
    with pytest.raises(UnknownName, match="did you mean 'noise'"):
        Experiment.make("digits", ["uplink.nois=1"])
    exp = Experiment.make("digits", ["uplink.clip=2", "uplink.noise=1"])
    assert exp.uplink == Uplink(clip=2.0, noise=1.0)
    assert Experiment.make(exp.as_table()) == exp
    assert exp.with_(uplink={"noise": 0.5}).uplink == Uplink(clip=2.0, noise=0.5)
    assert exp.with_(uplink="plain").uplink == "plain"
