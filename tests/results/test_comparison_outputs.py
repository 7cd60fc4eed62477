"""A comparison as tables and figures in a notebook, also where its model, data or an algorithm came from Python."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from matplotlib.figure import Figure
from torch import nn
from typer.testing import CliRunner

import fedarena as fa
from fedarena.cli.main import app
from fedarena.config.registry import components
from fedarena.reports.report_data import colour_index
from fedarena.reports.text_tables import text_tables
from fedarena.results import comparison_outputs
from fedarena.results.comparison import Comparison
from fedarena.results.run_plots import COLOURS

ROWS = np.random.default_rng(0).normal(size=(160, 6)).astype(np.float32)
LABELS = np.argmax(ROWS[:, :3], axis=1)


def net() -> nn.Module:
    return nn.Linear(6, 3)


@dataclass(frozen=True)
class Alone(fa.LocalOnly):
    """Local training that only Python knows."""

    communicates: ClassVar[bool] = False


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> fa.Comparison:
    folder = tmp_path_factory.mktemp("outputs") / "c"
    algorithms = {"fedavg": "fedavg", "prox": "fedprox:mu=2", "alone": Alone()}
    settings: dict[str, Any] = {"model": net, "clients": 4, "rounds": 3, "local": {"lr": 0.3}, "evaluate_on": "common"}
    return fa.compare((ROWS, LABELS), algorithms, seeds=3, out=folder, **settings)


@pytest.fixture(scope="module")
def loaded(made: fa.Comparison) -> fa.Comparison:
    """The same comparison from its folder, without what came from Python."""
    found = fa.load(made.dir)
    assert isinstance(found, Comparison)
    return found


@pytest.mark.slow
def test_the_folder_alone_gives_the_same_tables(made: fa.Comparison, loaded: fa.Comparison) -> None:
    assert loaded.scores() == made.scores()
    assert loaded.to_latex() == made.to_latex() == text_tables(made, "latex")
    assert loaded.to_pandas().equals(made.to_pandas())
    assert loaded.words == made.words
    assert loaded._repr_html_() == made._repr_html_()


@pytest.mark.slow
def test_a_row_per_algorithm_and_split(loaded: fa.Comparison) -> None:
    frame = loaded.to_pandas()
    assert list(frame["algorithm"]) == [label for label in (*loaded.labels, "centralized") for _ in range(3)]
    assert list(frame["repeat"]) == [0, 1, 2] * 4
    for label, scores in loaded.scores().items():
        assert list(frame.loc[frame["algorithm"] == label, "score"]) == scores
    assert {"accuracy", "auc", "own_accuracy", "bytes_up", "wall_seconds"} <= set(frame.columns)
    summary = loaded.to_pandas(summary=True)
    assert summary.to_dict("records")[0]["final"] == np.mean(loaded.scores()["fedavg"])
    assert list(summary["algorithm"]) == [row["algorithm"] for row in loaded.rows()]


@pytest.mark.slow
def test_an_algorithm_that_is_not_given_again_is_known_by_its_traits(loaded: fa.Comparison) -> None:
    assert loaded.is_baseline("alone")
    assert not loaded.is_baseline("prox")
    with pytest.raises(fa.FedarenaError, match="came from Python"):
        loaded.runs["fedavg"][0].again(out=False)
    with pytest.raises(fa.FedarenaError, match=r"model=\.\.\."):
        fa.load(loaded.dir, data=fa.arrays(ROWS, LABELS)).runs["fedavg"][0].model()
    given = fa.load(loaded.dir, model=net, data=fa.arrays(ROWS, LABELS))
    assert given.runs["fedavg"][0].model().weight.shape == (3, 6)


@pytest.mark.slow
def test_curves_are_means_over_splits_in_the_colours_of_the_report(loaded: fa.Comparison) -> None:
    ax = loaded.curves()
    lines = {line.get_label(): line for line in ax.get_lines()}
    for label in loaded.labels:
        values = [[value for _, value in run.metric_curve] for run in loaded.runs[label]]
        assert np.array_equal(lines[label].get_ydata(), np.mean(values, axis=0))
        assert lines[label].get_color() == COLOURS[colour_index(loaded.plan, label)]
    legend = ax.get_legend()
    assert legend is not None
    assert [text.get_text() for text in legend.get_texts()] == [*loaded.labels, "centralized"]
    assert loaded.curves(over="bytes").get_xlabel() == "kB sent, up and down"
    with pytest.raises(fa.FedarenaError, match="did you mean 'rounds'"):
        loaded.curves(over="round")  # type: ignore[arg-type]


@pytest.mark.slow
def test_posteriors_are_those_of_the_best_against_each_other(loaded: fa.Comparison) -> None:
    ax = loaded.plot()
    best, *others = loaded.ranked
    assert [tick.get_text() for tick in ax.get_yticklabels()] == others
    means = [100 * loaded.posterior(best, other).mean for other in others]
    drawn = [line.get_xdata()[0] for line in ax.get_lines() if line.get_marker() == "o"]
    assert np.array_equal(drawn, means)


@pytest.mark.slow
def test_figures_fit_into_axes_that_are_given(loaded: fa.Comparison) -> None:
    figure = Figure()
    first, second = figure.subplots(1, 2)
    assert loaded.plot(first) is first
    assert loaded.curves(second) is second
    assert figure.get_layout_engine() is not None


@pytest.mark.slow
def test_the_report_and_the_command_need_nothing_from_python(loaded: fa.Comparison, tmp_path: Path) -> None:
    page = loaded.report(tmp_path / "page.html").read_text()
    assert "fa.compare(" in page
    assert loaded.dir is not None
    assert loaded.report() == loaded.dir / "report.html"
    shown = CliRunner().invoke(app, ["report", str(loaded.dir), "--table", "latex", "--figures", str(tmp_path / "f")])
    assert shown.exit_code == 0
    assert loaded.to_latex() in shown.stdout
    assert (tmp_path / "f" / "posteriors.pdf").is_file()


@pytest.mark.slow
def test_runs_on_the_same_axes_have_their_own_colours_and_a_legend(loaded: fa.Comparison) -> None:
    ax = loaded.runs["fedavg"][0].plot()
    assert ax.get_legend() is None
    for run in (loaded.runs["prox"][0], loaded.runs["fedavg"][1], loaded.runs["alone"][0]):
        run.plot(ax)
    named = [line for line in ax.get_lines() if not str(line.get_label()).startswith("_")]
    assert [line.get_label() for line in named] == ["fedavg", "fedprox:mu=2.0", "fedavg (2)", "Alone"]
    assert [line.get_color() for line in named] == list(COLOURS[:4])
    assert ax.get_legend() is not None


def test_without_the_reports_a_comparison_says_how_to_get_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comparison_outputs, "_registered", [])
    with pytest.raises(fa.FedarenaError, match=r"import fedarena\.api first"):
        comparison_outputs.presentation()


@pytest.mark.slow
def test_the_folder_of_a_search_is_opened(tmp_path: Path) -> None:
    space = {"local.lr": {"choices": [1e-6, 0.2]}}
    found = fa.search("digits", space=space, method="grid", rounds=2, model="logreg", out=tmp_path / "s")
    again = fa.load(tmp_path / "s")
    assert again.as_dict() == found.as_dict()
    (tmp_path / "s" / "study.db").unlink()
    with pytest.raises(fa.FedarenaError, match="0 of 2 trials"):
        fa.load(tmp_path / "s")


def test_every_algorithm_is_a_public_name() -> None:
    for entry in components("algorithm").values():
        if entry.make.__module__.startswith("fedarena."):
            assert getattr(fa, entry.make.__name__) is entry.make
