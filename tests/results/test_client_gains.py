"""What clients gain by the federation: identities, gains by hand, undefined metrics, pages."""

from __future__ import annotations

import json
import math
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.support import forked_processes
from tests.support.browser import browser, complaints, overflow, prefer, resize

import fedarena as fa
from fedarena.data.sources import arrays
from fedarena.reports.client_gains_section import QUANTILE_NAMES, signed
from fedarena.reports.page import render
from fedarena.reports.report_data import ReportData
from fedarena.reports.terminal_tables import show_comparison
from fedarena.reports.text_tables import text_tables
from fedarena.results.client_gains import APPROXIMATE, QUANTILES, gains_against
from fedarena.results.comparison import Comparison
from fedarena.statistics.bayes import posterior
from fedarena.statistics.hierarchical import hierarchy, shrunk_gains

NAMES = ("Basel", "Chur", "Genf <&>", "Zug")
SETTINGS: dict[str, Any] = {"model": "logreg", "rounds": 2, "baseline": False, "workers": 1}


def hospitals(sizes: tuple[int, ...] = (30, 24, 36, 27), names: tuple[str, ...] = NAMES, skewed: bool = False) -> Any:
    """Return clients with names; skewed ones have one class only, but for the first."""
    rng = np.random.default_rng(3)
    client = np.repeat(names, sizes)
    x = rng.normal(size=(len(client), 3)).astype(np.float32)
    y = (x.sum(axis=1) + rng.normal(size=len(client)) > 0).astype(int)
    if skewed:
        y[client == names[-1]] = 1
    return arrays(x, y, client)


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    out = tmp_path_factory.mktemp("gains") / "c"
    return fa.compare(hospitals(), ["fedavg", "scaffold", "local"], folds=3, out=out, **SETTINGS)


def changed(result: Comparison, values: dict[str, list[list[float]]], metric: str = "accuracy") -> Comparison:
    """Return the comparison with other scores of clients: label -> splits x clients."""
    runs = dict(result.runs)
    for label, table in values.items():
        runs[label] = [
            replace(run, measured=replace(run.measured, clients={metric: np.array(row)}))
            for run, row in zip(runs[label], table, strict=True)
        ]
    return replace(result, plan=replace(result.plan, metric=metric), runs=runs)


@pytest.mark.slow
def test_local_training_gains_nothing_over_itself(compared: Comparison) -> None:
    for gain in gains_against(compared, "local", "local"):
        assert (gain.mean, gain.interval, gain.verdict, gain.p_equal) == (0.0, (0.0, 0.0), "=", 1.0)
        assert gain.local == gain.federated
        assert gain.bytes == 0


@pytest.mark.slow
def test_gains_are_those_of_the_clients_own_scores(compared: Comparison) -> None:
    """Shrunk posteriors of the differences that the runs recorded, client by client."""
    gains = compared.client_gains()
    assert gains is not None
    assert gains.kind == "clients"
    assert gains.reference == "local"
    assert gains.algorithms == ["fedavg", "scaffold"]
    assert [gain.client for gain in gains.of("fedavg")] == [*NAMES]
    table = np.array(
        [
            fed.client_metrics["accuracy"] - alone.client_metrics["accuracy"]
            for fed, alone in zip(compared.runs["fedavg"], compared.runs["local"], strict=True)
        ]
    )
    expected = shrunk_gains(table, compared.plan.rho)
    for k, (gain, known) in enumerate(zip(gains.of("fedavg"), expected, strict=True)):
        assert (gain.mean, gain.interval) == (known.mean, known.interval)
        assert (gain.p_loss, gain.p_equal, gain.p_gain) == tuple(known.regions)
        assert gain.federated is not None
        assert gain.local is not None
        assert math.isclose(gain.federated - gain.local, table[:, k].mean(), abs_tol=1e-12)
    assert gains.notes.count(APPROXIMATE) == 1


def test_a_gain_by_hand(compared: Comparison) -> None:
    """Two clients are not shrunk, so that each has the posterior of its three differences."""
    alone = [[0.5, 0.6, math.nan, math.nan]] * 3
    table = [[0.7, 0.5, math.nan, math.nan], [0.8, 0.4, math.nan, math.nan], [0.9, 0.6, math.nan, math.nan]]
    basel, chur, genf, zug = gains_against(changed(compared, {"fedavg": table, "local": alone}), "fedavg", "local")
    rho = compared.plan.rho
    assert rho == 1 / 3
    known = posterior([0.5] * 3, [0.7, 0.8, 0.9], rho)
    assert basel.mean is not None
    assert basel.interval is not None
    assert math.isclose(basel.mean, 0.3)
    assert np.allclose(basel.interval, known.interval(0.9))
    assert math.isclose(basel.p_gain or 0, known.regions(0.01).right)
    # t with 2 degrees: 0.3 - 2.919986 sqrt(1/3 + 1/2) 0.1 (Student's table, 5 %)
    assert math.isclose(basel.interval[0], 0.3 - 2.919986 * math.sqrt(5 / 6) * 0.1, abs_tol=1e-6)
    assert chur.mean is not None
    assert math.isclose(chur.mean, -0.1)
    for unknown in (genf, zug):
        assert (unknown.mean, unknown.interval, unknown.p_gain, unknown.verdict) == (None, None, None, "?")
        assert (unknown.splits, unknown.undefined) == (0, 3)


