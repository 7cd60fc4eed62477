"""The dry run of a comparison on several federations: its runs, and estimates of time and disk; nothing is saved."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedarena.common.formatting import format_duration, format_size
from fedarena.experiments.dry_run import DryRun, estimate_plan
from fedarena.experiments.run_suite import plan_suite
from fedarena.results.suite_plan import SuitePlan
from fedarena.runtimes.worker_count import usable_cores


@dataclass(frozen=True)
class SuiteDryRun:
    """The dry runs of all federations, and their sums."""

    federations: dict[str, DryRun]
    workers: int

    @property
    def runs(self) -> int:
        """The number of runs that are left to do."""
        return sum(one.runs for one in self.federations.values())

    @property
    def seconds(self) -> float:
        """The estimate_plan time of all runs on these workers."""
        return sum(one.seconds * one.workers for one in self.federations.values()) / self.workers

    @property
    def disk_bytes(self) -> int:
        """The bytes of disk that the runs need at most."""
        return sum(one.disk_bytes for one in self.federations.values())

    def as_dict(self) -> dict[str, Any]:
        """Return what `fedarena compare --dry-run --json` prints for a suite."""
        return {
            "federations": [{"name": name, **one.as_dict()} for name, one in self.federations.items()],
            "runs": self.runs,
            "trials": sum(one.trials for one in self.federations.values()),
            "seconds": self.seconds,
            "workers": self.workers,
            "disk_bytes": self.disk_bytes,
        }

    def __str__(self) -> str:
        plan = next(iter(self.federations.values())).plan
        trials = sum(one.trials for one in self.federations.values())
        width = max(map(len, self.federations))
        lines = [
            f"{', '.join(plan.contestants)} on {len(self.federations)} federations: {self.runs} runs"
            + (f", after {trials} trials of tuning" if trials else ""),
        ]
        for name, one in self.federations.items():
            table = one.plan.experiment
            parts = " · ".join(str(table[key]["name"]) for key in ("data", "partition", "model"))
            lines.append(f"  {name:{width}}  {one.runs} runs  {parts}")
        lines += [
            f"about {format_duration(self.seconds)} on {self.workers} worker{'s' * (self.workers != 1)} like this one, "
            f"by one timed round of each algorithm; at most {format_size(self.disk_bytes)} of disk",
            "nothing was run: leave out --dry-run to start",
        ]
        return "\n".join(lines)


def dry_run_suite(
    source: Any = None, algorithms: Any = (), *, workers: int | None = None, **options: Any
) -> SuiteDryRun:
    """Plan a suite and check all of it as `compare` does, but run nothing; the arguments are those of `compare`."""
    resume = options.get("resume")
    suite: SuitePlan = plan_suite(source, algorithms, **options)
    available = workers or usable_cores()
    found = {}
    for name, plan in suite.plans.items():
        folder = None if resume is None else suite.folder(Path(resume), name)
        found[name] = estimate_plan(plan, folder, available)
    left = sum(one.runs for one in found.values())
    return SuiteDryRun(found, min(available, max(left, 1)))
