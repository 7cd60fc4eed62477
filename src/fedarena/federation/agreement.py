"""The agreement of all clients before the first round: columns, labels, order, sums. The server makes it without samples."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from fedarena.config.errors import BadValue, PartitionImpossible
from fedarena.config.experiment import Experiment
from fedarena.data.client_tests import hold_out
from fedarena.data.dataset import Dataset, Partition, unknown_labels
from fedarena.data.sources.class_codes import MOST_CLASSES
from fedarena.data.table_columns import MOST_LEVELS
from fedarena.federation.client_data import MOST_ROWS, agreed_encoding, grows_trees, task_of_table
from fedarena.federation.messages import Agreement, ColumnDescription, SampleCounts, TableDescription
from fedarena.federation.statistics_release import Totals
from fedarena.federation.wire_format import WireRefused

Descriptions = Mapping[str, TableDescription]  # by name
LARGEST = 1e300  # of a sum that a client sends: those of all clients can be added


def table_differences(new: TableDescription, other: str, known: TableDescription) -> str:
    """Return why two tables cannot be combined, or an empty text."""
    theirs, ours = ({c.name: c.kind for c in table.columns} for table in (new, known))
    if theirs.keys() != ours.keys():
        lacks, more = sorted(ours.keys() - theirs.keys()), sorted(theirs.keys() - ours.keys())
        parts = [f"lacks {_some(lacks)}"] * bool(lacks) + [f"has {_some(more)} besides"] * bool(more)
        return f"its table {' and '.join(parts)}, compared with that of '{other}'"
    for column, kind in theirs.items():
        if kind != ours[column] and "empty" not in (kind, ours[column]):
            return f"its column '{column}' holds {kind}, that of '{other}' {ours[column]}"
    if new.label_kind != known.label_kind:
        return f"its labels are {new.label_kind}, those of '{other}' {known.label_kind}"
    return ""


def _some(names: Sequence[str]) -> str:
    shown = ", ".join(f"'{name}'" for name in names[:5])
    return shown + (f" and {len(names) - 5} more" if len(names) > 5 else "")


def client_order(names: Sequence[str]) -> list[str]:
    """Return the names of clients 0, 1, ...: sorted as a column of names would be, numbers by their size."""
    numbers = all(name.isascii() and name.isdigit() for name in names)
    return sorted(names, key=lambda name: (int(name), name) if numbers else (0, name))


def first_agreement(
    described: Descriptions, shares_models: bool = False, classes: tuple[str, ...] | None = None
) -> dict[str, Agreement]:
    """Return classes, columns and positions, which follow from the descriptions of the tables.

    `classes` are given where they follow from the experiment: the names of several labels, or none.
    """
    order = client_order(list(described))
    tables = [described[name] for name in order]
    if classes is None:
        classes = _classes(tables)
    columns = tuple(_column(column.name, tables) for column in tables[0].columns)
    if not columns:
        raise BadValue("the clients have no feature column", remedy="drop fewer columns", where="data.drop")
    sizes = [table.rows for table in tables]
    if sum(sizes) > MOST_ROWS:
        raise BadValue(f"the clients have {sum(sizes)} rows together", remedy=f"have at most {MOST_ROWS}")
    before = np.concatenate([[0], np.cumsum(sizes)]).tolist()
    return {
        name: Agreement(
            client=k,
            clients=len(order),
            rows_before=before[k],
            rows=before[-1],
            classes=classes,
            columns=columns,
            shares_models=shares_models,
        )
        for k, name in enumerate(order)
    }


def _classes(tables: Sequence[TableDescription]) -> tuple[str, ...]:
    """Return the labels of all clients, in the order in which a pooled table would number them."""
    every = {label for table in tables for label in table.classes}
    numbers = tables[0].label_kind == "numbers"
    classes = tuple(sorted(every, key=lambda label: (int(label) if numbers else 0, label)))
    if not 2 <= len(classes) <= MOST_CLASSES:
        raise BadValue(
            f"the clients have {len(classes)} labels together",
            remedy=f"choose a column of 2 to {MOST_CLASSES} classes",
            where="data.label",
        )
    return classes


def _column(name: str, tables: Sequence[TableDescription]) -> ColumnDescription:
    found = [next(column for column in table.columns if column.name == name) for table in tables]
    words = tuple(sorted({word for column in found for word in column.words}))
    if len(words) > MOST_LEVELS:
        raise BadValue(
            f"column '{name}' holds {len(words)} distinct words at all clients together",
            remedy=f"add it to drop, or have at most {MOST_LEVELS}",
            where="data.drop",
        )
    kinds = {column.kind for column in found if column.kind != "empty"}
    if len(kinds) != 1:
        problem = "holds numbers at one client and words at another" if kinds else "has no value at any client"
        raise BadValue(f"column '{name}' {problem}", remedy="add it to drop", where="data.drop")
    return ColumnDescription(name=name, kind=kinds.pop(), words=words)


def check_counted(counts: SampleCounts, described: TableDescription) -> None:
    """Decline sample counts that differ from what the client described."""
    rows = described.rows + described.test_rows
    if counts.train < 1 or counts.train + counts.test != rows:
        counted = f"it has {counts.train} training and {counts.test} test rows"
        raise WireRefused(f"{counted}, and said that it has {rows} in all")


def with_statistics(
    agreed: Mapping[str, Agreement], counted: Mapping[str, SampleCounts], totals: Totals, held_out: float | None = None
) -> dict[str, Agreement]:
    """Add what follows from the totals over all clients: means, deviations and class counts."""
    samples = sum(_trained(c, held_out) for c in counted.values())
    problem = totals.implausible(samples)
    if problem:
        raise BadValue(
            f"the statistics of all clients together cannot be right: {problem}",
            remedy="run the same fedarena at every client; a client that is not honest cannot be named under masks",
        )
    if 0 in totals.present:
        raise BadValue("a column has no value in any training row", remedy="drop it", where="data.drop")
    news: dict[str, Any] = {
        "means": totals.means() or None,
        "deviations": tuple(map(math.sqrt, totals.variances(samples))) if totals.squares else None,
        "class_counts": totals.class_counts or None,
        "label_scale": None if totals.label is None else _label_scale(totals.label, samples),
    }
    return {name: one.model_copy(update=news) for name, one in agreed.items()}


def _trained(counts: SampleCounts, held_out: float | None) -> int:
    """Return how many samples a client trains on, without the share that is held out for tuning."""
    return counts.train - int(round((held_out or 0.0) * counts.train, 9))


def _label_scale(label: Totals, samples: int) -> tuple[float, float]:
    """Return mean and deviation of a regression's labels; raise if all labels are equal."""
    (mean,), (variance,) = label.means(), label.variances(samples)
    if variance <= 0:
        raise BadValue(
            "the label has one value in all training rows", remedy="choose a label that differs", where="data.label"
        )
    return mean, math.sqrt(variance)


