"""The tables of settings of an experiment, validated by pydantic: local training, evaluation, devices and uplink."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, get_args

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_serializer,
    model_validator,
)

from fedarena.config.components import Part
from fedarena.config.errors import BadValue, UnknownName, quoted, repeated, suggest
from fedarena.config.limits import check_path, check_value
from fedarena.config.registry import Kind
from fedarena.config.toml_text import AVAILABLE

COMPONENTS: dict[str, Kind] = {"data": "dataset", "model": "model", "partition": "partition", "algorithm": "algorithm"}
OPTIONAL_COMPONENTS: dict[str, Kind] = {"select": "selection", "attack": "attack"}  # that an experiment may do without
ALL_COMPONENTS = COMPONENTS | OPTIONAL_COMPONENTS
FROM_PYTHON: dict[str, Part] = {**ALL_COMPONENTS, "loss": "loss"}  # keys whose values may be objects
UNSEEN_STEPS = 10  # of the adaptation of a client that never trained, where the experiment gives no number
TABLES = (*ALL_COMPONENTS, "local", "evaluate", "devices", "uplink")  # keys whose values are tables


Beta = Annotated[float, Field(ge=0, lt=1)]


class SettingsTable(BaseModel):
    """A table of an experiment: frozen, and an unknown key is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True, allow_inf_nan=False)
    within: ClassVar[str] = ""  # the key of the table that has this one as a value

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
        table = cls.within or (f"{cls.__name__.lower()}." if cls.__name__.lower() in TABLES else "")
        for key, value in values.items():
            field = cls.model_fields.get(key)
            if field is None or key in ALL_COMPONENTS:
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


class LocalPrivacy(SettingsTable):
    """Differential privacy of single training samples: DP-SGD on every client (docs/privacy.md#privacy-of-a-record)."""

    within: ClassVar[str] = "local.privacy."

    clip: Annotated[float, Field(gt=0, allow_inf_nan=True)]  # largest L2 norm of the gradient of one sample
    noise: Annotated[float, Field(ge=0)]  # standard deviation of the Gaussian noise on the sum, in units of clip
    # at which epsilon is reported; none: samples ^ -1.1, at most 1e-5
    delta: Annotated[float, Field(gt=0, lt=1)] | None = None

    @model_validator(mode="after")
    def _check_noise_is_finite(self) -> LocalPrivacy:
        if self.noise and math.isinf(self.clip):
            raise BadValue(
                f"local.privacy.noise = {self.noise:g} with local.privacy.clip = inf",
                remedy="noise hides a sample only if its gradient is bounded: set local.privacy.clip, e.g. to 1.0",
                where="local.privacy.clip",
            )
        return self


