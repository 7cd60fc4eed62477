"""The progress of a comparison: a live table on a terminal, plain lines elsewhere."""

from __future__ import annotations

import io
import threading
from pathlib import Path

import pytest
from rich.console import Console

import fedarena as fa
from fedarena.config.comparison_plan import Plan
from fedarena.experiments.live_table import ComparisonProgress
from fedarena.experiments.plan import build_plan
from fedarena.results.json_files import as_json, write_text
from fedarena.results.run_status import ComparisonCell, comparison_cells


@pytest.fixture
def plan() -> Plan:
    entered = {name: {"algorithm": name} for name in ("fedavg", "fedprox", "scaffold")}
    return build_plan(fa.Experiment.make("digits", rounds=20), entered, folds=5, repeats=2)


def end(cell: ComparisonCell, best: float, diverged: bool = False) -> None:
    """Write the result of a cell as a run does."""
    cell.folder.mkdir(parents=True)
    result = {"rounds": 20, "final_accuracy": best - 0.01, "best_accuracy": best, "diverged": diverged}
    write_text(cell.folder / "result.json", as_json(result))


def console(height: int = 40) -> Console:
    return Console(
        file=io.StringIO(), force_terminal=True, width=100, height=height, highlight=False, color_system=None
    )


def text(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def rows(board: ComparisonProgress, running: list[ComparisonCell]) -> list[str]:
    """Return the rows of the table."""
    sheet = console()
    sheet.print(board.table(running))
    return [line.strip() for line in text(sheet).splitlines() if "fold" in line or "runs" in line]


def test_a_row_a_cell(plan: Plan, tmp_path: Path) -> None:
    everyone = comparison_cells(plan, tmp_path)
    end(everyone[0], 0.91)
    end(everyone[1], 0.42, diverged=True)
    board = ComparisonProgress(console=console())
    board.start(plan, everyone)
    board.update([])
    shown = rows(board, [])
    board.stop()
    assert len(shown) == 31
    assert shown[0].split() == ["fedavg", "repeat0-fold0", "20/20", "0.9000", "0.9100", "done"]
    assert shown[1].split()[-1] == "diverged"
    assert shown[2].split() == ["scaffold", "repeat0-fold0", "waiting"]
    assert shown[-1].startswith("2/30 runs · 1 diverged · elapsed 0:00 · eta -")


def test_with_little_room_the_running_come_first(plan: Plan, tmp_path: Path) -> None:
    everyone = comparison_cells(plan, tmp_path)
    for cell in everyone[:9]:
        end(cell, 0.9)
    board = ComparisonProgress(console=console(height=16))  # ten rows
    board.start(plan, everyone)
    shown = [tuple(line.split()[:2]) for line in rows(board, [everyone[10], everyone[12]])[:-1]]
    board.stop()
    named = [(cell.label, cell.split.name) for cell in everyone]
    assert shown == [named[10], named[12], named[9], named[11], named[13], *reversed(named[4:9])]


def test_no_threads_that_would_forbid_forking(plan: Plan, tmp_path: Path) -> None:
    before = threading.active_count()
    board = ComparisonProgress(console=console())
    board.start(plan, comparison_cells(plan, tmp_path))
    board.update([])
    assert threading.active_count() == before
    board.stop()


def test_a_plain_line_for_each_that_ends(plan: Plan, tmp_path: Path) -> None:
    everyone = comparison_cells(plan, tmp_path)
    end(everyone[0], 0.9)
    out = Console(file=io.StringIO(), highlight=False)
    lines = ComparisonProgress(console=out)
    lines.start(plan, everyone)
    end(everyone[1], 0.8)
    lines.finish_cell(everyone[1])
    everyone[2].folder.mkdir(parents=True)
    (everyone[2].folder / "failure.txt").write_text("client 0 in round 1 failed\n")
    lines.finish_cell(everyone[2])
    lines.stop()
    assert text(out).splitlines() == [
        "fedavg, fedprox, scaffold · digits · label_dirichlet · mlp_2nn · 3 x 10 runs",
        " 2/30  fedprox   repeat0-fold0  best 0.8000  final 0.7900",
        " 3/30  scaffold  repeat0-fold0  client 0 in round 1 failed  failed",
    ]


def test_what_failed_before_counts_as_to_be_done(plan: Plan, tmp_path: Path) -> None:
    everyone = comparison_cells(plan, tmp_path)
    everyone[0].folder.mkdir(parents=True)
    (everyone[0].folder / "failure.txt").write_text("out of memory\n")
    lines = ComparisonProgress(console=console())
    lines.start(plan, everyone)
    assert lines.cells_done == 0
    assert lines.seen[everyone[0]].state == "waiting"


def test_disabled_progress_prints_nothing(plan: Plan, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    everyone = comparison_cells(plan, tmp_path)
    silent = ComparisonProgress(enabled=False)
    silent.start(plan, everyone)
    silent.update(everyone[:1])
    silent.finish_cell(everyone[0])
    silent.stop()
    assert capfd.readouterr() == ("", "")