@pytest.mark.slow
def test_the_sign_follows_the_direction_of_the_metric(compared: Comparison) -> None:
    """A log loss that falls by 0.3 is a gain of 0.3."""
    alone, fed = [[0.9, 0.9, 0.9, 0.9]] * 3, [[0.6, 0.9, 1.2, 0.9], [0.61, 0.9, 1.2, 0.9], [0.59, 0.91, 1.21, 0.9]]
    found = gains_against(changed(compared, {"fedavg": fed, "local": alone}, "log_loss"), "fedavg", "local")
    assert [gain.verdict for gain in found][:3:2] == ["+", "-"]
    assert (found[0].mean or 0) > 0.25
    assert (found[0].p_gain or 0) > 0.99
    assert (found[2].p_loss or 0) > 0.99


@pytest.mark.slow
def test_shrinkage_stays_within_the_hull_of_the_clients(compared: Comparison) -> None:
    rng = np.random.default_rng(0)
    alone, fed = np.full((3, 4), 0.5), 0.5 + rng.normal([0.1, 0.0, 0.05, -0.1], 0.03, (3, 4))
    found = gains_against(changed(compared, {"fedavg": fed.tolist(), "local": alone.tolist()}), "fedavg", "local")
    raw, shrunk = (fed - alone).mean(axis=0), np.array([gain.mean for gain in found])
    assert raw.min() <= shrunk.min()
    assert shrunk.max() <= raw.max()
    assert np.ptp(shrunk) < np.ptp(raw)
    assert np.array_equal(np.argsort(raw), np.argsort(shrunk))


@pytest.mark.slow
def test_splits_without_a_value_are_counted_and_do_not_count(compared: Comparison) -> None:
    alone, fed = np.full((3, 4), 0.5), np.full((3, 4), 0.6) + np.arange(12).reshape(3, 4) / 200
    fed[1, 2] = math.nan
    one = changed(compared, {"fedavg": fed.tolist(), "local": alone.tolist()})
    found = gains_against(one, "fedavg", "local")
    assert [(gain.splits, gain.undefined) for gain in found] == [(3, 0), (3, 0), (2, 1), (3, 0)]
    gains = one.client_gains()
    assert gains is not None
    assert any("undefined on the own test samples of 1 of 4 clients" in note for note in gains.notes)
    known = [
        posterior(np.zeros(len(c)), c, 1 / 3) for c in ((fed - alone)[:, k][~np.isnan(fed[:, k])] for k in range(4))
    ]
    assert [gain.mean for gain in found] == [estimate.mean for estimate in hierarchy(known).federations]


@pytest.mark.slow
def test_a_model_that_diverged_is_not_dropped_for_its_clients(compared: Comparison) -> None:
    """A metric without a bound is unknown, not undefined, where a model diverged."""
    alone, fed = [[0.9] * 4] * 3, [[0.8] * 4, [0.8, math.nan, 0.7, 0.9], [0.7, 0.8, 0.9, 0.9]]
    one = changed(compared, {"fedavg": fed, "local": alone}, "log_loss")
    assert [g.mean is None for g in gains_against(one, "fedavg", "local")] == [False] * 4
    runs = list(one.runs["fedavg"])
    lost = replace(runs[1].records[-1], loss=math.nan)
    runs[1] = replace(runs[1], records=[*runs[1].records[:-1], lost])
    assert runs[1].diverged
    one = replace(one, runs={**one.runs, "fedavg": runs})
    found = gains_against(one, "fedavg", "local")
    assert [g.mean is None for g in found] == [False, True, False, False]
    assert found[1].verdict == "?"


@pytest.mark.slow
def test_a_client_that_never_varies_is_not_certain() -> None:
    """Four test samples may give the same difference in five splits by chance."""
    rng = np.random.default_rng(4)
    table = rng.normal(0.0, 0.05, (5, 4))
    table[:, 1] = 0.0
    constant = shrunk_gains(table, 0.2)[1]
    assert constant.regions.rope < 0.95
    assert constant.interval[0] < 0 < constant.interval[1]
    assert [one.mean for one in shrunk_gains(np.zeros((5, 4)), 0.2)] == [0.0] * 4  # nothing varies: nothing differs


