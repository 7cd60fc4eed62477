"""Find recipes by id in papers/ of a clone or of an installation, and validate them."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from importlib import metadata
from pathlib import Path

import fedarena
from fedarena.config.errors import DataMissing, check_known, quoted
from fedarena.reproduction.recipe_validation import validate_recipe
from fedarena.reproduction.recipes import Recipe

PAPERS = "nprkto"  # Nilsson, Pfitzner, the CIFAR-10 report, Khitrov, the thesis, and the original papers


def recipes_folder() -> Path:
    """Return papers/ of a clone, or the folder into which an installation put the recipes."""
    beside = Path(fedarena.__file__).parents[2] / "papers"
    if beside.is_dir():
        return beside
    installed = metadata.files("fedarena") or []
    recipes = (Path(str(f.locate())) for f in installed if f.suffix == ".toml" and f.parent.name == "papers")
    found = next((recipe for recipe in recipes if recipe.exists()), None)
    if found is None:
        raise DataMissing("this installation has no recipes", remedy="use a clone, or install the wheel of a release")
    return found.resolve().parent


@cache
def recipe_files() -> dict[str, Path]:
    """Return the recipe files by id, paper by paper."""
    found = sorted(recipes_folder().glob("*.toml"), key=lambda file: (PAPERS.find(file.stem[0]), file.stem))
    return {file.stem.upper(): file for file in found}


def find_recipe(name: str) -> Recipe:
    """Return the validated recipe of this id, in upper or lower case."""
    known = recipe_files()
    what, more = f"no paper's table or figure is called '{quoted(name)}'", "`fedarena list papers` shows them all"
    check_known(name.upper(), known, what, more)
    return validate_recipe(Recipe.read(known[name.upper()]))


def all_recipes() -> Iterator[Recipe]:
    """Yield all recipes, validated."""
    return map(find_recipe, recipe_files())
