"""2,000 generated experiments: each is refused with an error of ours, or opens, prints back as itself and repeats its bits.

Keys, values and names are right and wrong, mixed, over the whole schema, given as keywords, as TOML text and as `--set`
texts. The first 200 are part of the default run; `make fuzz` runs them all.
"""

from __future__ import annotations

import dataclasses
import datetime
import json
import math
import random
import types
import typing
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import pytest
from pydantic.fields import FieldInfo

import fedarena as fa
from fedarena.config.errors import FedarenaError
from fedarena.config.experiment import Experiment
from fedarena.config.registry import Kind, components
from fedarena.config.settings_tables import ALL_COMPONENTS, Devices, Evaluate, Local, Uplink
from fedarena.engine.record import TIMES
from fedarena.engine.setup import open_context
from tests.fuzz import limited

CASES, CHUNK, DEFAULT = 2000, 50, 200
LONGEST_MESSAGE = 1500
TABLES: dict[str, Any] = {"local": Local, "evaluate": Evaluate, "devices": Devices, "uplink": Uplink}
SLOW = ("resnet18", "allconvnet")  # models that take seconds to build or train
DEEP: Any = []
for _ in range(200):
    DEEP = [DEEP]
WILD: list[Any] = [
    math.nan, math.inf, -math.inf, 1e308, -1e308, 5e-324, 1e-30, 1e13, 0, -1, 0.5, 1, 2**31, 2**63, 10**30, 16**5000, True,
    False, "", "none", "nan", "inf", "0", "-1", "1e400", "all", "plain", "fedavg", "a\0b", "é\u202e\U0001f600", "z" * 5000,
    "\n", "\x7f\x1b[31m", "../..", "~no-such-user/x", "/dev/null", "/dev/full/x", "d/" * 3000, "cuda", "meta", "{", "*", "%s",
    "$(ls)", "\ud800", [], {}, [[1], [2, 3]], {"a": {"b": {"c": 1}}}, {"name": "fedir"}, {"name": 5}, ["fedir", "fedvc"],
    [None], DEEP, datetime.date(2020, 1, 1),
]  # fmt: skip
OBJECTS: list[Any] = [None, b"x", object(), 1 + 2j, Path("x"), Path("a\0b"), {1: 2}, {None: None}, len, type, range(3)]
NAMES = ["", "fedavgg", "FEDAVG", "a.b", "x" * 300, "naïve", "none", "name", "with", "own", "0", "lr", " "]


