"""The experiment: one frozen, validated value, made from TOML or keyword arguments and written back as complete TOML.

>>> exp = Experiment.make("digits", rounds=3, local={"lr": 0.05})
>>> exp.algorithm.name, exp.rounds, exp.local.lr
('fedavg', 3, 0.05)
>>> Experiment.make("digits", algoritm="fedavg")
Traceback (most recent call last):
    ...
fedarena.config.errors.UnknownName: an experiment has no key 'algoritm'  (algoritm)
  -> did you mean 'algorithm'?  known keys: data, model, ...
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, ValidationError, field_validator, model_validator

from fedarena.config.algorithm_text import parse
from fedarena.config.components import Component
from fedarena.config.data_sources import TABLE_KEYS, read_data_source
from fedarena.config.errors import BadValue, UnknownName, check_known, located_at, quoted
from fedarena.config.limits import check_path
from fedarena.config.seeds import SEED_KEYS, Purpose
from fedarena.config.settings_tables import (
    ALL_COMPONENTS,
    COMPONENTS,
    FROM_PYTHON,
    OPTIONAL_COMPONENTS,
    TABLES,
    Devices,
    Evaluate,
    Local,
    SettingsTable,
    Uplink,
    both_given,
    validation_error,
)
from fedarena.config.toml_text import parse_assignment, read_toml, write_toml_value

SETTINGS_TABLES: dict[str, type[SettingsTable]] = {"local": Local, "evaluate": Evaluate, "devices": Devices, "uplink": Uplink}
GENERAL = {"algorithm": "fedavg", "partition": "iid", "model": "mlp_2nn", "clients": 10, "share": 1.0, "rounds": 20}
_PAIRS = (("share", "per_round"), ("rounds", "uploads"), ("local.epochs", "local.steps"), ("attack.share", "attack.clients"))
EITHER_OR = {key: other for one, two in _PAIRS for key, other in ((one, two), (two, one))}


class Experiment(SettingsTable):
    """One experiment, complete. Build it with `Experiment.make`.

    >>> import fedarena as fa
    >>> experiment = fa.Experiment.make("digits", algorithm="fedprox:mu=0.1", rounds=3)
    >>> experiment.algorithm.name, experiment.rounds
    ('fedprox', 3)
    """

    data: Component
    model: Component
    partition: Component
    algorithm: Component
    clients: Annotated[int, Field(ge=0)] | None = None  # 0 or None: as many as the data has (natural partitions)
    share: Annotated[float, Field(gt=0, le=1)] | None = None
    per_round: Annotated[int, Field(ge=1)] | None = None
    rounds: Annotated[int, Field(ge=1)] | None = None
    uploads: Annotated[int, Field(ge=1)] | None = None
    seed: Annotated[int, Field(ge=0)] = 0
    # of the partition; `seed` if not given, as for the next ones
    partition_seed: Annotated[int, Field(ge=0)] | None = None
    start_seed: Annotated[int, Field(ge=0)] | None = None  # of the initial weights
    schedule_seed: Annotated[int, Field(ge=0)] | None = None  # of client selection, dropouts, availability, latencies
    folds: Annotated[int, Field(ge=2)] | None = None  # training and test samples are pooled and split into folds
    fold: Annotated[int, Field(ge=0)] | None = None  # the fold held out for testing
    # of the assignment of pooled samples to folds, or to training and test
    fold_seed: Annotated[int, Field(ge=0)] | None = None
    # share of each client's training samples that replaces the test samples, for tuning
    validate_share: Annotated[float, Field(gt=0, lt=1)] | None = None
    exclude: tuple[str, ...] | None = None  # clients, by name or number, that are left out of training and testing
    select: Component | None = None  # the rule that selects the clients of a round; none: uniformly
    attack: Component | None = None  # of some of the clients, in a simulation
    local: Local = Local()
    evaluate: Evaluate = Evaluate()
    devices: Devices = Devices()
    dropouts: Annotated[float, Field(ge=0, lt=1)] = 0.0  # probability that a selected client does not answer
    on_error: Literal["stop", "drop"] = "stop"
    on_nan: Literal["drop", "raise", "keep"] = "drop"
    # what the server sees: each update, only their mean, or the result of these steps
    uplink: Literal["plain", "mean_only"] | Uplink = "plain"
    bn_buffers: Literal["average", "server", "local", "recompute"] = "average"
    # of the task, such as "huber" for a regression; the usual one if not given; in Python also a function
    loss: str | Component | None = None
    # manual_seed: as torch draws them after torch.manual_seed(start_seed), or seed
    init: Literal["torch", "glorot", "manual_seed"] = "torch"
    freeze: tuple[str, ...] = ()  # patterns of names of parameters that are not trained and not sent
    dtype: Literal["float32", "float64"] = "float32"
    device: str = "cpu"
    fast: bool = True
    compile: bool = False  # use torch.compile for models without compiled kernels

    @field_validator("exclude", mode="before")
    @classmethod
    def _read_exclude(cls, value: Any) -> tuple[str, ...] | None:
        """Read one name or a list of names and numbers, each once; an empty list is no value."""
        names = list(value) if isinstance(value, list | tuple) else [value]
        if not all(isinstance(name, str | int) and not isinstance(name, bool) for name in names):
            raise ValueError('a list of clients by name or number, such as ["Cleveland"] or [3]')
        return tuple(dict.fromkeys(map(str, names))) or None

    @field_validator("loss", mode="before")
    @classmethod
    def _check_loss(cls, value: Any) -> Any:
        if callable(value):
            return Component.of_loss(value)
        if value is not None and not isinstance(value, str | Component):
            raise ValueError('the name of a loss, such as "huber", or in Python a function of (module, batch, context)')
        return value

    @field_validator("uplink", mode="before")
    @classmethod
    def _check_uplink(cls, value: Any) -> Any:
        if not isinstance(value, Uplink) and not (isinstance(value, str) and value in ("plain", "mean_only")):
            raise ValueError('"plain", "mean_only", or a table of steps such as { clip = 1.0, noise = 0.5 }')
        return value

    @model_validator(mode="after")
    def _check_combination_of_keys(self) -> Experiment:
        for one, other in (("share", "per_round"), ("rounds", "uploads")):
            if getattr(self, one) is not None and getattr(self, other) is not None:
                raise both_given(one, other)
        if (self.folds is None) != (self.fold is None):
            raise BadValue("folds and fold go together", remedy="give both: folds = 5, fold = 0", where="fold")
        if self.folds is not None and self.fold is not None and self.fold >= self.folds:
            raise BadValue(f"fold = {self.fold} of {self.folds}", remedy=f"use 0 to {self.folds - 1}", where="fold")
        if self.per_round and self.clients and self.per_round > self.clients:
            raise BadValue(
                f"per_round = {self.per_round} of {self.clients} clients",
                remedy=f"give at most {self.clients}, or more clients",
                where="per_round",
            )
        return self

    @classmethod
    def make(cls, source: Any = None, overrides: Sequence[str] = (), *, where: str = "", **settings: Any) -> Experiment:
        """Make an experiment from a TOML file, a data set or a table, then keywords, then `key.sub=value` overrides.

        Keys that are not given have the defaults of the data set, or else the general defaults. Settings of a table of
        samples may be given as keywords: `label="outcome"` is `data={"label": "outcome"}`.
        """
        table, place = _read(source)
        where = where or place
        table = with_settings(table, _named_algorithm(table))
        given = {
            f"data.{key}" if key in TABLE_KEYS else key: value for key, value in settings.items() if value is not None
        }
        for layer in (given, dict(map(parse_assignment, overrides))):
            for key, value in {**layer, **_named_algorithm(layer)}.items():
                if EITHER_OR.get(key) in layer:
                    raise both_given(key, EITHER_OR[key])
                table = _override(table, key, value)
        return cls._from_table(table, where)

    @classmethod
    def _from_table(cls, table: dict[str, Any], where: str) -> Experiment:
        prefix = f"{where}, " if where else ""
        for key in table:
            what, known = f"an experiment has no key '{quoted(key)}'", f"known keys: {', '.join(cls.model_fields)}"
            inside = [f"{name}.{key}" for name, kind in SETTINGS_TABLES.items() if key in kind.model_fields]
            if inside and key not in cls.model_fields:
                raise UnknownName(what, remedy=f"did you mean '{inside[0]}'?", where=prefix + quoted(key))
            check_known(key, cls.model_fields, what, known, prefix + quoted(key))
        if "data" not in table:
            raise BadValue(
                "no data set is given", remedy='write data = "digits", or any of `fedarena list datasets`', where=where
            )
        data = Component.choose("dataset", table["data"], f"{prefix}data")
        table = _with_defaults(getattr(data.made, "defaults", {}), {**table, "data": data})
        table = _with_defaults({key: value for key, value in GENERAL.items() if key != "clients"}, table)
        for key, kind in COMPONENTS.items():
            table[key] = Component.choose(kind, table[key], prefix + key)
        for key, kind in OPTIONAL_COMPONENTS.items():
            if key in table:
                is_unset = isinstance(table[key], str) and table[key] == "none"
                table[key] = None if is_unset else Component.choose(kind, table[key], prefix + key)
        if table["partition"].name != "natural":  # whose number of clients comes from the data
            table.setdefault("clients", GENERAL["clients"])
        if isinstance(table.get("freeze"), str):
            table["freeze"] = (table["freeze"],)
        within = ["uplink"]
        try:
            with located_at(where):
                if isinstance(table.get("uplink"), Mapping):  # first: errors about a union would name all its types
                    table["uplink"] = Uplink.model_validate(table["uplink"])
                within = []
                return cls.model_validate(table)
        except ValidationError as error:
            raise validation_error(error, prefix, *within) from None

    def with_(self, **settings: Any) -> Experiment:
        """Return the experiment with other values: `exp.with_(seed=1)`, `exp.with_(algorithm="centralized")`."""
        table: dict[str, Any] = {k: getattr(self, k) for k in type(self).model_fields}
        for key, value in {**settings, **_named_algorithm(settings)}.items():
            table = _override(table, key, value)
        return self._from_table({k: v for k, v in table.items() if v is not None}, "")

    def seed_for(self, purpose: Purpose) -> int:
        """Return the seed for the random streams of this purpose."""
        own: int | None = getattr(self, SEED_KEYS[purpose])
        return self.seed if own is None else own

    @property
    def python_parts(self) -> dict[str, Component]:
        """Return the parts that are objects from Python, which no file can bring back."""
        parts = {key: getattr(self, key) for key in FROM_PYTHON}
        return {key: part for key, part in parts.items() if isinstance(part, Component) and part.own}

    def as_table(self) -> dict[str, Any]:
        """Return all settings as plain values, in the order of the fields, without those that are None."""
        table: dict[str, Any] = {}
        usual = GENERAL | getattr(self.data.made, "defaults", {})  # replaces missing keys when the text is read back
        for key in type(self).model_fields:
            value = getattr(self, key)
            if isinstance(value, Component):
                mark = {"own": True} if value.own else {}
                table[key] = {"name": value.name, **mark, **value.settings, **mark}
            elif isinstance(value, SettingsTable):
                unset = dict.fromkeys(usual.get(key, {}), "none")  # rather than the usual value
                given = {k: unset.get(k) if v is None else v for k, v in value.model_dump().items()}
                table[key] = {k: v for k, v in given.items() if v is not None}
            elif value is not None:
                table[key] = value
            elif key in usual and getattr(self, EITHER_OR.get(key, key)) is None and not self._stays_unset(key):
                table[key] = "none"
        return table

    def _stays_unset(self, key: str) -> bool:
        """Return whether a key without a value has none either when it is left out of a file."""
        own = getattr(self.data.made, "defaults", {})
        return key == "clients" and self.partition.name == "natural" and key not in own

    def to_toml(self) -> str:
        """Return the complete experiment as TOML, which `Experiment.make` reads back as an equal experiment."""
        return "".join(f"{key} = {write_toml_value(value)}\n" for key, value in self.as_table().items())


def _read(source: Any) -> tuple[dict[str, Any], str]:
    if source is None:
        return {}, ""
    if isinstance(source, Experiment):
        table = {k: getattr(source, k) for k in Experiment.model_fields}
        return {k: v for k, v in table.items() if v is not None}, ""
    if isinstance(source, Mapping):
        return dict(source), ""
    found = read_data_source(source)
    if found is None and (isinstance(source, Path) or (isinstance(source, str) and source.endswith(".toml"))):
        return read_toml(check_path(source, "the experiment file")), str(source)
    data, place = found or (source, "")
    return {"data": data}, place


def _named_algorithm(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that an algorithm as text stands for; nothing where it is a plain name, a table or an object.

    >>> _named_algorithm({"algorithm": "fedprox:mu=0.1,local.lr=0.05"})
    {'algorithm': {'name': 'fedprox', 'mu': 0.1}, 'local.lr': 0.05}
    """
    text = settings.get("algorithm")
    if not isinstance(text, str) or not any(mark in text for mark in ":+="):
        return {}
    label, tables = parse(text, "algorithm")
    if label != text.strip():
        raise BadValue(
            f"'{quoted(text)}' has a label, which only the algorithms of a comparison have",
            remedy=f"leave out '{quoted(label)}='",
            where="algorithm",
        )
    return {"algorithm": tables["algorithm"], **{f"local.{key}": value for key, value in tables.get("local", {}).items()}}


