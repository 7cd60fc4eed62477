"""The settings of a vertical training: one frozen, validated value that the guest sends to every host."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import ConfigDict, Field, ModelWrapValidatorHandler, ValidationError, model_validator

from fedarena.config.errors import BadValue
from fedarena.config.settings_tables import SettingsTable, validation_error
from fedarena.trees.settings import ObjectiveName

Algorithm = Literal["secureboost", "secureboost_plus"]
TreeMode = Literal["normal", "mix", "layered"]
Exponents = Literal["full", "short"]
Optimisation = Literal["packing", "subtraction", "compression", "sparse"]

KEY_BITS = (1024, 2048, 3072)

Count = Annotated[int, Field(ge=1, le=10_000)]
Depth = Annotated[int, Field(ge=1, le=12)]
MinimumRows = Annotated[int, Field(ge=1, le=10**9)]
Penalty = Annotated[float, Field(ge=0, le=1e9)]
Share = Annotated[float, Field(ge=0, le=1)]


class BoostSettings(SettingsTable):
    """The trees, the algorithm and its optimisations; None turns one on in SecureBoost+ and off in SecureBoost.

    >>> BoostSettings().uses("packing"), BoostSettings(algorithm="secureboost").uses("packing")
    (True, False)
    """

    model_config = ConfigDict(strict=True)

    algorithm: Algorithm = "secureboost_plus"
    trees: Count = 25  # boosting rounds; with one tree per class, a round has as many trees as there are classes
    depth: Depth = 5
    bins: Annotated[int, Field(ge=2, le=1024)] = 32  # per column; missing values have one more
    lr: Annotated[float, Field(ge=1e-6, le=10)] = 0.3
    lambda_: Penalty = 1.0
    gamma: Penalty = 0.0
    min_child_weight: Penalty = 1.0
    min_leaf_rows: MinimumRows = 1
    min_bin_count: MinimumRows = 1  # bins with fewer training rows are merged with a neighbour
    objective: ObjectiveName = "logistic"
    classes: Annotated[int, Field(ge=2, le=1000)] = 2
    key_bits: int = 2048
    allow_1024: bool = False
    exponents: Exponents = "full"
    precision: Annotated[int, Field(ge=8, le=60)] | None = None  # fractional bits of g and h; None: all that fit a slot
    packing: bool | None = None
    subtraction: bool | None = None
    compression: bool | None = None
    sparse: bool | None = None
    goss: bool = False
    goss_top: Share = 0.2
    goss_rest: Share = 0.1
    tree_mode: TreeMode = "normal"
    trees_per_party: Count = 1  # mix: consecutive trees of one party
    host_depth: Depth = 2  # layered: levels that the hosts split; the guest splits the lower ones
    multi_output: bool = False
    first_tree_guest_only: bool = False
    early_stopping_rounds: Count | None = None
    seed: Annotated[int, Field(ge=0, le=2**63 - 1)] = 0

    @model_validator(mode="wrap")
    @classmethod
    def _convert_errors(cls, values: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        try:
            return handler(values)
        except ValidationError as error:
            raise validation_error(error, root=cls) from None

    @model_validator(mode="after")
    def _check_key_size(self) -> Self:
        if self.key_bits not in KEY_BITS:
            raise BadValue(
                f"a key of {self.key_bits} bits is not supported", remedy="choose 2048 or 3072", where="key_bits"
            )
        if self.key_bits == 1024 and not self.allow_1024:
            raise BadValue(
                "a key of 1024 bits can be broken",
                remedy="use 2048, or set allow_1024 to compare with published timings",
                where="key_bits",
            )
        return self

    @model_validator(mode="after")
    def _check_combinations(self) -> Self:
        if self.algorithm == "secureboost":
            extras = [name for name in (*get_args(Optimisation), "goss", "multi_output") if getattr(self, name)]
            extras += ["tree_mode"] if self.tree_mode != "normal" else []
            if extras:
                raise BadValue(
                    f"{extras[0]} is not part of secureboost",
                    remedy="use algorithm = secureboost_plus",
                    where=extras[0],
                )
        if self.goss and not (self.goss_rest > 0 and self.goss_top + self.goss_rest <= 1):
            raise BadValue(
                f"goss cannot use the top {self.goss_top} of the rows and sample {self.goss_rest} of them",
                remedy="set goss_rest above 0, and the sum of both to at most 1",
                where="goss",
            )
        if self.multi_output and self.objective != "softmax":
            raise BadValue("multi_output is for more than two classes", remedy="leave it out", where="multi_output")
        if self.tree_mode == "layered" and self.host_depth >= self.depth:
            raise BadValue(
                f"layered trees of depth {self.depth} have no level for the guest below the hosts' {self.host_depth}",
                remedy="set host_depth below depth",
                where="host_depth",
            )
        return self

    def uses(self, optimisation: Optimisation) -> bool:
        """Return whether this optimisation is on, by its own setting or by the algorithm's default."""
        chosen: bool | None = getattr(self, optimisation)
        return self.algorithm == "secureboost_plus" if chosen is None else chosen

    @property
    def outputs(self) -> int:
        """The number of margins of a row: one, or one per class."""
        return self.classes if self.objective == "softmax" else 1

    @property
    def trees_per_round(self) -> int:
        """The number of trees of a boosting round: one, or one per class."""
        return 1 if self.multi_output else self.outputs

    @property
    def total_trees(self) -> int:
        """The number of trees of all boosting rounds."""
        return self.trees * self.trees_per_round

    def with_(self, **values: Any) -> BoostSettings:
        """Return the same settings with other values, validated."""
        return BoostSettings(**{**self.model_dump(), **values})

    def to_json(self) -> str:
        """Return all settings as a JSON object, in the order of the fields."""
        return json.dumps(self.model_dump())

    @classmethod
    def from_json(cls, text: str) -> BoostSettings:
        """Read settings from a JSON object; an unknown key is an error."""
        try:
            values = json.loads(text)
        except ValueError:
            values = None
        if not isinstance(values, dict):
            raise BadValue("the settings are not a JSON object", remedy="send the text that `to_json` returns")
        return cls(**values)