class Local(SettingsTable):
    """How a client trains (docs/reference/algorithms.md#local-training).

    >>> import fedarena as fa
    >>> fa.Experiment.make("digits", local=fa.Local(epochs=2, lr=0.05)).local.epochs
    2
    """

    lr: Annotated[float, Field(gt=0)] = 0.1
    epochs: Annotated[int, Field(ge=0, le=1_000_000)] = 1
    # optimizer steps in a round, in place of epochs; the next round continues with the batch after the last
    steps: Annotated[int, Field(ge=1, le=1_000_000_000)] | None = None
    batch: Annotated[float, Field(allow_inf_nan=True)] = 32  # samples per step; inf is all samples of the client
    optimizer: Literal["sgd", "adam"] = "sgd"
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.0  # of sgd
    betas: tuple[Beta, Beta] | None = None  # of adam; none: 0.9 and 0.999
    eps: Annotated[float, Field(gt=0)] | None = None  # of adam; none: 1e-8
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    decay: Annotated[float, Field(ge=0)] = 0.0  # lambda in eta / (1 + lambda i)
    decay_form: Literal["inverse", "geometric"] = "inverse"  # geometric: eta (1 - lambda)^i, lambda at most 1
    decay_counter: Literal["global", "per_client", "round", "reset"] = "global"
    reset_momentum: bool = True  # also the moments of adam
    last_batch: Literal["auto", "keep", "merge_one", "drop"] = "auto"  # auto: merge_one with BatchNorm, else keep
    shuffle: bool = True
    clip: Annotated[float, Field(gt=0)] | None = None  # largest gradient norm in a step
    privacy: LocalPrivacy | None = None  # clipped gradients of single samples, with noise

    @field_validator("privacy", mode="before")
    @classmethod
    def _check_privacy(cls, value: Any) -> Any:
        complete = isinstance(value, Mapping) and {"clip", "noise"} <= value.keys()
        if value is not None and not isinstance(value, LocalPrivacy) and not complete:
            raise ValueError("a table with a clip and a noise, such as { clip = 1.0, noise = 1.1 }")
        return value

    @model_validator(mode="before")
    @classmethod
    def _check_epochs_or_steps(cls, values: Any) -> Any:
        if isinstance(values, Mapping) and "epochs" in values and values.get("steps") not in (None, "none"):
            raise both_given("local.epochs", "local.steps")
        return values

    @model_serializer(mode="wrap")
    def _without_unused_epochs(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave out the epochs where steps replace them, so that the table can be read back."""
        table: dict[str, Any] = serialize(self)
        return table if self.steps is None else {key: value for key, value in table.items() if key != "epochs"}

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
    def _check_optimizer(self) -> Local:
        other = ("momentum",) if self.optimizer == "adam" else ("betas", "eps")
        for key in other:
            if getattr(self, key):
                raise BadValue(
                    f"local.{key} is not a setting of local.optimizer = '{self.optimizer}'",
                    remedy=f"remove local.{key}, or change local.optimizer",
                    where=f"local.{key}",
                )
        return self

    @property
    def has_momentum(self) -> bool:
        """Return whether the optimizer has a state: momentum, or the moments of Adam."""
        return self.momentum > 0 or self.optimizer == "adam"

    @model_validator(mode="after")
    def _check_geometric_decay(self) -> Local:
        if self.decay_form == "geometric" and self.decay > 1:
            raise ValueError(
                "decay: at most 1 with decay_form = 'geometric', where it is the share by which the rate falls"
            )
        return self

    @model_validator(mode="after")
    def _check_random_batches(self) -> Local:
        if self.privacy is not None and not self.shuffle:
            raise BadValue(
                "local.shuffle = false with local.privacy, whose batches are drawn at random",
                remedy="leave out local.shuffle",
                where="local.shuffle",
            )
        return self


class Evaluate(SettingsTable):
    """When and how the model is evaluated, and when training stops.

    >>> import fedarena as fa
    >>> fa.run("digits", rounds=4, evaluate=fa.Evaluate(every=2), out=False).curve[-1][0]
    4
    """

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
    # clients that never train, and on which the result is judged at the end: their share, or a list of names
    unseen: float | tuple[str, ...] | None = None
    unseen_steps: Annotated[int, Field(ge=0, le=1_000_000)] | None = None  # of their adaptation; none: 10

    @field_validator("unseen", mode="before")
    @classmethod
    def _read_unseen(cls, value: Any) -> float | tuple[str, ...] | None:
        """Read a share between 0 and 1, or a list of clients by name or number, each once."""
        if isinstance(value, float) and 0 < value < 1:
            return value
        named = value if isinstance(value, list | tuple) else [value] if isinstance(value, str) else []
        if value is not None and not (named and all(isinstance(name, str | int) for name in named)):
            raise ValueError('a share of the clients between 0 and 1, or a list of clients such as ["Cleveland"] or [3]')
        return tuple(dict.fromkeys(map(str, named))) or None

    @model_validator(mode="after")
    def _check_unseen(self) -> Evaluate:
        if self.unseen is None and self.unseen_steps is not None:
            raise BadValue(
                f"evaluate.unseen_steps = {self.unseen_steps}, and no client is held out of training",
                remedy="give evaluate.unseen too, such as 0.2, or leave out evaluate.unseen_steps",
                where="evaluate.unseen_steps",
            )
        if self.unseen is not None and self.on == "train":
            raise BadValue(
                'evaluate.unseen with evaluate.on = "train": unseen clients adapt on their training samples',
                remedy='leave out evaluate.on, or set it to "test"',
                where="evaluate.on",
            )
        return self

    @property
    def adaptation_steps(self) -> int:
        """Return the steps that an unseen client trains before its second evaluation."""
        return UNSEEN_STEPS if self.unseen_steps is None else self.unseen_steps

    @field_validator("target")
    @classmethod
    def _check_target(cls, value: float | None, info: ValidationInfo) -> float | None:
        if value is not None and info.data.get("metric") in (None, "accuracy") and not 0 < value <= 1:
            raise ValueError("an accuracy above 0 and at most 1; name another metric with evaluate.metric")
        return value


class Devices(SettingsTable):
    """The devices and connections of clients, from which simulated time is computed."""

    speed: Annotated[float, Field(ge=1e-6)] = 1000.0  # samples per second, forward and backward
    # distribution over clients; the fastest has `speed`
    speeds: Literal["equal", "uniform", "lognormal", "groups"] = "equal"
    # ratio of the fastest to the slowest; for "lognormal" two standard deviations each way
    spread: Annotated[float, Field(ge=1)] = 1.0
    # for "groups": client k is on machine k mod groups, the server on machine 0
    groups: Annotated[int, Field(ge=1)] = 3
    # the duration of a training varies by a factor U(1 - jitter, 1 + jitter)
    jitter: Annotated[float, Field(ge=0)] = 0.2
    durations: Literal["jitter", "exponential"] = "jitter"  # exponential: drawn for each training, with the usual mean
    bandwidth: Annotated[float, Field(ge=1e-6, allow_inf_nan=True)] = math.inf  # bytes per second, in each direction
    latency: Annotated[float, Field(ge=0)] = 0.0  # seconds, in each direction
    trace: str | None = None  # CSV: client, and any of speed, bandwidth, latency, dropout; one line per client
    # "day": online at night; or a CSV: client, from, to in seconds, any number of lines per client
    available: str = "always"
    hours: Annotated[float, Field(gt=0, le=24)] = 8.0  # for "day": mean hours per day that a device is online
    zones: Annotated[int, Field(ge=1, le=24)] = 1  # for "day": number of time zones, an hour apart
    period: Annotated[float, Field(ge=1, le=1e9)] | None = None  # for a CSV: seconds after which it starts again
    # factor by which more clients are selected; the first count
    overselect: Annotated[float, Field(ge=1, le=1000)] = 1.0
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
    # share of the numbers that is sent; the client keeps the rest for later
    top_k: Annotated[float, Field(gt=0, le=1)] | None = None
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


def both_given(one: str, other: str) -> BadValue:
    """Return the error about two keys that exclude each other."""
    return BadValue(f"both {one} and {other} are given", remedy=f"give one of them: {one} or {other}", where=other)


def validation_error(
    error: ValidationError, prefix: str = "", *within: str, root: type[SettingsTable] | None = None
) -> UnknownName | BadValue:
    """Return pydantic's first error as one of ours; `root` is the table that was validated, if it is not an experiment."""
    first = error.errors()[0]
    keys = [*within, *(quoted(str(part)) for part in first["loc"])]
    where = prefix + ".".join(keys)
    if first["type"] == "extra_forbidden":
        tables: tuple[type[SettingsTable], ...] = (Local, Evaluate, Devices, Uplink)
        table = root or next(table for table in tables if table.__name__.lower() == keys[0])
        table = LocalPrivacy if keys[:2] == ["local", "privacy"] else table
        return UnknownName(
            f"{'.'.join(keys[:-1]) if root is None else table.__name__} has no key '{keys[-1]}'",
            remedy=suggest(keys[-1], table.model_fields, f"it has: {', '.join(table.model_fields)}"),
            where=where,
        )
    message = str(first["msg"]).removeprefix("Value error, ")
    return BadValue(
        f"{where.removeprefix(prefix)} = {repeated(first['input'])}",
        remedy=quoted(message[0].lower() + message[1:]),
        where=where,
    )
