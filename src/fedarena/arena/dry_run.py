"""What a comparison would do: its runs, what they repeat, how long they take and how much disk; nothing is kept."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedarena.arena import estimate
from fedarena.arena.matrix import make_plan, open_all
from fedarena.engine.federation import open_site
from fedarena.results.agreement import lasting
from fedarena.results.comparison import Plan
from fedarena.results.folder import room_for
from fedarena.results.watch import cells
from fedarena.runtime.one_job import one_thread
from fedarena.runtime.processes import usable_cores
from fedarena.spec import Experiment


@dataclass(frozen=True)
class DryRun:
    """A comparison as it is planned, with estimates for the runs that have no result yet."""

    plan: Plan
    runs: int  # that are left to do
    trials: int  # of tuning, before them
    seconds: float  # on so many workers, about
    workers: int
    disk_bytes: int  # at most

    def as_dict(self) -> dict[str, Any]:
        """What `fedarena compare --dry-run --json` prints."""
        plan = self.plan
        return {
            "algorithms": [label for label in plan.contestants if label != plan.reference],
            "reference": plan.reference,
            "splits": [split.name for split in plan.splits],
            "runs": self.runs,
            "trials": self.trials,
            "about": plan.about,
            "test": plan.test,
            "fixed": list(plan.fixed),
            "per_repeat": list(plan.per_repeat),
            "seconds": self.seconds,
            "workers": self.workers,
            "disk_bytes": self.disk_bytes,
        }

    def __str__(self) -> str:
        plan, n = self.plan, len(self.plan.splits)
        splits = f"{plan.repeats} x {plan.folds} folds" if plan.folds else f"{n} seeds"
        before = len(plan.contestants) * n - self.runs
        trials = f", after {self.trials} trials of tuning" if self.trials else ""
        lines = [
            f"{', '.join(plan.contestants)}: {len(plan.contestants)} x {n} runs ({splits}){trials}",
            *([f"{before} of them have a result already, {self.runs} are left"] if before else []),
            plan.about,
            f"{plan.test[0].upper()}{plan.test[1:]}.",
            *filter(None, [plan.undecidable]),
            f"about {lasting(self.seconds)} on {self.workers} worker{'s' * (self.workers != 1)} like this one, by one "
            f"timed round of each algorithm; at most {self.disk_bytes / 1e6:.0f} MB of disk",
            "nothing was run: leave out --dry-run to begin",
        ]
        return "\n".join(lines)


def dry_run(source: Any = None, algorithms: Any = (), *, workers: int | None = None, **asked: Any) -> DryRun:
    """Plan a comparison and check all of it as `compare` does, but run nothing; the arguments are those of `compare`."""
    resume = asked.get("resume")
    plan = make_plan(source, algorithms, **asked)
    open_all(plan)
    return estimated(plan, resume, workers)


def estimated(plan: Plan, resume: str | Path | None, workers: int | None) -> DryRun:
    """Return what a plan, checked already, would run, or what is left of it in the folder to resume."""
    todo = [
        cell for cell in cells(plan, Path(resume or "")) if resume is None or not (cell.folder / "result.json").exists()
    ]
    work = [plan.cell(cell.label, cell.split) for cell in todo]
    tuned = {} if plan.tuned else plan.tuning
    trials = tuned.get("trials", 0) * _studies(plan) if tuned else 0
    with one_thread():
        seconds = estimate.seconds(work)
        disk = _disk(work, plan)
    hands = min(workers or usable_cores(), max(len(work), 1))
    whole = seconds * (1 + trials / max(len(work), 1)) / hands  # a trial trains as long as a run, or less
    return DryRun(plan, len(work), trials, whole, hands, disk)


def _studies(plan: Plan) -> int:
    """How many searches the tuning of a plan is."""
    splits = {"split": len(plan.splits), "repeat": plan.repeats, "once": 1}[plan.tuning["per"]]
    return splits * sum(bool(space) for space in plan.tuning["spaces"].values())


def _disk(work: list[Experiment], plan: Plan) -> int:
    """Bytes that the runs may take: as much as the first run of each algorithm, for all of its runs."""
    many: dict[str, list[Experiment]] = {}
    for experiment in work:
        many.setdefault(repr(experiment.algorithm), []).append(experiment)
    return sum(len(same) * room_for(open_site(same[0])) for same in many.values())
