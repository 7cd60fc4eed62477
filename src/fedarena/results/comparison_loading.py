"""Read the runs of a comparison from its folder."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from fedarena.config.comparison_plan import Plan
from fedarena.config.errors import BadValue
from fedarena.results.run import Run
from fedarena.results.run_loading import load_run


def with_python_parts(plan: Plan, runs: dict[str, list[Run]]) -> Plan:
    """Return the plan with the components that came from Python as its runs know them, if only by their names."""
    experiments = {label: found[0].experiment for label, found in runs.items()}
    known = {f"algorithm {label}": experiment.algorithm for label, experiment in experiments.items()}
    for experiment in experiments.values():
        known |= {key: part for key, part in experiment.python_parts.items() if key != "algorithm"}
    return replace(plan, own={key: one for key, one in known.items() if one.own} | plan.own)


def finished_runs(plan: Plan, root: Path, label: str, without: str | None = None) -> list[Run] | str:
    """Return the runs of a label on all splits, or why one of them failed; raise if one has not finished."""
    folders = [plan.folder(root, label, split, without) for split in plan.splits]
    failed = next((f / "failure.txt" for f in folders if (f / "failure.txt").exists()), None)
    missing = sum(not (f / "result.json").exists() for f in folders)
    if failed is not None:
        return failed.read_text(encoding="utf-8", errors="replace").strip()
    if missing:
        name = label if without is None else f"{label} without {without}"
        raise BadValue(
            f"{missing} of {len(folders)} runs of {name} are not finished",
            remedy=f"resume them: fedarena compare --resume {root}",
            where=str(root),
        )
    own = {k.removesuffix(f" {label}"): v for k, v in plan.own.items()}
    return [load_run(folder, **own) for folder in folders]