@pytest.fixture(scope="module", autouse=True)
def _home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A folder with a small table, a small text and traces of devices, and no downloaded data."""
    folder = tmp_path_factory.mktemp("fuzz")
    rng = random.Random(0)
    rows = (f"{rng.gauss(0, 1):.3f},{rng.gauss(0, 1):.3f},{'abc'[i % 3]},{i % 5}\n" for i in range(90))
    (folder / "t.csv").write_text("u,v,y,site\n" + "".join(rows))
    (folder / "said.txt").write_text("".join(f"{'AB'[i % 2]}: line {i} is said\n" for i in range(24)))
    (folder / "trace.csv").write_text("client,speed\n" + "".join(f"{k},{100 + k}\n" for k in range(4)))
    (folder / "there.csv").write_text("client,from,to\n" + "".join(f"{k},0,100000\n" for k in range(4)))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("FEDARENA_DATA", str(folder))
        patch.setenv("XDG_CACHE_HOME", str(folder))
        yield


# Values that fit, by the type of a setting


def fitting(rng: random.Random, annotation: Any, marks: tuple[Any, ...] = ()) -> Any:
    """Return a small value of this type, within its range."""
    origin, inner = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        return fitting(rng, inner[0], (*marks, *inner[1:]))
    if origin in (typing.Union, types.UnionType):
        kinds = [kind for kind in inner if kind is not type(None)]
        return "none" if type(None) in inner and rng.random() < 0.2 else fitting(rng, rng.choice(kinds), marks)
    if origin is Literal:
        return rng.choice(inner)
    if origin is tuple:
        return [fitting(rng, kind, marks) for kind in inner if kind is not Ellipsis]
    if annotation is bool:
        return rng.random() < 0.5
    if annotation in (int, float):
        low, high = _range(marks)
        few = [low, low + 1, low + 2, low + 4, (low + high) / 2, 0.05, 0.3, 0.5, 1.0, high]
        allowed = [number for number in few if low <= number <= high and (annotation is float or number % 1 == 0)]
        return annotation(rng.choice(allowed or [low]))
    return rng.choice(["always", "day", "trace.csv", "there.csv", "t.csv", "y", "site", ",", ":"])


def _range(marks: tuple[Any, ...]) -> tuple[float, float]:
    low, high = 0.0, 6.0
    limits = [one for mark in marks for one in (mark.metadata if isinstance(mark, FieldInfo) else [mark])]
    for name, margin in (("ge", 0.0), ("gt", 1e-3)):
        low = max([low, *(getattr(one, name) + margin for one in limits if getattr(one, name, None) is not None)])
    for name, margin in (("le", 0.0), ("lt", 1e-3)):
        high = min([high, *(getattr(one, name) - margin for one in limits if getattr(one, name, None) is not None)])
    return low, high


FIT: dict[str, Any] = {  # where the type alone does not say what fits
    "data": lambda rng: {**rng.choice(DATA[:2]), "test": rng.choice([0.2, 0.5])},
    "uplink": lambda rng: rng.choice(
        ["plain", "mean_only", {"clip": 1.0}, {"clip": 0.5, "noise": 0.1}, {"secure": True}]
    ),
    "freeze": lambda rng: rng.choice([[], ["*bias"], "*weight", ["*"]]),
    "device": lambda rng: "cpu",
    "compile": lambda rng: False,  # torch.compile takes half a minute
    "batch": lambda rng: rng.choice([1, 8, 1000, math.inf, "inf", "all"]),
    "jitter": lambda rng: rng.choice([0, 0.5, 0.99]),
    "trace": lambda rng: rng.choice(["none", "trace.csv"]),
    "available": lambda rng: rng.choice(["always", "day", "there.csv"]),
    "clients": lambda rng: rng.choice([0, 1, 2, 4, 5]),
}


def setting(rng: random.Random, good: bool) -> tuple[str, Any]:
    """Return one key, perhaps with a sub-key, and a value for it."""
    if not good and rng.random() < 0.15:
        return rng.choice(NAMES + [f"{key}.{name}" for key in Experiment.model_fields for name in NAMES]), wild(rng)
    key = rng.choice([*Experiment.model_fields, *TABLES, *TABLES, *ALL_COMPONENTS])
    if key in TABLES and (good or rng.random() < 0.9):
        name, field = rng.choice(list(TABLES[key].model_fields.items()))
        value = FIT[name](rng) if name in FIT else fitting(rng, field.annotation, tuple(field.metadata))
        return f"{key}.{name}", value if good else wild(rng)
    if key in ALL_COMPONENTS and key != "data":
        return component(rng, key, good)
    field = Experiment.model_fields[key]
    if not good:
        return key, wild(rng)
    return (key, FIT[key](rng)) if key in FIT else (key, fitting(rng, field.annotation, tuple(field.metadata)))


def component(rng: random.Random, key: str, good: bool) -> tuple[str, Any]:
    kind: Kind = ALL_COMPONENTS[key]
    ours = [(n, e) for n, e in components(kind).items() if e.make.__module__.startswith("fedarena.")]  # not other tests'
    name, entry = rng.choice(sorted(item for item in ours if item[0] not in SLOW))
    table: dict[str, Any] = {"name": name if good or rng.random() < 0.8 else rng.choice(NAMES)}
    for parameter in entry.parameters.values():
        if rng.random() < 0.4 and parameter.annotation is not Any:
            value = fitting(rng, parameter.annotation)
            table[parameter.name] = value if good or rng.random() < 0.5 else wild(rng)
    table = {name: value for name, value in table.items() if not (good and value == "none")}
    if key == "algorithm" and rng.random() < 0.2:
        table["with"] = rng.choice([["fedir"], ["fedvc"], "fedvc", [{"name": "fedvc", "n_vc": 8}]] if good else WILD)
    return key, table


def wild(rng: random.Random) -> Any:
    return rng.choice(WILD)


DATA: list[Any] = [
    {"name": "csv", "path": "t.csv", "label": "y", "client": "site"},
    {"name": "csv", "path": "t.csv", "label": "y", "drop": ["site"]},
    {"name": "least_squares", "clients": 4, "rows": 20, "features": 3},
    {"name": "lines", "path": "said.txt", "length": 8},
    "digits",
]


def settings_of(rng: random.Random) -> tuple[dict[str, Any], bool]:
    good = rng.random() < 0.6
    table: dict[str, Any] = {"data": rng.choice(DATA[:2]) if rng.random() < 0.8 else rng.choice(DATA[2:])}
    if table["data"] in DATA[:2]:
        table |= {"model": "logreg", **({} if "client" in table["data"] else {"clients": 4})}
    for place in range(rng.randint(1, 4)):
        key, value = setting(rng, good or place > 0)
        table[key] = value
        if good and key in ("fold", "folds"):
            table |= {"folds": 3, "fold": rng.randint(0, 2)}
    if "uploads" not in table:
        table.setdefault("rounds", 1)
    if good and "share" in table:
        table.pop("per_round", None)
    if not good and rng.random() < 0.2:
        table["data"] = rng.choice(
            [wild(rng), {**DATA[0], rng.choice(["path", "label", "client", "separator", "test"]): wild(rng)}]
        )
    return table, good


# The three ways in


def toml(value: Any) -> str:
    """Return the value as TOML, or as what a user might have typed in its place."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(str(k))} = {toml(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(toml, value)) + "]"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, int):
        return hex(value) if value > 2**63 else str(value)
    return str(value)


