"""Algorithms as text, the same notation wherever one is named.

    NAME[:setting=value,...][+COMPANION[:setting=value,...]]...     with a label of the user's choice: LABEL=NAME...

>>> parse("slow=fedavg:local.lr=0.01")
('slow', {'algorithm': {'name': 'fedavg'}, 'local': {'lr': 0.01}})
"""

from __future__ import annotations

import dataclasses
import json
import re
from typing import Any

from fedarena.config.components import Component
from fedarena.config.errors import BadValue, quoted
from fedarena.config.registry import name_of
from fedarena.config.toml_text import parse_assignment

Table = dict[str, Any]
SYNTAX = "write NAME, NAME:setting=value,... or NAME+COMPANION, e.g. fedavgm:beta=0.9+fedir"
OPEN, CLOSE = "[{(", "]})"


def parse(text: str, where: str = "-a") -> tuple[str, Table]:
    """Return the label of a text and the tables that it stands for.

    >>> parse("fedavg+fedvc:n_vc=64+fedir")[1]
    {'algorithm': {'name': 'fedavg', 'with': [{'name': 'fedvc', 'n_vc': 64}, {'name': 'fedir'}]}}
    """
    text = text.strip()
    own, equals, rest = text.partition("=")
    if not equals or re.search("[:+]", own):
        own, rest = text, text
    elif not own.strip() or not rest.strip():
        raise BadValue(f"'{quoted(text)}' names no algorithm", remedy=SYNTAX, where=where)
    first, *companions = (_part(part, f"{where} {quoted(text)}") for part in _split(rest, "+"))
    local = {k.removeprefix("local."): first.pop(k) for k in list(first) if k.startswith("local.")}
    if companions:
        first["with"] = companions
    for part in (first, *companions):
        strange = next((k for k in part if "." in k), None)
        if strange is not None:
            raise BadValue(
                f"{strange} cannot differ between algorithms",
                remedy="settings of the algorithm and local.* of the first name may; --set changes the rest for all",
                where=f"{where} {quoted(text)}",
            )
    return own.strip(), {"algorithm": first, **({"local": local} if local else {})}


def label_of(table: Table) -> str:
    """Return the label of a table as it would be typed: the name, and the settings that differ from the defaults.

    >>> from fedarena.algorithms import FedIR, FedProx
    >>> label_of({"algorithm": FedIR(base=FedProx(mu=0.5)), "local": {"lr": 0.1}})
    'fedprox:mu=0.5,local.lr=0.1+fedir'
    """
    made = Component.choose("algorithm", table["algorithm"], "algorithm").made
    parts = []
    while made is not None:
        around = getattr(made, "base", None)
        parts.append((name_of(made), _differing(made)))
        made = around
    name, settings = parts[-1]
    parts[-1] = (name, settings | {f"local.{k}": v for k, v in table.get("local", {}).items()})
    return "+".join(name + (":" if own else "") + ",".join(map(_setting, own.items())) for name, own in reversed(parts))


def _differing(made: Any) -> Table:
    fields = dataclasses.fields(made) if dataclasses.is_dataclass(made) else ()
    values = {f.name: (getattr(made, f.name), f.default) for f in fields if f.name != "base"}
    return {name: value for name, (value, default) in values.items() if value is not default and value != default}


def _setting(item: tuple[str, Any]) -> str:
    key, value = item
    return f"{key}={value if isinstance(value, str) else json.dumps(value, default=str, separators=(',', ':'))}"


def _part(text: str, where: str) -> Table:
    """Return the table of a name with its settings."""
    name, colon, rest = text.partition(":")
    settings = [item.strip() for item in _split(rest, ",")] if colon else []
    bad = next((item for item in settings if not re.match(r"(?!(name|with)\b)[\w.]+\s*=\s*\S", item)), None)
    if bad is not None or not name.strip():
        what = (
            "a name is missing"
            if bad is None
            else f"'{quoted(bad)}' is not a setting"
            if bad
            else "a setting is missing"
        )
        raise BadValue(what, remedy=SYNTAX, where=where)
    return {"name": name.strip(), **dict(map(parse_assignment, settings))}


def _split(text: str, mark: str) -> list[str]:
    """Split at the marks outside brackets and quotes; a plus before a digit belongs to a number (1e+5)."""
    parts, depth, quote = [""], 0, ""
    for here, after in zip(text, f"{text[1:]} ", strict=False):
        if here == quote:
            quote = ""
        elif not quote and here in "\"'":
            quote = here
        elif not quote:
            depth += (here in OPEN) - (here in CLOSE)
            if here == mark and depth == 0 and not (mark == "+" and after.isdigit()):
                parts.append("")
                continue
        parts[-1] += here
    return parts
