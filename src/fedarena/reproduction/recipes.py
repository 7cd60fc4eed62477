"""A published table or figure as a recipe: the runs at each size, the published numbers, and the checks.

A recipe is a TOML file in papers/. Its cells are the product of its axes: each choice of an axis is a part of an experiment
that replaces settings of the common one. Settings of a size replace both. docs/papers.md explains all keys.
"""

from __future__ import annotations

import itertools
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import field, fields
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import ConfigDict, Field, ValidationError
from pydantic.dataclasses import dataclass

from fedarena.config.comparison_plan import Split
from fedarena.config.errors import BadValue, check_known, located_at
from fedarena.data.published_files import reading
from fedarena.reproduction.judgement import RecipeCheck, checks_of
from fedarena.reproduction.score_sheet import Cell

Size = Literal["smoke", "small", "full"]
Kind = Literal["run", "open", "posterior", "boost"]
Table = dict[str, Any]
SIZES: tuple[Size, ...] = get_args(Size)
Many = Annotated[int, Field(ge=1)]


@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class RecipeSize:
    """The settings that a size replaces."""

    experiment: Table = field(default_factory=dict)
    axes: Mapping[str, Mapping[str, Table]] = field(default_factory=dict)  # axis -> choice -> its other settings
    only: Mapping[str, Sequence[str]] = field(default_factory=dict)  # axis -> choices that are run
    measures: Mapping[str, str] = field(default_factory=dict)  # other ones, e.g. a lower target
    seeds: Many | None = None
    repeats: Many | None = None
    folds: Many | None = None
    says: str = ""  # other differences, as a sentence


@dataclass(frozen=True)
class PlannedCell:
    """A cell of a size: its choices, its settings, and the round after which it is read (None: the last)."""

    cell: Cell
    run: Cell  # the choices that make the run; cells read from one run at several rounds share it
    layers: tuple[Table, ...]
    upto: int | None = None


