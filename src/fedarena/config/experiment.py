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

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, field_validator, model_validator

from fedarena.config.components import Component
from fedarena.config.errors import BadValue, UnknownName, located_at, quoted, repeated, suggest
from fedarena.config.limits import check_path, check_value
from fedarena.config.registry import Kind, find
from fedarena.config.seeds import SEED_KEYS, Purpose
from fedarena.config.toml_text import AVAILABLE, parse_assignment, read_toml, write_toml_value

COMPONENTS: dict[str, Kind] = {"data": "dataset", "model": "model", "partition": "partition", "algorithm": "algorithm"}
TABLES = (*COMPONENTS, "local", "evaluate", "devices", "uplink")  # keys whose values are tables
GENERAL = {"algorithm": "fedavg", "partition": "iid", "model": "mlp_2nn", "clients": 10, "share": 1.0, "rounds": 20}
EITHER_OR = {"share": "per_round", "per_round": "share", "rounds": "uploads", "uploads": "rounds"}


class SettingsTable(BaseModel):
    """A table of an experiment: frozen, and an unknown key is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _plain_values(cls, values: Any) -> Any:
        """Read "none" as no value, and reject `true` for a number and numbers that are absurdly large."""
        if not isinstance(values, Mapping):
            return values
        optional = {k for k, f in cls.model_fields.items() if f.default is None}
        values = {
            str(k): None if isinstance(v, str) and v == "none" and k in optional else v for k, v in values.items()
        }
        table = f"{cls.__name__.lower()}." if cls.__name__.lower() in TABLES else ""
        for key, value in values.items():
            field = cls.model_fields.get(key)
            if field is None or key in COMPONENTS:
                continue
            if isinstance(value, bool) and bool not in (field.annotation, *get_args(field.annotation)):
                raise BadValue(
                    f"{key} = {str(value).lower()}",
                    remedy=f"{key} is not true or false: give its value",
                    where=table + key,
                )
            if key not in TABLES:  # tables check their own values
                check_value(table + key, value, table + key)
        return values


class Local(SettingsTable):
    """How a client trains (docs/reference/algorithms.md#local-training)."""

    lr: Annotated[float, Field(gt=0)] = 0.1
    epochs: Annotated[int, Field(ge=0, le=1_000_000)] = 1
    batch: Annotated[float, Field(allow_inf_nan=True)] = 32  # samples per step; inf is all samples of the client
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.0
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    decay: Annotated[float, Field(ge=0)] = 0.0  # lambda in eta / (1 + lambda i)
    decay_form: Literal["inverse", "geometric"] = "inverse"  # geometric: eta (1 - lambda)^i, lambda at most 1
    decay_counter: Literal["global", "per_client", "round", "reset"] = "global"
    reset_momentum: bool = True
    last_batch: Literal["auto", "keep", "merge_one", "drop"] = "auto"  # auto: merge_one with BatchNorm, else keep
    shuffle: bool = True
    clip: Annotated[float, Field(gt=0)] | None = None  # largest gradient norm in a step

    @field_validator("batch", mode="before")
    @classmethod
    def _check_batch(cls, value: Any) -> float:
        if value in ("inf", "all"):
            return math.inf
        if (
            isinstance(value, bool)
            or not isinstance(value, int | float)
            or value < 1
            or (value != math.inf and value % 1)
        ):
            raise ValueError("a whole number of rows, at least 1, or inf for all rows at once")
        return value

    @model_validator(mode="after")
    def _check_geometric_decay(self) -> Local:
        if self.decay_form == "geometric" and self.decay > 1:
            raise ValueError(
                "decay: at most 1 with decay_form = 'geometric', where it is the share by which the rate falls"
            )
        return self


class Evaluate(SettingsTable):
    """When and how the model is evaluated, and when training stops."""

    every: Annotated[int, Field(ge=1)] = 1
    metric: str | None = None  # evaluated every round; none: accuracy, or the loss for models with their own loss
    positive: str | int | None = None  # the positive class of two, by name; none: the second
    # probability from which the positive class is predicted; none: the more likely class
    threshold: Annotated[float, Field(gt=0, lt=1)] | None = None
    # bins of score histograms for AUC and average precision in a real federation; none: values per client
    histograms: Annotated[int, Field(ge=2, le=1000)] | None = None
    target: float | None = None  # value of the metric; the rounds until it is reached are reported
    stop_at_target: bool = False
    after_target: Annotated[int, Field(ge=0)] = 0  # rounds to continue after the target, for the curve
    patience: Annotated[int, Field(ge=1)] | None = None  # evaluations without a new best before stopping
    client_test: Literal["same_distribution", "balanced"] = "same_distribution"
    on: Literal["test", "train"] = "test"  # samples on which the accuracies of clients are measured
    # share of every client's training samples held out to choose a round
    validation: Annotated[float, Field(ge=0, lt=1)] | None = None

    @field_validator("target")
    @classmethod
    def _check_target(cls, value: float | None, info: ValidationInfo) -> float | None:
        if value is not None and info.data.get("metric") in (None, "accuracy") and not 0 < value <= 1:
            raise ValueError("an accuracy above 0 and at most 1; name another metric with evaluate.metric")
        return value


class Devices(SettingsTable):
    """The devices and connections of clients, from which simulated time is computed."""

    speed: Annotated[float, Field(ge=1e-6)] = 1000.0  # samples per second, forward and backward
    speeds: Literal["equal", "uniform", "lognormal", "groups"] = (
        "equal"  # distribution over clients; the fastest has `speed`
    )
    spread: Annotated[float, Field(ge=1)] = (
        1.0  # ratio of the fastest to the slowest; for "lognormal" two standard deviations each way
    )
    groups: Annotated[int, Field(ge=1)] = (
        3  # for "groups": client k is on machine k mod groups, the server on machine 0
    )
    jitter: Annotated[float, Field(ge=0)] = (
        0.2  # the duration of a training varies by a factor U(1 - jitter, 1 + jitter)
    )
    durations: Literal["jitter", "exponential"] = "jitter"  # exponential: drawn for each training, with the usual mean
    bandwidth: Annotated[float, Field(ge=1e-6, allow_inf_nan=True)] = math.inf  # bytes per second, in each direction
    latency: Annotated[float, Field(ge=0)] = 0.0  # seconds, in each direction
    trace: str | None = None  # CSV: client, and any of speed, bandwidth, latency, dropout; one line per client
    available: str = (
        "always"  # "day": online at night; or a CSV: client, from, to in seconds, any number of lines per client
    )
    hours: Annotated[float, Field(gt=0, le=24)] = 8.0  # for "day": mean hours per day that a device is online
    zones: Annotated[int, Field(ge=1, le=24)] = 1  # for "day": number of time zones, an hour apart
    period: Annotated[float, Field(ge=1, le=1e9)] | None = None  # for a CSV: seconds after which it starts again
    overselect: Annotated[float, Field(ge=1, le=1000)] = (
        1.0  # factor by which more clients are selected; the first count
    )
    deadline: Annotated[float, Field(gt=0)] | None = None  # longest time in seconds that the server waits for answers

    @field_validator("trace", "available")
    @classmethod
    def _make_absolute(cls, value: str | None, info: ValidationInfo) -> str | None:
        if value is None or value in AVAILABLE:
            return value
        return str(check_path(value, f"devices.{info.field_name}").absolute())

    @field_validator("jitter")
    @classmethod
    def _check_jitter(cls, value: float) -> float:
        if value >= 1:
            raise ValueError("a share of the usual time, below 1")
        return value


class Uplink(SettingsTable):
    """The steps that an update goes through on its way to the server, in this order; the server sees only means."""

    clip: Annotated[float, Field(gt=0)] | None = None  # largest L2 norm of a client's update
    top_k: Annotated[float, Field(gt=0, le=1)] | None = (
        None  # share of the numbers that is sent; the client keeps the rest for later
    )
    quantise: Annotated[int, Field(ge=2, le=16)] | None = None  # bits per number
    secure: bool = False  # secure aggregation: fixed-point numbers with masks that cancel in the sum
    range: Annotated[float, Field(gt=0)] | None = None  # for secure without clip: the largest number; none: 8
    noise: Annotated[float, Field(ge=0)] = 0.0  # standard deviation of the Gaussian noise on the sum, in units of clip
    delta: Annotated[float, Field(gt=0, lt=1)] | None = None  # at which epsilon is reported; none: clients ^ -1.1
    sampling: Literal["fixed", "poisson"] = "fixed"  # a fixed number of clients per round, or each client independently

    @model_validator(mode="after")
    def _check_combination(self) -> Uplink:
        if self.noise and self.clip is None:
            raise BadValue(
                f"uplink.noise = {self.noise:g} without uplink.clip",
                remedy="noise hides a client only if its update is bounded: set uplink.clip, e.g. to 1.0",
                where="uplink.clip",
            )
        if self.secure and self.top_k is not None:
            raise BadValue(
                "uplink.top_k and uplink.secure exclude each other: masks hide which numbers are missing",
                remedy="remove one of them; uplink.quantise makes masked updates smaller too",
                where="uplink.top_k",
            )
        if self.secure and self.quantise is not None and self.noise:
            raise BadValue(
                "uplink.quantise would round away the share of noise that every client adds with uplink.secure",
                remedy="remove quantise, secure or noise",
                where="uplink.quantise",
            )
        if self.range is not None and (not self.secure or self.clip is not None):
            why = "follows from uplink.clip" if self.secure else "is for uplink.secure"
            raise BadValue(f"uplink.range {why}", remedy="remove it", where="uplink.range")
        return self


class Experiment(SettingsTable):
    """One experiment, complete. Build it with `Experiment.make`."""

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
    partition_seed: Annotated[int, Field(ge=0)] | None = (
        None  # of the partition; `seed` if not given, as for the next ones
    )
    start_seed: Annotated[int, Field(ge=0)] | None = None  # of the initial weights
    schedule_seed: Annotated[int, Field(ge=0)] | None = None  # of client selection, dropouts, availability, latencies
    folds: Annotated[int, Field(ge=2)] | None = None  # training and test samples are pooled and split into folds
    fold: Annotated[int, Field(ge=0)] | None = None  # the fold held out for testing
    fold_seed: Annotated[int, Field(ge=0)] | None = (
        None  # of the assignment of pooled samples to folds, or to training and test
    )
    # share of each client's training samples that replaces the test samples, for tuning
    validate_share: Annotated[float, Field(gt=0, lt=1)] | None = None
    exclude: tuple[str, ...] | None = None  # clients, by name or number, that are left out of training and testing
    local: Local = Local()
    evaluate: Evaluate = Evaluate()
    devices: Devices = Devices()
    dropouts: Annotated[float, Field(ge=0, lt=1)] = 0.0  # probability that a selected client does not answer
    on_error: Literal["stop", "drop"] = "stop"
    on_nan: Literal["drop", "raise", "keep"] = "drop"
    # what the server sees: each update, only their mean, or the result of these steps
    uplink: Literal["plain", "mean_only"] | Uplink = "plain"
    bn_buffers: Literal["average", "server", "local", "recompute"] = "average"
    init: Literal["torch", "glorot"] = "torch"
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
                raise _both_given(one, other)
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

        Keys that are not given have the defaults of the data set, or else the general defaults.
        """
        table, place = _read(source)
        where = where or place
        given = {key: value for key, value in settings.items() if value is not None}
        for layer in (given, dict(map(parse_assignment, overrides))):
            for key, value in layer.items():
                if EITHER_OR.get(key) in layer:
                    raise _both_given(key, EITHER_OR[key])
                table = _override(table, key, value)
        return cls._from_table(table, where)

    @classmethod
    def _from_table(cls, table: dict[str, Any], where: str) -> Experiment:
        prefix = f"{where}, " if where else ""
        for key in table:
            if key not in cls.model_fields:
                raise UnknownName(
                    f"an experiment has no key '{quoted(key)}'",
                    remedy=suggest(key, cls.model_fields, f"known keys: {', '.join(cls.model_fields)}"),
                    where=prefix + quoted(key),
                )
        if "data" not in table:
            raise BadValue(
                "no data set is given", remedy='write data = "digits", or any of `fedarena list datasets`', where=where
            )
        data = Component.choose("dataset", table["data"], f"{prefix}data")
        table = _with_defaults(getattr(data.made, "defaults", {}), {**table, "data": data})
        table = _with_defaults({key: value for key, value in GENERAL.items() if key != "clients"}, table)
        for key, kind in COMPONENTS.items():
            table[key] = Component.choose(kind, table[key], prefix + key)
        if table["partition"].name != "natural":  # whose number of clients comes from the data
            table.setdefault("clients", GENERAL["clients"])
        if isinstance(table.get("freeze"), str):
            table["freeze"] = (table["freeze"],)
        try:
            if isinstance(
                table.get("uplink"), Mapping
            ):  # validated here, as errors about a union would name all its types
                with located_at(where):
                    table["uplink"] = Uplink.model_validate(table["uplink"])
        except ValidationError as error:
            raise validation_error(error, prefix, "uplink") from None
        try:
            with located_at(where):
                return cls.model_validate(table)
        except ValidationError as error:
            raise validation_error(error, prefix) from None

    def with_(self, **settings: Any) -> Experiment:
        """Return the experiment with other values: `exp.with_(seed=1)`, `exp.with_(algorithm="centralized")`."""
        table: dict[str, Any] = {k: getattr(self, k) for k in type(self).model_fields}
        for key, value in settings.items():
            table = _override(table, key, value)
        return self._from_table({k: v for k, v in table.items() if v is not None}, "")

    def seed_for(self, purpose: Purpose) -> int:
        """Return the seed for the random streams of this purpose."""
        own: int | None = getattr(self, SEED_KEYS[purpose])
        return self.seed if own is None else own

    def as_table(self) -> dict[str, Any]:
        """Return all settings as plain values, in the order of the fields, without those that are None."""
        table: dict[str, Any] = {}
        usual = {
            **GENERAL,
            **getattr(self.data.made, "defaults", {}),
        }  # would replace missing keys when the text is read back
        for key in type(self).model_fields:
            value = getattr(self, key)
            if isinstance(value, Component):
                table[key] = {"name": value.name, **({"own": True} if value.own else {}), **value.settings}
            elif isinstance(value, SettingsTable):
                known = {
                    k: "none" if v is None and k in usual.get(key, {}) else v for k, v in value.model_dump().items()
                }
                table[key] = {k: v for k, v in known.items() if v is not None}
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


def _both_given(one: str, other: str) -> BadValue:
    return BadValue(f"both {one} and {other} are given", remedy=f"give one of them: {one} or {other}", where=other)


def _read(source: Any) -> tuple[dict[str, Any], str]:
    if source is None:
        return {}, ""
    if isinstance(source, Experiment):
        table = {k: getattr(source, k) for k in Experiment.model_fields}
        return {k: v for k, v in table.items() if v is not None}, ""
    if isinstance(source, Mapping):
        return dict(source), ""
    if isinstance(source, str | Path) and str(source).endswith((".csv", ".parquet")):
        return {"data": {"name": str(source).rpartition(".")[2], "path": str(source)}}, quoted(str(source))
    if isinstance(source, Path) or (isinstance(source, str) and source.endswith(".toml")):
        return read_toml(check_path(source, "the experiment file")), str(source)
    if isinstance(source, tuple) and len(source) in (2, 3):  # (x, y) or (x, y, client)
        return {"data": find("dataset", "arrays").make(*source)}, ""
    return {"data": source}, ""


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
    if head == "uplink" and isinstance(before, str):  # "plain" is not a table of steps
        before = {}
    if not rest:
        if isinstance(value, Mapping) and "name" not in value and head in TABLES:  # local={"lr": 1} changes only lr
            value = {**_as_mapping(before, head), **value}
        table[head] = value
        return table
    inner = _as_mapping(before, head)
    if rest == "name" and inner.get("name") != value:
        inner = {}
    table[head] = {**inner, rest: value}
    return table


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
        elif isinstance(table[key], Mapping) and key in TABLES and (key not in COMPONENTS or "name" not in table[key]):
            merged[key] = {**_as_mapping(value, key), **table[key]}
    return merged


def validation_error(
    error: ValidationError, prefix: str = "", *within: str, root: type[SettingsTable] | None = None
) -> UnknownName | BadValue:
    """Return pydantic's first error as one of ours; `root` is the table that was validated, if it is not an experiment."""
    first = error.errors()[0]
    keys = [*within, *(quoted(str(part)) for part in first["loc"])]
    where = prefix + ".".join(keys)
    if first["type"] == "extra_forbidden":
        tables: dict[str, type[SettingsTable]] = {
            "local": Local,
            "evaluate": Evaluate,
            "devices": Devices,
            "uplink": Uplink,
        }
        table = tables[keys[0]] if root is None else root
        return UnknownName(
            f"{keys[0] if root is None else table.__name__} has no key '{keys[-1]}'",
            remedy=suggest(keys[-1], table.model_fields, f"it has: {', '.join(table.model_fields)}"),
            where=where,
        )
    message = str(first["msg"]).removeprefix("Value error, ")
    return BadValue(
        f"{where.removeprefix(prefix)} = {repeated(first['input'])}",
        remedy=quoted(message[0].lower() + message[1:]),
        where=where,
    )
