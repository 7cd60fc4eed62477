"""Search spaces: a range or a list of choices for some keys of an experiment.

>>> space = Space.make({"local.lr": {"low": 0.01, "high": 0.2, "log": True}, "local.epochs": {"choices": [1, 5]}})
>>> print(space)
local.lr from 0.01 to 0.2 (log), local.epochs of 1, 5
"""

from __future__ import annotations

import itertools
import math
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Literal

from fedarena.config.errors import BadValue, FedarenaError, check_known, quoted, repeated
from fedarena.config.experiment import EITHER_OR, Experiment
from fedarena.config.limits import check_path
from fedarena.config.registry import name_of

Method = Literal["tpe", "random", "grid"]
ALLOWED = "write { low = 0.01, high = 1.0, log = true }, { low = 1, high = 5, step = 1 } or { choices = [1, 5, 10] }"
TASK_KEYS = ("data", "partition", "clients", "seed", "partition_seed", "start_seed", "schedule_seed", "folds", "fold",
            "fold_seed", "validate_share", "exclude", "evaluate", "rounds", "uploads",
            "dropouts", "devices")  # fmt: skip  # they define the task; searching them would make it easier


@dataclass(frozen=True)
class Range:
    """Numbers from low to high, both included; only whole numbers where both ends are whole."""

    low: float
    high: float
    log: bool = False
    step: float | None = None

    @property
    def whole(self) -> bool:
        """Whether the range has only whole numbers."""
        return all(isinstance(v, int) for v in (self.low, self.high, self.step or 0))

    @property
    def ends(self) -> list[Any]:
        """The values to validate: if both ends are allowed, all values between them are."""
        return [self.low, self.high]

    @property
    def points(self) -> list[Any] | None:
        """All values of the range; None if they are not a finite list."""
        if self.log or not (self.whole or self.step):
            return None
        step = self.step or 1
        count = round((self.high - self.low) / step) + 1
        return [self.low + i * step if self.whole else round(self.low + i * step, 12) for i in range(count)]

    def match(self, value: Any) -> Any:
        """Return the value as this range writes it (0.15, not 0.15000000000000002); None if it is outside."""
        if isinstance(value, bool) or not isinstance(value, int | float) or not self.low <= value <= self.high:
            return None
        if self.points is None:
            return None if self.whole and value % 1 else value
        return next((p for p in self.points if math.isclose(value, p, abs_tol=1e-12)), None)

    def __str__(self) -> str:
        by = f" by {self.step:g}" if self.step else ""
        return f"from {self.low:g} to {self.high:g}{by}" + (" (log)" if self.log else "")


@dataclass(frozen=True)
class Choices:
    """A list of values to choose from."""

    choices: tuple[Any, ...]

    @property
    def ends(self) -> list[Any]:
        """The values to validate, which are all of them."""
        return list(self.choices)

    points = ends

    def match(self, value: Any) -> Any:
        """Return the choice that equals the value, or None; True does not equal 1."""
        alike = (c for c in self.choices if c == value and isinstance(c, bool) == isinstance(value, bool))
        return next(alike, None)

    def __str__(self) -> str:
        return "of " + ", ".join(map(str, self.choices))


@dataclass(frozen=True)
class Space:
    """Keys of an experiment, each with its range or choices."""

    keys: dict[str, Range | Choices]

    @classmethod
    def make(cls, source: Space | Mapping[str, Any] | str | Path, where: str = "space") -> Space:
        """Return the space of a TOML file or table, whose keys are those of an experiment, nested or dotted."""
        if isinstance(source, Space):
            return source
        if not isinstance(source, Mapping):
            where = str(source)
            source = read_tables(source)
        leaves = dict(_leaves(source))
        if not leaves:
            raise BadValue(
                "the space is empty: there is nothing to search", remedy=f"name a key and {ALLOWED}", where=where
            )
        return cls({key: _dimension(key, table, f"{where}, {key}") for key, table in leaves.items()})

    def check(self, experiment: Experiment, where: str = "space") -> None:
        """Raise for keys that the experiment does not have and values that it does not allow."""
        for key, dimension in self.keys.items():
            place, head = f"{where}, {key}", key.partition(".")[0]
            if head in TASK_KEYS:
                raise BadValue(
                    f"{head} defines the task: a search may not choose it",
                    remedy="search settings of the training: local, algorithm, model, share",
                    where=place,
                )
            if EITHER_OR.get(key) in self.keys:
                raise BadValue(f"both {key} and {EITHER_OR[key]} are searched", remedy="use one of them", where=place)
            for value in dimension.ends:
                try:
                    experiment.with_(**{key: value})
                except FedarenaError as error:
                    raise type(error)(error.what, remedy=error.remedy, where=place) from None

    @property
    def grid(self) -> list[dict[str, Any]]:
        """Every combination of values; the first key changes slowest."""
        points: list[list[Any]] = []
        for key, dimension in self.keys.items():
            values = dimension.points
            if values is None:
                raise BadValue(
                    f"{key} ranges {dimension}: a grid cannot hold all of it",
                    remedy="give choices, or a step without log; or search with method random or tpe",
                    where=key,
                )
            points.append(values)
        return [dict(zip(self.keys, values, strict=True)) for values in itertools.product(*points)]

    def own_values(self, experiment: Experiment) -> dict[str, Any] | None:
        """Return the values of the experiment for these keys; None if one of them is outside the space."""
        table = experiment.as_table()
        values = {}
        for key, dimension in self.keys.items():
            head, _, rest = key.partition(".")
            value = table.get(head)
            if rest or isinstance(value, Mapping):
                value = value.get(rest or "name") if isinstance(value, Mapping) else None
            values[key] = dimension.match(value)
            if values[key] is None:
                return None
        return values

    def as_table(self) -> dict[str, Any]:
        """Return the space as plain values for JSON, which `make` reads back."""
        return {
            key: {"choices": list(d.choices)}
            if isinstance(d, Choices)
            else {k: v for k, v in asdict(d).items() if v is not None and v is not False}
            for key, d in self.keys.items()
        }

    def __str__(self) -> str:
        return ", ".join(f"{key} {dimension}" for key, dimension in self.keys.items())


