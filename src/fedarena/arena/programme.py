"""Everything that is run for a recipe at a size: its cells, and the jobs that make them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path

from fedarena.arena import works
from fedarena.arena.recipes import Kind, Planned, Recipe, Size, Table, find
from fedarena.data.files import reading
from fedarena.errors import BadValue, FedarenaError
from fedarena.results.agreement import Cell, label
from fedarena.results.comparison import Split, folder_name

PLAN = "reproduction.json"


@dataclass(frozen=True)
class Job:
    """One run of a recipe, or what else makes its cells: on one split, in one folder."""

    kind: Kind
    made_by: Cell
    split: Split
    table: Table

    @property
    def name(self) -> str:
        """Where it lies in the folder of the reproduction."""
        return f"cells/{folder_name(label(self.made_by))}/{self.split.name}"

    def was(self, table: Table) -> bool:
        """Is it the same as one that was written down, perhaps before there were some of today's settings?"""
        try:
            return works.settings(self.kind, [table], self.split) == self.table
        except FedarenaError:  # it has a setting that is gone
            return False

    def is_done(self, root: Path) -> bool:
        """Does it have a result?"""
        return (root / self.name / works.RESULT[self.kind]).exists()


@dataclass(frozen=True)
class Programme:
    """All that belongs to a recipe at a size, of which cells that fit `only` are asked for now."""

    recipe: Recipe
    size: Size
    only: str = "*"

    @cached_property
    def cells(self) -> list[Planned]:
        """Those that can be shown."""
        return self.recipe.cells(self.size)

    @cached_property
    def jobs(self) -> list[Job]:
        """Those that make them: all of the first split, then all of the second."""
        kind = self.recipe.kind
        found = {}
        for split in self.recipe.splits(self.size):
            for cell in self.cells:
                if (cell.run, split) not in found:
                    found[cell.run, split] = Job(kind, cell.run, split, works.settings(kind, cell.layers, split))
        return list(found.values())

    @cached_property
    def asked(self) -> list[Job]:
        """Those that are run now."""
        wanted = {cell.run for cell in self.cells if fnmatchcase(label(cell.cell), self.only)}
        if not wanted:
            some = ", ".join(label(cell.cell) for cell in self.cells[:6])
            raise BadValue(
                f"no cell of {self.recipe.id} is called '{self.only}'",
                remedy=f"write a pattern; there are: {some}{', ...' if len(self.cells) > 6 else ''}",
                where="--only",
            )
        return [job for job in self.jobs if job.made_by in wanted]

    @property
    def command(self) -> str:
        """How to run it again."""
        only = "" if self.only == "*" else f" --only '{self.only}'"
        return f"fedarena reproduce {self.recipe.id} --size {self.size}{only}"

    def as_dict(self) -> Table:
        """What reproduction.json holds."""
        jobs = {job.name: job.table for job in self.jobs}
        return {"id": self.recipe.id, "size": self.size, "jobs": jobs}

    @classmethod
    def make(cls, name: str | None, size: Size | None, only: str | None, resume: str | Path | None) -> Programme:
        """Of a recipe by its id, or of a folder."""
        if resume is None:
            if name is None:
                raise BadValue("nothing is named", remedy="give an id of `fedarena list papers`, or --all")
            return cls(find(name), size or "small", only or "*")
        before = read_programme(Path(resume))
        if (name or before["id"]).upper() != before["id"] or (size or before["size"]) != before["size"]:
            raise BadValue(
                f"{resume} is {before['id']} at size {before['size']}",
                remedy="leave out id and size to go on with it",
                where="--resume",
            )
        return cls(find(before["id"]), before["size"], only or "*")


def read_programme(root: Path) -> Table:
    """What a folder's runs are, by their places in it."""
    if not (root / PLAN).exists():
        raise BadValue(f"{root} holds no reproduction", remedy="give the folder of one", where="--resume")
    with reading(root, remedy="the folder is damaged: remove it"):
        table: Table = json.loads((root / PLAN).read_text(encoding="utf-8"))
        return table
