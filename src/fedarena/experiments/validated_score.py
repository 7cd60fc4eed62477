"""Checks of `score = "validated"`, which must be chosen before the runs because it changes what clients train on."""

from __future__ import annotations

from pathlib import Path

from fedarena.config.comparison_plan import Score
from fedarena.config.errors import BadValue
from fedarena.config.experiment import Experiment
from fedarena.results.plan_file import read_plan

HELD_OUT = 0.1  # of every client's training samples, unless the experiment sets another share


def with_validation(experiment: Experiment, score: Score | None) -> Experiment:
    """Return the experiment with validation samples held out, if rounds are to be chosen on them."""
    if score != "validated":
        return experiment
    share = experiment.evaluate.validation
    if share == 0:
        raise BadValue(
            "evaluate.validation = 0: there are no samples on which a round could be chosen",
            remedy=f"leave evaluate.validation out for {HELD_OUT}, give another share, or use --score final",
            where="--score",
        )
    return experiment if share else experiment.with_(evaluate={"validation": HELD_OUT})


def check_rescoring(score: Score | None, folder: str | Path | None) -> None:
    """Raise if a comparison that was begun with another score is to be scored by validated rounds."""
    if folder is None or score != "validated":
        return
    before = read_plan(Path(folder)).score
    if before != "validated":
        raise BadValue(
            f"this comparison was begun with --score {before}, and --score validated must be decided before the runs: "
            "it holds training samples out",
            remedy="compare again in a new folder with --score validated",
            where="--score",
        )
