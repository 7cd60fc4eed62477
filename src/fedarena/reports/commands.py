"""How to repeat a comparison: commands, the experiment, and the versions that it was made with."""

from __future__ import annotations

import itertools
import json
import shlex
from collections.abc import Mapping
from pathlib import Path, PurePath
from typing import Any

from fedarena.config.comparison_plan import PARTS, Plan, Split
from fedarena.config.components import PATHS, is_from_python
from fedarena.config.experiment import Experiment
from fedarena.config.toml_text import write_toml_value
from fedarena.reports.contestant_text import in_python, typed_contestants
from fedarena.results.comparison import Comparison
from fedarena.results.run_folder import read_facts

VERSIONS = ("fedarena", "python", "torch", "numpy", "scipy", "platform", "processor", "cores")
ELSEWHERE = ("algorithm", "folds", "fold", "fold_seed")  # keys of an experiment that the command gives
LISTED = 20  # runs to name one by one


def about(result: Comparison) -> str:
    """Return a sentence about what the commands do."""
    if is_collected(result):
        return "Run every run again and compare it bit by bit:"
    named = " and ".join(names(result))
    beside = f", put {named} beside it" if named else ""
    files = "the files below" if spaces(result) else "the experiment below as experiment.toml"
    if not _needs_python(result.plan):
        return f"Save {files}{beside} and type:"
    own = [*_own_keys(result.plan), *(label for label, text in in_python(result.plan).items() if text == "...")]
    missing = f", with your own {', '.join(own)} in place of the dots" if own else ""
    return f"This comparison was made from Python. Save {files}{beside} and call{missing}:"


def commands(result: Comparison) -> list[str]:
    """Return the commands that repeat the comparison as a whole, or run by run."""
    if is_collected(result):
        folders = [_shown(run.dir) for runs in result.runs.values() for run in runs]
        more = [f"# and {len(folders) - LISTED} more"] if len(folders) > LISTED else []
        return [f"fedarena verify {shlex.quote(folder)}" for folder in folders[:LISTED]] + more
    return [_call(result.plan) if _needs_python(result.plan) else _command(result.plan)]


def _shown(folder: Path | None) -> str:
    """Return the path of a folder from here, or its name alone if it lies elsewhere: a page shows no absolute paths."""
    if folder is None:
        return "."
    here = Path.cwd()
    return str(
        folder if not folder.is_absolute() else folder.relative_to(here) if here in folder.parents else folder.name
    )


def is_collected(result: Comparison) -> bool:
    """Return whether it was collected from single runs, not run as one comparison."""
    return result.dir is None and any(run.dir is not None for runs in result.runs.values() for run in runs)


def _command(plan: Plan) -> str:
    words = [f"-a {shlex.quote(text)}" for text in typed_contestants(plan).values() if text is not None]
    words += [" ".join(_option(key, value) for key, value in group.items()) for group in _how(plan)]
    if not _has_baseline(plan):
        words.append("--no-baseline")
    words += [f"--leave-out {shlex.quote(client)}" for client in plan.leave_one_out]
    return " \\\n    ".join(["fedarena compare experiment.toml", *words])


def _option(key: str, value: Any) -> str:
    """Return an option as it is typed; one that is true has no value."""
    name = f"--{key.replace('_', '-')}"
    return name if value is True else f"{name} {value}"


def _call(plan: Plan) -> str:
    """Return the comparison as a call in Python, where a label may be any text."""
    how = [", ".join(f"{key}={value!r}" for key, value in group.items()) for group in _how(plan)]
    inner = [
        '"experiment.toml"',
        *(f"{key}=..." for key in _own_keys(plan)),
        "algorithms={",
        *(f"    {label!r}: {text}," for label, text in in_python(plan).items()),
        "}",
        *how,
        *(() if _has_baseline(plan) else ("baseline=False",)),
        *((f"leave_one_out={list(plan.leave_one_out)!r}",) if plan.leave_one_out else ()),
    ]
    lines = (f"    {text}" + "," * (text[-1] not in "{,") for text in inner)
    return "\n".join(["import fedarena as fa", "", "fa.compare(", *lines, ")"])


