"""Does everything in a recipe mean something? What names nothing shows here, before any work."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Any

from fedarena.arena.recipes import SIZES, Recipe
from fedarena.errors import BadValue, UnknownName, suggest, told_at
from fedarena.results import measures
from fedarena.results.agreement import Cell, Check, label
from fedarena.results.paper_plots import FORMS

WITH_AXES = ("x", "lines", "bars", "panels")  # what a figure lays out


def proofread(recipe: Recipe) -> None:
    """Axes, choices, measures, cells and forms of figures are known wherever they are named."""
    axes, choices = recipe.axes, [choice for each in recipe.axes.values() for choice in each]
    _need([axis for grid in recipe.grids for axis in grid], axes, "axis", f"{recipe.id} grids")
    _need(recipe.tuned, axes, "axis", f"{recipe.id} tuned")
    references = [recipe.reference] if isinstance(recipe.reference, str) else [*recipe.reference.values()]
    _need(filter(None, references), choices, "choice", f"{recipe.id} reference")
    for size, scale in recipe.sizes.items():
        _need([*scale.only, *scale.axes], axes, "axis", f"{recipe.id} {size}")
        for changes in (scale.only, scale.axes):
            for axis, some in changes.items():
                _need(some, axes[axis], f"choice of the axis {axis}", f"{recipe.id} {size}")
        _need(scale.measures, recipe.measures, "measure", f"{recipe.id} {size}")
    _upto(recipe)
    if recipe.kind == "run":
        for size in SIZES:
            for text in recipe.measured(size).values():
                with told_at(f"{recipe.id} measures"):
                    measures.parsed(text)
    cells = {_shown(recipe, planned.cell) for size in SIZES for planned in recipe.cells(size)}
    _published(recipe, cells, choices)
    for check in recipe.checks:
        _check(recipe, check, cells, choices)
    _figure(recipe)


def _need(names: Iterable[str], known: Iterable[str], what: str, where: str) -> None:
    every = list(known)
    for name in names:
        if name not in every:
            remedy = suggest(name, every, f"there are: {', '.join(every[:12])}{', ...' if len(every) > 12 else ''}")
            raise UnknownName(f"no {what} is called '{name}'", remedy=remedy, where=where)


def _shown(recipe: Recipe, cell: Cell) -> Cell:
    """Its name in a table: without the choice that is tuned."""
    gone = {choice for axis in recipe.tuned for choice in recipe.axes[axis]}
    return tuple(name for name in cell if name not in gone)


def _upto(recipe: Recipe) -> None:
    tables = [(axis, c, t) for axis, each in recipe.axes.items() for c, t in each.items()]
    tables += [(axis, c, t) for s in recipe.sizes.values() for axis, each in s.axes.items() for c, t in each.items()]
    for axis, choice, table in tables:
        upto = table.get("upto", 1)
        if not isinstance(upto, int) or upto < 1:
            raise BadValue(f"upto = {upto!r}", remedy="write a number of rounds", where=f"{recipe.id} {axis}.{choice}")


def _published(recipe: Recipe, cells: set[Cell], choices: list[str]) -> None:
    _need(recipe.published, [*recipe.measures, "sign"], "measure", f"{recipe.id} published")
    for measure, values in recipe.published.items():
        where = f"{recipe.id} published.{measure}"
        for cell, value in values.items():
            if measure == "sign":
                _need(cell, choices, "choice", where)
            elif cell not in cells:
                remedy = suggest(label(cell), map(label, cells), "name the choices of a cell, in the order of its axes")
                raise UnknownName(f"no cell is called '{label(cell)}'", remedy=remedy, where=where)
            if not _fits(value, measure):
                raise BadValue(f"{label(cell)} = {value!r}", remedy="write what was printed", where=where)


def _fits(value: Any, measure: str) -> bool:
    if measure == "sign":
        return isinstance(value, str) and bool(value) and {*value} <= {*"-=+"}
    return isinstance(value, int | float)


def _check(recipe: Recipe, check: Check, cells: set[Cell], choices: list[str]) -> None:
    how, where = check.how, f"{recipe.id} check '{check.says}'"
    _need([how["measure"]], recipe.measures, "measure", where)
    for key in ("axis", "than"):
        _need(_texts(how, key), recipe.axes, "axis", where)
    for key in ("mean_over", "larger"):
        _need(how.get(key, ()), recipe.axes, "axis", where)
    for key in ("of", "to", "minus", "choices", "about"):
        _need(_texts(how, key), choices, "choice", where)
    if "axis" in how:
        _need(how.get("among", ()), recipe.axes[how["axis"]], f"choice of the axis {how['axis']}", where)
    for pattern in _texts(how, "cells"):
        if not any(fnmatchcase(label(cell), pattern) for cell in cells):
            some = ", ".join(sorted(map(label, cells))[:4])
            raise BadValue(f"cells = '{pattern}' fits none", remedy=f"there are: {some}, ...", where=where)


def _texts(how: Mapping[str, Any], key: str) -> list[str]:
    value = how.get(key, [])
    return [value] if isinstance(value, str) else list(value)


def _figure(recipe: Recipe) -> None:
    how, where = recipe.figure, f"{recipe.id} figure"
    _need([how.get("form", "dots")], FORMS, "form", where)
    _need([how[key] for key in WITH_AXES if key in how], recipe.axes, "axis", where)
    _need(_texts(how, "measure"), recipe.measures, "measure", where)
    needed = {"lines": ("x", "lines"), "bars": ("bars",)}.get(how.get("form", ""), ())
    for key in needed:
        if key not in how:
            raise BadValue(f"a figure of the form {how['form']} has no {key}", remedy="name an axis", where=where)
