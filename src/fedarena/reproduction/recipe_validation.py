"""Validate recipes: axes, choices, measures, cells, checks and figures must refer to each other correctly."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Any

from fedarena.config.comparison_plan import folder_name
from fedarena.config.errors import BadValue, check_known, located_at, quoted, repeated
from fedarena.reproduction import measures
from fedarena.reproduction.check_keys import is_number
from fedarena.reproduction.figures import FORMS
from fedarena.reproduction.judgement import RecipeCheck
from fedarena.reproduction.recipes import SIZES, Recipe
from fedarena.reproduction.score_sheet import Cell, ScoreSheet, label

WITH_AXES = ("x", "lines", "bars", "panels")  # what a figure lays out
FIGURE = (*WITH_AXES, "form", "measure", "cells", "monotone", "log")
FORM_NEEDS = {"lines": ("x", "lines"), "bars": ("bars",)}
FORM_OF = {"posterior": "posterior", "partitions": "open"}  # the kind of recipe that it can show


def validate_recipe(recipe: Recipe) -> Recipe:
    """Return the recipe, or raise if it names an axis, choice, measure, cell or figure that does not exist."""
    with located_at(recipe.id):
        _axes(recipe)
        _sizes(recipe)
        cells = {_shown(recipe, planned.cell) for size in SIZES for planned in recipe.cells(size)}
        choices = [choice for each in recipe.axes.values() for choice in each]
        _published(recipe, cells, choices)
        sheet = _synthetic_scores(recipe)
        for check in recipe.checks:
            _check(recipe, check, cells, choices, sheet)
        _figure(recipe)
    return recipe


def _need(names: Iterable[Any], known: Iterable[str], what: str, where: str) -> None:
    every = list(known)
    for name in names:
        more = f"there are: {', '.join(every[:12])}{', ...' if len(every) > 12 else ''}"
        check_known(name, every, f"no {what} is called '{quoted(name)}'", more, where)


def _axes(recipe: Recipe) -> None:
    for grid in recipe.grids:
        _need(grid, recipe.axes, "axis", "grids")
        if len({*grid}) < len(grid):
            raise BadValue(f"{list(grid)} has an axis twice", remedy="name each once", where="grids")
    _need(recipe.tuned, recipe.axes, "axis", "tuned")
    choices = [choice for each in recipe.axes.values() for choice in each]
    named = [recipe.reference] if isinstance(recipe.reference, str) else [*recipe.reference, *recipe.reference.values()]
    _need(filter(None, named), choices, "choice", "reference")


def _sizes(recipe: Recipe) -> None:
    for size, scale in recipe.sizes.items():
        _need([*scale.only, *scale.axes], recipe.axes, "axis", size)
        for changes in (scale.only, scale.axes):
            for axis, some in changes.items():
                _need(some, recipe.axes[axis], f"choice of the axis {axis}", size)
        _need(scale.measures, recipe.measures, "measure", size)
    for changed in (recipe.axes, *(scale.axes for scale in recipe.sizes.values())):
        for axis, choices in changed.items():
            for choice, table in choices.items():
                upto = table.get("upto", 1)
                if not isinstance(upto, int) or isinstance(upto, bool) or upto < 1:
                    raise BadValue(
                        f"upto = {repeated(upto)}", remedy="write a number of rounds", where=f"{axis}.{choice}"
                    )
    for size in SIZES:
        runs = dict.fromkeys(planned.run for planned in recipe.cells(size))
        name, count = Counter(folder_name(label(run)) for run in runs).most_common(1)[0] if runs else ("", 1)
        if count > 1:
            raise BadValue(f"{count} cells would share a folder, {name}", remedy="rename a choice", where=size)
        for text in recipe.measured(size).values() if recipe.kind == "run" else ():
            with located_at("measures"):
                measures.parsed(text)


def _shown(recipe: Recipe, cell: Cell) -> Cell:
    """Return the name of a cell in a table, without choices of tuned axes."""
    tuned = {choice for axis in recipe.tuned for choice in recipe.axes[axis]}
    return tuple(name for name in cell if name not in tuned)


def _published(recipe: Recipe, cells: set[Cell], choices: list[str]) -> None:
    _need(recipe.published, [*recipe.measures, "sign"], "measure", "published")
    labels = [*map(label, cells)]
    for measure, values in recipe.published.items():
        where = f"published.{measure}"
        for cell, value in values.items():
            named = [(*cell[:-2], one) for one in cell[-2:]] if measure == "sign" and len(cell) > 1 else [cell]
            for one in named:
                more = "name the choices of a cell, in the order of its axes"
                check_known(label(one), labels, f"no cell is called '{label(one)}'", more, where)
            if not (_is_sign(value) and len(named) == 2 if measure == "sign" else is_number(value)):
                raise BadValue(f"{label(cell)} = {repeated(value)}", remedy="write what was printed", where=where)


def _is_sign(value: Any) -> bool:
    return isinstance(value, str) and bool(value) and {*value} <= {*"-=+"}


def _check(recipe: Recipe, check: RecipeCheck, cells: set[Cell], choices: list[str], sheet: ScoreSheet) -> None:
    how, where = check.how, f"check '{check.says}'"
    _need([how["measure"]], recipe.measures, "measure", where)
    for key in ("axis", "than", "mean_over", "larger"):
        _need(_texts(how, key), recipe.axes, "axis", where)
    for key in ("of", "to", "minus", "choices", "about"):
        _need(_texts(how, key), choices, "choice", where)
    _need((name for pair in how.get("undecided", ()) for name in pair), choices, "choice", where)
    best = recipe.axes[how["axis"]] if "axis" in how else map(label, cells)
    _need(how.get("among", ()), best, "cell or choice", where)
    for pattern in _texts(how, "cells"):
        if not any(fnmatchcase(label(cell), pattern) for cell in cells):
            some = ", ".join(sorted(map(label, cells))[:4])
            raise BadValue(f"cells = '{pattern}' matches no cell", remedy=f"there are: {some}, ...", where=where)
    try:
        found = check.findings(sheet)
    except (KeyError, ValueError, TypeError) as error:
        raise BadValue(f"the check cannot be made: {error}", remedy="fix the check", where=where) from None
    if not found:
        raise BadValue("the check is about no cells", remedy="name cells that are run at size full", where=where)


def _synthetic_scores(recipe: Recipe) -> ScoreSheet:
    """Return scores for all cells, with which every check must be possible and have findings."""
    splits = range(len(recipe.splits("full")))
    shown = [_shown(recipe, planned.cell) for planned in recipe.cells("full")]
    scores = {m: {cell: [0.5 + 0.01 * i for i in splits] for cell in shown} for m in recipe.measures}
    axes = {axis: list(choices) for axis, choices in recipe.axes.items()}
    return ScoreSheet(scores, recipe.published, axes, 0.2)


def _texts(how: Mapping[str, Any], key: str) -> list[str]:
    value = how.get(key, [])
    return [value] if isinstance(value, str) else list(value)


def _figure(recipe: Recipe) -> None:
    how, form = recipe.figure, recipe.figure.get("form", "dots")
    _need(how, FIGURE, "key of a figure", "figure")
    _need([form], FORMS, "form", "figure")
    _need([how[key] for key in WITH_AXES if key in how], recipe.axes, "axis", "figure")
    _need([how["measure"]] if "measure" in how else [], recipe.measures, "measure", "figure")
    for key in FORM_NEEDS.get(form, ()):
        if key not in how:
            raise BadValue(f"a figure of the form {form} has no {key}", remedy="name an axis", where="figure")
    if FORM_OF.get(form, recipe.kind) != recipe.kind:
        raise BadValue(f"a recipe of kind {recipe.kind} has no {form}", remedy="choose another form", where="figure")
    if not isinstance(how.get("cells", ""), str):
        raise BadValue(f"cells = {repeated(how['cells'])}", remedy="write a pattern", where="figure")
