"""What leaves the machine of a client of an experiment, in words for its owner."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedarena.algorithms.base import Asynchronous
from fedarena.algorithms.histboost import HistBoost
from fedarena.config.errors import join_words
from fedarena.config.experiment import Experiment
from fedarena.config.settings_tables import LocalPrivacy
from fedarena.federation.client_data import grows_trees, needs_means
from fedarena.federation.consent import task_of
from fedarena.federation.evaluation_sums import followed_from
from fedarena.federation.messages import TableDescription
from fedarena.federation.statistics_release import MASKED_FROM


def what_leaves(experiment: Experiment, shares_models: bool, clients: int = 1) -> list[str]:
    """Describe what a client of this experiment sends, besides the sizes and times of its messages."""
    exp, source = experiment, experiment.data.made
    algorithm, uplink = exp.algorithm.made, exp.uplink
    task = task_of(exp)
    labels = " and the labels that occur" if task == "classification" else ""
    shared = [f"the names of its columns{labels}, and how many rows it has to train and to test on"]
    if source.one_hot:
        shared.append("the levels that occur in text columns")
    if grows_trees(exp):
        sums = ["of each text column how many training rows have each level"]
    else:
        sums = ["of each column the number of values, the sum over its training rows"] * needs_means(source)
        sums += ["the sum of their squares"] * source.standardise
    sums += ["how many training rows it has of each class"] * algorithm.counts_classes
    sums += ["the sum of its labels and of their squares over its training rows"] * (task == "regression")
    if sums:
        shared.append(f"{join_words(sums)}: {_visibility(clients)}")
    if grows_trees(exp):
        shared += _trees(exp)
    elif algorithm.communicates:
        shared.append(f"what {exp.algorithm.name} sends of each training: {_answer(uplink, exp.local.privacy)}")
        if exp.bn_buffers in ("average", "recompute"):
            shared.append("BatchNorm's statistics of its training rows, if the model has any")
    loss = "" if exp.local.privacy is not None else "its loss, "
    shared.append(f"of each training {loss}its steps and whether it ended in finite numbers")
    rule = None if exp.select is None else exp.select.made
    if rule is not None and rule.asks_losses:
        shared.append("the mean loss of the model over its training rows, whenever it is considered for a round")
    if rule is not None and rule.reports_squared_loss:
        shared.append("of each training the mean squared loss over its training rows of the model that it received")
    right = {
        "classification": "how many of its test rows the model gets right, and the sum of their losses",
        "multilabel": "how many labels of its test rows the model gets right, and the sum of their losses",
    }
    shared.append(right.get(task, "the sum of the losses of its test rows"))
    shared += {"regression": _errors, "survival": _own_concordance}.get(task, _metrics)(exp, clients)
    if shares_models:
        shared.append("the model that it keeps for itself, to be tested on the rows of the others")
    if isinstance(algorithm, Asynchronous):
        shared.append("when it has finished a training")
    return shared


def _trees(exp: Experiment) -> list[str]:
    """Describe what is sent for growing trees, and what is agreed for it."""
    algorithm = exp.algorithm.made
    secure = not isinstance(exp.uplink, str) and exp.uplink.secure
    who = "masked, so that the server reads only the sums over clients" if secure else "the server reads your own"
    shared = []
    if isinstance(algorithm, HistBoost):
        shared += [
            "in the first round, to find cut points that all clients share: in how many of its training rows a column has a "
            "value in each cell of a grid, whose cells around quantiles are divided down to single numbers: with the totals "
            f"the server knows up to {algorithm.bins} values of each column; {who}",
            "of every node of a tree, of each column and bin: the sums of the first and second derivatives of the loss over "
            f"its training rows: {who}",
        ]
    elif algorithm.communicates:
        shared.append(
            "the trees that it grows on its training rows alone, whose thresholds are values of its rows: the server reads "
            "them, and all clients get them"
        )
    if task_of(exp) == "regression":
        shared.append(f"that no label of its training rows is larger than {algorithm.label_max:g}, which is agreed")
    return shared


def _errors(exp: Experiment, clients: int) -> list[str]:
    """Describe what is sent for the metrics of a regression."""
    if exp.algorithm.made.personal:
        return []
    when = "after the last round" if exp.evaluate.metric == "loss" else "at every evaluation"
    who = _visibility(
        clients, "with them it knows how wrong the model is on your test rows, and their labels' mean and spread"
    )
    sums = (
        "the sums of absolute and squared errors, of labels and of squared labels, and how many outputs are not finite"
    )
    return [f"{when}, over its test rows: {sums}: {who}"]


def _own_concordance(exp: Experiment, clients: int) -> list[str]:
    """Describe what is sent for the metrics of a survival task."""
    rows = "training" if exp.evaluate.on == "train" else "test"
    return [
        f"after the last round, its own C-index over its {rows} rows (none with fewer than --least): the server reads it"
    ]


def _metrics(exp: Experiment, clients: int) -> list[str]:
    """Describe what is sent for metrics beyond accuracy and loss."""
    followed, bins = followed_from(exp.evaluate.metric or "accuracy"), exp.evaluate.histograms

    def times(*needed: str) -> str:
        return "at every evaluation" if followed in needed else "after the last round"

    shared = []
    each = "of each label: " if task_of(exp) == "multilabel" else ""
    if not exp.algorithm.made.personal:
        who = _visibility(
            clients, "with them it knows which classes the model confuses in your test rows, and how often"
        )
        shared.append(
            f"{times('sums', 'histograms')}, over its test rows: {each}how many with each label the model takes for each "
            "label, the sums of log loss and Brier score, and in 15 bins of confidence the rows, the right ones and the sum "
            f"of confidence: {who}"
        )
    if bins and not exp.algorithm.made.personal:
        who = _visibility(clients, "with them it knows how the scores of your test rows are spread in each class")
        shared.append(
            f"{times('histograms')}, score histograms: of each class how many of its test rows, and of the other test rows, "
            f"the model gives a probability in each of {bins} equal bins: {who}"
        )
    elif not bins:
        rows = "training" if exp.evaluate.on == "train" else "test"
        shared.append(
            f"after the last round, its own AUC and average precision over its {rows} rows (none with fewer than --least): "
            "the server reads them"
        )
    return shared


def label_lines(experiment: Experiment, class_counts: Mapping[str, int]) -> list[str]:
    """Return the values at consent of the counts that are sent for metrics: they add up to the labels of test rows."""
    if experiment.algorithm.made.personal or not class_counts:
        return []
    counts = shortened(", ".join(f"{count} of {label!r}" for label, count in class_counts.items()))
    return [
        f"what is counted for metrics adds up to the labels of its test rows, which are some of these rows: {counts}"
    ]


COLUMNS = "with them it knows the mean and the spread of every column of your table"


def _visibility(clients: int, consequence: str = COLUMNS) -> str:
    """Describe who can read the sums of one client."""
    if clients >= MASKED_FROM:
        return (
            f"masked, so that the server reads only the totals over all {clients} clients; it reads your own sums if it "
            "controls all the others, or hands out false keys"
        )
    return (
        "the server reads your own sums, because masks protect nothing among fewer than "
        f"{MASKED_FROM} clients: {consequence}"
    )


def description_lines(described: TableDescription) -> list[str]:
    """Return the lines that show the description of this table with its values."""
    counts = f"{described.rows} rows" + (f" and {described.test_rows} test rows" if described.test_rows else "")
    columns = ", ".join(f"'{column.name}'" for column in described.columns)
    lines = [
        f"sample counts: {counts}",
        f"columns: {shortened(columns)}",
        *([f"labels: {shortened(', '.join(map(repr, described.classes)))}"] if described.classes else []),
    ]
    return lines + [
        f"levels of '{column.name}': {shortened(', '.join(map(repr, column.words)))}"
        for column in described.columns
        if column.words
    ]


def shortened(text: str, most: int = 400) -> str:
    """Shorten a long text for a terminal, and state how much is left out."""
    return text if len(text) <= most else f"{text[:most]} ... and {len(text) - most} characters more"


def _answer(uplink: Any, privacy: LocalPrivacy | None) -> str:
    parts = ["a change of the model's weights or the like"]
    if privacy is not None:
        parts.append(
            f"trained with gradients of single rows that are clipped to {privacy.clip:g}, "
            f"and noise of {privacy.noise:g} times that on their sum"
        )
    if not isinstance(uplink, str):
        parts += [f"clipped to {uplink.clip or 0:g}"] * (uplink.clip is not None)
        parts += [f"the largest {uplink.top_k or 0:.0%} of its numbers"] * (uplink.top_k is not None)
        parts += [f"rounded to {uplink.quantise} bits"] * (uplink.quantise is not None)
        parts += ["masked, so that only the sum over clients can be read"] * uplink.secure
    return ", ".join(parts)
