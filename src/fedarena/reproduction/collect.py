"""Collect the results of a reproduction from its folders or from a result file, and compare them with the paper."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from textwrap import wrap

import numpy as np

from fedarena.config.comparison_plan import Split
from fedarena.config.errors import ResumeMismatch
from fedarena.reproduction import cells
from fedarena.reproduction.figures import Curves, FigureData, draw
from fedarena.reproduction.judgement import judge
from fedarena.reproduction.measures import BESIDE, applies, has_target, is_cost, limit, read
from fedarena.reproduction.plan import ReproductionPlan
from fedarena.reproduction.recipe_index import find_recipe
from fedarena.reproduction.recipes import PlannedCell, Recipe, Table
from fedarena.reproduction.result import ReproducedRun, Reproduction, Scores, measured, read_result
from fedarena.reproduction.score_sheet import Cell, ScoreSheet, label
from fedarena.results.run import Run
from fedarena.results.run_folder import versions
from fedarena.results.run_loading import load_run

VERSIONS = ("fedarena", "python", "torch", "numpy", "scipy", "processor", "kernels")  # what bits depend on
WIDTH = 80  # letters of a line above a figure
SMOKE = "a smoke run checks the path only"


def collect_reproduction(plan: ReproductionPlan, root: Path) -> Reproduction:
    """Return the reproduction of a folder: its scores, its verdict and its figure."""
    recipe, says, known = plan.recipe, plan.recipe.scale(plan.size).says, _FolderResults(plan, root)
    whole = [cell for cell in plan.cells if not known.lacks(cell)]
    scores, limits = known.scores(whole), known.limits(whole)
    tuned = _tune(recipe, scores, limits)
    made_with = {name: value for name, value in versions().items() if name in VERSIONS}
    result = _judged(plan, scores, limits, known.made(), tuned, known.failures, made_with)
    first = {cell.cell: job.table for cell in whole for job in plan.jobs[::-1] if job.made_by == cell.run}
    title = "\n".join([recipe.title, *wrap(f"{plan.size}: {says}" if says else "", WIDTH)])
    picture = FigureData(recipe.figure, result.sheet, known.curves(whole), first, title)
    return replace(result, dir=root, figure=draw(picture, root / "figure.png"))


def judge_file_again(file: Path) -> Reproduction:
    """Return a result file compared by its current recipe, which must still describe the same runs."""
    table = read_result(file)
    plan = ReproductionPlan(find_recipe(table["id"]), table["size"])
    jobs = {(label(job.made_by), job.split.name): job for job in plan.jobs}
    runs = []
    for row in table["runs"]:
        settings, job = {**table["common"], **row["settings"]}, jobs.get((row["cell"], row["split"]))
        if job is None or not job.matches(settings):
            raise ResumeMismatch(
                f"{plan.recipe.id} does not run {row['cell']} {row['split']} as this result did",
                remedy=f"run it again: {plan.command}",
                where=str(file),
            )
        runs.append(
            ReproducedRun(job.made_by, job.split, settings, row["scores"], row["weights_sha256"], row["seconds"])
        )
    if table["reads"] != _reads(plan):
        raise ResumeMismatch(
            f"{plan.recipe.id} reads something else from its runs than this result did",
            remedy=f"run it again: {plan.command}",
            where=str(file),
        )
    scores, limits, tuned = measured(table["rows"])
    result = _judged(plan, scores, limits, runs, tuned, table["failures"], table["versions"])
    return replace(result, command=table["command"])


def _reads(plan: ReproductionPlan) -> Table:
    """Return what is measured in which cells; numbers of other measurements cannot be compared."""
    recipe = plan.recipe
    upto = {label(cell.cell): cell.upto for cell in plan.cells if cell.upto is not None}
    return {
        "measures": recipe.measured(plan.size),
        "upto": upto,
        "reference": recipe.reference,
        "tuned": list(recipe.tuned),
    }


def _judged(
    plan: ReproductionPlan,
    scores: Scores,
    limits: Scores,
    runs: list[ReproducedRun],
    tuned: dict[Cell, str],
    failures: dict[str, str],
    made_with: Table,
) -> Reproduction:
    recipe, size, splits = plan.recipe, plan.size, plan.recipe.splits(plan.size)
    folds = len({split.fold for split in splits} - {None})
    axes = {axis: list(choices) for axis, choices in recipe.axes.items()}
    sheet = ScoreSheet(scores, recipe.published, axes, 1 / folds if folds else 0.0, limits)
    smaller, says = recipe.is_smaller(size), recipe.scale(size).says
    why_not = _missing(failures, len(runs) + len(failures)) or (
        f"{SMOKE}: {says}" if size == "smoke" and smaller else ""
    )
    done = {(run.made_by, run.split) for run in runs}
    whole = sum(all((cell.run, split) in done for split in splits) for cell in plan.cells)
    part = "" if whole == len(plan.cells) else f"{whole} of {len(plan.cells)} cells were run"
    return Reproduction(
        *(recipe.id, size, recipe.kind, recipe.title, recipe.source, recipe.claim, plan.command, sheet),
        judge(sheet, recipe.checks, smaller=smaller, why_not=why_not, part=part),
        runs,
        _reads(plan),
        notes=(*([says] if says else []), *recipe.notes),
        tuned=tuned,
        failures=failures,
        versions=made_with,
    )


class _FolderResults:
    """The runs and facts in the folders of a reproduction."""

    def __init__(self, plan: ReproductionPlan, root: Path) -> None:
        self.recipe, self.measures, self.jobs = plan.recipe, plan.recipe.measured(plan.size), plan.jobs
        self.splits = plan.recipe.splits(plan.size)
        self.failures: dict[str, str] = {}
        self._runs: dict[tuple[Cell, Split], Run] = {}
        self._facts: dict[tuple[Cell, Split], tuple[cells.Facts, float]] = {}
        for job in plan.jobs:
            folder, key = root / job.name, (job.made_by, job.split)
            failed = folder / "failure.txt"
            if not job.is_done(root):
                if job in plan.requested:
                    why = failed.read_text(encoding="utf-8").strip() if failed.exists() else "it was not run"
                    self.failures[f"{label(job.made_by)} {job.split.name}"] = why
            elif job.kind == "run":
                self._runs[key] = load_run(folder)
            else:
                self._facts[key] = cells.read_facts(folder)

    def lacks(self, cell: PlannedCell) -> bool:
        """Return whether a split of the cell has no result."""
        return any((cell.run, split) not in {**self._runs, **self._facts} for split in self.splits)

    def scores(self, cells: Sequence[PlannedCell]) -> Scores:
        """Return measure -> cell -> one number per split."""
        return {
            name: {cell.cell: values for cell in cells if (values := self._values(cell, text, cells))}
            for name, text in self.measures.items()
        }

    def _values(self, cell: PlannedCell, text: str, cells: Sequence[PlannedCell]) -> list[float] | None:
        """Return the numbers of a measure; None where it does not apply to this cell."""
        if self.recipe.kind != "run":
            facts = [self._facts[cell.run, split][0] for split in self.splits]
            return [f[text] for f in facts] if all(text in f for f in facts) else None
        beside = self._reference(cell, cells)
        if (beside is None and text in BESIDE) or not applies(text, self._runs[cell.run, self.splits[0]]):
            return None
        others = [None if beside is None else self._runs[beside, split] for split in self.splits]
        return [read(text, self.run(cell, split), other) for split, other in zip(self.splits, others, strict=True)]

    def limits(self, cells: Sequence[PlannedCell]) -> Scores:
        """Return measure -> cell -> the length of each run, for measures that have a target."""
        if self.recipe.kind != "run":
            return {}
        return {
            name: {cell.cell: [limit(text, self.run(cell, split)) for split in self.splits] for cell in cells}
            for name, text in self.measures.items()
            if has_target(text)
        }

    def run(self, cell: PlannedCell, split: Split) -> Run:
        """Return the run of a cell, cut to the rounds that the cell reads."""
        run = self._runs[cell.run, split]
        return run if cell.upto is None else replace(run, records=run.records[: cell.upto])

    def _reference(self, cell: PlannedCell, cells: Sequence[PlannedCell]) -> Cell | None:
        """Return the cell that has the reference's choice and otherwise only choices of this cell."""
        of = self.recipe.reference
        name = of if isinstance(of, str) else next((of[choice] for choice in cell.cell if choice in of), "")
        if not name or name in cell.cell:
            return None
        return next((c.run for c in cells if name in c.cell and {*c.cell} - {name} <= {*cell.cell}), None)

    def curves(self, cells: Sequence[PlannedCell]) -> Curves:
        """Return the accuracy curves of every cell, one per split."""
        if self.recipe.kind != "run":
            return {}
        return {cell.cell: [self.run(cell, split).curve for split in self.splits] for cell in cells}

    def made(self) -> list[ReproducedRun]:
        """Return all runs that have a result, in the order of the jobs."""
        found = []
        for job in self.jobs:
            key = job.made_by, job.split
            if (run := self._runs.get(key)) is not None:
                summary = run.summary()
                scores = {name: summary[name] for name in cells.SCORES}
                found.append(ReproducedRun(*key, job.table, scores, run.weights_sha256, summary["wall_seconds"]))
            elif key in self._facts:
                facts, seconds = self._facts[key]
                found.append(ReproducedRun(*key, job.table, dict(facts), None, seconds))
        return found


