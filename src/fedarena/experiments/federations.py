"""The federations of a suite: read from a list, from the blocks of a file or from a grid, each with its name and seed."""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedarena.config.data_sources import are_table_files
from fedarena.config.errors import BadValue, located_at, quoted
from fedarena.config.experiment import Experiment, with_settings
from fedarena.config.seeds import derived_seed
from fedarena.config.settings_tables import ALL_COMPONENTS
from fedarena.config.toml_text import flat_table, read_toml, resolve_paths
from fedarena.experiments.contestants import check_labels
from fedarena.results.suite_plan import holds_suite
from fedarena.statistics.hierarchical import LEAST_FEDERATIONS

MOST_FEDERATIONS = 100
BLOCKS = ("federation", "grid")  # keys that make a file a suite
Federations = dict[str, tuple[Experiment, int]]  # name -> experiment with its own seed, and the seed as it was given


@dataclass(frozen=True)
class Source:
    """One federation as it was given: a source of `Experiment.make`, its name if any, and its own settings."""

    experiment: Any
    name: str = ""
    settings: dict[str, Any] | None = None  # dotted keys that may distinguish it from the others


def is_suite(source: Any, resume: Any = None) -> bool:
    """Return whether these are several federations: a list, a file with blocks or a grid, or the folder of a suite.

    A list of CSV or Parquet files is one federation, with a client per file.
    """
    if source is None:
        return holds_suite(resume)
    if isinstance(source, list):
        return not are_table_files(source)
    return _suite_table(source) is not None


def read_federations(source: Any, overrides: Sequence[str], settings: Mapping[str, Any]) -> Federations:
    """Return every federation's experiment by name, each with a seed of its own, and the seed that was given.

    The model over federations assumes independent scores: with one seed, federations of one data set would have the same
    folds, and an error in them would count as many times as there are federations.
    """
    sources = _sources(source)
    if len(sources) < LEAST_FEDERATIONS:
        raise BadValue(
            f"{len(sources)} federation{'s' * (len(sources) != 1)} cannot show how federations differ",
            remedy=f"give at least {LEAST_FEDERATIONS}, or compare on one",
            where="federations",
        )
    if len(sources) > MOST_FEDERATIONS:
        raise _too_many(len(sources))
    made = []
    for position, one in enumerate(sources):
        with located_at(one.name or f"federation {position + 1}"):
            made.append(Experiment.make(one.experiment, overrides, **settings))
    names = _names(sources, made)
    check_labels(names, "a federation", 'name = "..."', "federations")
    found = dict(zip(names, made, strict=True))
    _check_different(found)
    return {name: (exp.with_(seed=derived_seed(exp.seed, "federation", name)), exp.seed) for name, exp in found.items()}


def _too_many(count: int) -> BadValue:
    return BadValue(f"{count} federations are too many", remedy=f"give at most {MOST_FEDERATIONS}", where="federations")


def _suite_table(source: Any) -> dict[str, Any] | None:
    """Return the table of a suite file; None for everything else."""
    is_file = isinstance(source, str | Path) and str(source).endswith(".toml")
    if not is_file or "\0" in str(source) or not Path(source).is_file():
        return None
    with contextlib.suppress(BadValue):  # `Experiment.make` reports what is wrong with it
        table = read_toml(Path(source))
        return table if any(key in table for key in BLOCKS) else None
    return None


def _sources(source: Any) -> list[Source]:
    """Return the federations of a list, or of a suite file."""
    if isinstance(source, list):
        return [_source(one) for one in source]
    table = _suite_table(source)
    assert table is not None
    folder = Path(source).parent
    blocks, grid = table.pop("federation", None), table.pop("grid", None)
    where = str(source)
    if blocks is not None and grid is not None:
        raise BadValue("both [[federation]] and [grid] are given", remedy="use one of them", where=where)
    if grid is not None:
        chosen = _grid(grid, where)
    elif isinstance(blocks, list) and all(isinstance(block, dict) for block in blocks):
        chosen = blocks
    else:
        raise BadValue(
            "federation is not a list of tables", remedy="write a block [[federation]] for each", where=where
        )
    found = []
    for block in chosen:
        own = dict(block)
        name = str(own.pop("name", ""))
        resolve_paths(own, folder)
        found.append(Source(with_settings(table, own), name, flat_table(own)))
    return found


def _grid(grid: Any, where: str) -> list[dict[str, Any]]:
    """Return every combination of the values of a grid."""
    if not isinstance(grid, dict) or not grid:
        raise BadValue("the grid names no key", remedy='write e.g. "partition.beta" = [0.1, 1, 10]', where=where)
    axes: dict[str, list[Any]] = {}
    for key, values in flat_table(grid).items():
        if not isinstance(values, list) or not values:
            raise BadValue(
                f"grid.{quoted(key)} is not a list of values",
                remedy=f"write {quoted(key)} = [FIRST, SECOND, ...]",
                where=where,
            )
        axes[key] = values
    count = math.prod(map(len, axes.values()))
    if count > MOST_FEDERATIONS:
        raise _too_many(count)
    return [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]


def _source(one: Any) -> Source:
    """Return one federation of a list: a file, a data set's name, a table (its key "name" names it) or an experiment."""
    if isinstance(one, Mapping) and "name" in one:
        table = {key: value for key, value in one.items() if key != "name"}
        return Source(table, str(one["name"]))
    if isinstance(one, str | Path):
        is_file = str(one).endswith((".toml", ".csv", ".parquet"))
        return Source(one, Path(one).stem if is_file else str(one))
    return Source(one)


def _names(sources: Sequence[Source], made: Sequence[Experiment]) -> list[str]:
    """Return the names of all federations; one without a name is named by the settings that differ between them."""
    flat = [
        flat_table(exp.as_table()) if one.settings is None else one.settings
        for one, exp in zip(sources, made, strict=True)
    ]
    keys = dict.fromkeys(key for table in flat for key in table)
    differing = [key for key in keys if len({str(table.get(key)) for table in flat}) > 1 and key != "seed"] or ["seed"]
    names = []
    for one, table, experiment in zip(sources, flat, made, strict=True):
        settings = [_setting(key, table[key]) for key in differing if key in table]
        names.append(one.name or ",".join(settings) or experiment.data.name)
    return names


def _setting(key: str, value: Any) -> str:
    """Return a setting as part of a name: a component by its name alone, others as key=value."""
    if key in ALL_COMPONENTS or key.endswith(".name"):
        return str(value)
    return f"{key.rpartition('.')[2]}={value}"


def _check_different(found: Mapping[str, Experiment]) -> None:
    """Raise if a federation is given twice: a copy says nothing about the next federation."""
    seen: dict[str, str] = {}
    for name, experiment in found.items():
        if experiment.python_parts:
            continue
        text = experiment.to_toml()
        if text in seen:
            raise BadValue(
                f"the federations '{seen[text]}' and '{name}' are the same experiment",
                remedy="leave one out; a copy says nothing about the next federation",
                where="federations",
            )
        seen[text] = name
