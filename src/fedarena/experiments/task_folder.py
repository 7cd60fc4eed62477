"""One thing of many, tried in a worker: it begins or goes on, and what is wrong with it does not stop the others."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from fedarena.common.files import remove, writing
from fedarena.config.errors import CannotWrite, FedarenaError
from fedarena.config.experiment import Experiment
from fedarena.engine.tasks import Failed
from fedarena.experiments import run
from fedarena.results import run_folder as files
from fedarena.runtimes.process_pool import Lost

Problem = str | CannotWrite | None


def attempt(do: Callable[[], object]) -> Problem:
    """Do it; what is wrong comes back as a value."""
    try:
        do()
    except CannotWrite as error:  # it will not be better for the next one
        return error
    except FedarenaError as error:
        return f"{error.what} ({error.where})" if error.where else error.what
    except Exception as error:
        failed = Failed.by(error)
        return f"{failed.error} ({failed.place})" if failed.place else failed.error
    return None


def run_in(experiment: Experiment, folder: Path) -> None:
    """A run, in this process, begun in its folder or gone on with."""
    begun = (folder / "experiment.toml").exists() and not (folder / "failure.txt").exists()
    if not begun:  # nothing that could be gone on with
        remove(folder)
    run.run(experiment, runtime="serial", **{"resume" if begun else "out": folder})  # type: ignore[arg-type]


def note(folder: Path, problem: Problem | Lost) -> None:
    """Say in its folder why it has no result."""
    if isinstance(problem, CannotWrite):
        raise problem
    if isinstance(problem, Lost):
        problem = f"its worker {problem}; is there memory enough?"
    if problem is not None:
        with writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
        files.write_text(folder / "failure.txt", " ".join(problem.split()) + "\n")
