"""Small comparisons, run cell by cell."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fedarena.config.experiment import Experiment
from fedarena.experiments.plan import build_plan
from fedarena.experiments.run import run
from fedarena.results.comparison import Comparison
from fedarena.results.plan_file import write_plan
from fedarena.results.run_folder import versions

SIX = ("fedavg", "fedprox", "scaffold", "fednova", "fedavgm", "fedadam", "centralized")


def compare_in_folder(
    root: Path, contestants: dict[str, dict[str, Any]], *, settings: dict[str, Any], **how: Any
) -> Comparison:
    """Return a comparison on digits whose cells are all run in this process."""
    plan = build_plan(Experiment.make("digits", **settings), contestants, versions=versions(), **how)
    root.mkdir(parents=True, exist_ok=True)
    write_plan(plan, root)
    for label in contestants:
        for split in plan.splits:
            run(plan.cell(label, split), out=plan.folder(root, label, split), runtime="serial")
    return Comparison.load(root)


def six(root: Path) -> Comparison:
    """Six algorithms and the baseline, two folds, strong label skew: a complete report in seconds."""
    contestants = {("fedprox:mu=0.1" if name == "fedprox" else name): {"algorithm": name} for name in SIX}
    contestants["fedprox:mu=0.1"] = {"algorithm": {"name": "fedprox", "mu": 0.1}}
    settings = {"clients": 5, "rounds": 4, "model": "logreg", "partition": {"name": "label_dirichlet", "beta": 0.3}}
    return compare_in_folder(root, contestants, settings=settings, reference="centralized", folds=3)