def _how(plan: Plan) -> list[dict[str, Any]]:
    """Return the options of splitting, scoring and tuning, those of a line together."""
    first = plan.looks[0].splits // (plan.folds or 1) if plan.looks else plan.repeats
    split: dict[str, Any] = {"folds": plan.folds, "repeats": first} if plan.folds else {"seeds": first}
    if plan.at_most is not None:
        split |= {"until_decided": True, "at_most": plan.at_most}
    common = {name: ",".join(parts) for name in ("fixed", "per_repeat") if (parts := _asked_for(plan, name))}
    options: list[dict[str, Any]] = [
        split,
        *([common] if common else []),
        {"score": plan.score, "evaluate_on": plan.evaluate_on},
        {"rope": float(plan.rope), "threshold": float(plan.threshold)},
    ]
    if plan.tuning:
        tuning = {"tune": "trials", "tune_per": "per", "tune_method": "method"}
        given = {"spaces": "spaces.toml"} if plan.tuning.get("given") else {}
        options.append({key: plan.tuning[name] for key, name in tuning.items()} | given)
    if plan.sweep:
        options.append({"sweep": f"{plan.sweep['key']}={','.join(map(str, plan.sweep['values']))}"})
    return options


def _asked_for(plan: Plan, name: str) -> list[str]:
    """Return the parts that an option has to name; those that the experiment itself fixes are left out."""
    settled = [part for part in PARTS if f"{part}_seed" in plan.experiment]
    return [part for part in getattr(plan, name) if part not in settled]


def _has_baseline(plan: Plan) -> bool:
    return "centralized" in (_name(table["algorithm"]) for table in plan.contestants.values())


def _name(algorithm: Any) -> str:
    return str(algorithm["name"] if isinstance(algorithm, Mapping) else getattr(algorithm, "name", algorithm))


def _needs_python(plan: Plan) -> bool:
    return bool(_own_keys(plan)) or None in typed_contestants(plan).values()


def _own_keys(plan: Plan) -> list[str]:
    """Return the keys of the experiment whose values no text can name."""
    return [key for key, value in plan.experiment.items() if is_from_python(value)]


def toml(result: Comparison) -> str:
    """Return the common experiment, complete, as it was before tuning."""
    plan, first = result.plan, next(iter(result.runs.values()))[0].experiment
    if "data" in plan.experiment and "algorithm" not in plan.experiment:  # planned, not collected
        first = Plan(plan.experiment, {"": {}}, own=plan.own).cell("", Split(0))
    aside = (*ELSEWHERE, *_own_keys(plan))
    text = "\n".join(text for text in first.to_toml().splitlines() if text.partition(" ")[0] not in aside)
    for path in _files(first):
        text = text.replace(_quoted(path), _quoted(PurePath(path).name))
    return text


def _files(experiment: Experiment) -> list[str]:
    """Return the absolute paths that an experiment names."""
    settings = {**experiment.data.settings, **experiment.partition.settings}
    named = [settings.get(key) for key in PATHS] + [experiment.devices.trace, experiment.devices.available]
    every = itertools.chain.from_iterable(one if isinstance(one, list | tuple) else [one] for one in named)
    return [path for path in every if isinstance(path, str) and PurePath(path).is_absolute()]


def names(result: Comparison) -> list[str]:
    """Return the names of the files that the experiment reads; they are to be put beside experiment.toml."""
    return [PurePath(path).name for path in _files(next(iter(result.runs.values()))[0].experiment)]


def spaces(result: Comparison) -> str:
    """Return the search spaces that were given, a table for each label; nothing where all were the default ones."""
    tuning = result.plan.tuning
    return "\n".join(
        f"[{_quoted(label)}]\n"
        + "\n".join(f"{_quoted(key)} = {write_toml_value(d)}" for key, d in tuning["spaces"][label].items())
        for label in tuning.get("given", ())
    )


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def versions_text(result: Comparison) -> str:
    """Return the versions of the programs, and the machine, in one line."""
    first = next(iter(result.runs.values()))[0]
    known = result.plan.versions or ({} if first.dir is None else read_facts(first.dir))
    return " · ".join(f"{key} {known[key]}" for key in VERSIONS if key in known)