def with_counts(
    agreed: Mapping[str, Agreement], counted: Mapping[str, SampleCounts], experiment: Experiment
) -> dict[str, Agreement]:
    """Add the largest number of training samples of a client, where updates are masked."""
    if not getattr(experiment.uplink, "secure", False):
        return dict(agreed)
    heaviest = max(_trained(c, experiment.validate_share) for c in counted.values())
    return {name: one.model_copy(update={"heaviest": heaviest}) for name, one in agreed.items()}


def without_rows(
    experiment: Experiment, agreed: Mapping[str, Agreement], counted: Mapping[str, SampleCounts]
) -> tuple[Dataset, Partition]:
    """Return the federation as the server knows it: the number of samples of every client, and none of the samples."""
    order = client_order(list(agreed))
    one = agreed[order[0]]
    train = [counted[name].train for name in order]
    test = [counted[name].test for name in order]
    if not sum(test):
        raise PartitionImpossible("no client has a row to test on", remedy="raise data.test", where="data.test")
    n, m = sum(train), sum(test)
    encoding = agreed_encoding(one, experiment.data.made, grows_trees(experiment))
    task, outputs = task_of_table(experiment.data.made), len(one.classes) or 1
    width = len(encoding.columns if grows_trees(experiment) else encoding.column_names)
    x = np.broadcast_to(np.float32(0), (n + m, width))
    owner = np.concatenate([np.repeat(np.arange(len(order)), train), np.repeat(np.arange(len(order)), test)])
    data = Dataset(
        "participants",
        x,
        unknown_labels(task, n + m, outputs),
        n,
        outputs,
        owner=owner,
        owner_names=tuple(order),
        class_names=one.classes,
        task=task,
        encoding=encoding,
    )
    clients = np.split(np.arange(n), np.cumsum(train)[:-1])
    tests = np.split(np.arange(n, n + m), np.cumsum(test)[:-1])
    partition = Partition(clients, np.arange(n, n + m), tests, names=tuple(order))
    if experiment.validate_share is not None:
        partition, held = hold_out(partition, experiment.validate_share, experiment.seed_for("valid"))
        partition = replace(partition, test=np.sort(np.concatenate(held)), client_tests=held)
    return data, partition
