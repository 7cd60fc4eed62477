"""A key of the uplink at several values: everyone takes part with each, and the picture shows what it costs."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import fedarena as fa
from fedarena.cli.main import app
from fedarena.config.errors import BadValue, FedarenaError
from fedarena.experiments.sweep import parse_sweep, with_sweep
from fedarena.reports.commands import commands
from fedarena.reports.paper_figures import write_figures
from fedarena.results.comparison import Comparison
from fedarena.results.tradeoff_points import levels, points

SMALL: dict[str, Any] = {"model": "logreg", "clients": 6, "rounds": 2, "evaluate": {"every": 2}, "partition": "iid"}


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    out = tmp_path_factory.mktemp("sweep") / "c"
    return fa.compare(
        "digits", ["fedavg", "scaffold"], seeds=2, sweep="uplink.noise=0,2,4", out=out, uplink={"clip": 0.5}, **SMALL
    )


@pytest.mark.slow
def test_everyone_at_every_value(result: Comparison) -> None:
    assert result.labels == [f"{name} noise={z}" for name in ("fedavg", "scaffold") for z in (0, 2, 4)]
    assert list(levels(result)) == ["centralized"]
    for label in result.labels:
        uplink = result.runs[label][0].experiment.uplink
        assert (uplink.clip, uplink.noise) == (0.5, float(label.partition("=")[2]))
    found = points(result)
    assert [p.epsilon is None for p in found] == [True, False, False] * 2
    assert found[1].epsilon > found[2].epsilon > 0
    assert found[1].epsilon == found[4].epsilon
    assert found[3].bytes_up > 1.9 * found[0].bytes_up
    assert found[0].accuracy == pytest.approx(sum(r.final.accuracy for r in result.runs["fedavg noise=0"]) / 2)


def test_without_noise_it_is_the_run_without_a_sweep(result: Comparison) -> None:
    swept = result.runs["fedavg noise=0"][0]
    seeds = {key: getattr(swept.experiment, key) for key in ("seed", "fold_seed")}  # of the first split
    plain = fa.run("digits", out=False, uplink={"clip": 0.5}, runtime="serial", **{**SMALL, **seeds})
    assert swept.weights_sha256 == plain.weights_sha256


@pytest.mark.slow
def test_noise_of_private_training(tmp_path: Path) -> None:
    """The epsilon of records takes the place of that of clients; the clip is that of the experiment."""
    local = {"privacy": {"clip": 0.5, "noise": 1.0}}
    found = fa.compare(
        "digits", "fedavg", seeds=2, sweep="local.privacy.noise=1,3", out=tmp_path / "c", local=local, workers=1, **SMALL
    )
    assert found.labels == ["fedavg noise=1", "fedavg noise=3"]
    for label, point in zip(found.labels, points(found), strict=True):
        runs = found.runs[label]
        assert {run.experiment.local.privacy.clip for run in runs} == {0.5}
        assert point.epsilon == pytest.approx(sum(run.record_epsilon for run in runs) / 2)
    assert "about one of its training samples" in fa.report(found, tmp_path / "r.html").read_text()


@pytest.mark.slow
def test_the_picture_the_page_and_the_command(result: Comparison, tmp_path: Path) -> None:
    assert result.dir is not None
    assert (result.dir / "tradeoff.png").stat().st_size > 10_000
    page = fa.report(result, tmp_path / "r.html").read_text()
    assert 'id="tradeoff"' in page
    assert "epsilon, to the left more private" in page
    assert "no bound" in page
    assert "The verdict" in page
    assert "There is none" not in page
    assert tmp_path / "tradeoff.pdf" in write_figures(result, tmp_path)
    (printed,) = commands(result)
    assert "-a fedavg \\\n    -a scaffold" in printed
    assert "--sweep uplink.noise=0,2,4" in printed


def test_a_folder_brings_it_back(result: Comparison) -> None:
    assert result.dir is not None
    assert points(Comparison.load(result.dir)) == points(result)


@pytest.mark.slow
def test_an_interrupted_sweep_resumes(result: Comparison, tmp_path: Path) -> None:
    assert result.dir is not None
    copy = Path(shutil.copytree(result.dir, tmp_path / "c"))
    shutil.rmtree(copy / "cells" / "fedavg-noise=2")
    (copy / "tradeoff.png").unlink()
    assert points(fa.compare(resume=copy)) == points(result)
    assert (copy / "tradeoff.png").exists()


@pytest.mark.slow
def test_who_cannot_go_through_does_not_lose_the_others() -> None:
    """That fednova sends a number shows when it does; the failure is reported, and fedavg is drawn."""
    options = {"sweep": "uplink.clip=0.5,1.0", "out": False, "baseline": False, "seeds": 2}
    found = fa.compare("digits", ["fedavg", "fednova"], **options, **SMALL)
    assert [point.algorithm for point in points(found)] == ["fedavg", "fedavg"]
    assert all("sends a number beside its vector" in why for why in found.failures.values())


@pytest.mark.slow
def test_from_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    words = "compare digits -a fedavg --seeds 2 --json -q --no-baseline --sweep uplink.quantise=4,16 --out c"
    more = ["--set", "model=logreg", "--set", "rounds=1", "--set", "clients=4"]
    done = CliRunner().invoke(app, [*words.split(), *more])
    assert done.exit_code == 0, done.output
    printed = json.loads(done.stdout)["sweep"]
    assert printed["key"] == "uplink.quantise"
    few, many = printed["points"]
    assert (few["algorithm"], few["value"], few["epsilon"], many["value"]) == ("fedavg", 4, None, 16)
    size = 650  # of 64 features and 10 classes, and 10 biases
    assert few["bytes_up"] == 4 * (size // 2 + 4 + 8)
    assert many["bytes_up"] == 4 * (2 * size + 4 + 8)
    page = fa.report(Comparison.load("c")).read_text()
    assert "epsilon" not in page.partition("What privacy and bytes cost</h2>")[2].partition("</section>")[0]


def test_who_sends_nothing_takes_part_once() -> None:
    entered, what = with_sweep(["fedavg", "local"], {"uplink.noise": [0, 1]})
    assert list(entered) == ["fedavg noise=0", "fedavg noise=1", "local"]
    assert what["of"]["fedavg noise=1"] == {"algorithm": "fedavg", "value": 1}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("uplink.nois=1,2", "did you mean 'noise'"),
        ("local.lr=1,2", "not a key of uplink, local.privacy or attack"),
        ("uplink.noise=1", "two or more"),
        ("uplink.noise=1,1", "each once"),
        ("uplink.noise", "two or more"),
        ({"uplink.noise": [1], "uplink.clip": [1]}, "one key, and 2 are given"),
    ],
    ids=str,
)
def test_mistakes_get_one_message(text: Any, message: str) -> None:
    with pytest.raises(FedarenaError, match=message):
        parse_sweep(text)


def test_a_value_that_makes_no_sense_is_refused_before_work() -> None:
    with pytest.raises(BadValue, match=r"without uplink\.clip"):
        fa.compare("digits", ["fedavg"], seeds=2, sweep="uplink.noise=0,1", out=False, **SMALL)
    with pytest.raises(BadValue, match="a sweep cannot be tuned"):
        fa.compare("digits", ["fedavg"], seeds=2, sweep="uplink.quantise=4,8", tune=2, out=False, **SMALL)
