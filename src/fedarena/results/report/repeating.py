"""How to repeat what a report shows: commands, the experiment, and what it was made with."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from typing import Any

from fedarena.results.comparison import Comparison
from fedarena.results.folder import read_facts

TOLD = ("fedarena", "python", "torch", "numpy", "scipy", "platform", "processor", "cores")
ELSEWHERE = ("algorithm", "folds", "fold")  # keys of an experiment that the command gives
LISTED = 20  # runs to name one by one


def about(result: Comparison) -> str:
    """What the commands do."""
    if is_gathered(result):
        return "Every run is repeated, and compared bit by bit, from its folder:"
    return "Save the experiment below as experiment.toml and type:"


def commands(result: Comparison) -> list[str]:
    """What to type: the comparison as a whole, or run by run."""
    if is_gathered(result):
        folders = [str(run.dir) for runs in result.runs.values() for run in runs]
        more = [f"# and {len(folders) - LISTED} more"] if len(folders) > LISTED else []
        return [f"fedarena verify {shlex.quote(folder)}" for folder in folders[:LISTED]] + more
    plan = result.plan
    names = {label: _name(table["algorithm"]) for label, table in plan.contestants.items()}
    words = [
        f"-a {shlex.quote(typed(label, table))}" for label, table in plan.contestants.items() if label != plan.reference
    ]
    words.append(f"--folds {plan.folds} --repeats {plan.repeats}" if plan.folds else f"--seeds {plan.repeats}")
    words.append(f"--rope {plan.rope:g} --threshold {plan.threshold:g}")
    if "centralized" not in names.values():
        words.append("--no-baseline")
    return [" \\\n    ".join(["fedarena compare experiment.toml", *words])]


def is_gathered(result: Comparison) -> bool:
    """Is it made of runs that were found, not of a comparison that was run as one?"""
    return result.dir is None and any(run.dir is not None for runs in result.runs.values() for run in runs)


def typed(label: str, table: Mapping[str, Any]) -> str:
    """A contestant as `-a` takes it, with every setting that is not the default.

    >>> typed("tuned", {"algorithm": {"name": "fedprox", "mu": 0.5}, "local": {"lr": 0.05}})
    'tuned=fedprox:mu=0.5,local.lr=0.05'
    """
    algorithm = table["algorithm"]
    own = dict(algorithm) if isinstance(algorithm, Mapping) else {"name": algorithm}
    companions = own.pop("with", [])
    local = {f"local.{key}": value for key, value in table.get("local", {}).items()}
    text = "+".join([_part(own, local), *(_part(dict(companion), {}) for companion in companions)])
    return text if label == text or ":" in label or "+" in label else f"{label}={text}"


def _part(table: dict[str, Any], local: dict[str, Any]) -> str:
    name = str(table.pop("name"))
    usual = {} if table.pop("own", False) else _defaults(name)
    settings = {k: v for k, v in table.items() if v is not None and usual.get(k) != v} | local
    return name + ":" * bool(settings) + ",".join(f"{k}={_value(v)}" for k, v in settings.items())


def _defaults(name: str) -> dict[str, Any]:
    from fedarena.registry import find

    return {key: parameter.default for key, parameter in find("algorithm", name).parameters.items()}


def _value(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, default=str, separators=(",", ":"))


def _name(algorithm: Any) -> str:
    return str(algorithm["name"] if isinstance(algorithm, Mapping) else getattr(algorithm, "name", algorithm))


def toml(result: Comparison) -> str:
    """What all have in common, complete."""
    first = next(iter(result.runs.values()))[0].experiment
    common = {key: result.plan.experiment[key] for key in ("seed", "local") if key in result.plan.experiment}
    lines = first.with_(**common).to_toml().splitlines()
    return "\n".join(text for text in lines if text.partition(" ")[0] not in ELSEWHERE)


def versions(result: Comparison) -> dict[str, str]:
    """Of the programs, and of the machine."""
    first = next(iter(result.runs.values()))[0]
    known = result.plan.versions or ({} if first.dir is None else read_facts(first.dir))
    return {key: str(known[key]) for key in TOLD if key in known}