def made(rng: random.Random, table: dict[str, Any], good: bool) -> Experiment:
    way = rng.choice(["keywords", "file", "texts", "mixed"])
    if way == "keywords":
        if not good and rng.random() < 0.3:
            table[rng.choice(list(table))] = rng.choice(OBJECTS)
        return Experiment.make(None, **table)
    if way == "file":
        lines = (
            f"{key if key.replace('.', '').isidentifier() else json.dumps(key)} = {toml(v)}" for key, v in table.items()
        )
        text = "\n".join(lines)
        if not good and rng.random() < 0.1:
            text = rng.choice([text + "\n[[[", "\0" + text, text.replace('"', "'"), text + "\n" + text, "[" * 3000])
        Path("exp.toml").write_bytes(text.encode("utf-8", "surrogatepass"))
        return Experiment.make("exp.toml")
    overrides = [f"{key}={toml(value)}" for key, value in table.items()]
    if way == "mixed":
        return Experiment.make({"data": table["data"]}, [text for text in overrides if not text.startswith("data=")])
    return Experiment.make(None, overrides)


# What must hold


def small(exp: Experiment) -> Experiment | None:
    """Return the experiment with two rounds at most, or None where even that takes long."""
    if exp.local.epochs > 5 or exp.model.name in (*SLOW, "char_lstm", "word_lstm"):
        return None
    return exp.with_(rounds=min(exp.rounds or 2, 2))


def outcome(exp: Experiment) -> Any:
    """Return the bits of a run, or the kind of error that it ends with."""
    try:
        run = fa.run(exp, out=False, runtime="serial")
    except FedarenaError as error:
        return type(error)
    seen = [{k: v for k, v in dataclasses.asdict(r).items() if k not in TIMES} for r in run.records]
    return run.weights_sha256, repr(seen)


def check(case: int) -> str:
    """Return the outcome of a case: a FedarenaError, a correct result, or an error of another kind, which is a bug."""
    rng = random.Random(f"experiment {case}")
    table, good = settings_of(rng)
    try:
        exp = made(rng, dict(table), good)
        exp = exp.with_(compile=False)  # torch.compile takes half a minute
        open_context(exp)
    except FedarenaError as error:
        refusal = error
    else:
        refusal = None
    if refusal is not None:
        assert len(str(refusal)) < LONGEST_MESSAGE, f"a message of {len(str(refusal))} characters"
        assert refusal.remedy
        return "refused"
    Path("again.toml").write_text(exp.to_toml(), encoding="utf-8")
    again = Experiment.make("again.toml")
    assert again == exp
    assert again.to_toml() == exp.to_toml()
    short = small(exp) if rng.random() < 0.5 else None
    if short is None:
        return "opened"
    Path("again.toml").write_text(short.to_toml(), encoding="utf-8")
    assert outcome(short) == outcome(Experiment.make("again.toml"))
    return "ran"


@pytest.mark.slow
@pytest.mark.parametrize(
    "first",
    [pytest.param(n, marks=[] if n < DEFAULT else [pytest.mark.fuzz_full]) for n in range(0, CASES, CHUNK)],
)
@pytest.mark.filterwarnings("ignore")
def test_an_experiment_is_refused_or_repeats(first: int) -> None:
    seen: Counter[str] = Counter()
    wrong: list[str] = []
    for case in range(first, first + CHUNK):
        try:
            with limited(f"case {case}"):
                seen[check(case)] += 1
        except Exception as error:
            table = settings_of(random.Random(f"experiment {case}"))[0]
            wrong.append(f"case {case}: {type(error).__name__}: {str(error)[:300]} <- {ascii_of(table)}")
    assert not wrong, "\n".join(wrong)
    assert seen["refused"] > 2
    assert seen["opened"] + seen["ran"] > 2


def ascii_of(value: Any) -> str:
    try:
        return ascii(value)[:400]
    except (ValueError, RecursionError):
        return "(too long to print)"