def read_tables(file: str | Path) -> dict[str, Any]:
    """Return the tables of a TOML file of ranges and choices."""
    path = check_path(file, "the file of the search space")
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise BadValue(
            f"there is no file {path}", remedy=f"write one: a key of the experiment, and {ALLOWED}"
        ) from None
    except (ValueError, RecursionError, OSError) as error:
        raise BadValue(f"cannot read it: {quoted(str(error))}", remedy=ALLOWED, where=str(path)) from None


def _leaves(table: Mapping[str, Any], prefix: str = "") -> Any:
    """Yield dotted keys with their tables: `local.lr = {...}` and `[local]` with `lr = {...}` are the same."""
    for key, value in table.items():
        nested = isinstance(value, Mapping) and value and all(isinstance(v, Mapping) for v in value.values())
        if nested:
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


def _dimension(key: str, table: Any, where: str) -> Range | Choices:
    if isinstance(table, Range | Choices):
        return table
    if not isinstance(table, Mapping):
        raise BadValue(f"{key} = {repeated(table)} leaves nothing to search", remedy=ALLOWED, where=where)
    known = [f.name for f in fields(Range)] + ["choices"]
    for name in table:
        check_known(name, known, f"a space has no key '{quoted(name)}'", ALLOWED, where)
    if "choices" in table:
        return _choices(table, where)
    if not {"low", "high"} <= table.keys():
        raise BadValue(f"{key} has no {'low' if 'low' not in table else 'high'}", remedy=ALLOWED, where=where)
    return _range(Range(**table), where)


def _choices(table: Mapping[str, Any], where: str) -> Choices:
    values = table["choices"]
    if len(table) > 1:
        raise BadValue("choices and a range exclude each other", remedy=ALLOWED, where=where)
    if not isinstance(values, list | tuple) or not values:
        raise BadValue(f"choices = {repeated(values)}", remedy="give a list of at least one value", where=where)
    if not all(isinstance(v, str | bool | int | float) for v in values):
        raise BadValue(f"choices = {repeated(values)}", remedy="give texts, numbers, true or false", where=where)
    if len(set(map(repr, values))) < len(values):
        raise BadValue(f"choices = {repeated(values)} names a value twice", remedy="name each once", where=where)
    return Choices(tuple("inf" if v == math.inf else v for v in values))  # a batch of all rows, as JSON can hold it


def _range(wanted: Range, where: str) -> Range:
    for name in ("low", "high", "step"):
        value = getattr(wanted, name)
        number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
        if not number and not (name == "step" and value is None):
            raise BadValue(f"{name} = {repeated(value)}", remedy="give a number", where=where)
    if not isinstance(wanted.log, bool):
        raise BadValue(f"log = {repeated(wanted.log)}", remedy="give true or false", where=where)
    if wanted.low >= wanted.high:
        raise BadValue(
            f"low = {wanted.low:g} is not below high = {wanted.high:g}", remedy="swap or widen them", where=where
        )
    if wanted.log and wanted.low <= 0:
        raise BadValue(f"low = {wanted.low:g} with log", remedy="begin a logarithmic range above 0", where=where)
    if wanted.log and wanted.step is not None:
        raise BadValue("log and step exclude each other", remedy="list the values: choices = [0.01, 0.1]", where=where)
    if wanted.step is not None:
        steps = (wanted.high - wanted.low) / wanted.step if wanted.step > 0 else 0.5
        if not math.isclose(steps, round(steps), abs_tol=1e-9):
            raise BadValue(
                f"step = {wanted.step:g} does not lead from {wanted.low:g} to {wanted.high:g}",
                remedy="give a step that divides the range",
                where=where,
            )
    return wanted


# The tables of search_spaces.toml


@dataclass(frozen=True)
class Preset:
    """A published search with its space and number of trials."""

    algorithm: str
    method: Method
    trials: int
    space: Space
    paper: str


TABLES = tomllib.loads(Path(__file__).with_name("search_spaces.toml").read_text(encoding="utf-8"))
PRESETS = {name: Preset(**table | {"space": Space.make(table["space"])}) for name, table in TABLES["published"].items()}


def preset(name: str, experiment: Experiment) -> Preset:
    """Return the published search of that name; raise if the experiment has another algorithm."""
    check_known(name, PRESETS, f"no preset is called '{quoted(name)}'", f"there are: {', '.join(PRESETS)}", "--preset")
    found = PRESETS[name]
    if experiment.algorithm.name != found.algorithm:
        raise BadValue(
            f"preset {name} searches {found.algorithm}, and the experiment has {experiment.algorithm.name}",
            remedy=f"add --set algorithm={found.algorithm}, or use another preset",
            where="--preset",
        )
    return found


def own_space(experiment: Experiment) -> Space:
    """Return the search space of an algorithm: the `search` of its class, the default table, or its learning rate."""
    algorithm = experiment.algorithm
    inside = algorithm.made
    while name_of(inside) != algorithm.name and getattr(inside, "base", None) is not None:
        inside = inside.base  # the algorithm that a companion wraps
    usual = TABLES["default"]
    declared = getattr(type(inside), "search", None) or usual.get(algorithm.name, usual["other"])
    return Space.make(declared, f"the search space of {algorithm.name}")
