"""The check that an experiment can run in a real federation, and the list of what leaves the machine of a client."""

from __future__ import annotations

import tomllib
from typing import Any

from fedarena.algorithms.base import Algorithm
from fedarena.algorithms.companions import Companion
from fedarena.config.errors import BadValue
from fedarena.config.experiment import Experiment
from fedarena.data.published_files import ELSEWHERE
from fedarena.data.sources.table_files import TableFile
from fedarena.federation.client_data import grows_trees, task_of_table
from fedarena.federation.evaluation_sums import followed_from
from fedarena.statistics.metric_registry import TaskName, find_metric

OWNER = "participant"  # the column that would name the owner in a table of all rows
BUDGET = {"rounds", "uploads"}


def federated_experiment(source: Any, overrides: list[str], **settings: Any) -> Experiment:
    """Return the server's experiment, on a table of which each client has its own file."""
    experiment = Experiment.make(source, [*overrides, *_filled_in(source, overrides)], **settings)
    if task_of(experiment) == "survival" and experiment.evaluate.metric is None:
        experiment = experiment.with_(evaluate={"metric": "loss"})  # the C-index has no sums to follow
    check_experiment(experiment)
    return experiment


def _filled_in(source: Any, overrides: list[str]) -> list[str]:
    """Return overrides for keys of the data set that only a pooled table needs."""
    path = f'data.path="{ELSEWHERE}"'
    try:
        data = Experiment.make(source, overrides).data.made
    except BadValue as error:
        if path in overrides or not error.where.endswith("data") or "'path'" not in error.what:
            raise
        return [path, *_filled_in(source, [*overrides, path])]
    return [f'data.client="{OWNER}"'] if isinstance(data, TableFile) and data.client is None else []


LABELS = {  # of each task
    "classification": "one column",
    "regression": "one column",
    "multilabel": "one column or more, of 0 and 1",
    "survival": "two columns: the time and the event",
}
FEDERATED = (  # settings of a table, with the values that a federation has
    ("weight", None, None),
    ("missing_indicator", False, False),
    ("normalise", "pooled", "pooled"),
    ("fitted_on", "split", "split"),
)


def check_experiment(experiment: Experiment) -> None:
    """Refuse experiments that cannot run in a real federation."""
    exp = experiment
    own = [*exp.python_parts]
    metric = find_metric(exp.evaluate.metric, task_of(exp)).name
    needs = followed_from(metric)
    problems = [
        (
            not isinstance(exp.data.made, TableFile),
            f"'{exp.data.name}' is not a table of which clients have files",
            'write data = { name = "csv", label = "..." }: every client brings its file',
            "data",
        ),
        (
            isinstance(exp.data.made, TableFile) and not _has_labels(exp.data.made),
            f"the label of the task '{task_of(exp)}' is {LABELS.get(task_of(exp), '')}",
            'name it: data = { name = "csv", label = "..." }, or label = ["...", "..."]',
            "data.label",
        ),
        *(
            (
                isinstance(exp.data.made, TableFile) and getattr(exp.data.made, key, usual) not in allowed,
                f"data.{key} = {getattr(exp.data.made, key, usual)} is for simulations",
                "leave it out; `fedarena run` and `fedarena compare` have it for tables in one place",
                f"data.{key}",
            )
            for key, usual, *allowed in FEDERATED
        ),
        (
            task_of(exp) in ("regression", "survival") and exp.evaluate.histograms is not None,
            f"evaluate.histograms counts scores of classes, and the task '{task_of(exp)}' has none",
            "leave it out",
            "evaluate.histograms",
        ),
        (
            _needs_more_than_a_model(exp.algorithm.made),
            f"models of clients follow from more than the server's model in {exp.algorithm.name}, which is for simulations",
            "choose another personalised algorithm, such as ditto, fedper or fedrep",
            "algorithm",
        ),
        (
            grows_trees(exp) and task_of(exp) == "regression" and exp.algorithm.made.label_max is None,
            f"{exp.algorithm.name} adds up integers whose range follows from the largest label, which no client sends",
            "agree on it, and set algorithm.label_max",
            "algorithm.label_max",
        ),
        (
            exp.partition.name != "natural" or _changed(exp.partition.settings),
            f"partition '{exp.partition.name}' splits a pooled table, and here every client has samples of its own",
            'write partition = "natural", without settings, or leave it out',
            "partition",
        ),
        (
            exp.algorithm.made.pooled,
            f"{exp.algorithm.name} needs all samples in one place, and here they stay with the clients",
            "choose another algorithm; `fedarena run` trains on a pooled table, if there is one",
            "algorithm",
        ),
        (
            bool(own),
            f"the {''.join(own[:1])} came from Python",
            "register it, and give --file to the server and all clients",
            "".join(own),
        ),
        (
            not needs or (needs == "histograms" and exp.evaluate.histograms is None),
            f"clients of a real federation send counts and sums, from which '{metric}' cannot be computed",
            "set evaluate.histograms = 100, to which every client must consent: clients then send histograms of scores"
            if needs
            else "leave it out: the loss is followed, and clients send their own C-index after the last round"
            if metric == "c_index"
            else "follow a built-in metric",
            "evaluate.metric",
        ),
        (exp.folds is not None, "folds split a pooled table", "leave out folds and fold", "folds"),
        (exp.fold_seed is not None, "fold_seed divides pooled rows", "leave out fold_seed", "fold_seed"),
        (
            exp.exclude is not None,
            "exclude leaves clients of a simulation out",
            "leave out exclude: a client takes no part if it does not join",
            "exclude",
        ),
        (
            exp.attack is not None,
            "attacks are for simulations",
            "leave out attack; `fedarena run` and `fedarena compare` have it",
            "attack",
        ),
        (
            any(exp.data.settings.get(key) for key in ("group", "time")),
            "groups and times of rows are for simulations: every client divides its own rows",
            "leave out data.group and data.time, or give files to test on",
            "data",
        ),
        (
            exp.devices.available != "always" or exp.devices.overselect > 1 or exp.devices.deadline is not None,
            "devices that come and go are for simulations",
            "leave out devices.available, overselect and deadline; `fedarena serve` has --deadline and --minimum",
            "devices",
        ),
        (
            exp.evaluate.unseen is not None,
            "evaluate.unseen is for simulations: here every client that joins trains",
            "leave it out; `fedarena run` and `fedarena compare` have it for a table in one place",
            "evaluate.unseen",
        ),
        (
            bool(exp.evaluate.validation),
            "evaluate.validation is for simulations: here no samples are held out to choose a round",
            "leave it out; `fedarena run` and `fedarena compare` have it for a table in one place",
            "evaluate.validation",
        ),
    ]
    for wrong, what, remedy, where in problems:
        if wrong:
            raise BadValue(what, remedy=remedy, where=where)


