"""The plan of a reproduction: the cells of a recipe at a size, and the jobs that compute them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path

from fedarena.config.comparison_plan import Split, folder_name
from fedarena.config.errors import BadValue, FedarenaError, ResumeMismatch, located_at, quoted
from fedarena.data.published_files import reading
from fedarena.reproduction import cells as cells_module
from fedarena.reproduction.recipe_index import find_recipe
from fedarena.reproduction.recipes import SIZES, Kind, PlannedCell, Recipe, Size, Table
from fedarena.reproduction.score_sheet import Cell, label

PLAN = "reproduction.json"


@dataclass(frozen=True)
class ReproductionJob:
    """One run (or other computation) of a recipe on one split, in one folder."""

    kind: Kind
    made_by: Cell
    split: Split
    table: Table

    @property
    def name(self) -> str:
        """The path of the job inside the folder of the reproduction."""
        return f"cells/{folder_name(label(self.made_by))}/{self.split.name}"

    def matches(self, table: Table) -> bool:
        """Return whether a stored table describes this job; settings that did not exist yet have their defaults."""
        try:
            return cells_module.cell_settings(self.kind, [table], self.split) == self.table
        except (FedarenaError, TypeError, AttributeError):  # it has a setting that no longer exists, or is not a table
            return False

    def is_done(self, root: Path) -> bool:
        """Return whether the job has a result."""
        return (root / self.name / cells_module.RESULT[self.kind]).exists()


@dataclass(frozen=True)
class ReproductionPlan:
    """A recipe at a size; `only` is a pattern of the cells that are run now."""

    recipe: Recipe
    size: Size
    only: str = "*"

    @cached_property
    def cells(self) -> list[PlannedCell]:
        """All cells of the recipe at this size."""
        return self.recipe.cells(self.size)

    @cached_property
    def jobs(self) -> list[ReproductionJob]:
        """The jobs that compute the cells: all of the first split, then all of the second."""
        kind = self.recipe.kind
        found = {}
        for split in self.recipe.splits(self.size):
            for cell in self.cells:
                if (cell.run, split) not in found:
                    with located_at(f"{self.recipe.id} {label(cell.run)}"):
                        settings = cells_module.cell_settings(kind, cell.layers, split)
                    found[cell.run, split] = ReproductionJob(kind, cell.run, split, settings)
        return list(found.values())

    @cached_property
    def requested(self) -> list[ReproductionJob]:
        """The jobs of the cells that match `only`."""
        wanted = {cell.run for cell in self.cells if fnmatchcase(label(cell.cell), self.only)}
        if not wanted:
            some = ", ".join(label(cell.cell) for cell in self.cells[:6])
            raise BadValue(
                f"no cell of {self.recipe.id} is called '{quoted(self.only)}'",
                remedy=f"write a pattern; there are: {some}{', ...' if len(self.cells) > 6 else ''}",
                where="--only",
            )
        return [job for job in self.jobs if job.made_by in wanted]

    @property
    def command(self) -> str:
        """The command that runs this plan."""
        only = "" if self.only == "*" else f" --only '{self.only}'"
        return f"fedarena reproduce {self.recipe.id} --size {self.size}{only}"

    def as_dict(self, before: Table) -> Table:
        """Return the content of reproduction.json, which includes jobs that earlier versions of the recipe ran."""
        jobs = {job.name: job.table for job in self.jobs}
        return {"id": self.recipe.id, "size": self.size, "jobs": {**before, **jobs}}

    def check_resume(self, root: Path) -> Table:
        """Return the jobs of a folder; raise if a job of the same name has other settings."""
        mismatch = "choose another folder with --out, or remove it"
        if not (root / PLAN).exists():
            if (root / "cells").exists():
                raise ResumeMismatch(f"{root} holds results without {PLAN}", remedy=mismatch, where=str(root))
            return {}
        before = read_plan(root)
        if (before["id"], before["size"]) != (self.recipe.id, self.size):
            raise ResumeMismatch(
                f"{root} holds {before['id']} at size {before['size']}", remedy=mismatch, where=str(root)
            )
        jobs: Table = before["jobs"]
        other = next((job.name for job in self.jobs if job.name in jobs and not job.matches(jobs[job.name])), None)
        if other is not None:
            raise ResumeMismatch(
                f"{root} holds runs of another recipe: {other} is not the same", remedy=mismatch, where=str(root)
            )
        return jobs

    @classmethod
    def make(cls, name: str | None, size: Size | None, only: str | None, resume: str | Path | None) -> ReproductionPlan:
        """Return the plan of a recipe by its id, or that of the folder to resume."""
        if resume is None:
            if name is None:
                raise BadValue("no table or figure is named", remedy="give an id of `fedarena list papers`, or --all")
            return cls(find_recipe(name), size or "small", only or "*")
        before = read_plan(Path(resume))
        if (name or before["id"]).upper() != before["id"] or (size or before["size"]) != before["size"]:
            raise BadValue(
                f"{resume} is {before['id']} at size {before['size']}",
                remedy="leave out id and size to resume it",
                where="--resume",
            )
        return cls(find_recipe(before["id"]), before["size"], only or "*")


def read_plan(root: Path) -> Table:
    """Return the content of reproduction.json of a folder."""
    if not (root / PLAN).exists():
        raise BadValue(f"{root} holds no reproduction", remedy="give the folder of one", where="--resume")
    with reading(root / PLAN, remedy="the folder is damaged: remove it"):
        table: Table = json.loads((root / PLAN).read_text(encoding="utf-8"))
        if table["size"] not in SIZES or not isinstance(table["id"], str) or not isinstance(table["jobs"], dict):
            raise ValueError("it is not a plan")
        return table
