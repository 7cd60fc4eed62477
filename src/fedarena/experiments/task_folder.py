"""Folders of experiments: the folder of a comparison or search, and those of the single runs inside it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from fedarena.common.files import make_folder, remove_folder
from fedarena.common.folder_lock import hold_folder, interruptible, wait_until_released
from fedarena.config.errors import CannotWrite, FedarenaError
from fedarena.config.experiment import Experiment
from fedarena.engine.tasks import FailedTask
from fedarena.experiments import run
from fedarena.results.json_files import write_text
from fedarena.results.run import Run
from fedarena.runtimes.cleanup import temporary_folder
from fedarena.runtimes.pool import LostTask
from fedarena.runtimes.run_pool import check_called

Problem = str | CannotWrite | None


@contextlib.contextmanager
def locked_folder(
    command: str,
    out: run.Out,
    resume: str | Path | None,
    create: Callable[[str | Path | None], Path],
    runs: Callable[[Path], Iterable[Path]],
) -> Iterator[Path]:
    """Yield the folder of a command, locked by this process: the one to resume, a new one, or a temporary one.

    `create` makes a new folder for `out`; `runs` lists the run folders inside, in which the workers of a killed process
    must have ended.
    """
    with contextlib.ExitStack() as stack:
        if resume is not None:
            root = Path(resume)
        elif out is False:
            root = stack.enter_context(temporary_folder())
        else:
            root = create(out)
        if resume is not None or out is not False:
            stack.enter_context(interruptible(command, root))
        stack.enter_context(hold_folder(root))
        wait_until_released(runs(root))
        yield root


def run_catching_errors(task: Callable[[], object]) -> Problem:
    """Run a task and return its error as a value; None if it succeeds."""
    try:
        task()
    except CannotWrite as error:  # the next task would fail as well
        return error
    except FedarenaError as error:
        return f"{error.what} ({error.where})" if error.where else error.what
    except Exception as error:
        failed = FailedTask.by(error)
        return f"{failed.error} ({failed.place})" if failed.place else failed.error
    return None


def run_in_folder(experiment: Experiment, folder: Path, on_round: run.OnRound | None = None) -> Run:
    """Run an experiment in this process and in its folder, or resume it there."""
    begun = (folder / "experiment.toml").exists() and not (folder / "failure.txt").exists()
    if begun:
        return run.run(experiment, runtime="serial", resume=folder, on_round=on_round)
    remove_folder(folder)  # killed before it began, or failed
    return run.run(experiment, runtime="serial", out=folder, on_round=on_round)


def record_failure(folder: Path, problem: Problem | LostTask) -> None:
    """Write into a run folder why it has no result; raise if the problem concerns all runs."""
    check_called(problem)
    if isinstance(problem, CannotWrite):
        raise problem
    if isinstance(problem, LostTask):
        problem = f"its worker {problem}; is there enough memory?"
    if problem is not None:
        make_folder(folder)
        write_text(folder / "failure.txt", " ".join(problem.split()) + "\n")