@pytest.mark.slow
def test_one_class_clients_have_no_auc() -> None:
    result = fa.compare(hospitals(skewed=True), ["fedavg", "local"], folds=3, metric="auc", out=False, **SETTINGS)
    gains = result.client_gains()
    assert gains is not None
    zug = gains.of("fedavg")[-1]
    assert (zug.client, zug.splits, zug.undefined, zug.mean) == ("Zug", 0, 3, None)
    assert "1 has no comparable score" in " ".join(result.words)
    json.dumps(result.as_dict()["client_gains"], allow_nan=False)


@pytest.mark.slow
def test_the_verdict_says_who_gains_and_who_loses(compared: Comparison) -> None:
    alone = [[0.5, 0.5, 0.5, 0.9]] * 3
    fed = [[0.9, 0.9, 0.9, 0.5], [0.9, 0.91, 0.9, 0.5], [0.91, 0.9, 0.9, 0.51]]
    one = changed(compared, {"fedavg": fed, "scaffold": fed, "local": alone})
    (line,) = [text for text in one.words if "clients gain" in text]
    assert line.startswith("3 of 4 clients gain by more than 1 point from ")
    assert "over local (P > 0.95); Zug (P = " in line
    assert line.endswith(" loses.")


@pytest.mark.slow
def test_without_local_training_there_are_no_gains() -> None:
    result = fa.compare("digits", ["fedavg", "fedprox"], seeds=2, clients=3, out=False, **SETTINGS)
    assert result.client_gains() is None
    assert result.as_dict()["client_gains"] is None
    assert '<section id="gains">' not in render(ReportData(result))


# Clients that are drawn


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    out = tmp_path_factory.mktemp("drawn") / "c"
    partition = {"name": "label_dirichlet", "beta": 0.5}
    settings = {**SETTINGS, "partition": partition, "clients": 5}
    return fa.compare("digits", ["fedavg", "local"], folds=3, out=out, **settings)


@pytest.mark.slow
def test_of_drawn_clients_the_shares_are_reported(drawn: Comparison) -> None:
    gains = drawn.client_gains()
    assert gains is not None
    assert gains.kind == "drawn"
    assert not gains.clients
    (found,) = gains.shares
    rows = []
    for fed, alone in zip(drawn.runs["fedavg"], drawn.runs["local"], strict=True):
        difference = fed.client_metrics["accuracy"] - alone.client_metrics["accuracy"]
        rows.append([np.mean(difference > 0.01), np.mean(abs(difference) <= 0.01), np.mean(difference < -0.01)])
    shares = (found.gain, found.equal, found.loss)
    assert np.allclose([share.mean for share in shares], np.mean(rows, axis=0))
    known = posterior(np.zeros(3), [row[2] for row in rows], drawn.plan.rho).interval(0.9)
    assert np.allclose(found.loss.interval, np.clip(known, 0, 1))
    assert all(0 <= share.interval[0] <= share.mean <= share.interval[1] <= 1 for share in shares)
    assert (found.splits, found.clients, found.undefined) == (3, 15, 0)
    differences = [
        fed.client_metrics["accuracy"] - alone.client_metrics["accuracy"]
        for fed, alone in zip(drawn.runs["fedavg"], drawn.runs["local"], strict=True)
    ]
    assert found.quantiles == pytest.approx(np.quantile(np.concatenate(differences), QUANTILES), abs=1e-15)
    assert any("of the drawn clients gain by more than 1 point from fedavg over local" in text for text in drawn.words)


def test_the_gains_of_drawn_clients_are_a_grid_of_quantiles(drawn: Comparison) -> None:
    """With a second algorithm the report has a row for each quantile; of one algorithm the chart of shares says enough."""
    assert "highest tenth" not in render(ReportData(drawn))
    two = replace(drawn, plan=replace(drawn.plan, contestants={**drawn.plan.contestants, "other": {"algorithm": "fedavg"}}))
    two = replace(two, runs={**drawn.runs, "other": drawn.runs["fedavg"]})
    page = render(ReportData(two))
    gains = two.client_gains()
    assert gains is not None
    for name, gain in zip(QUANTILE_NAMES, gains.shares[0].quantiles, strict=True):
        assert f"{name}, fedavg: {signed(two, gain)}" in page


def test_a_share_that_is_the_same_in_all_splits_is_not_certain(drawn: Comparison) -> None:
    """None of 15 clients lose: 90 % of the posterior of Jeffreys, Beta(0.5, 15.5), lies below 0.122 at its 95 % point."""
    from scipy.stats import beta

    same = changed(drawn, {"fedavg": [[0.9] * 5] * 3, "local": [[0.5] * 5] * 3})
    gains = same.client_gains()
    assert gains is not None
    assert gains.shares[0].gain.mean == 1
    assert gains.shares[0].loss.interval == (0.0, float(beta.ppf(0.95, 0.5, 15.5)))