@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class Recipe:
    """One published table, figure or claim, as its recipe file describes it."""

    id: str
    title: str
    source: str
    claim: str
    axes: dict[str, dict[str, Table]]
    experiment: Table = field(default_factory=dict)
    kind: Kind = "run"
    grids: tuple[tuple[str, ...], ...] = ()  # axes that are crossed; all of them by default
    measures: dict[str, str] = field(default_factory=dict)  # name -> measure
    published: dict[str, dict[Cell, Any]] = field(default_factory=dict)  # measure -> cell -> value
    readings: dict[str, dict[str, str]] = field(default_factory=dict)  # ways to read the paper, and their words
    checks: tuple[RecipeCheck, ...] = ()
    tuned: tuple[str, ...] = ()  # axes of which the best choice counts, by the first measure
    reference: str | dict[str, str] = ""  # the choice that others are compared with, for all or by choice
    figure: Table = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    seeds: Many = 1
    first_seed: Annotated[int, Field(ge=0)] = 0
    repeats: Many = 1
    folds: Many | None = None
    sizes: dict[Size, RecipeSize] = field(default_factory=dict)

    @classmethod
    def read(cls, file: Path) -> Recipe:
        """Return the recipe of a file; errors say where the mistake is."""
        with reading(file, remedy="fix the recipe"):
            table = tomllib.loads(file.read_text(encoding="utf-8"))
        known = {f.name for f in fields(cls)} - {"sizes"} | {*SIZES}
        for key in table:
            more = f"there are: {', '.join(sorted(known))}"
            check_known(key, known, f"a recipe has no key '{key}'", more, str(file))
        try:
            with located_at(str(file)):
                made = cls._made(table)
        except ValidationError as error:
            first = error.errors()[0]
            place = ".".join(str(part) for part in first["loc"] if part not in ("sizes", "str"))
            raise BadValue(f"{place}: {first['msg']}", remedy="fix the recipe", where=str(file)) from None
        except (TypeError, KeyError, AttributeError, ValueError) as error:
            raise BadValue(f"the recipe cannot be read: {error}", remedy="fix the recipe", where=str(file)) from None
        if made.id != file.stem.upper():
            raise BadValue(f"id = '{made.id}' in {file.name}", remedy=f"call it {file.stem.upper()}", where=str(file))
        return made

    @classmethod
    def _made(cls, table: Table) -> Recipe:
        axes, measures, checks = table.pop("axes", None), table.pop("measures", ["best"]), table.pop("checks", [])
        if not isinstance(axes, dict) or not all(isinstance(choices, dict) and choices for choices in axes.values()):
            raise TypeError("axes are tables of choices: [axes.rate]")
        if not isinstance(measures, dict | list):
            raise TypeError("measures are a list, or a table of their names")
        if not isinstance(checks, list) or not all(isinstance(check, dict) for check in checks):
            raise TypeError("checks are tables: [[checks]]")
        made = cls(
            axes=axes,
            grids=table.pop("grids", [list(axes)]),
            measures=measures if isinstance(measures, dict) else {name: name for name in measures},
            published={name: _flat(cells) for name, cells in table.pop("published", {}).items()},
            checks=tuple(checks_of(checks, table.get("readings", {}))),
            sizes={size: table.pop(size) for size in SIZES if size in table},
            **table,
        )
        names = [choice for choices in axes.values() for choice in choices]
        bad = next((name for name in names if name.split() != [name] or names.count(name) > 1), None)
        if bad is not None:
            raise TypeError(f"'{bad}' is not a valid name of a choice: use one word, once")
        return made

    def describe(self) -> Table:
        """Return what `fedarena list papers --json` prints of the recipe."""
        return {
            "name": self.id,
            "summary": self.title,
            "paper": self.source,
            "claim": self.claim,
            "parameters": [],
            "runs": {size: len({c.run for c in self.cells(size)}) * len(self.splits(size)) for size in SIZES},
        }

    def scale(self, size: Size) -> RecipeSize:
        """Return the settings that this size replaces."""
        return self.sizes.get(size, RecipeSize())

    def is_smaller(self, size: Size) -> bool:
        """Return whether this size runs less than was published; recipes without that size always run in full."""
        return size != "full" and size in self.sizes

    def splits(self, size: Size) -> list[Split]:
        """Return the splits of a size: seeds, or folds of repeated cross-validation."""
        scale = self.scale(size)
        folds = scale.folds or self.folds
        if scale.seeds is None and folds:
            return [Split(r, f) for r in range(scale.repeats or self.repeats) for f in range(folds)]
        return [Split(self.first_seed + seed) for seed in range(scale.seeds or self.seeds)]

    def measured(self, size: Size) -> dict[str, str]:
        """Return name -> measure at this size."""
        return {**self.measures, **self.scale(size).measures}

    def cells(self, size: Size) -> list[PlannedCell]:
        """Return all cells that a size runs."""
        scale = self.scale(size)
        found = {}
        for grid in self.grids:
            for choices in itertools.product(*(self._choices(axis, scale) for axis in grid)):
                found[choices] = self._planned(list(zip(grid, choices, strict=True)), scale)
        return list(found.values())

    def _choices(self, axis: str, scale: RecipeSize) -> list[str]:
        return list(scale.only.get(axis, self.axes[axis]))

    def _planned(self, choices: list[tuple[str, str]], scale: RecipeSize) -> PlannedCell:
        layers, made, upto = [self.experiment, scale.experiment], [], None
        for axis, choice in choices:
            given = {**self.axes[axis][choice], **scale.axes.get(axis, {}).get(choice, {})}
            upto = given.get("upto", upto)
            if [*given] != ["upto"]:
                made.append(choice)
            layers.append({key: value for key, value in given.items() if key != "upto"})
        return PlannedCell(tuple(choice for _, choice in choices), tuple(made), tuple(filter(None, layers)), upto)


def _flat(cells: Mapping[str, Any], *above: str) -> dict[Cell, Any]:
    """Return the values of nested tables by cell, whose names are the keys on the path to each value."""
    found: dict[Cell, Any] = {}
    for name, value in cells.items():
        path = (*above, *name.split())
        found |= _flat(value, *path) if isinstance(value, Mapping) else {path: value}
    return found