def _tune(recipe: Recipe, scores: Scores, limits: Scores) -> dict[Cell, str]:
    """Reduce tuned axes to their best choice by the mean of the first measure, the same one in all tables.

    Ties (a target that no choice reached) are broken by the next measure. Runs that diverged are worst.
    """
    chosen: dict[Cell, str] = {}

    def rank(cell: Cell) -> list[float]:
        """Return the sort key of a cell; the smallest is the best."""
        known = [(name, scores[name][cell]) for name in recipe.measures if cell in scores[name]]
        means = [float(np.mean(values)) * (1 if is_cost(recipe.measures[name]) else -1) for name, values in known]
        return [math.inf if math.isnan(mean) else mean for mean in means]

    for axis in recipe.tuned:
        choices = recipe.axes[axis]
        groups: dict[Cell, dict[str, list[float]]] = {}
        for cell in scores[next(iter(recipe.measures))]:
            if choice := next((c for c in cell if c in choices), None):
                groups.setdefault(_without(cell, choice), {})[choice] = rank(cell)
        best = {cell: min(ranks, key=ranks.__getitem__) for cell, ranks in groups.items()}
        chosen |= best
        for tables in (scores, limits):
            for measure, table in tables.items():
                tables[measure] = {
                    _without(cell, choice) if choice else cell: values
                    for cell, values in table.items()
                    if (choice := next((c for c in cell if c in choices), None)) is None
                    or best.get(_without(cell, choice)) == choice
                }
    return chosen


def _without(cell: Cell, choice: str) -> Cell:
    return tuple(name for name in cell if name != choice)


def _missing(failures: dict[str, str], of: int) -> str:
    if not failures:
        return ""
    name, why = next(iter(failures.items()))
    return f"{len(failures)} of {of} runs have no result; the first, {name}: {why}"