@pytest.mark.slow
def test_a_fixed_partition_has_clients_by_number() -> None:
    settings = {**SETTINGS, "clients": 4}
    result = fa.compare("digits", ["fedavg", "local"], seeds=2, fixed="partition", out=False, **settings)
    gains = result.client_gains()
    assert gains is not None
    assert [gain.client for gain in gains.clients] == [f"client {k}" for k in range(4)]


# What is shown


@pytest.mark.slow
def test_gains_in_report_tables_and_terminal(compared: Comparison, capsys: pytest.CaptureFixture[str]) -> None:
    page = render(ReportData(compared))
    assert '<section id="gains">' in page
    assert "Genf &lt;&amp;&gt;" in page
    assert "Genf <&>" not in page
    assert page.count(APPROXIMATE) == 1
    assert "| Basel" in text_tables(compared, "markdown")
    assert "Chur & fedavg" in text_tables(compared, "latex")
    show_comparison(compared)
    assert "4 clients gain by more than 1 point" in " ".join(capsys.readouterr().out.split())


def test_json_of_the_command(compared: Comparison) -> None:
    assert compared.dir is not None
    loaded = Comparison.load(compared.dir) if not compared.plan.own else compared
    table = json.loads(json.dumps(loaded.as_dict()["client_gains"], allow_nan=False))
    assert {one["client"] for one in table["clients"]} == {*NAMES}
    assert table["kind"] == "clients"
    keys = {
        "mean",
        "interval",
        "p_gain",
        "p_equal",
        "p_loss",
        "bytes",
        "clock_seconds",
        "training_seconds",
        "undefined",
    }
    assert keys <= {*table["clients"][0]}


def test_costs_are_those_of_the_federation(compared: Comparison) -> None:
    gains = compared.client_gains()
    assert gains is not None
    runs = compared.runs["fedavg"]
    for gain in gains.of("fedavg"):
        assert math.isclose(gain.bytes * 4, np.mean([run.bytes for run in runs]))
        assert math.isclose(gain.clock_seconds, np.mean([run.records[-1].clock for run in runs]))
    trained = np.mean([sum(r.seconds_train for r in run.records) for run in runs])
    assert math.isclose(sum(gain.training_seconds for gain in gains.of("fedavg")), trained)


@pytest.mark.slow
def test_many_clients_are_drawn_by_their_extremes() -> None:
    names = tuple(f"Saint {k:02}" for k in range(18))
    result = fa.compare(hospitals((8,) * 18, names), ["fedavg", "local"], folds=2, out=False, **SETTINGS)
    page = render(ReportData(result))
    section = page.partition('<section id="gains">')[2].partition("</section>")[0]
    assert sum(name in section for name in names) == 10
    assert "Histogram: 18 clients" in section


@pytest.mark.slow
def test_pages_fit_a_desk_and_a_telephone(compared: Comparison, drawn: Comparison, tmp_path: Path) -> None:
    with browser() as page:
        for name, result in (("named", compared), ("drawn", drawn)):
            file = tmp_path / f"{name}.html"
            file.write_text(render(ReportData(result)), encoding="utf-8")
            for width in (1280, 390):
                for scheme in ("light", "dark"):
                    prefer(page, scheme)
                    resize(page, width)
                    page.get(file.as_uri())
                    assert overflow(page) == 0
                    assert complaints(page) == []
                    shown = page.execute_script(
                        "return [...document.querySelectorAll('#gains svg.chart:not(.key)')]"
                        ".filter(e => e.getBoundingClientRect().width > 0)"
                        ".map(e => [e.getBoundingClientRect().right, e.querySelectorAll('.mark').length])"
                    )
                    assert all(right <= width for right, _ in shown)
                    assert [marks for _, marks in shown] == ([8, 0] if name == "named" else [3])  # intervals, then the grid


HEART = Path(os.environ.get("FEDARENA_DATA", "data")) / "heart_disease_4sites.npz"


@pytest.mark.slow
@pytest.mark.skipif(not HEART.exists(), reason="heart_disease is not here: `fedarena data` says where it comes from")
def test_hospitals_by_name_on_the_command_line(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "fedarena", "compare", "heart_disease", "-a", "fedavg", "-a", "local"]
    command += ["--folds", "2", "--set", "rounds=1", "--no-baseline", "--json", "-q", "--out", str(tmp_path / "c")]
    done = forked_processes.run(command, check=True)
    table = json.loads(done.stdout)
    assert [one["client"] for one in table["client_gains"]["clients"]] == [
        "cleveland",
        "hungarian",
        "switzerland",
        "va",
    ]
    assert table["leave_one_out"] is None
