"""A sweep: one setting of the uplink, of `local.privacy` or of the attack at several values, with each of which every
algorithm is run.

>>> parse_sweep("uplink.noise=0,0.5,1")
('uplink.noise', [0, 0.5, 1])
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedarena.config.components import Component
from fedarena.config.errors import BadValue, check_known, quoted
from fedarena.config.experiment import with_settings
from fedarena.config.registry import components
from fedarena.config.settings_tables import LocalPrivacy, SettingsTable, Uplink
from fedarena.config.toml_text import parse_assignment
from fedarena.engine.attackers import can_be_attacked
from fedarena.experiments.contestants import Contestants, contestants

Sweep = str | Mapping[str, Any]
SYNTAX = "write a key of uplink, local.privacy or attack and its values, e.g. --sweep uplink.noise=0,0.5,1,2"
TABLES: dict[str, type[SettingsTable]] = {"uplink": Uplink, "local.privacy": LocalPrivacy}
OF_UPDATES = ("uplink", "attack")  # which baselines without updates do not have


def parse_sweep(text: Sweep) -> tuple[str, list[Any]]:
    """Return the key and the values of a sweep, given as a text or a table."""
    if isinstance(text, str):
        key, _, listed = text.partition("=")
        given = {key.strip(): [parse_assignment(f"value={one}")[1] for one in listed.split(",") if one.strip()]}
    else:
        given = {key: list(values) for key, values in text.items()}
    if len(given) != 1:
        raise BadValue(f"a sweep has one key, and {len(given)} are given", remedy=SYNTAX, where="--sweep")
    ((key, values),) = given.items()
    part, _, name = key.rpartition(".")
    if part != "attack" and part not in TABLES:
        raise BadValue(
            f"'{quoted(key)}' is not a key of uplink, local.privacy or attack", remedy=SYNTAX, where="--sweep"
        )
    known = _numbers_of_attacks() if part == "attack" else list(TABLES[part].model_fields)
    check_known(name, known, f"{part} has no key '{quoted(name)}'", f"it has: {', '.join(known)}", "--sweep")
    if len(values) < 2 or len(set(map(str, values))) < len(values):
        raise BadValue(f"{key} has the values {quoted(values)}", remedy="give two or more, each once", where="--sweep")
    return key, values


def _numbers_of_attacks() -> list[str]:
    """Return the settings of all attacks that are numbers."""
    settings = (setting for attack in components("attack").values() for setting in attack.parameters.values())
    return sorted({one.name for one in settings if one.type.partition(" ")[0] in ("int", "float")})


def with_sweep(choices: Any, sweep: Sweep) -> tuple[Contestants, dict[str, Any]]:
    """Return every algorithm at every value, and the sweep of the plan; baselines without updates of clients run once."""
    key, values = parse_sweep(sweep)
    part, _, name = key.rpartition(".")
    entered, of = {}, {}
    for label, table in contestants(choices, least=1).items():
        made = Component.choose("algorithm", table["algorithm"], "algorithm").made
        if part in OF_UPDATES and not can_be_attacked(made):
            entered[label] = table
            continue
        for value in values:
            own = f"{label} {name}={value}"
            entered[own] = with_settings(table, {part: {name: value}} if part in OF_UPDATES else {key: value})
            of[own] = {"algorithm": label, "value": value}
    return entered, {"key": key, "values": values, "of": of}
