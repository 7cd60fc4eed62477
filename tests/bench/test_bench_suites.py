"""The suites measure what they report, and a target that is missed is named."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import json
import mmap
import os
import sys
from dataclasses import replace

import pytest
import torch
from tests.support.bench_designs import use_short_repetitions
from typer.testing import CliRunner

import fedarena as fa
from fedarena.bench import measure, missed_targets, population, rounds
from fedarena.bench.designs import designs_of, opened
from fedarena.bench.machine import PeakMemory, flops, proportional_megabytes
from fedarena.bench.reference_loops import ReferenceLoop
from fedarena.bench.runner import MeasurementFailed, Timing, run_interleaved
from fedarena.bench.suites import SUITES
from fedarena.bench.table_format import Row, print_table
from fedarena.bench.workloads import CNN, MNIST, WORKLOADS, SpeedTarget, SyntheticImages, Workload
from fedarena.cli.main import app

TINY = Workload("tiny", {"name": "logreg"}, (1, 4, 4), 20, 3, 6, {"lr": 0.1, "epochs": 2, "batch": 5})


def test_a_row_counts_what_it_needs_and_not_the_gradient_of_its_pixels() -> None:
    """mlp_2nn: 784 x 200 + 200 x 200 + 200 x 10 multiply-adds, three times two operations, but for the first layer two."""
    first, others = 784 * 200, 200 * 200 + 200 * 10
    assert flops(WORKLOADS["W1"]) == 4 * first + 6 * others
    # cnn_mcmahan forward: 5 x 5 convolutions at 28 x 28 and 14 x 14, then 3136 x 512 and 512 x 10
    assert flops(WORKLOADS["W8"]) == 2 * (25 * 32 * 784 + 25 * 32 * 64 * 196 + 3136 * 512 + 512 * 10)


@pytest.mark.slow
def test_samples_of_a_work_are_those_that_the_engine_counts() -> None:
    record = next(iter(fa.rounds(SyntheticImages.of(TINY), runtime="serial", **TINY.settings)))
    assert record.samples == TINY.samples == 3 * 20 * 2


@pytest.mark.slow
def test_the_plain_loop_does_what_the_engine_does() -> None:
    """One client, all its rows in one step: the same weights but for rounding, from the same start."""
    workload = replace(TINY, cohort=1, clients=1, local={"lr": 0.1, "epochs": 1, "batch": float("inf")})
    loop = ReferenceLoop(workload, "plain")
    torch.manual_seed(0)
    for p in loop.model.parameters():
        torch.nn.init.normal_(p)
    run = fa.run(
        SyntheticImages.of(workload),
        out=False,
        runtime="serial",
        **{**workload.settings, "model": loop.model, "rounds": 1},
    )
    for name, weights in loop.train(0).items():
        torch.testing.assert_close(weights, run.state[name], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("design", ["plain", "tensors"])
def test_a_loop_breaks_a_long_round_off_and_says_how_much_was_done(design: str) -> None:
    with opened(TINY, design) as do_round:
        assert do_round(1e9) == 1.0
        assert do_round(0.0) == pytest.approx(1 / 3)  # the first of three clients has taken too long already


def test_evaluation_is_a_work_too() -> None:
    workload = replace(TINY, cohort=0, test_rows=30)
    assert workload.samples == 30
    for design in designs_of(workload):
        with opened(workload, design) as do_round:
            assert do_round(1.0) == 1.0


def test_startup_is_what_the_first_round_takes_longer_than_others() -> None:
    timing = Timing(seconds=[4.0, 2.0, 3.0], first=(7.5, 0.5))
    assert (timing.median, timing.startup) == (3.0, 6.0)


@pytest.mark.slow
def test_designs_take_turns_and_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    use_short_repetitions(monkeypatch)
    monkeypatch.setitem(WORKLOADS, "tiny", replace(TINY, target=SpeedTarget(ratio=1e9, roofline=1e9)))
    result = CliRunner().invoke(app, ["bench", "tiny", "--turns", "1", "--check", "--json"])
    assert result.exit_code == 1
    assert "tiny fedarena:" in result.stderr
    assert "its floor is 1e+09" in result.stderr
    assert "of the roofline" in result.stderr
    rows = json.loads(result.stdout)
    assert [row["design"] for row in rows][:3] == ["plain", "tensors", "fedarena"]
    for row in rows:
        assert {"work", "design", "samples_per_second", "ratio_to_plain", "roofline_percent", "memory_mb"} <= set(row)
        assert row["samples_per_second"] == pytest.approx(TINY.samples / row["seconds_per_round"])
        assert row["startup_seconds"] > 0
        assert sys.platform != "linux" or row["memory_mb"] > 20
    assert rows[0]["ratio_to_plain"] == 1.0
    installed = all(importlib.util.find_spec(name) for name in ("flwr", "ray"))
    assert ("Flower is not installed here" in result.stderr) is not installed
    assert ([row["design"] for row in rows][-1] == "flower") is installed


@pytest.mark.slow
def test_a_design_that_fails_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    use_short_repetitions(monkeypatch)
    wrong = replace(TINY, model={"name": "cnn_mcmahan"}, shape=(3,))
    with pytest.raises(MeasurementFailed, match="plain on tiny cannot be measured: "):
        run_interleaved([(wrong, "plain")], repetitions=1)


def row(**values: object) -> Row:
    keys = ("floor", "floor_roofline", "ceiling_times", "times", "beside")
    return {"work": "W6", "design": "fedarena", "ratio_to_plain": 9.0, "roofline_percent": 50.0} | (
        dict.fromkeys(keys) | values
    )


def test_a_promise_that_is_not_kept_is_named() -> None:
    assert (
        rounds.missed_targets([row(), row(floor=8.9), row(floor_roofline=50.0), row(ceiling_times=1.25, times=1.2)])
        == []
    )
    assert rounds.missed_targets(
        [row(floor=9.1), row(floor_roofline=51.0), row(ceiling_times=1.25, times=1.3, beside="W1")]
    ) == [
        "W6 fedarena: 9.00 times the plain loop, its floor is 9.1",
        "W6 fedarena: 50 % of the roofline, its floor is 51 %",
        "W6 fedarena: 1.30 times the time of W1, at most 1.25 is promised",
    ]


def test_a_population_that_is_felt_is_named() -> None:
    flat: Row = {"clients": 1000, "times": 1.0, "memory_mb": 300.0}
    grown: Row = {"clients": 100_000, "times": 1.5, "memory_mb": 2100.0}
    assert missed_targets({"population": [flat]}) == []
    assert [result.split(":")[0] for result in missed_targets({"population": [flat, grown]})] == [
        "population of 100,000"
    ] * 2


@pytest.mark.slow
def test_populations_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    use_short_repetitions(monkeypatch)
    monkeypatch.setattr(population, "POPULATIONS", (100, 300))
    measured = measure(["population"], repetitions=1)
    assert [row["clients"] for row in measured["population"]] == [100, 300]
    assert measured["population"][0]["times"] == 1.0


def test_a_work_that_does_not_exist_is_refused_before_anything_is_measured() -> None:
    result = CliRunner().invoke(app, ["bench", "W1", "W11"])
    assert result.exit_code == 2
    assert "no workload or suite is called 'W11'" in result.stderr
    assert "W1" in result.stderr.splitlines()[1]  # did you mean?


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="proportional memory is read from /proc")
def test_the_peak_of_memory_is_the_most_that_was_seen() -> None:
    peak, before = PeakMemory(os.getpid()), proportional_megabytes()
    block = mmap.mmap(-1, 120 << 20)  # pages of its own: what is left of an earlier test's heap would be used again
    block.write(b"1" * len(block))
    peak.update()
    block.close()
    peak.update()
    assert before is not None
    assert peak.megabytes is not None
    assert peak.megabytes > before + 100


def test_scaffold_stands_beside_the_same_work_without_it() -> None:
    """SCAFFOLD is promised as times of W1: the same rows, model and training."""
    w1, w6 = WORKLOADS["W1"], WORKLOADS["W6"]
    assert designs_of(w6)[-1] == "fedarena W1"
    assert replace(w6, name="W1", algorithm="fedavg", beside=None, target=w1.target) == w1
    assert WORKLOADS["W2"].model == WORKLOADS["W8"].model == CNN
    assert WORKLOADS["W8"].shape == MNIST


def test_every_suite_can_be_called_as_the_command_calls_it() -> None:
    for name, place in SUITES.items():
        suite = importlib.import_module(place)
        assert list(inspect.signature(suite.measure).parameters) == ["names", "repetitions"], name
        assert suite.missed_targets([]) == []


def test_no_column_is_cut_where_the_terminal_is_narrow(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    names = [f"column{i}" for i in range(8)]
    print_table("wide", {name: lambda row, name=name: row[name] for name in names}, [{n: n[::-1] for n in names}], [])
    shown = capsys.readouterr().out
    assert all(name in shown and name[::-1] in shown for name in names)
