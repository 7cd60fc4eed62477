"""The contestants of a comparison as text: as they are typed after `-a`, or as Python code where that is not possible."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedarena.config.comparison_plan import Plan
from fedarena.config.components import is_from_python

WORD = re.compile(r"(?!(true|false|inf|nan)$)[A-Za-z_][\w.-]*")  # a text that needs no quotes


@dataclass(frozen=True)
class TypedPart:
    """A name with its settings: an algorithm, or a companion."""

    name: str
    settings: dict[str, Any]  # all of them
    required: dict[str, Any]  # those that must be typed

    @classmethod
    def of(cls, table: Any, local: dict[str, Any], fixed: Sequence[str] = ()) -> TypedPart:
        """Return a part; defaults are not typed, unless they are `fixed`: a setting that is not typed is searched."""
        settings = dict(table) if isinstance(table, Mapping) else {"name": table}
        name = str(settings.pop("name"))
        settings = {k: v for k, v in settings.items() if v is not None and k != "with"}
        if is_from_python(table):
            del settings["own"]
        usual = {} if is_from_python(table) else _defaults(name)
        required = {k: v for k, v in settings.items() if k in fixed or usual.get(k) != v}
        return cls(name, settings | local, required | local)

    def is_meant_by(self, text: str) -> bool:
        """Return whether the text names all required settings, and nothing else."""
        name, _, rest = text.partition(":")
        given = set(filter(None, rest.split(",")))
        return name == self.name and _texts(self.required) <= given <= _texts(self.settings)

    @property
    def is_typable(self) -> bool:
        """Return whether all required settings can be typed."""
        return not any(isinstance(value, Mapping) for value in self.required.values())

    def __str__(self) -> str:
        return self.name + ":" * bool(self.required) + ",".join(f"{k}={_value(v)}" for k, v in self.required.items())


def typed_contestants(plan: Plan) -> dict[str, str | None]:
    """Return every contestant as it is typed; None where no text gives it this name and these settings."""
    return {label: typed(label, table, _fixed(plan, label)) for label, table in _named(plan).items()}


def in_python(plan: Plan) -> dict[str, str]:
    """Return every contestant as Python code; three dots for what no text can name."""
    texts = {}
    for label, table in _named(plan).items():
        algorithm, *companions = ({"name": part.name, **part.required} for part in _parts(table, _fixed(plan, label)))
        whole = {"algorithm": algorithm | ({"with": companions} if companions else {})}
        own = {"local": table["local"]} if table.get("local") else {}
        texts[label] = "..." if is_from_python(table["algorithm"]) else repr(whole | own)
    return texts


def typed(label: str, table: Mapping[str, Any], fixed: Sequence[str] = ()) -> str | None:
    """Return one contestant as it is typed; None where that is not possible.

    >>> typed("tuned", {"algorithm": {"name": "fedprox", "mu": 0.5}, "local": {"lr": 0.05}})
    'tuned=fedprox:mu=0.5,local.lr=0.05'
    """
    local = {f"local.{key}": value for key, value in table.get("local", {}).items()}
    parts = _parts(table, fixed, local)
    if is_from_python(table["algorithm"]) or not all(part.is_typable for part in parts):
        return None
    texts = label.split("+")
    if len(texts) == len(parts) and all(part.is_meant_by(text) for part, text in zip(parts, texts, strict=True)):
        return label
    if re.search("[:+=]", label) or label != label.strip():
        return None
    return f"{label}={'+'.join(map(str, parts))}"


def _named(plan: Plan) -> dict[str, dict[str, Any]]:
    """Return the contestants that were named; those of a sweep once for all values."""
    of = plan.sweep.get("of", {})
    named = {label: table for label, table in plan.contestants.items() if label != plan.reference}
    return {
        of[label]["algorithm"] if label in of else label: {k: v for k, v in table.items() if k != "uplink" or not of}
        for label, table in named.items()
    }


def _fixed(plan: Plan, label: str) -> list[str]:
    """Return the settings of the algorithm that were given, and so were not searched."""
    return [key.removeprefix("algorithm.") for key in plan.tuning.get("fixed", {}).get(label, ())]


def _parts(table: Mapping[str, Any], fixed: Sequence[str], local: dict[str, Any] | None = None) -> list[TypedPart]:
    algorithm = table["algorithm"]
    companions = algorithm.get("with", []) if isinstance(algorithm, Mapping) else []
    return [TypedPart.of(algorithm, local or {}, fixed), *(TypedPart.of(companion, {}) for companion in companions)]


def _defaults(name: str) -> dict[str, Any]:
    from fedarena.config.registry import find

    return {key: parameter.default for key, parameter in find("algorithm", name).parameters.items()}


def _texts(settings: Mapping[str, Any]) -> set[str]:
    return {f"{key}={_value(value)}" for key, value in settings.items()}


def _value(value: Any) -> str:
    if isinstance(value, str) and WORD.fullmatch(value):
        return value
    return json.dumps(value, default=str, separators=(",", ":"))
