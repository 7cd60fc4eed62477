"""One thing of many, tried in a worker: it begins or goes on, and what is wrong with it does not stop the others."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from fedarena.common.files import remove_folder, writing
from fedarena.config.errors import CannotWrite, FedarenaError
from fedarena.config.experiment import Experiment
from fedarena.engine.tasks import FailedTask
from fedarena.experiments import run
from fedarena.results import run_folder
from fedarena.runtimes.pool import LostTask
from fedarena.runtimes.run_pool import check_called

Problem = str | CannotWrite | None


def run_catching_errors(do: Callable[[], object]) -> Problem:
    """Do it; what is wrong comes back as a value."""
    try:
        do()
    except CannotWrite as error:  # it will not be better for the next one
        return error
    except FedarenaError as error:
        return f"{error.what} ({error.where})" if error.where else error.what
    except Exception as error:
        failed = FailedTask.by(error)
        return f"{failed.error} ({failed.place})" if failed.place else failed.error
    return None


def run_in_folder(experiment: Experiment, folder: Path) -> None:
    """A run, in this process, begun in its folder or gone on with."""
    begun = (folder / "experiment.toml").exists() and not (folder / "failure.txt").exists()
    if not begun:  # nothing that could be gone on with
        remove_folder(folder)
    run.run(experiment, runtime="serial", **{"resume" if begun else "out": folder})  # type: ignore[arg-type]


def record_failure(folder: Path, problem: Problem | LostTask) -> None:
    """Say in its folder why it has no result."""
    check_called(problem)
    if isinstance(problem, CannotWrite):
        raise problem
    if isinstance(problem, LostTask):
        problem = f"its worker {problem}; is there memory enough?"
    if problem is not None:
        with writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
        run_folder.write_text(folder / "failure.txt", " ".join(problem.split()) + "\n")
