"""Figures and tables for a paper: the same numbers as the comparison, in files that journals and compilers take."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from PIL import Image
from tests.support.comparisons import six
from typer.testing import CliRunner

from fedarena.cli.main import app
from fedarena.reports import collect_runs
from fedarena.reports.charts import style_sheet
from fedarena.reports.charts.posteriors import format_probability, format_sign
from fedarena.reports.paper_figures import COLOURS, draw_curves, draw_verdicts, write_figures
from fedarena.reports.report_data import ReportData
from fedarena.reports.text_tables import text_tables
from fedarena.results.comparison import Comparison


@pytest.fixture(scope="module")
def match(tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    return six(tmp_path_factory.mktemp("figures") / "match")


@pytest.mark.slow
def test_every_figure_in_either_format(match: Comparison, tmp_path: Path) -> None:
    done = CliRunner().invoke(
        app,
        ["report", str(match.dir), "-o", str(tmp_path / "r.html"), "--figures", str(tmp_path / "f"), "--format", "png"],
    )
    names = ["curves", "posteriors", "verdicts", "clients"]
    assert done.stdout.split() == [str(tmp_path / "r.html"), *(str(tmp_path / "f" / f"{name}.png") for name in names)]
    for name in names:
        with Image.open(tmp_path / "f" / f"{name}.png") as picture:
            assert min(picture.size) > 300
            assert len(picture.convert("RGB").getcolors(1 << 24) or []) > 50  # something is drawn
    for file in write_figures(match, tmp_path / "g", "pdf"):
        content = file.read_bytes()
        assert content.startswith(b"%PDF")
        assert b"/Type3" not in content  # fonts that journals refuse
        assert b"/TrueType" in content or b"/Type0" in content


@pytest.mark.slow
def test_the_same_comparison_gives_the_same_files(match: Comparison, tmp_path: Path) -> None:
    for one, other in zip(write_figures(match, tmp_path / "a"), write_figures(match, tmp_path / "b"), strict=True):
        assert one.read_bytes() == other.read_bytes()


@pytest.mark.slow
def test_without_a_verdict_no_figure_shows_one(match: Comparison, tmp_path: Path) -> None:
    single = collect_runs([run.dir for run in match.runs["fedavg"] if run.dir is not None])
    assert [file.name for file in write_figures(single, tmp_path)] == ["curves.pdf", "clients.pdf"]


def test_colours_are_the_pages() -> None:
    light = re.findall(r"--c\d: light-dark\((#\w+),", style_sheet())
    assert list(COLOURS) == light


@pytest.mark.slow
def test_curves_are_drawn_over_every_cost(match: Comparison) -> None:
    subject = ReportData(match)
    panels = draw_curves(subject).axes
    assert [ax.get_xlabel() for ax in panels] == [axis.label for axis in subject.axes]
    for ax, axis in zip(panels, subject.axes, strict=True):
        (drawn,) = [line for line in ax.get_lines() if line.get_label() == "scaffold"]
        c = subject.curve("scaffold", axis)
        assert drawn.get_xdata().tolist() == c.x.tolist()  # type: ignore[union-attr]
        assert drawn.get_ydata().tolist() == c.mean.tolist()  # type: ignore[union-attr]


def test_the_table_of_signs_is_the_comparisons(match: Comparison) -> None:
    subject = ReportData(match)
    texts = {text.get_position(): text.get_text() for text in draw_verdicts(subject).axes[0].texts}
    for duel in match.duels():
        x, y = subject.ranked.index(duel.column), subject.ranked.index(duel.row)
        assert texts[x, y - 0.14] == format_sign(duel.verdict)


def test_markdown_holds_the_rows_and_the_duels(match: Comparison) -> None:
    text = text_tables(match, "markdown")
    tables = [
        [[cell.strip() for cell in line.strip("|").split("|")] for line in block.splitlines()]
        for block in re.findall(r"(?:^\|.*\|\n)+", text, re.MULTILINE)
    ]
    assert len(tables) == 3
    for table in tables:
        assert len({len(row) for row in table}) == 1
        assert re.fullmatch(r":-+", table[1][0])
    for row, cells in zip(match.rows(), tables[0][2:], strict=True):
        assert cells[:2] == [row["algorithm"], f"{100 * row['final']:.1f}% ± {100 * row['final_sd']:.1f}"]
    names = tables[2][0][1:]
    for row in tables[2][2:]:
        for name, cell in zip(names, row[1:], strict=True):
            if name != row[0]:
                duel = match.duel(row[0], name)
                chances = ", ".join(map(format_probability, (duel.p_better, duel.p_equal, duel.p_worse)))
                assert cell == f"{duel.verdict} ({chances})"


def test_latex_compiles_by_the_book(match: Comparison) -> None:
    """Every line of a tabular has its columns, what is special to LaTeX is escaped, what is opened is closed."""
    text = text_tables(match, "latex")
    tabulars = re.findall(r"\\begin\{tabular\}\{(l r*)\}\n(.*?)\\end\{tabular\}".replace(" ", ""), text, re.DOTALL)
    assert len(tabulars) == text.count(r"\begin{tabular}") == 3
    for columns, body in tabulars:
        assert re.findall(r"\\(\w+rule)", body) == ["toprule", "midrule", "bottomrule"]
        lines = [line for line in body.splitlines() if not line.endswith("rule")]
        for line in lines:
            assert line.endswith(r" \\")
            assert len(re.findall(r"(?<!\\)&", line)) == len(columns) - 1
            assert not re.search(r"(?<!\\)[%#_]", line)
            assert line.count("$") % 2 == 0


def test_names_cannot_break_a_table() -> None:
    from fedarena.reports.text_tables import latex, markdown

    assert r"a\_b\&50\%\#\{\}" in latex("", [["", "x"], ["a_b&50%#{}", "1"]])
    assert r"a\|b" in markdown("", [["", "x"], ["a|b", "1"]])
