"""Devices come and go on the virtual clock: who is asked, whom a round loses, when the clock jumps; exact by hand."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.algorithms.test_fedavg import small_net
from tests.runtimes.test_bits import facts
from tests.support.federations import blobs

import fedarena as fa
from fedarena.config.errors import BadValue, DataBroken
from fedarena.config.experiment import Experiment
from fedarena.engine.availability import DAY, HOUR, Availability, build_availability, join
from fedarena.engine.loop import NO_CLIENTS_LEFT

Interval = tuple[int, float, float]

# Intervals against a reference that looks at them one by one


@st.composite
def traces(draw: st.DrawFn) -> tuple[list[Interval], float]:
    """Some intervals of four clients, in halves of a second; with a period they may go on beyond it."""
    period = draw(st.sampled_from([math.inf, 12.0]))
    last = 40 if period == math.inf else 23
    lines = []
    for _ in range(draw(st.integers(1, 9))):
        start = draw(st.integers(0, last)) / 2
        longest = 24 if period == math.inf else 2 * period
        lines.append((draw(st.integers(0, 3)), start, start + draw(st.integers(1, int(longest))) / 2))
    return lines, period


def made(lines: list[Interval], period: float = math.inf, count: int = 4) -> Availability:
    who, starts, ends = zip(*lines, strict=True)
    return join(count, np.array(who), np.array(starts, float), np.array(ends, float), period)


def is_there(lines: list[Interval], period: float, client: int, clock: float) -> bool:
    turns = [clock] if period == math.inf else [clock % period, clock % period + period]
    return any(k == client and start <= t < end for k, start, end in lines for t in turns)


GRID = [i / 4 for i in range(240)]  # a minute: five periods of 12 s, twice as fine as the traces


@pytest.mark.slow
@given(traces())
@settings(max_examples=60, deadline=None)
def test_who_is_there_and_for_how_long(trace: tuple[list[Interval], float]) -> None:
    lines, period = trace
    there = {k: [is_there(lines, period, k, t) for t in GRID] for k in range(4)}
    known = made(lines, period)
    for i, clock in enumerate(GRID[:120]):
        leaving, here = known.available_until(clock), known.is_available(clock)
        for k in range(4):
            assert here[k] == (leaving[k] > clock) == there[k][i]
            rest = [t for t, here in zip(GRID[i:], there[k][i:], strict=True) if not here]
            assert not there[k][i] or leaving[k] == (rest[0] if rest else leaving[k])
            stay = known.next_interval(k, clock)
            coming = [t for t, here in zip(GRID[i:], there[k][i:], strict=True) if here]
            assert (stay is None) == (not coming)
            assert stay is None or (stay[0] == coming[0] and stay[1] == known.available_until(stay[0])[k])
        someone = [t for j, t in enumerate(GRID) if j >= i and any(there[k][j] for k in range(4))]
        assert known.next_available(clock) == (someone[0] if someone else None)


def test_a_clock_moved_to_an_arrival_finds_the_device_there() -> None:
    """On any day times lie on a grid on which days and seconds add up exactly."""
    rng = np.random.default_rng(0)
    starts = rng.uniform(0, DAY, 50)
    known = join(50, np.arange(50), starts, starts + rng.uniform(1, 2, 50), DAY)
    clock, seen = 0.0, set()
    for _ in range(600):  # twelve days
        clock = known.next_arrival(clock) or 0.0
        seen |= set(np.flatnonzero(known.available_until(clock) > clock).tolist())
        assert (known.available_until(clock) > clock).any()
    assert 11 * DAY < clock < 13 * DAY
    assert seen == set(range(50))


def test_all_the_time_has_no_end() -> None:
    known = made([(0, 0, 5), (0, 5, 12), (1, 3, 15)], period=12.0)
    assert known.available_until(1e6)[:2].tolist() == [math.inf, math.inf]
    assert known.next_interval(0, 7.25) == (7.25, math.inf)


def test_nights() -> None:
    """Plugged in at 22 + 1.5 z o'clock for U(4, 12) hours, z normal.

    At two at night those are gone who came more than 4 hours before their own length, E max(-1.5 z, 0) / 8 = 0.0748, and
    those not there yet who come after two, P(1.5 z > 4) = 0.0038. Five standard errors of 20,000 devices are 0.0095.
    """
    exp = Experiment.make("digits", devices={"available": "day"})
    known = build_availability(exp, 20_000, range(20_000))
    assert known is not None
    lengths = (known.ends - known.starts) / HOUR
    assert lengths.mean() == pytest.approx(8, abs=0.08)  # U(4, 12): five standard errors are 0.08
    assert 4 <= lengths.min() < lengths.max() <= 12.001
    share = lambda hour: float(np.mean(known.available_until(hour * HOUR) > 0))
    assert share(2) == pytest.approx(1 - 0.0748 - 0.0038, abs=0.0095)
    assert share(14) < 0.01
    assert share(2 + 24 * 5) == share(2)


def test_zones_are_an_hour_apart_and_clients_in_their_order() -> None:
    """Six hours later, the last zone is as far as the first one was: it goes to bed when the first one wakes up."""
    exp = Experiment.make("digits", devices={"available": "day", "zones": 7, "hours": 6})
    known = build_availability(exp, 7000, range(7000))
    assert known is not None
    there = np.array(
        [[np.mean(known.available_until(h * HOUR)[i : i + 1000] > 0) for h in range(24)] for i in (0, 6000)]
    )
    assert np.abs(there[0] - np.roll(there[1], -6)).max() < 0.08
    flat = build_availability(exp.with_(devices={"zones": 24}), 24_000, range(24_000))
    assert flat is not None
    counts = [np.sum(flat.available_until(h * HOUR) > 0) for h in range(24)]
    assert max(counts) < 1.06 * min(counts)


def test_no_device_is_available_for_more_than_a_day() -> None:
    known = build_availability(Experiment.make("digits", devices={"available": "day", "hours": 24}), 9, range(9))
    assert known is not None
    assert (known.available_until(12345.6) == math.inf).all()


# Rounds by hand

MODEL_BYTES = 4 * (6 * 8 + 8 + 8 * 3 + 3)
CLIENT = {"speed": 96, "jitter": 0, "latency": 0.5}  # 48 rows, two epochs: 0.5 s down, 1 s of training, 0.5 s up
met: list[tuple[float, list[int], list[int]]] = []  # of each round: clock at its begin, who was asked, who answered


class Watched(fa.FedAvg):
    """FedAvg that records the clients of each round."""

    def round(self, state: Any, ask: Any) -> Any:
        began, selected = ask.clients.clock, list(ask.selected)
        state = super().round(state, ask)
        met.append((began, selected, list(ask.cohort.answered)))
        return state


def trace(folder: Path, *lines: Interval) -> str:
    path = folder / "trace.csv"
    path.write_text("client,from,to\n" + "".join(f"{k},{start},{end}\n" for k, start, end in lines))
    return str(path)


def simulated(algorithm: Any = None, rounds: int = 20, clients: int = 4, **more: Any) -> fa.Run:
    """Four clients of 48 rows (240 less a fifth for testing)."""
    met.clear()
    more.setdefault("out", False)
    more.setdefault("runtime", "serial")
    return fa.run(
        blobs(), model=small_net, algorithm=Watched() if algorithm is None else algorithm, clients=clients,
        partition="iid", rounds=rounds, local={"lr": 0.1, "epochs": 2, "batch": 8}, **more,
    )  # fmt: skip


HAND = ((0, 0, 10), (1, 0, 1), (2, 5, 10), (3, 20, 30))


def test_rounds_by_hand(tmp_path: Path) -> None:
    """A round takes 2 s. Client 1 leaves too early; 2 is not there yet; at 10 all have left, and 3 comes at 20."""
    run = simulated(per_round=2, devices={**CLIENT, "available": trace(tmp_path, *HAND)})
    assert met == [
        (0, [0, 1], [0]),
        (2, [0], [0]),
        (4, [0], [0]),
        (6, [0, 2], [0, 2]),
        (8, [0, 2], [0, 2]),  # they leave the moment their answers arrive
        (20, [3], [3]),
        *((t, [3], [3]) for t in (22, 24, 26, 28)),
    ]
    assert [r.clock for r in run.records] == [2, 4, 6, 8, 10, 22, 24, 26, 28, 30]
    assert [(r.selected, r.answered, r.dropped) for r in run.records][:4] == [
        (2, 1, 1),
        (1, 1, 0),
        (1, 1, 0),
        (2, 2, 0),
    ]
    assert run.final.accuracy is not None
    assert NO_CLIENTS_LEFT in run.notes


def test_a_trace_repeats_after_its_period(tmp_path: Path) -> None:
    run = simulated(rounds=12, per_round=2, devices={**CLIENT, "available": trace(tmp_path, *HAND), "period": 40})
    assert met[10:] == [(40, [0, 1], [0]), (42, [0], [0])]
    assert run.final.clock == 44
    assert NO_CLIENTS_LEFT not in run.notes


def test_a_round_that_loses_all_ends_when_the_last_has_left(tmp_path: Path) -> None:
    there = trace(tmp_path, (0, 0, 1), (1, 0, 1.5), (2, 3, 9))
    run = simulated(rounds=2, per_round=2, devices={**CLIENT, "available": there})
    assert met == [(0, [0, 1], []), (3, [2], [2])]
    assert [r.clock for r in run.records] == [1.5, 5]
    assert run.final.uploads == 1
    assert run.final.bytes_down == 3 * (run.final.bytes_up - 8)  # what the two were sent is spent


def test_who_is_lost_in_the_first_exchange_is_out_of_the_second(tmp_path: Path) -> None:
    """FSVRG: 0.5 s each down, gradient of 48 rows and up; as long for its epoch. 1 leaves in the first, 2 in the second."""
    three = ((0, 0, 9), (1, 0, 1), (1, 1.25, 9), (2, 0, 2))
    final = simulated("fsvrg", rounds=1, devices={**CLIENT, "available": trace(tmp_path, *three)}).final
    assert (final.selected, final.answered, final.dropped) == (3, 1, 2)
    assert final.clock == 3.0
    # A fourth one answers in the first and leaves that moment: the second message is not sent to it any more.
    four = simulated("fsvrg", rounds=1, devices={**CLIENT, "available": trace(tmp_path, *three, (3, 0, 1.5))}).final
    assert (four.selected, four.answered, four.dropped) == (4, 1, 3)
    assert four.bytes_down - final.bytes_down == MODEL_BYTES


def test_who_is_lost_remembers_nothing_of_it(tmp_path: Path) -> None:
    """SCAFFOLD: of clients 0 and 1 only the one that answered has a correction of its own afterwards."""
    devices = {**CLIENT, "available": trace(tmp_path, (0, 0, 10), (1, 0, 1))}
    simulated("scaffold", rounds=1, per_round=2, devices=devices, out=tmp_path / "r")
    assert [file.name for file in (tmp_path / "r" / "checkpoint" / "clients").iterdir()] == ["0-1.safetensors"]


@pytest.mark.parametrize("how", [{}, {"overselect": 1.5}])
def test_masks_of_the_lost_are_taken_off_the_sum(how: dict[str, Any], tmp_path: Path) -> None:
    """Secure aggregation: the mean of those who answered, in fixed point; the server never saw a single update."""
    there = trace(tmp_path, *((k, 0, 100) for k in range(7)), (7, 0, 1))
    settings = {
        "clients": 8,
        "per_round": 6,
        "rounds": 2,
        "devices": {**CLIENT, "available": there, "spread": 2, **how},
    }
    plain = simulated(uplink="mean_only", **settings)
    masked = simulated(uplink={"secure": True, "range": 4}, **settings)
    assert sum(r.dropped for r in masked.records) > 0
    assert [(r.answered, r.dropped) for r in masked.records] == [(r.answered, r.dropped) for r in plain.records]
    for name, w in plain.state.items():
        np.testing.assert_allclose(masked.state[name].numpy(), w.numpy(), atol=1e-4)


def test_the_server_waits_to_its_deadline_and_no_longer() -> None:
    """Clients take 1, 2, 4 and 8 s; with a deadline of 3 s two are lost, which is known only once it has passed."""
    slower = {"speeds": "groups", "groups": 4, "spread": 8, "speed": 96, "jitter": 0}
    run = simulated(rounds=2, devices={**slower, "deadline": 3})
    assert [answered for _, _, answered in met] == [[0, 1], [0, 1]]
    assert [r.clock for r in run.records] == [3, 6]
    assert simulated(rounds=1, devices={**slower, "deadline": 8}).final.clock == 8
    silent = simulated(rounds=3, dropouts=0.999999, devices={**slower, "deadline": 3})
    assert (silent.final.clock, silent.final.answered) == (9, 0)


def test_the_first_answers_count_and_the_round_ends_with_them() -> None:
    slower = {"speeds": "groups", "groups": 4, "spread": 8, "speed": 96, "jitter": 0}
    run = simulated(rounds=2, per_round=2, devices={**slower, "overselect": 1.5, "deadline": 9})
    for (_, asked, answered), record in zip(met, run.records, strict=True):
        assert len(asked) == 3
        assert answered == asked[:2]  # the slower one has the higher number
        assert (record.selected, record.answered, record.dropped) == (3, 2, 1)
    assert run.records[0].clock == pytest.approx(2.0 ** met[0][1][1], rel=1e-12)
    assert run.final.uploads == 4
    plain = simulated(rounds=2, per_round=2, devices=slower)
    assert all(r.selected == 2 for r in plain.records)


def test_enough_is_counted_in_answers_of_use() -> None:
    """An update that is no number is none: the next one counts."""
    slower = {"speeds": "groups", "groups": 4, "spread": 8, "speed": 96, "jitter": 0}

    class FirstFails(Watched):
        def client(self, got: Any, kept: Any, work: Any) -> Any:
            reply = super().client(got, kept, work)
            if work.client == 0:
                reply.send.delta[:] = np.nan
            return reply

    run = simulated(FirstFails(), rounds=1, per_round=2, devices={**slower, "overselect": 2})
    assert met[0][2] == [1, 2]
    assert (run.final.dropped, run.final.non_finite) == (2, 1)
    assert run.final.clock == pytest.approx(4, rel=1e-12)


# No rounds, by hand


def test_a_device_that_leaves_is_lost_and_the_next_one_called(tmp_path: Path) -> None:
    """Trainings of a second. 0: done at 1 and 2, gone at 2.5. 1 comes at 4: done at 5, gone at 5.5, and no client is left."""
    there = trace(tmp_path, (0, 0, 2.5), (1, 4, 5.5))
    run = simulated("fedasync", per_round=2, devices={"speed": 96, "jitter": 0, "available": there})
    assert [(r.clock, r.selected, r.answered, r.dropped) for r in run.records] == [
        (2.0, 2, 2, 0),
        (5.0, 2, 1, 1),
        (5.5, 1, 0, 1),
    ]
    assert run.ages["merges_of_clients"] == [2, 1, 0, 0]
    assert NO_CLIENTS_LEFT in run.notes


def test_a_place_is_filled_as_soon_as_a_client_arrives(tmp_path: Path) -> None:
    """1 comes at 0.5, while 0 is at work; it is done at 1.5, by then one model old."""
    there = trace(tmp_path, (0, 0, 100), (1, 0.5, 100))
    run = simulated("fedasync", rounds=1, per_round=2, devices={"speed": 96, "jitter": 0, "available": there})
    assert run.final.clock == 1.5
    assert run.ages["merges_of_clients"] == [1, 1, 0, 0]
    assert run.ages["histogram"] == [1, 1]


def test_where_everyone_works_who_left_begins_again(tmp_path: Path) -> None:
    """CO-OP, two clients. 0 leaves at 2.5, in its third training, and is back from 10 on: its next answer is there at 11."""
    there = trace(tmp_path, (0, 0, 2.5), (0, 10, 20), (1, 0, 100))
    welcome = {"name": "coop", "b_l": 0, "b_u": 99}
    devices = {"speed": 192, "jitter": 0, "available": there}  # 96 rows
    run = simulated(welcome, rounds=7, clients=2, devices=devices)
    assert [(r.clock, r.answered, r.dropped) for r in run.records] == [
        (1, 2, 0), (2, 2, 0), (3, 1, 1), (5, 2, 0), (7, 2, 0), (9, 2, 0), (11, 2, 0),
    ]  # fmt: skip
    assert run.ages["merges_of_clients"] == [3, 10]


def test_an_answer_on_its_way_up_is_lost_too(tmp_path: Path) -> None:
    """CO-OP asks after a second of training and half a second of way; yes and model take as long each, but it leaves at 2."""
    there = trace(tmp_path, (0, 0, 2), (1, 0, 2.5))
    devices = {"speed": 192, "jitter": 0, "latency": 0.5, "available": there}
    run = simulated({"name": "coop", "b_l": 0, "b_u": 99}, rounds=1, clients=2, devices=devices)
    assert (run.final.answered, run.final.dropped, run.final.clock) == (1, 1, 2.5)
    assert run.ages["merges_of_clients"] == [0, 1]


# What always holds


class Strict(Watched):
    """Looks into the trace itself."""

    def round(self, state: Any, ask: Any) -> Any:
        assert ask.selected
        assert all(is_there(current, 30.0, k, ask.clients.clock) for k in ask.selected)
        return super().round(state, ask)


current: list[Interval] = []


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_only_available_clients_are_asked_and_lost_ones_are_counted(seed: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(seed)
    starts = rng.integers(0, 58, 9) / 2
    current[:] = [(int(k), s, s + rng.integers(1, 12) / 2) for k, s in zip(rng.integers(0, 4, 9), starts, strict=True)]
    devices = {
        "speed": 96, "speeds": "uniform", "spread": 3, "latency": 0.1, "available": trace(tmp_path, *current), "period": 30,
    }  # fmt: skip
    for algorithm in (Strict(), "scaffold", "fedpage", "fedasync", "fedbuff", "coop"):
        run = simulated(algorithm, rounds=12, per_round=2, devices=devices, dropouts=0.1, seed=seed)
        assert len(run.records) == 12
        assert all(r.selected == r.answered + r.dropped for r in run.records)
        assert [r.clock for r in run.records] == sorted(r.clock for r in run.records)
        uploads = sum(r.answered for r in run.records) + sum(r.non_finite for r in run.records)
        if algorithm != "scaffold":  # it sends two vectors
            assert run.final.uploads == uploads


NAMES = ["fedavg", "scaffold", "fedpage", "fedasync", "fedbuff", "coop"]


def scattered(tmp_path: Path) -> dict[str, Any]:
    lines = [(k, (3 * k + 7 * i) % 29, (3 * k + 7 * i) % 29 + 4 + k % 3) for k in range(8) for i in range(2)]
    there = trace(tmp_path, *lines)
    return {"speed": 48, "speeds": "uniform", "spread": 4, "latency": 0.25, "available": there, "period": 30}


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", NAMES)
def test_stopped_and_resumed(algorithm: str, tmp_path: Path) -> None:
    settings = {"clients": 8, "per_round": 4, "devices": scattered(tmp_path)}
    whole = simulated(algorithm, rounds=9, **settings)
    assert sum(r.dropped for r in whole.records) > 2
    simulated(algorithm, rounds=4, out=tmp_path / "r", **settings)
    assert facts(simulated(algorithm, rounds=9, out=None, resume=tmp_path / "r", **settings)) == facts(whole)


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["fedavg", "scaffold", "fedbuff", "coop"])
def test_any_number_of_workers(algorithm: str, tmp_path: Path) -> None:
    settings = {"clients": 8, "per_round": 4, "rounds": 6, "devices": {**scattered(tmp_path), "overselect": 1.5}}
    serial = facts(simulated(algorithm, **settings))
    for workers in (1, 3):
        assert facts(simulated(algorithm, runtime="processes", workers=workers, **settings)) == serial


@pytest.mark.slow
def test_light_clients_in_bundles_lose_the_same(tmp_path: Path) -> None:
    """Logistic regression, 200 clients a round in batches: the sum holds those that answered, on any worker."""
    settings: dict[str, Any] = {
        "model": "logreg", "clients": 400, "per_round": 200, "partition": "iid", "rounds": 3, "out": False,
        "devices": {"available": "day", "zones": 24, "hours": 3, "speed": 0.005, "speeds": "uniform", "spread": 9},
        "evaluate": {"every": 3},
    }  # fmt: skip
    serial = fa.run("digits", runtime="serial", **settings)
    assert sum(r.dropped for r in serial.records) > 20
    assert facts(fa.run("digits", workers=2, **settings)) == facts(serial)
    always = {**settings, "devices": {**settings["devices"], "available": "always"}}
    assert fa.run("digits", runtime="serial", **always).weights_sha256 != serial.weights_sha256


@pytest.mark.parametrize("algorithm", NAMES)
def test_who_is_always_there_changes_nothing(algorithm: str, tmp_path: Path) -> None:
    devices = {"speed": 48, "speeds": "uniform", "spread": 4, "latency": 0.25}
    always = facts(simulated(algorithm, rounds=5, per_round=2, devices=devices))
    there = trace(tmp_path, *((k, 0, 1e6) for k in range(4)))
    assert facts(simulated(algorithm, rounds=5, per_round=2, devices={**devices, "available": there})) == always


@pytest.mark.parametrize("algorithm", ["centralized", "local"])
def test_who_sends_nothing_needs_not_be_there(algorithm: str) -> None:
    plain = facts(simulated(algorithm, rounds=2))
    assert facts(simulated(algorithm, rounds=2, devices={"available": "day", "deadline": 0.001})) == plain


# What is refused


@pytest.mark.parametrize(
    ("text", "error", "said"),
    [
        ("client,from,to\n4,0,1\n", BadValue, "names client 4, but the experiment has 4"),
        ("client,from,to\n0.5,0,1\n", BadValue, "names client 0.5"),
        ("client,from,to\n0,5,5\n", BadValue, "client 0 is available from 5 to 5"),
        ("client,from,to\n0,-1,5\n", BadValue, "client 0 is available from -1 to 5"),
        ("client,from,to\n0,0,nan\n", BadValue, "client 0 is available from 0 to nan"),
        ("client,from,to\n0,50,51\n", BadValue, "within the period of 40 s"),
        ("client,from,to\n0,5,46\n", BadValue, "within the period of 40 s"),
        ("client,from,to\n0,1,soon\n", DataBroken, "could not convert"),
        ("client,from\n0,1\n", DataBroken, "'to' is not in list"),
        ("client,from,to\n", BadValue, "names no client that has rows"),
    ],
)
@pytest.mark.filterwarnings("error")
def test_a_trace_that_makes_no_sense_is_refused(tmp_path: Path, text: str, error: type, said: str) -> None:
    (tmp_path / "there.csv").write_text(text)
    exp = Experiment.make("digits", devices={"available": str(tmp_path / "there.csv"), "period": 40})
    with pytest.raises(error, match=said):
        build_availability(exp, 4, range(4))


def test_a_word_that_is_no_file_is_refused_before_anything_starts() -> None:
    with pytest.raises(DataBroken, match=r'"always", "day", or a CSV file'):
        fa.run("digits", devices={"available": "daily"}, out=False)


def test_a_trace_beside_its_experiment_is_found_from_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trace(tmp_path, (0, 7, 9))
    (tmp_path / "exp.toml").write_text('data = "digits"\nrounds = 1\ndevices = { available = "trace.csv" }\n')
    (tmp_path / "day.toml").write_text('data = "digits"\nrounds = 1\ndevices = { available = "day" }\n')
    monkeypatch.chdir("/")
    exp = Experiment.make(tmp_path / "exp.toml")
    assert Experiment.make(exp).devices.available == str(tmp_path / "trace.csv")
    assert fa.run(exp, out=False, runtime="serial").final.clock > 7
    assert Experiment.make(tmp_path / "day.toml").devices.available == "day"


@pytest.mark.parametrize("uneven", [{"available": "day"}, {"overselect": 1.3}])
def test_no_epsilon_is_reported_for_uneven_selection(uneven: dict[str, Any]) -> None:
    private = {"clip": 1.0, "noise": 1.0}
    with pytest.raises(BadValue, match="epsilon holds for uniform sampling only"):
        fa.run("digits", share=0.5, uplink=private, devices=uneven, out=False)
