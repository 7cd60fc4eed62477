"""Load the folder of a run, of a comparison, of a suite or of a search as the value it holds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import fedarena.reports  # noqa: F401 - lets a comparison show itself
from fedarena.config.limits import check_path
from fedarena.experiments.search import load_search
from fedarena.results.comparison import Comparison
from fedarena.results.run_loading import load_run
from fedarena.results.suite import SuiteComparison
from fedarena.results.suite_plan import holds_suite


def load(path: str | Path, **own: Any) -> Any:
    """Return what a folder holds: a `Run`, a `Comparison`, a `SuiteComparison`, or what a search `Found`.

    Scores, tables and figures need nothing else. To train or predict again, parts of an experiment that came from Python (a
    module, arrays) are given again by keyword, and algorithms of a comparison as `algorithms={label: object}`.

    >>> import fedarena as fa
    >>> duel = fa.compare("digits", ["fedavg", "scaffold"], seeds=2, rounds=1, model="logreg", out="duel")
    >>> fa.load("duel").scores() == duel.scores()
    True
    """
    folder = check_path(path, "the folder of a run")
    if holds_suite(folder):
        return SuiteComparison.load(folder)
    if (folder / "comparison.json").is_file():
        return Comparison.load(folder, **own)
    if (folder / "search.json").is_file():
        return load_search(folder)
    return load_run(folder, **own)
