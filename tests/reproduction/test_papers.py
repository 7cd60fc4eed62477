"""Every recipe in papers/ is sound at every size, and runs at the smallest."""

from __future__ import annotations

import functools
import json
import math
import re
from pathlib import Path
from typing import Any

import pytest

from fedarena.algorithms.base import Setting
from fedarena.config.components import Component
from fedarena.config.errors import DataMissing
from fedarena.config.experiment import Experiment
from fedarena.engine.setup import open_context
from fedarena.models.compiled import kernels
from fedarena.reproduction import recipe_index
from fedarena.reproduction.collect import judge_file_again
from fedarena.reproduction.plan import ReproductionPlan
from fedarena.reproduction.recipe_index import recipe_files
from fedarena.reproduction.recipes import SIZES
from fedarena.reproduction.reproduce import reproduce, verify_row, write_page
from fedarena.reproduction.result import read_result
from fedarena.reproduction.score_sheet import label
from fedarena.results.run_folder import versions

find_recipe = functools.cache(recipe_index.find_recipe)  # validates a recipe: once is enough
ROOT = Path(__file__).parents[2]
IDS = list(recipe_files())
SCORES = {"best": "best_accuracy", "final": "final_accuracy"}  # measures, and what runs call them
RESULTS = sorted((ROOT / "papers" / "results").glob("*.json"))
EXPECTED = {
    *("N-T1", "N-F2", "N-T3", "N-T4", "N-F4", "N-F5", "N-F6", "N-DL", "N-2NN", "P-ROC"),
    *("R-F2", "R-F3", "R-F4", "R-F5", "R-F6", "R-PROX"),
    *("K-F3", "K-F4", "K-LOC", "K-TH", "K-F5", "K-SB", "K-COM", "K-MU", "K-OPT", "T-X"),
    *("O-M1", "O-M2", "O-M4", "O-N", "O-H", "O-V", "F-HEART", "F-BRCA"),
}


def quickest(file: Path) -> float:
    return min((run["seconds"] for run in json.loads(file.read_text(encoding="utf-8"))["runs"]), default=math.inf)


def trains_in_kernels(table: dict[str, Any]) -> bool:
    """Return whether the quickest run of a result file is trained by the compiled kernels."""
    run = min(table["runs"], key=lambda run: run["seconds"])
    context = open_context(Experiment.make({**table["common"], **run["settings"]}))
    return context.training_path.startswith("compiled")


def test_every_table_and_figure_has_a_recipe() -> None:
    assert set(IDS) == EXPECTED


@pytest.mark.slow
@pytest.mark.parametrize("name", IDS)
def test_a_recipe_is_sound(name: str) -> None:
    """Validation accepts it: all names refer to something, and every check can be made."""
    recipe = find_recipe(name)
    assert recipe.id == name
    assert recipe.checks
    assert all((recipe.title, recipe.source, recipe.claim))


@pytest.mark.slow
@pytest.mark.parametrize("name", IDS)
@pytest.mark.parametrize("size", SIZES)
def test_every_run_of_every_size_is_an_experiment(name: str, size: Any) -> None:
    """Settings are checked for name, type and range, and no two runs share a folder."""
    jobs = ReproductionPlan(find_recipe(name), size).jobs
    assert len({job.name for job in jobs}) == len(jobs)
    if size == "smoke":
        embedded = {"digits", "breast_cancer", "least_squares"}
        data = [job.table.get("data") for job in jobs]
        assert {d["name"] if isinstance(d, dict) else d for d in data} <= {*embedded, None}


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in IDS if find_recipe(name).kind == "run"])
def test_every_algorithm_of_the_published_size_takes_its_local_settings(name: str) -> None:
    """What a run would refuse when it starts, days into a reproduction."""
    for job in {
        json.dumps([j.table["algorithm"], j.table["local"]]): j
        for j in ReproductionPlan(find_recipe(name), "full").jobs
    }.values():
        local = job.table["local"]
        setting = Setting(
            local["lr"],
            local["momentum"],
            local["reset_momentum"],
            clients=100,
            participants=10,
            has_batchnorm=False,
            has_dropout=False,
            has_classes=True,
            features=None,
        )
        Component.choose("algorithm", job.table["algorithm"], job.name).made.settled(setting).check(setting)


