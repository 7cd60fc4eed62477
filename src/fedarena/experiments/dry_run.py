"""The dry run of a comparison, on one federation or several: its runs, and estimates of time and disk; nothing is saved."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fedarena.common.formatting import format_duration, format_size
from fedarena.config.comparison_plan import Plan
from fedarena.config.experiment import Experiment
from fedarena.engine.setup import open_context
from fedarena.experiments import time_estimate
from fedarena.experiments.until_decided import at_limit
from fedarena.results.run_folder import room_for
from fedarena.results.run_status import all_cells, left_out_cells
from fedarena.results.suite_plan import SuitePlan
from fedarena.runtimes.single_thread import one_thread
from fedarena.runtimes.worker_count import usable_cores

NOTHING_RUN = "nothing was run: leave out --dry-run to start"


@dataclass(frozen=True)
class WorstCase:
    """The size of a comparison that is not decided before its limit."""

    splits: int
    runs: int  # that are left to do
    seconds: float
    disk_bytes: int


@dataclass(frozen=True)
class DryRun:
    """A comparison as it is planned, with estimates for the runs that have no result yet."""

    plan: Plan
    runs: int  # that are left to do
    trials: int  # of tuning, before them
    seconds: float  # on so many workers, about
    workers: int
    disk_bytes: int  # at most
    most: WorstCase | None = None  # where repeats are added until it is decided

    def as_dict(self) -> dict[str, Any]:
        """Return what `fedarena compare --dry-run --json` prints."""
        plan = self.plan
        return {
            "algorithms": [label for label in plan.contestants if label != plan.reference],
            "reference": plan.reference,
            "splits": [split.name for split in plan.splits],
            "runs": self.runs,
            "trials": self.trials,
            "leave_one_out": list(plan.leave_one_out),
            "about": plan.about,
            "test": plan.test,
            "fixed": list(plan.fixed),
            "per_repeat": list(plan.per_repeat),
            "seconds": self.seconds,
            "workers": self.workers,
            "disk_bytes": self.disk_bytes,
            "first_look": None if self.most is None or plan.looks else len(plan.splits),
            "worst_case": None if self.most is None else asdict(self.most),
        }

    def __str__(self) -> str:
        plan, n = self.plan, len(self.plan.splits)
        splits = f"{plan.repeats} x {plan.folds} folds" if plan.folds else f"{n} seeds"
        left_out = len(left_out_cells(plan, Path()))
        before = len(plan.contestants) * n + left_out - self.runs
        first = "" if self.most is None else " before the next look" if plan.looks else " before the first look"
        lines = [
            f"{', '.join(plan.contestants)}: {len(plan.contestants)} x {n} runs ({splits}){_tuning(self.trials)}{first}",
            *([_left_out(plan, left_out)] if left_out else []),
            *([f"{before} of them have a result already, {self.runs} are left"] if before else []),
            plan.about,
            f"{plan.test[0].upper()}{plan.test[1:]}.",
            *filter(None, [plan.undecidable]),
            _cost(self),
            *([] if self.most is None else [_worst_case_line(self.most)]),
            NOTHING_RUN,
        ]
        return "\n".join(lines)


@dataclass(frozen=True)
class SuiteDryRun:
    """The dry runs of all federations, and their sums."""

    federations: dict[str, DryRun]
    runs: int  # that are left to do
    trials: int
    seconds: float
    workers: int
    disk_bytes: int

    def as_dict(self) -> dict[str, Any]:
        """Return what `fedarena compare --dry-run --json` prints for a suite."""
        return vars(self) | {"federations": [{"name": name, **one.as_dict()} for name, one in self.federations.items()]}

    def __str__(self) -> str:
        plan = next(iter(self.federations.values())).plan
        width = max(map(len, self.federations))
        lines = [
            f"{', '.join(plan.contestants)} on {len(self.federations)} federations: {self.runs} runs{_tuning(self.trials)}"
        ]
        for name, one in self.federations.items():
            table = one.plan.experiment
            parts = " · ".join(str(table[key]["name"]) for key in ("data", "partition", "model"))
            lines.append(f"  {name:{width}}  {one.runs} runs  {parts}")
        return "\n".join([*lines, _cost(self), NOTHING_RUN])


def estimate_suite(suite: SuitePlan, resume: str | Path | None, workers: int | None) -> SuiteDryRun:
    """Return the dry runs of all federations of a suite that is checked already, or of what is left of them."""
    available = workers or usable_cores()
    found = {
        name: estimate_plan(plan, None if resume is None else suite.folder(Path(resume), name), available)
        for name, plan in suite.plans.items()
    }
    runs, trials, disk = (sum(getattr(one, key) for one in found.values()) for key in ("runs", "trials", "disk_bytes"))
    used = min(available, max(runs, 1))
    return SuiteDryRun(found, runs, trials, sum(one.seconds * one.workers for one in found.values()) / used, used, disk)


def estimate_plan(plan: Plan, resume: str | Path | None, workers: int | None) -> DryRun:
    """Return the dry run of a plan that is checked already, or of what is left of it in the folder to resume."""
    largest = at_limit(plan)
    every = all_cells(largest, Path(resume or ""))
    left = [cell for cell in every if resume is None or not (cell.folder / "result.json").exists()]
    possible = sorted(left, key=lambda cell: cell.split.repeat >= plan.repeats)  # those before the next look come first
    work = [plan.cell(cell.label, cell.split, cell.without) for cell in possible]
    now = sum(cell.split.repeat < plan.repeats for cell in possible)
    tuned = {} if plan.tuned else plan.tuning
    trials = tuned.get("trials", 0) * _studies(plan) if tuned else 0
    with one_thread():
        times = time_estimate.seconds_of_each(work)
        disk, most_disk = _disk(work[:now]), _disk(work)
    workers_used = min(workers or usable_cores(), max(now, 1))
    whole = sum(times[:now]) * (1 + trials / max(now, 1)) / workers_used  # a trial trains at most as long as a run
    most = (
        None
        if plan.at_most is None
        else WorstCase(len(largest.splits), len(work), sum(times) / workers_used, most_disk)
    )
    return DryRun(plan, now, trials, whole, workers_used, disk, most)


def _tuning(trials: int) -> str:
    return f", after {trials} trials of tuning" if trials else ""


def _cost(run: DryRun | SuiteDryRun) -> str:
    return (
        f"about {format_duration(run.seconds)} on {run.workers} worker{'s' * (run.workers != 1)} like this one, "
        f"by one timed round of each algorithm; at most {format_size(run.disk_bytes)} of disk"
    )


def _left_out(plan: Plan, runs: int) -> str:
    """Return how many runs the left-out clients add."""
    clients, labels, n = len(plan.leave_one_out), len(plan.federated), len(plan.splits)
    return (
        f"and without each of {clients} client{'s' * (clients != 1)} in turn, {', '.join(plan.federated)}: "
        f"{clients} x {labels} x {n} = {runs} runs"
    )


def _studies(plan: Plan) -> int:
    """Return the number of searches that tune a plan."""
    splits = {"split": len(plan.splits), "repeat": plan.repeats, "once": 1}[plan.tuning["per"]]
    return splits * sum(bool(space) for space in plan.tuning["spaces"].values())


def _worst_case_line(most: WorstCase) -> str:
    return (
        f"if it is not decided before its limit of {most.splits} splits: {most.runs} runs, "
        f"about {format_duration(most.seconds)}, at most {format_size(most.disk_bytes)}"
    )


def _disk(work: list[Experiment]) -> int:
    """Return the bytes that the runs may need: those of the first run of each algorithm, times its runs."""
    many: dict[str, list[Experiment]] = {}
    for experiment in work:
        many.setdefault(repr(experiment.algorithm), []).append(experiment)
    return sum(len(same) * room_for(open_context(same[0])) for same in many.values())
