"""The suite of scale: costs, devices that come and go, and the extrapolation."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import pytest

import fedarena as fa
from fedarena.bench import availability, costs, missed_targets, runtimes, scale
from fedarena.bench.machine import parameters
from fedarena.bench.table_format import Row
from fedarena.bench.workloads import WORKLOADS, SyntheticImages, Workload
from fedarena.engine.availability import DAY, build_availability

TINY = Workload("tiny", {"name": "logreg"}, (1, 4, 4), 20, 3, 6, {"lr": 0.1, "epochs": 2, "batch": 5})


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(costs, "LEAST", 0.002)
    monkeypatch.setattr(costs, "FRESH", 2**16)


def test_a_client_sends_what_the_engine_counts() -> None:
    """Four bytes a parameter either way, and eight for its number of rows."""
    record = next(iter(fa.rounds(SyntheticImages.of(TINY), runtime="serial", **TINY.settings)))
    assert parameters(TINY) == 16 * 10 + 10
    assert record.bytes_down == 3 * 4 * parameters(TINY)
    assert record.bytes_up == 3 * (4 * parameters(TINY) + 8)
    assert parameters(WORKLOADS["W1"]) == 784 * 200 + 200 + 200 * 200 + 200 + 200 * 10 + 10


def test_files_are_as_large_as_what_is_in_them() -> None:
    """A model in single precision; an accuracy of each client in double; a header of a kilobyte or less."""
    for row in costs.of_checkpoint(1, sizes=(1000, 5000), populations=(2000,)):
        assert 0 <= row["bytes"] - 4 * row["parameters"] - 8 * row["clients"] < 1024
        assert row["seconds"] > 0
    (memory,) = costs.of_memory(1, sizes=(3000,))
    assert 0 <= memory["bytes"] - 4 * 3000 < 1024
    for row in costs.of_mean(1, (500, 5000)):
        assert row["answers_per_second"] * row["seconds"] == pytest.approx(1.0)


def test_a_draw_knows_41_bytes_of_a_client() -> None:
    """Its number twice, begin and end of its night, its rows, eight bytes each, and whether it is there."""
    assert [row["bytes"] for row in costs.of_draw(1, (1000, 3000))] == [41_000, 123_000]


@pytest.mark.slow
def test_a_hundred_thousand_devices_are_arrays_and_no_objects() -> None:
    exp = availability.experiment("fedavg")
    before = len(gc.get_objects())
    known = build_availability(exp, availability.DEVICES, range(availability.DEVICES))
    assert known is not None
    known.is_available(0.0)
    assert len(gc.get_objects()) - before < 100
    assert known.clients.nbytes + known.starts.nbytes + known.ends.nbytes == 24 * availability.DEVICES


@pytest.mark.slow
@pytest.mark.parametrize("policy", availability.POLICIES)
def test_some_hours_of_a_small_world(policy: str) -> None:
    row = availability.simulate(policy, days=0.15, devices=2000)
    assert row["days"] >= 0.15
    assert row["selected"] - row["answered"] == pytest.approx(row["lost_share"] * row["selected"])
    assert sum(hour["rounds"] for hour in row["by_hour"]) == row["rounds"]
    available = [hour["available"] for hour in row["by_hour"]]
    assert max(available[1:6]) > 0.85 * 2000
    assert min(available) < 0.02 * 2000
    again = availability.simulate(policy, days=0.15, devices=2000)
    assert (again["curve"], again["by_hour"]) == (row["curve"], row["by_hour"])
    assert row["curve"][0][0] < 0.15 * DAY / 3600


def test_zones_hold_classes_of_their_own() -> None:
    """Seven rows of ten are of the classes y with y mod 4 = zone, but for the turn at ten."""
    data = availability.Zones(400).load(0)
    first = data.y[: 100 * availability.ROWS]
    assert ((first % availability.ZONES) == 0).mean() > 0.6
    assert data.owner is not None
    assert data.owner.max() == 399


def known_costs() -> list[Row]:
    """Round numbers: a client takes 10 ms and has 200,000 parameters, of which a core adds 1,000 a second."""
    client = {"work": "scale", "part": "client", "bytes_down": 800_000, "bytes_up": 800_008, "core_seconds": 0.01}
    middling = {**client, "parameters": 200_000}
    one = lambda part, **values: {"work": "scale", "part": part, **values}
    return [
        {**client, "parameters": 10}, middling, client,
        one("mean", parameters=10_000, seconds=1.0), one("mean", parameters=100_000, seconds=0.0005),
        one("memory", parameters=100_000, bytes=400_000),
        *(one("checkpoint", parameters=n, clients=1000, seconds=n / 1e8, bytes=4 * n) for n in costs.VECTORS),
        *(one("checkpoint", parameters=10_000, clients=n, seconds=n / 1e9, bytes=8 * n) for n in costs.POPULATIONS),
        *(one("draw", clients=n, seconds=n / 1e8, bytes=41 * n) for n in costs.POPULATIONS),
        one("days", design="fedavg", clients=100_000, days=2.0, selected=8000, memory_mb=None),
    ]  # fmt: skip


def test_what_is_implied_is_a_product() -> None:
    rows = scale.implied(known_costs())
    assert [row["clients"] for row in rows] == [10**3, 10**4, 10**5, 10**6, 10**7]
    last = rows[-1]
    assert last["asked"] == 100_000
    assert last["training_core_seconds"] == pytest.approx(1000)
    assert last["adding_seconds"] == pytest.approx(100)  # 200,000 parameters: twice 0.5 ms
    assert last["bytes_up"] == 100_000 * 800_008
    assert last["memories_bytes"] == pytest.approx(8e12)
    assert last["draw_seconds"] == pytest.approx(0.1)
    assert last["checkpoint_seconds"] == pytest.approx(0.01 + 0.002)
    assert last["days_for_all"] == pytest.approx(2500)  # 4,000 are asked in a day


def test_memory_that_grows_with_devices_is_named() -> None:
    light: Row = {"work": "scale", "part": "days", "design": "fedavg", "clients": 100_000, "memory_mb": 400.0}
    assert missed_targets({"scale": [light, {**light, "memory_mb": None}]}) == []
    assert missed_targets({"scale": [{**light, "memory_mb": 2100.0}]}) == [
        "fedavg, 100,000 devices: 2,100 MB, at most 2,000 are promised"
    ]


def test_a_round_is_the_median_of_those_after_the_first_ones() -> None:
    assert runtimes.median_round([9.0, 9.5, 9.6, 9.7, 9.9, 10.0]) == pytest.approx(0.1)


@pytest.mark.slow
def test_a_runtime_that_is_not_installed_is_left_out_with_a_reason(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(runtimes, "ROUNDS", 2)
    monkeypatch.setattr(runtimes, "NEEDS", {"ray": ("no_such_package",)})
    monkeypatch.setattr(runtimes, "RUNTIMES", {name: runtimes.RUNTIMES[name] for name in ("processes", "ray")})
    with caplog.at_level("INFO", logger="fedarena.bench"):
        here, ray = runtimes.measure(1)
    assert here["seconds_per_round"] > 0
    assert ray["seconds_per_round"] is None
    assert "no_such_package is not installed" in ray["note"]
    assert caplog.messages[-1] == ray["note"]


def test_all_of_it_is_printed(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "250")
    fill: dict[str, Any] = {"model": "mlp_2nn", "rows": 1, "clients": 1, "seconds_per_round": 1.0, "memory_mb": None}
    rows = [{**fill, "parameters": 1, **row} if row["part"] == "client" else row for row in known_costs()]
    rows = [{"answers_per_second": 2.5, **row} if row["part"] == "mean" else row for row in rows]
    rows = [{"seconds_write": 0.1, "seconds_read": 0.1, **row} if row["part"] == "memory" else row for row in rows]
    place: Row = {
        "work": "scale",
        "part": "place",
        "design": "ray",
        "seconds_per_round": None,
        "note": "ray is left out",
    }
    rows = [row for row in rows if row["part"] != "days"]
    scale.print_rows(
        [*rows, place, availability.simulate("fedavg", days=0.05, devices=500), *scale.implied(known_costs())]
    )
    shown = " ".join(capsys.readouterr().out.split())
    for title, _ in scale.TABLES.values():
        assert title in shown
    assert "ray is left out" in shown


def test_the_work_is_the_same_everywhere(tmp_path: Path) -> None:
    """All rows of the one table are those of the four."""
    runtimes.write_tables(tmp_path)
    everything = (tmp_path / "all.csv").read_text().splitlines()[1:]
    cut = [
        f"{line},{name}" for name in runtimes.NAMES for line in (tmp_path / f"{name}.csv").read_text().splitlines()[1:]
    ]
    assert everything == cut
