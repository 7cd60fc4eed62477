"""The notebooks run from the first to the last cell, and are committed without their outputs."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from fedarena.config.errors import FedarenaError
from fedarena.config.experiment import Experiment

NOTEBOOKS = sorted((Path(__file__).parent.parent / "notebooks").glob("*.ipynb"))
SECONDS = 120  # of a cell; a whole notebook takes less than 20 on an idle machine


def test_there_are_three() -> None:
    assert [path.stem for path in NOTEBOOKS] == ["first_comparison", "four_hospitals", "own_algorithm_and_model"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_has_no_outputs(path: Path) -> None:
    cells = [cell for cell in json.loads(path.read_text(encoding="utf-8"))["cells"] if cell["cell_type"] == "code"]
    assert not any(cell["outputs"] or cell["execution_count"] for cell in cells)


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nbclient, nbformat = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
    pytest.importorskip("ipykernel")
    if path.stem == "four_hospitals":
        try:
            Experiment.make("heart_disease").data.made.load(0)
        except FedarenaError:
            pytest.skip("the file of heart_disease is not in the data folder")
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))  # the user's own profile does not matter
    book = nbformat.read(path, as_version=4)
    folder = tmp_path / "work"
    folder.mkdir()
    resources = {"metadata": {"path": str(folder)}}
    nbclient.NotebookClient(book, timeout=SECONDS, kernel_name="python3", resources=resources).execute()
    if out := os.environ.get("FEDARENA_EXECUTED_NOTEBOOKS"):  # to look at them
        nbformat.write(book, Path(out) / path.name)
    outputs = [output for cell in book.cells if cell.cell_type == "code" for output in cell.outputs]
    figures = [output for output in outputs if "image/png" in output.get("data", {})]
    assert len(figures) >= 2, "the figures are shown below their cells"
    assert any("<table" in output.get("data", {}).get("text/html", "") for output in outputs)
