"""Everything that decides a vertical training, in one frozen value that all parties see."""

from __future__ import annotations

import dataclasses
import json
import math
from dataclasses import dataclass
from typing import Any, Literal, get_args

from fedarena.config.errors import BadValue, UnknownName, suggest

Algorithm = Literal["secureboost", "secureboost_plus"]
ObjectiveName = Literal["logistic", "softmax", "squared_error"]
TreeMode = Literal["normal", "mix", "layered"]
Exponents = Literal["full", "short"]
Shortcut = Literal["packing", "subtraction", "compression", "sparse"]

KEY_BITS = (1024, 2048, 3072)


@dataclass(frozen=True)
class BoostSettings:
    """The trees, the algorithm and its switches; a switch left at None is on in SecureBoost+ and off in SecureBoost.

    >>> BoostSettings().on("packing"), BoostSettings(algorithm="secureboost").on("packing")
    (True, False)
    """

    algorithm: Algorithm = "secureboost_plus"
    trees: int = 25  # rounds of boosting; with one tree per class, a round is as many trees as there are classes
    depth: int = 5
    bins: int = 32  # of each column; missing values have one more
    lr: float = 0.3
    lambda_: float = 1.0
    gamma: float = 0.0
    min_child_weight: float = 1.0
    min_leaf_rows: int = 1
    min_bin_count: int = 1  # bins with fewer training rows are merged with a neighbour
    objective: ObjectiveName = "logistic"
    classes: int = 2
    key_bits: int = 2048
    allow_1024: bool = False
    exponents: Exponents = "full"
    precision: int | None = None  # bits behind the point of g and h; None: as many as a slot has room for
    packing: bool | None = None
    subtraction: bool | None = None
    compression: bool | None = None
    sparse: bool | None = None
    goss: bool = False
    goss_top: float = 0.2
    goss_rest: float = 0.1
    tree_mode: TreeMode = "normal"
    trees_per_party: int = 1  # mix: so many trees of one party, then the next one's turn
    host_depth: int = 2  # layered: so many levels by the hosts, the lower ones by the guest
    multi_output: bool = False
    first_tree_guest_only: bool = False
    early_stopping_rounds: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        _check_types(self)
        _check_ranges(self)
        _check_together(self)

    def on(self, shortcut: Shortcut) -> bool:
        """Whether this shortcut is taken."""
        asked: bool | None = getattr(self, shortcut)
        return self.algorithm == "secureboost_plus" if asked is None else asked

    @property
    def outputs(self) -> int:
        """Margins of a row: one, or one per class."""
        return self.classes if self.objective == "softmax" else 1

    @property
    def trees_per_round(self) -> int:
        """One, or one per class."""
        return 1 if self.multi_output else self.outputs

    @property
    def total_trees(self) -> int:
        """Trees in all rounds."""
        return self.trees * self.trees_per_round

    def to_json(self) -> str:
        """All fields, in order."""
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> BoostSettings:
        """Strict: an unknown key is an error."""
        try:
            found = json.loads(text)
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise BadValue("the settings are not a JSON object", remedy="send what `to_json` gives")
        return cls.of(found)

    @classmethod
    def of(cls, values: dict[str, Any]) -> BoostSettings:
        """From named values; a misspelt name is an error with a suggestion."""
        known = [f.name for f in dataclasses.fields(cls)]
        for name in values:
            if name not in known:
                raise UnknownName(
                    f"vertical training has no setting '{name}'",
                    remedy=suggest(name, known, f"there are: {', '.join(known)}"),
                )
        return cls(**values)


def _check_types(s: BoostSettings) -> None:
    choices: dict[str, Any] = {
        "algorithm": Algorithm,
        "objective": ObjectiveName,
        "tree_mode": TreeMode,
        "exponents": Exponents,
    }
    for field in dataclasses.fields(s):
        value, kind = getattr(s, field.name), str(field.type)
        if field.name in choices:
            known = get_args(choices[field.name])
            if value not in known:
                raise BadValue(
                    f"{field.name} = {value!r} is not known",
                    remedy=suggest(str(value), known, f"choose one of {', '.join(known)}"),
                    where=field.name,
                )
        elif not _fits(value, kind):
            raise BadValue(f"{field.name} = {value!r} is not {_told(kind)}", remedy="change it", where=field.name)


def _fits(value: Any, kind: str) -> bool:
    if value is None:
        return "None" in kind
    if kind.startswith("bool"):
        return isinstance(value, bool)
    if kind.startswith("int"):
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _told(kind: str) -> str:
    names = {"bool": "true or false", "int": "a whole number", "float": "a number"}
    return names[kind.split(" ")[0]]


def _check_ranges(s: BoostSettings) -> None:
    ranges = {
        "trees": (1, 10_000),
        "depth": (1, 12),
        "bins": (2, 1024),
        "lr": (1e-6, 10),
        "lambda_": (0, 1e9),
        "gamma": (0, 1e9),
        "min_child_weight": (0, 1e9),
        "min_leaf_rows": (1, 10**9),
        "min_bin_count": (1, 10**9),
        "classes": (2, 1000),
        "precision": (8, 60),
        "goss_top": (0, 1),
        "goss_rest": (0, 1),
        "trees_per_party": (1, 10_000),
        "host_depth": (1, 12),
        "early_stopping_rounds": (1, 10_000),
        "seed": (0, 2**63 - 1),
    }
    for name, (low, high) in ranges.items():
        value = getattr(s, name)
        if value is not None and not low <= value <= high:
            raise BadValue(f"{name} = {value} is out of range", remedy=f"choose from {low} to {high}", where=name)


def _check_together(s: BoostSettings) -> None:
    if s.key_bits not in KEY_BITS:
        raise BadValue(f"a key of {s.key_bits} bits is not offered", remedy="choose 2048 or 3072", where="key_bits")
    if s.key_bits == 1024 and not s.allow_1024:
        raise BadValue(
            "a key of 1024 bits can be broken",
            remedy="choose 2048; for a comparison with old figures alone, say so with allow_1024",
            where="key_bits",
        )
    if s.algorithm == "secureboost":
        extras = [n for n in get_args(Shortcut) if getattr(s, n)]
        extras += [n for n in ("goss", "multi_output") if getattr(s, n)]
        extras += [f"tree_mode = {s.tree_mode}"] if s.tree_mode != "normal" else []
        if extras:
            raise BadValue(
                f"secureboost has no shortcuts, and {extras[0]} is one",
                remedy="choose algorithm secureboost_plus",
                where=extras[0].split(" ")[0],
            )
    if s.goss and not (s.goss_rest > 0 and s.goss_top + s.goss_rest <= 1):
        raise BadValue(
            f"goss cannot keep {s.goss_top} of the rows and sample {s.goss_rest}",
            remedy="choose goss_rest above 0, and both together at most 1",
            where="goss",
        )
    if s.multi_output and s.objective != "softmax":
        raise BadValue("multi_output is for more than two classes", remedy="leave it off", where="multi_output")
    if s.tree_mode == "layered" and s.host_depth >= s.depth:
        raise BadValue(
            f"layered trees of depth {s.depth} leave the guest no level below the hosts' {s.host_depth}",
            remedy="choose host_depth below depth",
            where="host_depth",
        )