@pytest.mark.slow
@pytest.mark.parametrize("name", IDS)
def test_smoke(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Needs no data but what is embedded; says that it compares nothing, unless all was run."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("FEDARENA_DATA", raising=False)
    result = reproduce(name, "smoke", out=tmp_path / "out")
    assert not result.failures
    assert result.verdict == ("not comparable" if find_recipe(name).is_smaller("smoke") else "agrees"), result.reason
    assert result.figure is not None
    output = json.loads((tmp_path / "out" / result.file).read_text(encoding="utf-8"))
    assert {"id", "size", "rows", "verdict", "reason"} <= {*output}
    assert all({"published", "measured"} <= {*row} for row in output["rows"])
    assert str(tmp_path) not in json.dumps(output)


# What was run and committed


@pytest.mark.parametrize("file", RESULTS, ids=lambda file: file.stem)
def test_a_committed_result_is_whole(file: Path) -> None:
    output = read_result(file)
    assert f"{output['id']}-{output['size']}" == file.stem
    assert output["id"] in IDS
    assert not output["failures"]
    text = file.read_text(encoding="utf-8")
    assert not re.search(r"/(tmp|home|root|work)/", text), "a path of a machine"


@pytest.mark.slow
@pytest.mark.parametrize("file", RESULTS, ids=lambda file: file.stem)
def test_a_committed_verdict_follows_from_its_numbers(file: Path) -> None:
    """Today's recipe runs what was run, and says of its rows what the file says."""
    assert judge_file_again(file).as_dict() == read_result(file)


@pytest.mark.slow
def test_committed_rows_are_those_of_their_runs() -> None:
    """What a row says, `verify` can run again; asked of all rows that are a score of a run as it stands."""
    compared = 0
    for table in map(read_result, RESULTS):
        recipe = find_recipe(table["id"])
        measures, planned = recipe.measured(table["size"]), {label(c.cell): c for c in recipe.cells(table["size"])}
        for row in table["rows"]:
            cell = planned.get(row["cell"])  # None of signs, and of the best of several rates
            if cell is not None and cell.upto is None:
                name = SCORES.get(measures[row["measure"]], measures[row["measure"]])
                output = [run["scores"].get(name) for run in table["runs"] if run["cell"] == label(cell.run)]
                if None not in [*output, *row["scores"]]:  # it is such a score, and did not diverge
                    assert row["scores"] == output, f"{table['id']} {row['cell']} {row['measure']}"
                    compared += 1
    assert compared > 300


@pytest.mark.slow
def test_the_page_says_what_the_files_say(tmp_path: Path) -> None:
    page = write_page(tmp_path / "reproduced.md", ROOT / "papers" / "results")
    committed = (ROOT / "docs" / "reproduced.md").read_text(encoding="utf-8")
    assert page.read_text(encoding="utf-8") == committed, "run `fedarena reproduce --page docs/reproduced.md`"


@pytest.mark.slow
@pytest.mark.parametrize("file", [f for f in RESULTS if quickest(f) < 4.0], ids=lambda file: file.stem)
def test_a_committed_row_can_be_run_again(file: Path) -> None:
    """Bit by bit, wherever kernels are built for the instructions it was made with, on processors of any vendor.

    Adam and Cox's loss are computed by the libraries of torch, which choose their code by the vendor of the processor.
    """
    table = read_result(file)
    if table["kind"] == "run":
        made_with, here = table["versions"], versions()
        wanted = (made_with["processor"].split()[0], made_with["torch"])
        if wanted != (here["processor"].split()[0], here["torch"]) or kernels() is None:
            pytest.skip(f"made with kernels for {wanted[0]} and torch {wanted[1]}")
        vendors = {text.partition(" ")[2] for text in (made_with["processor"], here["processor"])} - {""}
        if len(vendors) > 1 and not trains_in_kernels(table):
            pytest.skip(f"made by torch on {made_with['processor']}")
    try:
        found = verify_row(file)
    except DataMissing as missing:
        pytest.skip(str(missing))
    assert found.differences == []
