"""Run a training task: simulate it from one table, or take part in it as the guest or a host."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedarena.common.files import make_folder
from fedarena.config.errors import BadValue, CannotWrite
from fedarena.config.seeds import stream
from fedarena.transport.certificates import Identity
from fedarena.trees.bins import check_columns
from fedarena.vertical.align import Matching
from fedarena.vertical.handshake import HostParty, align_guest, load_alignment
from fedarena.vertical.model import FILE as MODEL
from fedarena.vertical.model import GuestModel, write_json
from fedarena.vertical.party_tables import GUEST, PartyTable, TableSource, split_columns
from fedarena.vertical.settings import BoostSettings
from fedarena.vertical.task_file import DONE, FILE, METRICS, PartyConnection, TrainingTask

if TYPE_CHECKING:
    from fedarena.vertical.guest import TreeRecord
    from fedarena.vertical.host import HostPolicy

log = logging.getLogger(__name__)


def train(task: TrainingTask, choose_folder: Callable[[], Path], *, resume: bool) -> dict[str, Any]:
    """Simulate a training or run it as the guest, resume it if asked, and return what `--json` prints.

    `choose_folder` is called after all checks, so that a mistake leaves no folder behind.
    """
    from fedarena.vertical.guest import Guest, end_training

    if task.line is not None and task.check_pooled:
        raise BadValue(
            "only a simulation has all columns in one place to compare with",
            remedy="leave out --check-pooled, or --party",
        )
    table = task.source.load()
    settings = complete_settings(task.settings, table)
    check_columns(table.x, table.names, table.name)
    if not 0 <= task.test_share < 1:
        raise BadValue(
            f"a share of {task.test_share} test rows leaves none to train",
            remedy="choose from 0 to below 1",
            where="--test-share",
        )
    columns = {} if task.line is not None else split_columns(table, task.source.columns, task.source.hosts)
    if task.check_pooled:
        from fedarena.vertical.pooled_check import refuse_lossy

        refuse_lossy(settings)
    folder = choose_folder()
    if not resume:
        _create_folder(folder)
        source = dataclasses.replace(task.source, classes=table.class_names)
        dataclasses.replace(task, source=source).save(folder)
    elif task.line is not None and (folder / MODEL).exists() and (model := GuestModel.load(folder)).finished:
        if not (folder / DONE).exists():  # the guest stopped after its last tree, and some hosts may still wait
            with task.line.channels() as channels:
                end_training(channels)
            write_json(folder / DONE, {"trees": len(model.trees)})
        alignment = load_alignment(folder, table)
        rows = table if alignment is None else table.take(alignment.rows)
        return {**_summarise(task, rows, model), "model_dirs": [str(folder)]}
    try:
        if task.line is None:
            return _simulate(task, table, columns, settings, folder, resume)
        with task.line.channels() as channels:
            alignment = align_guest(channels, table, task.matching, folder=folder)
            log.info(alignment.summary())
            rows = table.take(alignment.rows)
            options = _guest_options(task, rows, settings, resume)
            model = Guest(
                rows.x, rows.require_labels(), channels, settings, names=rows.names, folder=folder, **options
            ).train()
        write_json(folder / DONE, {"trees": len(model.trees)})
        return {**_summarise(task, rows, model), "model_dirs": [str(folder)]}
    except KeyboardInterrupt as stopped:
        stopped.add_note(f"resume with: fedarena vertical train --resume {folder}")
        raise


def complete_settings(settings: dict[str, Any], table: PartyTable) -> BoostSettings:
    """Return validated settings, with the objective that fits the labels unless one is set."""
    table.require_labels()
    complete = {"objective": table.objective, **settings}
    if complete["objective"] != "squared_error":
        complete["classes"] = max(len(table.class_names), 2)
    return BoostSettings(**complete)


def training_rows(rows: int, test_share: float, seed: int) -> NDArray[np.bool_]:
    """Return which rows the trees are grown from; the others are test rows."""
    training = np.ones(rows, dtype=bool)
    training[stream(seed, "split").permutation(rows)[: round(rows * test_share)]] = False
    return training


def _create_folder(folder: Path) -> None:
    if (folder / FILE).exists():
        raise CannotWrite(
            f"{folder} already holds a training", remedy=f"resume it: --resume {folder}, or choose another folder"
        )
    make_folder(folder)


def _guest_options(task: TrainingTask, table: PartyTable, settings: BoostSettings, resume: bool) -> dict[str, Any]:
    training = training_rows(len(table), task.test_share, settings.seed)
    return {"training": training, "resume": resume, "on_tree": lambda record: log.info(tree_line(record))}


def _simulate(
    task: TrainingTask,
    table: PartyTable,
    columns: dict[str, list[int]],
    settings: BoostSettings,
    folder: Path,
    resume: bool,
) -> dict[str, Any]:
    """Run all parties in this process; each still has a folder of its own."""
    from fedarena.vertical.simulation import simulate

    options = _guest_options(task, table, settings, resume)
    tables = [table.x[:, own] for own in columns.values()]
    model = simulate(
        tables,
        table.require_labels(),
        settings,
        names=[[table.names[i] for i in own] for own in columns.values()],
        hosts=list(columns)[1:],
        folder=folder,
        **options,
    )
    pooled: dict[str, Any] = {}
    if task.check_pooled:
        from fedarena.vertical.pooled_check import check_pooled

        check = check_pooled(model, tables, table.require_labels(), training=options["training"])
        pooled = {
            f"{check.metric}_pooled": check.pooled,
            "splits_equal": check.splits_equal,
            "splits": check.splits,
            "margin_difference": check.margin_difference,
        }
    return {**_summarise(task, table, model.guest), **pooled, "model_dirs": [str(folder / party) for party in columns]}


def _summarise(task: TrainingTask, table: PartyTable, model: GuestModel) -> dict[str, Any]:
    """Return the results of a training under the same names for all; trees from before a restart count."""
    last = model.history[(model.best_round or 0) * model.settings.trees_per_round - 1]
    return {
        "algorithm": model.settings.algorithm,
        "dataset": task.source.name,
        "parties": [GUEST, *model.hosts],
        "rows": len(table),
        "trees": len(model.trees),
        "depth": model.settings.depth,
        "key_bits": model.settings.key_bits,
        "auc": None,
        "auc_pooled": None,
        "splits_equal": None,
        str(last["metric"]): last["value"],
        "seconds_per_tree": sum(h["seconds"] for h in model.history) / len(model.history),
        "bytes_up": sum(h["bytes_up"] for h in model.history),
        "bytes_down": sum(h["bytes_down"] for h in model.history),
    }


def tree_line(record: TreeRecord) -> str:
    """Return a finished tree as one line of text."""
    width = len(str(record.trees))
    return (
        f"tree {record.tree:>{width}}/{record.trees}  gain {record.gain:10.4f}  {record.metric} {record.value:.5f}  "
        f"{record.bytes_up / 1e6:.2f} MB up  {record.bytes_down / 1e6:.2f} MB down  {record.seconds:.2f} s"
    )


def format_trees(trees: int) -> str:
    """Return a number of trees with its noun.

    >>> format_trees(1), format_trees(3)
    ('1 tree', '3 trees')
    """
    return "1 tree" if trees == 1 else f"{trees} trees"


def training_summary(found: dict[str, Any]) -> str:
    """Return the result of `train` as text for the terminal."""
    metric = next(name for name in METRICS if found.get(name) is not None)
    lines = [
        f"{found['algorithm']} on {found['dataset']}: {format_trees(found['trees'])} of depth {found['depth']}, "
        f"{found['key_bits']} bits, {' and '.join(found['parties'])}",
        f"  {metric} {found[metric]:.5f}   {found['seconds_per_tree']:.2f} s a tree, "
        f"{found['bytes_up'] / 1e6:.1f} MB up, {found['bytes_down'] / 1e6:.1f} MB down",
    ]
    if found.get("splits_equal") is not None:
        same = "the same trees" if found["splits_equal"] else "NOT the same trees"
        lines.append(f"  pooled {metric} {found[metric + '_pooled']:.5f}: {same} ({found['splits']} splits compared)")
    return "\n".join([*lines, *(f"  {folder}" for folder in found["model_dirs"])])


def serve_training(
    source: TableSource,
    connection: PartyConnection,
    choose_folder: Callable[[str], Path],
    policy: HostPolicy,
    matching: Matching,
) -> dict[str, Any]:
    """Take part in a training as a host until the guest ends it."""
    from fedarena.vertical.host import Host

    identity, table = Identity.load(connection.keys), source.load()
    check_columns(table.x, table.names, identity.name)
    folder = choose_folder(identity.name)
    if (folder / DONE).exists():
        raise CannotWrite(f"{folder} holds a finished training", remedy="choose another folder", where="--out")
    make = lambda table: Host(table.x, table.names, name=identity.name, folder=folder, policy=policy)
    party = HostParty(table, make, matching, name=identity.name, folder=folder)
    connection.serve(party, identity)
    assert isinstance(party.host, Host)
    trees = len(party.host.model.trees)
    if trees:  # else the guest left before the first tree, and may come back
        write_json(folder / DONE, {"trees": trees})
    return {"party": identity.name, "trees": trees, "model_dirs": [str(folder)]}
