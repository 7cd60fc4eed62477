"""Load the folder of a run, of a comparison or of a suite as the value it holds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fedarena.config.limits import check_path
from fedarena.results.comparison import Comparison
from fedarena.results.run_loading import load_run
from fedarena.results.suite import SuiteComparison
from fedarena.results.suite_plan import holds_suite


def load(path: str | Path, **own: Any) -> Any:
    """Return what a folder holds: a `Run`, a `Comparison`, or a `SuiteComparison`.

    Parts of an experiment that came from Python (a module, arrays) must be given again by keyword.

    >>> import fedarena as fa
    >>> duel = fa.compare("digits", ["fedavg", "scaffold"], seeds=2, rounds=1, model="logreg", out="duel")
    >>> fa.load("duel").scores() == duel.scores()
    True
    """
    folder = check_path(path, "the folder of a run")
    if holds_suite(folder):
        return SuiteComparison.load(folder)
    if (folder / "comparison.json").is_file():
        return Comparison.load(folder)
    return load_run(folder, **own)