def with_settings(table: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return a table of an experiment, which need not be complete, with other settings that replace its own.

    >>> below = {"model": "cnnnet", "rounds": 5, "local": {"lr": 1}}
    >>> with_settings(below, {"model": {"norm": "bn"}, "uploads": 9, "local": {"batch": 8}})
    {'model': {'name': 'cnnnet', 'norm': 'bn'}, 'local': {'lr': 1, 'batch': 8}, 'uploads': 9}
    """
    for key, value in settings.items():
        table = _override(table, key, value)
    return dict(table)


def _override(table: Mapping[str, Any], key: str, value: Any) -> dict[str, Any]:
    """Return a copy of the table with `key` or `key.sub` set. A component with a new name starts with its defaults."""
    table = dict(table)
    head, _, rest = key.partition(".")
    if EITHER_OR.get(head):
        table.pop(EITHER_OR[head], None)
    if rest and head in Experiment.model_fields and head not in TABLES:
        raise BadValue(
            f"{head} is a single value and has no key '{quoted(rest)}'",
            remedy=f"write {head} = VALUE",
            where=quoted(key),
        )
    before = table.get(head, {})
    if before is None or (head == "uplink" and isinstance(before, str)):  # "plain" is not a table of steps
        before = {}
    if not rest:
        if isinstance(value, Mapping) and "name" not in value and head in TABLES:  # local={"lr": 1} changes only lr
            below = _as_mapping(before, head)
            inner = {} if head in ALL_COMPONENTS else {key: _within(below.get(key), one) for key, one in value.items()}
            value = _merged(head, below, {**value, **inner})
        table[head] = value
        return table
    if _has_setting(before, rest):
        return {**table, head: replace(before, **{rest: value})}
    inner = _as_mapping(before, head)
    if "." in rest and head not in ALL_COMPONENTS:  # a table within a table: local.privacy.noise
        rest, _, last = rest.partition(".")
        value = {**_as_mapping(inner.get(rest) or {}, f"{head}.{rest}"), last: value}
    if rest == "name" and inner.get("name") != value:
        inner = {}
    table[head] = _merged(head, inner, {rest: value})
    return table


def _merged(table: str, before: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return a table with new values; one that excludes an earlier value replaces it."""
    unset = [key for key, value in given.items() if value is None or (isinstance(value, str) and value == "none")]
    set_keys = [key for key in given if key not in unset]
    replaced = {EITHER_OR.get(f"{table}.{key}", "").rpartition(".")[2] for key in set_keys} - set(given)
    return {key: value for key, value in before.items() if key not in replaced} | dict(given)


def _within(below: Any, value: Any) -> Any:
    """Return a table within a table with those keys replaced that are given; any other value as it is."""
    return {**below, **value} if isinstance(below, Mapping) and isinstance(value, Mapping) else value


def _has_setting(data: Any, key: str) -> bool:
    """Return whether this is a data set from Python, such as arrays, with a setting of this name."""
    own = is_dataclass(data) and not isinstance(data, type | Component) and hasattr(data, "load")
    return own and key in {field.name for field in fields(data)}


def _as_mapping(value: Any, key: str) -> dict[str, Any]:
    if isinstance(value, str):
        return {"name": value}
    if isinstance(value, Component):
        return {"name": value.name, **value.settings}
    if isinstance(value, BaseModel):
        return {k: v for k, v in value.model_dump().items() if v is not None}
    if not isinstance(value, Mapping):
        raise BadValue(
            f"{quoted(key)} = {quoted(value)} is not a table with settings that could change",
            remedy="give a table, or an object",
            where=quoted(key),
        )
    return dict(value)


def _with_defaults(defaults: Mapping[str, Any], table: dict[str, Any]) -> dict[str, Any]:
    """Return the table with defaults for the keys that it does not have."""
    merged = dict(table)
    for key, value in defaults.items():
        if key not in table:
            if EITHER_OR.get(key) not in table:
                merged[key] = value
        elif isinstance(table[key], Mapping) and key in TABLES and (key not in ALL_COMPONENTS or "name" not in table[key]):
            merged[key] = _merged(key, _as_mapping(value, key), table[key])
    return merged