def _needs_more_than_a_model(algorithm: Algorithm) -> bool:
    """Return whether clients predict by a message that is no single model; the final model, which they check, is one."""
    inside = isinstance(algorithm, Companion)  # the algorithm inside is not personal
    return algorithm.personal and not inside and type(algorithm).broadcast is not Algorithm.broadcast


def task_of(experiment: Experiment) -> TaskName:
    """Return the task of a federation; classification where the data is no table, which is refused."""
    source = experiment.data.made
    return task_of_table(source) if isinstance(source, TableFile) else "classification"


def _has_labels(source: TableFile) -> bool:
    """Return whether the experiment names as many label columns as its task has."""
    count, task = len(source.label_names), task_of_table(source)
    return count >= 1 if task == "multilabel" else count == (2 if task == "survival" else 1)


def _changed(settings: dict[str, Any]) -> bool:
    return any(value not in (None, 1) for value in settings.values())


def experiment_as_text(experiment: Experiment) -> str:
    """Return the experiment as TOML for clients, without paths of the server's machine."""
    table = tomllib.loads(experiment.to_toml())
    for key in ("path", "test_path"):
        if key in table["data"]:
            table["data"][key] = ELSEWHERE
    table["devices"].pop("trace", None)
    return Experiment.make(table).to_toml()


def experiment_from_text(text: str) -> Experiment:
    """Return the server's experiment, checked: it names installed components, and no file of this machine."""
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise BadValue(
            f"the server's experiment cannot be read: {error}", remedy="check that the server runs fedarena"
        ) from None
    experiment = Experiment.make(table, where="the server's experiment")
    check_experiment(experiment)
    if experiment.devices.trace is not None:
        raise BadValue(
            "the server's experiment names a file of this machine", remedy="refuse it", where="devices.trace"
        )
    return experiment


def differences(mine: Experiment, theirs: Experiment) -> dict[str, str]:
    """Return the keys in which two experiments differ, each with both values in words."""
    ours, other = (tomllib.loads(experiment_as_text(exp)) for exp in (mine, theirs))
    changed = [key for key in {**ours, **other} if ours.get(key) != other.get(key)]
    return {key: f"{key} = {other.get(key)}, not {ours.get(key)}" for key in changed}
